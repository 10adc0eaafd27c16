"""Dump: threads as a stream of their own format, to be loaded into another store, of any storage.

Numbers of the store are given anew in the order in which a thread first uses them, packs are taken apart, and chunks
that nothing needs stay behind: so a thread has one dump, wherever it was loaded and packed. Imports store and below.
The invariant: each thread is read in one moment, and one that can't be read whole raises.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.primitives import PACK_LEVEL, unseal
from deltastore.errors import BrokenChainError, InvalidInputError, ThreadNotFoundError
from deltastore.log import finding, keys, names, policy, rows, tagging
from deltastore.log.reading import FoundRow, View
from deltastore.storage.port import ReadTransaction
from deltastore.store import Store, check_name, check_open, check_several
from deltastore.upkeep import marking
from deltastore.upkeep.dumpframes import FIRST_CHANNEL, FIRST_REDUCER, FIRST_TAG, FrameWriter, Sink
from deltastore.upkeep.places import check_outside
from deltastore.upkeep.progress import Progress
from deltastore.upkeep.renumbering import Numbers

MAX_BATCH_RECORDS = 256
MAX_BATCH_BYTES = 1 << 20
"""What one frame of records holds, before compression: what a reader must have in memory."""


@dataclass(frozen=True, slots=True)
class Dumped:
    """What a dump holds, and its size in bytes."""

    threads: int
    checkpoints: int
    bytes: int


def dump(
    store: Store,
    file: str | PathLike[str] | Sink,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Dumped:
    """Write threads, or all that there are, to a file to be made, or to an open binary one; the oldest thread first.

    Each thread is read in one moment, for as long as it takes to write it; the moments differ. Nothing is decoded, and
    what reads as deleted isn't in it. `progress` counts threads.

    Raises ThreadNotFoundError, InvalidInputError where the file exists, StorePathError for one inside the store's own
    directory, StorageError, and CorruptionError naming a thread that can't be read; then no file is left. What an open
    file raises is raised as it is.
    """
    check_open(store)
    if isinstance(file, str | PathLike):
        check_outside(store, file)
    elif not callable(getattr(file, "write", None)):
        raise InvalidInputError(f"a file of type {type(file).__name__}; expected a path, or a file open for bytes")
    check_several(threads, "threads")
    wanted = None if threads is None else [check_name(name, "thread") for name in threads]
    found = _find(store, wanted)
    with _opened(file) as sink:
        frames = FrameWriter(sink)
        written = checkpoints = 0
        for place, name in enumerate(found, 1):
            with store.log.storage.read() as tx:
                located = finding.find_thread(tx, name)
                if located is None and wanted is not None:
                    raise ThreadNotFoundError(f"thread {name!r} was deleted while others were dumped")
                if located is not None:
                    checkpoints += _ThreadDump(tx, *located, name, store.log.names, frames).run()
                    written += 1
            if progress is not None:
                progress(place, len(found))
        frames.put(["end", written])
    return Dumped(written, checkpoints, frames.bytes)


def _find(store: Store, wanted: Iterable[str] | None) -> list[str]:
    """Return the names of threads in the order they were made. Raises ThreadNotFoundError."""
    with store.log.storage.read() as tx:
        if wanted is None:
            prefix = keys.numbers_of(keys.THREAD)
            return [keys.decode_name(unseal(key, row)) for key, row in tx.scan(prefix, keys.end_of(prefix))]
        numbers: dict[int, str] = {}
        for name in wanted:
            number = names.find(tx, keys.THREAD, keys.encode_name(name))
            if number is None:
                raise ThreadNotFoundError(f"no thread is named {name!r}; see the store's threads")
            numbers[number] = name
        return [name for _, name in sorted(numbers.items())]


@contextmanager
def _opened(file: str | PathLike[str] | Sink) -> Iterator[Sink]:
    """Open a file to be made, durable when the block ends, and gone where the block fails."""
    if not isinstance(file, (str, PathLike)):
        yield file
        return
    from deltastore.storage.directory import sync_directory  # LMDB, which a store in memory can do without
    from deltastore.storage.engine import translate_os

    path = Path(file)
    try:
        out = path.open("xb")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"no dump can be made at {path}: {error}; name a file to be made") from error
    try:
        with out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        sync_directory(path.absolute().parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise translate_os(error, f"{path}, which was removed") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class _ThreadDump:
    """One thread in one transaction."""

    def __init__(
        self,
        tx: ReadTransaction,
        number: int,
        header: rows.Header,
        name: str,
        known: names.Names,
        frames: FrameWriter,
    ) -> None:
        self.tx = tx
        self.number = number
        self.header = header
        self.view = View(tx, number, name)
        self.known = known
        self.frames = frames
        self.numbers = Numbers(
            self._numbered(keys.CHANNEL, "channel", FIRST_CHANNEL),
            self._numbered(keys.REDUCER, "reducer", FIRST_REDUCER),
            self._numbered(keys.TAG, "tag", FIRST_TAG),
        )
        self.needed: tuple[set[int], set[int]] = (set(), set())

    def _numbered(self, kind: bytes, item: str, first: int) -> Callable[[int], int]:
        """Return what gives a number of this kind anew, naming it in the dump where it is met first."""
        given: dict[int, int] = {}

        def number(stored: int) -> int:
            if stored not in given:
                name = self.known.name(self.tx, kind, stored)
                self.frames.put([item, keys.encode_name(name)])
                given[stored] = first + len(given)
            return given[stored]

        return number

    def run(self) -> int:
        """Write the thread; return how many checkpoints it has. Raises CorruptionError naming it."""
        header = self.header
        self.frames.begin_thread(
            [
                "thread",
                header.name,
                header.created_ms,
                header.updated_ms,
                header.last_ulid,
                header.next_chunk,
                header.deleted,
            ]
        )
        for namespace in rows.load_namespaces(self.tx, self.number):
            self._namespace(namespace)
        marking.add_bases(self.view, self.needed)
        for series in range(rec.SERIES):
            self._chunks(series)
        self.frames.end_thread(header.checkpoints)
        return header.checkpoints

    def _broken(self, what: str) -> BrokenChainError:
        return BrokenChainError(
            f"thread {self.view.name!r} can't be dumped: {what}. Rows were lost or damaged; run check, dump the other "
            "threads by name, and restore this one from a backup"
        )

    # --- namespaces

    def _namespace(self, namespace: rows.Namespace) -> None:
        self.frames.put(["namespace", namespace.name, namespace.front, namespace.tip])
        visible: set[str] = set()
        batch: list[Any] = []
        size = 0
        for found in self.view.record_rows(namespace.number):
            for ulid, record in zip(found.row.ulids, found.row.records, strict=True):
                if not record.is_hidden:
                    visible.add(record.id or ulids.to_text(ulid))
                item = self._record(namespace, found, ulid, record)
                batch.append(item)
                size += len(ormsgpack.packb(item))
                if len(batch) >= MAX_BATCH_RECORDS or size >= MAX_BATCH_BYTES:
                    self.frames.put(["records", batch])
                    batch, size = [], 0
        if batch:
            self.frames.put(["records", batch])
        if len(visible) != namespace.count:
            name = keys.decode_name(namespace.name)
            raise self._broken(f"namespace {name!r} has {len(visible)} checkpoints where {namespace.count} are counted")
        self._early_writes(namespace, visible)
        tags = tagging.load(self.tx, self.number, namespace.number)
        if tags:
            self.frames.put(["tags", [[keys.encode_name(tag), rec.pack_id(id_)] for tag, id_ in tags.items()]])

    def _record(self, namespace: rows.Namespace, found: FoundRow, ulid: bytes, record: rec.Record) -> list[Any]:
        for op in record.ops:
            series = rec.series_of(op.channel)
            match op:
                case rec.Set():
                    self._need(series, op.value)
                case rec.Patch():
                    self.needed[series].update(sp.numbers(op.spans))
                case rec.Fold():
                    for write in op.writes:
                        self._need(series, write)
        id_ = record.id or ulids.to_text(ulid)
        packed: rows.Tasks = {}
        loose: rows.Tasks = {}
        if record.is_remnant or not record.is_hidden:  # else what has the id now has the writes
            for task, row in found.row.writes.get(record.id if record.is_remnant else id_, {}).items():
                packed |= rows.decode_tasks(task, row)
        if not record.is_hidden:
            for key, sealed in self.tx.scan(*keys.writes_of(self.number, namespace.number, keys.encode_id(id_))):
                loose |= rows.decode_tasks(key, unseal(key, sealed))
        tasks = self._tasks(rows.merge_tasks(packed, loose))
        return [ulid, rec.fields_of(self.numbers.record(record)), tasks]

    def _early_writes(self, namespace: rows.Namespace, visible: set[str]) -> None:
        """Write the writes of checkpoints that never came, or haven't yet."""
        prefix = keys.all_writes(self.number) + namespace.number.to_bytes(keys.NAMESPACE_BYTES, "big")
        by_id: dict[str, rows.Tasks] = {}
        for key, sealed in self.tx.scan(prefix, keys.end_of(prefix)):
            id_ = keys.decode_name(key[len(prefix) + 1 : -keys.HASH_BYTES])
            if id_ not in visible:
                by_id.setdefault(id_, {}).update(rows.decode_tasks(key, unseal(key, sealed)))
        for id_, tasks in by_id.items():
            self.frames.put(["writes", rec.pack_id(id_), self._tasks(tasks)])

    def _tasks(self, tasks: rows.Tasks) -> list[Any]:
        for writes in tasks.values():
            for write in writes.values():
                self._need(0, write.value)
        return rows.fields_of_tasks(self.numbers.tasks(tasks))

    # --- chunks

    def _need(self, series: int, value: rec.Value) -> None:
        self.needed[series].update(sp.numbers(value.spans))

    def _chunks(self, series: int) -> None:
        """Write the needed chunks, as rows of a size that doesn't depend on how they were stored."""
        missing = self.needed[series]
        numbers: list[int] = []
        tags = bytearray()
        whole: dict[int, bytes] = {}
        based: dict[int, chunkrow.Based] = {}
        size = 0

        def write() -> None:
            made = self.numbers.chunks(chunkrow.ChunkRow(tuple(numbers), bytes(tags), dict(whole), dict(based)))
            row = chunkrow.encode_row(made, chunkrow.encode_body(made, PACK_LEVEL))
            self.frames.put(["chunks", series, made.numbers[-1], row], packed=True)
            for held in (numbers, tags, whole, based):
                held.clear()

        prefix = keys.chunks(self.number, series)
        for key, sealed in self.tx.scan(prefix, keys.end_of(prefix)):
            row = self.view.open_chunks(key, sealed)
            for place, number in enumerate(row.numbers):
                if number not in missing:
                    continue
                missing.discard(number)
                numbers.append(number)
                tags.append(row.tags[place])
                if number in row.based:
                    based[number] = row.based[number]
                    size += len(based[number].frame)
                else:
                    whole[number] = row.whole[number]
                    size += len(whole[number])
                if size >= policy.MAX_PACK_BYTES or len(numbers) == chunkrow.MAX_CHUNKS_PER_ROW:
                    write()
                    size = 0
        if numbers:
            write()
        if missing:
            raise self._broken(f"chunk {min(missing)} of series {series} is missing")
