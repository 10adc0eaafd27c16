"""Compaction: rows packed as well as they can be, without what nothing needs any more.

Works beside readers and writers: everything is read and compressed outside write transactions, and each of these
replaces one row's worth. Imports marking and repacking. The invariant: whenever it is stopped, each checkpoint reads
as before; running it again goes on where something is left to do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deltastore.codec import records as rec
from deltastore.log import finding, keys, names, packing, rows
from deltastore.log.reading import View
from deltastore.store import Store
from deltastore.upkeep import marking, repacking
from deltastore.upkeep.progress import Progress

MAX_TRIES = 5
"""How often dead chunks of a thread are looked for anew while others write to it; then they stay for the next time."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did. Bytes are those of rows, as stored."""

    threads: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    chunks_dropped: int
    skipped: tuple[str, ...]
    """Threads whose dead chunks stay for the next time, because others wrote to them all the while."""


def compact(
    store: Store, *, threads: Iterable[str] | None = None, erase: bool = False, progress: Progress | None = None
) -> CompactReport:
    """Compact all threads of a store, or these; unknown ones are none. Others may read and write meanwhile.

    `progress` is told of threads. `erase`: no pack may keep a chunk that nothing needs, however much else is in it.
    Raises CorruptionError for a damaged thread, StorageError, StoreFullError.
    """
    store.collect()
    chosen = list(threads) if threads is not None else [row.name for row in store.log.all_threads()]
    tally = _Tally()
    for done, name in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        _Thread(store, name, tally, erase=erase).compact()
    if progress is not None:
        progress(len(chosen), len(chosen))
    return tally.report()


@dataclass(slots=True)
class _Tally:
    threads: int = 0
    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    dropped: int = 0
    skipped: tuple[str, ...] = ()

    def report(self) -> CompactReport:
        return CompactReport(
            self.threads,
            self.rows_before,
            self.rows_after,
            self.bytes_before,
            self.bytes_after,
            self.dropped,
            self.skipped,
        )


class _Thread:
    """The compaction of one thread."""

    def __init__(self, store: Store, name: str, tally: _Tally, *, erase: bool) -> None:
        self.storage = store.log.storage
        self.name = name
        self.tally = tally
        self.erase = erase
        self.changes: int | None = None
        self.needed: marking.Marked | None = None
        self.tries = 0

    def compact(self) -> None:
        with self.storage.read() as tx:
            found = finding.find_thread(tx, self.name)
            if found is None:
                return
            self.thread = found[0]
            span = (keys.thread(self.thread), keys.thread(self.thread + 1))
            count, size = tx.measure(*span)
            namespaces = rows.load_namespaces(tx, self.thread)
        self.tally.threads += 1
        self.tally.rows_before += count
        self.tally.bytes_before += size
        for namespace in namespaces:
            self._records(namespace.name)
        for series in range(rec.SERIES):
            self._chunks(series)
        with self.storage.read() as tx:
            count, size = tx.measure(*span)
        self.tally.rows_after += count
        self.tally.bytes_after += size

    def _records(self, namespace: bytes) -> None:
        after: bytes | None = None
        while True:
            with self.storage.read() as tx:
                found = rows.load_namespace(tx, self.thread, namespace)
                planned = repacking.plan_records(View(tx, self.thread, self.name), found, after) if found else None
            if planned is None:
                return
            pack, after = planned
            if pack is not None:
                self._put_records(namespace, pack)

    def _put_records(self, namespace: bytes, pack: packing.RecordPack) -> None:
        names.in_write(
            self.storage, (self.thread,), lambda tx: repacking.apply_records(tx, self.thread, namespace, pack)
        )

    def _chunks(self, series: int) -> None:
        after = 0
        while True:
            change = self._plan(series, after)
            if change is None:
                return
            changes = self._put_chunks(change)
            if changes is None:  # somebody wrote: look again
                self.tries += 1
                self.changes = None
                continue
            self.changes = changes if self.changes is not None else None
            after = change.last
            self.tally.dropped += change.freed

    def _plan(self, series: int, after: int) -> repacking.ChunkChange | None:
        with self.storage.read() as tx:
            header = rows.load_header(tx, self.thread)
            if header is None:  # deleted meanwhile
                return None
            view = View(tx, self.thread, self.name)
            if self.tries >= MAX_TRIES:
                if self.needed is not None:
                    self.tally.skipped += (self.name,)
                self.needed = None
            elif self.changes != header.changes:
                self.needed, self.changes = marking.mark(view), header.changes
            needed = None if self.needed is None else self.needed[series]
            return repacking.plan_chunks(view, header, series, after, needed, erase=self.erase)

    def _put_chunks(self, change: repacking.ChunkChange) -> int | None:
        return names.in_write(
            self.storage,
            (self.thread,),
            lambda tx: repacking.apply_chunks(tx, self.thread, change, self.changes),
        )
