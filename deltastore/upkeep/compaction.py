"""Compaction: rows packed as well as they can be, without what nothing needs any more.

Works beside readers and writers: everything is read and compressed outside write transactions, and each of these
replaces one row's worth. Imports marking and repacking. The invariant: whenever it is stopped, each checkpoint reads
as before; running it again goes on where something is left to do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deltastore.codec import records as rec
from deltastore.log import deleting, finding, keys, names, packing, quarantine, rows
from deltastore.log.reading import View
from deltastore.storage.port import Storage, WriteTransaction
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
    quarantined_dropped: int
    """Quarantined rows, which only erasing removes."""
    skipped: tuple[str, ...]
    """Threads whose dead chunks stay for the next time, because others wrote to them all the while."""


def compact(
    store: Store,
    *,
    threads: Iterable[str] | None = None,
    erase: bool = False,
    level: int = repacking.DEFAULT_LEVEL,
    progress: Progress | None = None,
) -> CompactReport:
    """Compact all threads of a store, or these; unknown ones are none. Others may read and write meanwhile.

    `erase`: no pack may keep a chunk that nothing needs, however much else is in it, and none may be needed only
    because another was stored as its difference. Quarantined rows go too: what was deleted may stand in them.
    `level`: zstd's, 1 to 19; lower ones are faster. `progress` counts threads.
    Raises CorruptionError for a damaged thread, StorageError, StoreFullError.
    """
    store.collect()
    chosen = list(threads) if threads is not None else [row.name for row in store.log.all_threads()]
    tally = _Tally()
    for done, name in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        _Thread(store, name, tally, erase=erase, level=level).compact()
    if erase and threads is None:
        tally.quarantined += _drop_quarantined(store.log.storage, 0)
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
    quarantined: int = 0
    skipped: tuple[str, ...] = ()

    def report(self) -> CompactReport:
        return CompactReport(
            self.threads,
            self.rows_before,
            self.rows_after,
            self.bytes_before,
            self.bytes_after,
            self.dropped,
            self.quarantined,
            self.skipped,
        )


def _drop_quarantined(storage: Storage, thread: int) -> int:
    """Remove what is quarantined of a thread, or of the store (0), in bounded transactions; return how many rows."""
    prefix = keys.quarantine(thread)

    def some(tx: WriteTransaction) -> int:
        count = tx.delete_range(prefix, keys.end_of(prefix), limit=deleting.MAX_COLLECTED_ROWS)
        header = rows.load_header(tx, thread) if count and thread else None
        if header is not None:
            rows.store_header(tx, thread, header)
        return count

    with storage.read() as tx:
        left = quarantine.count(tx, thread)
    dropped = 0
    while left > 0:
        count = names.in_write(storage, (thread,), some)
        dropped += count
        left = left - count if count else 0
    return dropped


class _Thread:
    """The compaction of one thread."""

    def __init__(self, store: Store, name: str, tally: _Tally, *, erase: bool, level: int) -> None:
        self.storage = store.log.storage
        self.name = name
        self.tally = tally
        self.erase = erase
        self.level = level
        self.changes: int | None = None
        self.needed: marking.Marked | None = None
        self.tries = 0

    def compact(self) -> None:
        with self.storage.read() as tx:
            found = finding.find_thread(tx, self.name)
            if found is None:
                return
            self.thread, header = found
            # what is put from now on is for the next time: else this would run after a busy writer for ever
            self.until, self.last_ulid = tuple(header.next_chunk), header.last_ulid or b""
            span = (keys.thread(self.thread), keys.thread(self.thread + 1))
            count, size = tx.measure(*span)
            namespaces = rows.load_namespaces(tx, self.thread)
        self.tally.threads += 1
        self.tally.rows_before += count
        self.tally.bytes_before += size
        for namespace in namespaces:
            self._records(namespace.name)
        for series in range(rec.SERIES):
            if self.erase:
                self._free_bases(series)
            self._chunks(series)
        if self.erase:
            self.tally.quarantined += _drop_quarantined(self.storage, self.thread)
        with self.storage.read() as tx:
            count, size = tx.measure(*span)
        self.tally.rows_after += count
        self.tally.bytes_after += size

    def _records(self, namespace: bytes) -> None:
        after: bytes | None = None
        while True:
            with self.storage.read() as tx:
                found = rows.load_namespace(tx, self.thread, namespace)
                planned = (
                    repacking.plan_records(View(tx, self.thread, self.name), found, after, self.last_ulid)
                    if found
                    else None
                )
            if planned is None:
                return
            pack, after = planned
            if pack is not None:
                self._put_records(namespace, pack)

    def _put_records(self, namespace: bytes, pack: packing.RecordPack) -> None:
        names.in_write(
            self.storage, (self.thread,), lambda tx: repacking.apply_records(tx, self.thread, namespace, pack)
        )

    def _free_bases(self, series: int) -> None:
        """Let no chunk stand on one that nothing names: its text would stay for the sake of the other."""
        below = self.until[series]
        named: marking.Marked | None = None
        while True:
            with self.storage.read() as tx:
                if rows.load_header(tx, self.thread) is None:  # deleted meanwhile
                    return
                view = View(tx, self.thread, self.name)
                named = named or marking.mark_named(view)
                change = repacking.plan_whole(view, series, below, named[series], self.level)
            if change is None:
                return
            if self._put_whole(change):
                below = change.last

    def _put_whole(self, change: repacking.WholeChange) -> bool:
        return names.in_write(self.storage, (self.thread,), lambda tx: repacking.apply_whole(tx, self.thread, change))

    def _chunks(self, series: int) -> None:
        before: repacking.ChunkChange | None = None
        while True:
            change = self._plan(series, before)
            if change is None:
                return
            changes = self._put_chunks(change)
            if changes is None:  # somebody wrote: look again
                self.tries += 1
                self.changes = None
                continue
            self.changes = changes
            before = change
            self.tally.dropped += change.freed

    def _plan(self, series: int, before: repacking.ChunkChange | None) -> repacking.ChunkChange | None:
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
            return repacking.plan_chunks(
                view, header, series, before, needed, until=self.until[series], erase=self.erase, level=self.level
            )

    def _put_chunks(self, change: repacking.ChunkChange) -> int | None:
        return names.in_write(
            self.storage,
            (self.thread,),
            lambda tx: repacking.apply_chunks(tx, self.thread, change, self.changes),
        )
