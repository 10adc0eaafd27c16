"""`Log`: puts, reads and deletions of one open store, over any storage.

Imports the other modules of log. The invariant: reads use one short read transaction and none while user code runs; a put is prepared
outside write transactions and applied in one. Thread-safe.
"""

import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.codec.blobs import Codec, assemble
from deltastore.codec.strict import STRICT
from deltastore.errors import (
    BrokenChainError,
    ChecksumError,
    ContentionError,
    FormatError,
    InvalidInputError,
)
from deltastore.log import copying, deleting, keys, names, pending, policy, putting, rows, walking
from deltastore.log.heads import DEFAULT_CACHE_BYTES, Head, HeadCache
from deltastore.log.reading import View, check_latest, require
from deltastore.log.registry import Registry
from deltastore.log.state import Channel, State
from deltastore.reducers import FIRST_INTERNED_REDUCER, Reducer
from deltastore.storage.port import ReadTransaction, Storage, WriteTransaction

FORMAT_VERSION = 0
"""The format that this release reads and writes; 0 promises nothing."""
MAX_ATTEMPTS = 100
"""How often a put is prepared anew while others write to the same thread."""

T = TypeVar("T")
P = TypeVar("P")


class _Stale(Exception):
    """Aborts a transaction whose basis doesn't hold any more."""


@dataclass(frozen=True, slots=True)
class LoadedChannel:
    """A channel's chunks as stored, and the writes that a user's reducer is still to fold: kind and chunks of each."""

    kind: int
    blobs: list[bytes] | None
    reducer: int
    writes: tuple[tuple[int, list[bytes]], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A checkpoint as read in one moment; decoding it needs no transaction any more."""

    ulid: bytes
    id: str
    parent_id: str | None
    record: rec.Record
    channels: dict[str, LoadedChannel]
    hidden: dict[int, LoadedChannel]
    reducers: dict[int, Reducer]
    writes: list["WriteLoaded"]

    def values(self, codec: Codec) -> dict[str, Any]:
        """Return the channels' values, as fresh objects."""
        return {name: self._value(channel, codec) for name, channel in self.channels.items()}

    def hidden_value(self, number: int, codec: Codec) -> Any:
        """Return a hidden channel's value; an empty dict where the checkpoint has none."""
        channel = self.hidden.get(number)
        return {} if channel is None else self._value(channel, codec)

    def _value(self, channel: LoadedChannel, codec: Codec) -> Any:
        value = None if channel.blobs is None else assemble(channel.kind, channel.blobs, codec)
        if not channel.writes:
            return value
        reducer = self.reducers[channel.reducer]
        writes = [assemble(kind, blobs, codec) for kind, blobs in channel.writes]
        return reducer.fold_all(value, writes, present=channel.blobs is not None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint as listed: its record, without values."""

    ulid: bytes
    id: str
    parent_id: str | None
    namespace: str
    record: rec.Record


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread as listed."""

    name: str
    number: int
    header: rows.Header


@dataclass(frozen=True, slots=True)
class WriteLoaded:
    """A pending write with its chunks."""

    task: str
    path: str
    idx: int
    channel: str
    kind: int
    blobs: list[bytes]
    time_ms: int


class Log:
    """One open store. Owns neither threads of its own nor, beyond the head cache, any state. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        *,
        snapshot_frequency: int | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        reducers: Iterable[Reducer] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open what a storage holds; a fresh one is made a store. Raises FormatError, InvalidInputError."""
        if snapshot_frequency is not None:
            check_frequency(snapshot_frequency)
        self.storage = storage
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._pid = os.getpid()
        stored = self._open_format(snapshot_frequency)
        self.uuid: bytes = stored[1]
        self.names = names.Names(storage)
        self.registry = Registry(self.names, reducers)
        frequency = snapshot_frequency or stored[2].get("snapshot_frequency", policy.DEFAULT_SNAPSHOT_FREQUENCY)
        self._context = putting.Context(HeadCache(cache_bytes), self.registry, frequency)

    @property
    def snapshot_frequency(self) -> int:
        """How many checkpoints from one anchor to the next, in this handle."""
        return self._context.snapshot_frequency

    @property
    def heads(self) -> HeadCache:
        """The head cache of this handle."""
        if os.getpid() != self._pid:  # a fork copies locks as they are, perhaps held by a thread that isn't here
            self._pid = os.getpid()
            cache = HeadCache(self._cache_bytes)
            self._context = putting.Context(cache, self.registry, self._context.snapshot_frequency)
        return self._context.heads

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Close the storage."""
        self.storage.close()

    # --- format

    def _open_format(self, snapshot_frequency: int | None) -> tuple[int, bytes, dict[str, int]]:
        with self.storage.read() as tx:
            row = rows.get(tx, keys.FORMAT)
        if row is None:
            row = names.in_write(self.storage, (), lambda tx: self._make_format(tx, snapshot_frequency))
        match rows.parse(keys.FORMAT, row):
            case [int(version), *_] if version != FORMAT_VERSION:
                raise FormatError(
                    f"{self.storage.location} has format version {version}; this release reads version {FORMAT_VERSION}. "
                    "Open it with the release that wrote it"
                )
            case [int(version), bytes(store_uuid), dict(options)]:
                return version, store_uuid, options
        raise ChecksumError(f"{self.storage.location}: the format row doesn't parse; restore from a backup")

    @staticmethod
    def _make_format(tx: WriteTransaction, snapshot_frequency: int | None) -> bytes:
        row = rows.get(tx, keys.FORMAT)
        if row is not None:  # another process was first
            return row
        if next(tx.scan(b"", b"\xff"), None) is not None:
            raise ChecksumError("rows are stored, but the format row is missing; restore from a backup")
        options = {} if snapshot_frequency is None else {"snapshot_frequency": snapshot_frequency}
        made = ormsgpack.packb([FORMAT_VERSION, uuid.uuid4().bytes, options])
        rows.put(tx, keys.FORMAT, made)
        return made

    # --- puts

    def put(self, put: putting.Put) -> putting.Stored:
        """Store a checkpoint; durable on return as the storage's sync mode says. Raises what `prepare` does, ContentionError."""
        heads = self.heads
        # new names get their numbers before any transaction begins; the put then finds them in memory
        self.names.numbers(keys.CHANNEL, put.intent.names())
        prepared, stored = self._attempt(
            put.thread,
            lambda tx: putting.prepare(tx, put, self._context),
            lambda tx, made: putting.apply(tx, made, self.now_ms()),
        )
        putting.remember(heads, prepared, stored)
        return stored

    def put_writes(self, put: pending.PutWrites) -> None:
        """Store pending writes of a checkpoint, which may not be stored yet. Raises CheckpointNotFoundError, ContentionError."""
        channels = self.names.numbers(keys.CHANNEL, [channel for _, channel, _ in put.writes])
        heads = self.heads
        prepared, applied = self._attempt(
            put.thread,
            lambda tx: pending.prepare(tx, put, channels, heads),
            lambda tx, made: pending.apply(tx, made, self.now_ms()),
        )
        if applied is not None:
            pending.remember(heads, prepared, applied)

    def _attempt(
        self,
        thread: str,
        prepare: Callable[[ReadTransaction], P],
        apply: Callable[[WriteTransaction, P], T | str],
    ) -> tuple[P, T]:
        """Prepare and apply, again while the basis doesn't hold."""
        reason = ""
        for _ in range(MAX_ATTEMPTS):
            with self.storage.read() as tx:
                prepared = prepare(tx)

            def work(tx: WriteTransaction, made: P = prepared) -> T:
                outcome = apply(tx, made)
                if isinstance(outcome, str):
                    raise _Stale(outcome)  # aborts what was written before the check
                return outcome

            try:
                return prepared, names.in_write(self.storage, (), work)
            except _Stale as stale:
                reason = str(stale)
        raise ContentionError(
            f"thread {thread!r}: {MAX_ATTEMPTS} attempts to write failed, the last because {reason}. "
            "Others write to this thread all the time; try again, or give each writer a thread of its own"
        )

    def cached_versions(self, thread: str, namespace: str, id_: str | None) -> dict[str, Any] | None:
        """Return the channel versions of a checkpoint if the head cache happens to hold them, reading no values."""
        if id_ is None:
            return None
        with self.storage.read() as tx:
            located = self._locate(tx, thread, namespace)
        if located is None:
            return None
        number, header, found = located
        head = self.heads.head(number, found.number, header.collected)
        return head.versions if head is not None and head.id == id_ else None

    def _locate(
        self, tx: ReadTransaction, thread: str, namespace: str
    ) -> tuple[int, rows.Header, rows.Namespace] | None:
        number = names.find(tx, keys.THREAD, keys.encode_name(thread))
        header = None if number is None else rows.load_header(tx, number)
        if number is None:
            return None
        if header is None:
            raise ChecksumError(f"thread {thread!r} has a number but no header: rows are missing; run check")
        found = rows.load_namespace(tx, number, keys.encode_name(namespace))
        return None if found is None else (number, header, found)

    # --- reads

    def read(
        self,
        thread: str,
        namespace: str,
        id_: str | None,
        *,
        channels: Collection[str] | None = None,
        with_writes: bool = False,
    ) -> Reading | None:
        """Return a checkpoint as of one moment, the latest without id; None where there is none.

        `channels` limits what is loaded; `with_writes` loads the pending writes too. Raises BrokenChainError, ChecksumError.
        """
        with self.storage.read() as tx:
            located = self._locate(tx, thread, namespace)
            if located is None:
                return None
            number, header, found = located
            view = View(tx, number, thread)
            wanted = id_
            if wanted is None:
                check_latest(found)
                wanted = found.latest
            ulid = None if wanted is None else view.find(found, wanted)
            if ulid is None:
                if id_ is None and wanted is not None:
                    raise _missing_latest(thread, wanted)
                return None
            return self._load(view, found, header.collected, ulid, channels, with_writes)

    def _load(
        self,
        view: View,
        namespace: rows.Namespace,
        collected: int,
        ulid: bytes,
        wanted: Collection[str] | None,
        with_writes: bool,
    ) -> Reading:
        record = require(view, namespace, ulid)
        head = self.heads.head(view.thread, namespace.number, collected, ulid)
        known = head.blobs if head is not None else {}
        state = head.state if head is not None else view.state(namespace.number, ulid)
        channels: dict[str, LoadedChannel] = {}
        hidden: dict[int, LoadedChannel] = {}
        reducers: dict[int, Reducer] = {}
        folded: State = {}
        for number, channel in state.items():
            name = self.registry.channel_name(view.tx, number)
            if number >= rec.FIRST_CHANNEL and wanted is not None and name not in wanted:
                continue
            try:
                folded[number] = view.folded(number, channel)
                loaded = _load_channel(view, number, folded[number], known.get(number))
            except BrokenChainError as error:
                raise BrokenChainError(
                    f"channel {name!r} of checkpoint {record.id or ulids.to_text(ulid)!r}: {error}"
                ) from error
            if loaded.writes:
                reducers[channel.reducer] = self.registry.reducer(view.tx, channel.reducer, name)
            if number < rec.FIRST_CHANNEL:
                hidden[number] = loaded
            else:
                channels[name] = loaded
        id_ = record.id or ulids.to_text(ulid)
        if head is None and wanted is None and namespace.tip == ulid:
            self._keep_head(view, namespace, collected, ulid, record, folded, channels, hidden)
        writes = self._load_writes(view, view.tasks(namespace, id_)) if with_writes else []
        return Reading(ulid, id_, parent_id_of(namespace.front, record), record, channels, hidden, reducers, writes)

    def _keep_head(
        self,
        view: View,
        namespace: rows.Namespace,
        collected: int,
        ulid: bytes,
        record: rec.Record,
        state: State,
        channels: dict[str, LoadedChannel],
        hidden: dict[int, LoadedChannel],
    ) -> None:
        """Let the next put find what this read brought: a graph reads the tip, then puts on it."""
        by_number = dict(zip((n for n in state if n >= rec.FIRST_CHANNEL), channels.values(), strict=True)) | hidden
        blobs = {n: c.blobs for n, c in by_number.items() if c.blobs is not None and not c.writes}
        head = Head(
            ulid, record.id or ulids.to_text(ulid), record.depth, collected, state, blobs, bases=dict(view.bases)
        )
        head.seeds = dict(record.seeds)
        if rec.VERSIONS_CHANNEL in hidden:
            head.versions = STRICT.decode_dict(blobs[rec.VERSIONS_CHANNEL])
        self.heads.keep(view.thread, namespace.number, head)

    def writes(self, thread: str, namespace: str, id_: str) -> list[WriteLoaded]:
        """Return the pending writes of a checkpoint id, in the order (path, task, idx)."""
        with self.storage.read() as tx:
            located = self._locate(tx, thread, namespace)
            if located is None:
                return []
            number, _, found = located
            view = View(tx, number, thread)
            return self._load_writes(view, view.tasks(found, id_))

    def _load_write(self, view: View, task: str, write: rows.StoredWrite) -> WriteLoaded:
        name = self.registry.channel_name(view.tx, write.channel)
        blobs = view.blobs(0, write.value.spans)
        return WriteLoaded(task, write.path, write.idx, name, write.value.kind, blobs, write.time_ms)

    def _load_writes(self, view: View, tasks: rows.Tasks) -> list[WriteLoaded]:
        """Return writes with their chunks, in the order (path, task, idx)."""
        out = [self._load_write(view, task, write) for task, writes in tasks.items() for write in writes.values()]
        return sorted(out, key=lambda write: (write.path, write.task, write.idx))

    def walk(
        self, thread: str, namespace: str, id_: str | None, channels: Sequence[str]
    ) -> dict[str, tuple[LoadedChannel | None, list[WriteLoaded]]]:
        """Return, for each channel, the value of the nearest ancestor that has one, and the writes since, oldest first.

        The checkpoint's own value and writes don't count. Without id it is the latest. Raises BrokenChainError, ChecksumError.
        """
        with self.storage.read() as tx:
            located = self._locate(tx, thread, namespace)
            wanted = located[2].latest if located is not None and id_ is None else id_
            if located is None or wanted is None:
                return {name: (None, []) for name in channels}
            number, _, found = located
            view = View(tx, number, thread)
            ulid = view.find(found, wanted)
            numbers = {name: names.find(tx, keys.CHANNEL, keys.encode_name(name)) for name in channels}
            known = {number for number in numbers.values() if number is not None}
            walked = {} if ulid is None else walking.walk(view, found, ulid, known)
            out: dict[str, tuple[LoadedChannel | None, list[WriteLoaded]]] = {}
            for name, channel in numbers.items():
                history = walked.get(channel or 0, walking.Walked())
                seed = None
                if channel is not None and history.seed is not None:
                    seed = _load_channel(view, channel, Channel(history.seed, 0), None)
                out[name] = (seed, [self._load_write(view, task, write) for task, write in history.writes])
            return out

    # --- lists

    def namespaces(self, thread: str, front: int) -> list[str]:
        """Return the names of a thread's namespaces of one front, in the order they were made."""
        with self.storage.read() as tx:
            number = names.find(tx, keys.THREAD, keys.encode_name(thread))
            found = [] if number is None else rows.load_namespaces(tx, number)
        return [keys.decode_name(namespace.name) for namespace in found if namespace.front == front]

    def page(self, thread: str, namespace: str, before: str | None, limit: int) -> list[Entry]:
        """Return up to `limit` checkpoints with ids below `before`, the greatest id first, without values."""
        with self.storage.read() as tx:
            located = self._locate(tx, thread, namespace)
            if located is None:
                return []
            number, _, found = located
            view = View(tx, number, thread)
            out: list[Entry] = []
            for id_, ulid, record in view.ids_down(found, before):
                if len(out) >= limit:
                    break
                out.append(Entry(ulid, id_, parent_id_of(found.front, record), namespace, record))
            return out

    def entry(self, thread: str, namespace: str, id_: str) -> Entry | None:
        """Return one checkpoint without values, or None."""
        with self.storage.read() as tx:
            located = self._locate(tx, thread, namespace)
            if located is None:
                return None
            number, _, found = located
            view = View(tx, number, thread)
            ulid = view.find(found, id_)
            if ulid is None:
                return None
            record = require(view, found, ulid)
            return Entry(ulid, id_, parent_id_of(found.front, record), namespace, record)

    def threads(self, before: int | None, limit: int) -> list[ThreadRow]:
        """Return up to `limit` threads with numbers below `before`, the newest created first."""
        prefix = keys.numbers_of(keys.THREAD)
        upper = keys.end_of(prefix) if before is None else keys.of_number(keys.THREAD, before)
        out: list[ThreadRow] = []
        with self.storage.read() as tx:
            for key, _ in tx.scan(prefix, upper, reverse=True):
                number = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
                header = rows.load_header(tx, number)
                if header is None:
                    raise ChecksumError(f"thread number {number} has a name but no header: rows are missing; run check")
                out.append(ThreadRow(keys.decode_name(header.name), number, header))
                if len(out) >= limit:
                    break
        return out

    def all_threads(self, page: int = 100) -> Iterator[ThreadRow]:
        """Iterate over all threads, the newest created first; no transaction is held while the caller has the iterator."""
        before: int | None = None
        while found := self.threads(before, page):
            yield from found
            before = found[-1].number

    # --- deletions and copies

    def delete_checkpoint(self, thread: str, namespace: str, id_: str) -> None:
        """Delete a checkpoint with its pending writes. Raises ThreadNotFoundError, CheckpointNotFoundError."""
        names.in_write(self.storage, (), lambda tx: deleting.delete_checkpoint(tx, thread, namespace, id_))

    def delete_thread(self, thread: str) -> bool:
        """Delete a thread, then collect its rows; tell whether there was one."""
        deleted = names.in_write(self.storage, (), lambda tx: deleting.delete_thread(tx, thread, self.now_ms()))
        if deleted:
            self.collect()
        return deleted

    def collect(self) -> deleting.Collected:
        """Remove the rows of deleted threads and abandoned copies."""
        return deleting.collect(self.storage, self.now_ms())

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread. Raises ThreadNotFoundError, ThreadExistsError."""
        copying.copy_thread(self.storage, source, target, self.now_ms())


def _load_channel(view: View, number: int, channel: Channel, known: list[bytes] | None) -> LoadedChannel:
    series = rec.series_of(number)
    if channel.writes and channel.reducer < FIRST_INTERNED_REDUCER:
        raise BrokenChainError(f"writes of channel {number} weren't folded")
    blobs = known
    if blobs is None and channel.value is not None:
        blobs = view.blobs(series, channel.value.spans)
    writes = tuple((write.kind, view.blobs(series, write.spans)) for write in channel.writes)
    return LoadedChannel(channel.value.kind if channel.value else rec.OPAQUE, blobs, channel.reducer, writes)


def _missing_latest(thread: str, id_: str) -> BrokenChainError:
    return BrokenChainError(
        f"thread {thread!r}: the latest checkpoint {id_!r} is missing. "
        "Rows were lost or damaged; run check, and restore from a backup"
    )


def parent_id_of(front: int, record: rec.Record) -> str | None:
    """Return the parent's id as it was put."""
    if front == rows.NATIVE:
        return None if record.parent is None else ulids.to_text(record.parent)
    return record.parent_id


def check_frequency(frequency: int) -> None:
    """Raise InvalidInputError unless this is a snapshot frequency."""
    if type(frequency) is not int or not 1 <= frequency <= policy.MAX_SNAPSHOT_FREQUENCY:
        raise InvalidInputError(
            f"snapshot_frequency {frequency!r}; expected an int from 1 to {policy.MAX_SNAPSHOT_FREQUENCY}"
        )
