"""The compaction of one thread: records, then edited chunks, then all chunks, a row's worth at a time.

Everything is read and compressed outside write transactions, and each of these replaces what one plan looked at.
Imports marking, rebasing and repacking. The invariant: whenever it is stopped, each checkpoint reads as before.
"""

from dataclasses import dataclass

from deltastore.codec import records as rec
from deltastore.log import deleting, dictionaries, finding, keys, names, packing, quarantine, rows
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction, Storage, WriteTransaction
from deltastore.store import Store
from deltastore.upkeep import marking, rebasing, repacking

MAX_TRIES = 5
"""How often a step that others' writes spoil is begun anew; then what it would do stays for the next time."""


@dataclass(slots=True)
class ThreadOutcome:
    """What the compaction of a thread did. Bytes are those of rows, as stored."""

    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    chunks_dropped: int = 0
    quarantined_dropped: int = 0
    skipped: bool = False
    """Whether something stays for the next time, because others wrote all the while."""


class ThreadCompaction:
    """One thread, of a store that others may write to."""

    def __init__(self, store: Store, name: str, *, erase: bool, level: int) -> None:
        self.storage = store.log.storage
        self.name = name
        self.erase = erase
        self.level = level
        self.outcome = ThreadOutcome()
        self.changes: int | None = None
        self.before: list[int] | None = None
        self.needed: marking.Marked | None = None
        self.tries = 0
        self.own_changes = 0

    def run(self) -> ThreadOutcome | None:
        """Compact the thread; None where there is none. Raises CorruptionError, StorageError, StoreFullError."""
        with self.storage.read() as tx:
            found = finding.find_thread(tx, self.name)
            if found is None:
                return None
            self.thread, header = found
            # what is put from now on is for the next time: else this would run after a busy writer for ever
            self.until, self.last_ulid = tuple(header.next_chunk), header.last_ulid or b""
            self.before, self.changes_before = header.compacted, header.changes
            namespaces = rows.load_namespaces(tx, self.thread)
            self.outcome.rows_before, self.outcome.bytes_before = self._measure(tx)
            means = self._means(tx)
        if means.find_nothing(header.changes):
            self.outcome.rows_after, self.outcome.bytes_after = self.outcome.rows_before, self.outcome.bytes_before
            return self.outcome
        for namespace in namespaces:
            self._records(namespace.name)
        self._edited()
        for series in range(rec.SERIES):
            self._chunks(series)
        if self.erase:
            self.outcome.quarantined_dropped = drop_quarantined(self.storage, self.thread)
        if not self.outcome.quarantined_dropped:
            self._note(means)
        with self.storage.read() as tx:
            self.outcome.rows_after, self.outcome.bytes_after = self._measure(tx)
        return self.outcome

    def _measure(self, tx: ReadTransaction) -> tuple[int, int]:
        return tx.measure(keys.thread(self.thread), keys.thread(self.thread + 1))

    def _means(self, tx: ReadTransaction) -> repacking.Means:
        return repacking.Means(self.level, self.erase, dictionaries.in_use(tx), self.before)

    def _note(self, means: repacking.Means) -> None:
        """Let the next compaction know that nothing is left to do, unless something is: others may have written."""

        def work(tx: WriteTransaction) -> None:
            header = rows.load_header(tx, self.thread)
            if header is not None and header.changes == self.changes_before + self.own_changes:
                header.compacted = means.stamp(header.changes + 1)  # storing it is a change
                rows.store_header(tx, self.thread, header)

        if not self.outcome.skipped:
            names.in_write(self.storage, (self.thread,), work)

    # --- records

    def _records(self, namespace: bytes) -> None:
        after: bytes | None = None
        while True:
            with self.storage.read() as tx:
                means = self._means(tx)
                found = rows.load_namespace(tx, self.thread, namespace)
                if found is None:
                    return
                view = View(tx, self.thread, self.name)
                planned = repacking.plan_records(view, found, after, self.last_ulid, means)
            if planned is None:
                return
            pack, after = planned
            if pack is not None and self._put_records(namespace, pack, means):
                self.own_changes += 1

    def _put_records(self, namespace: bytes, pack: packing.RecordPack, means: repacking.Means) -> bool:
        def work(tx: WriteTransaction) -> bool:
            return repacking.apply_records(tx, self.thread, namespace, pack, means)

        return names.in_write(self.storage, (self.thread,), work)

    # --- edited chunks

    def _edited(self) -> None:
        for _ in range(MAX_TRIES):
            if self._rebase():
                return
        self.outcome.skipped = True

    def _rebase(self) -> bool:
        """Go over the edited chunks once; tell whether that came to its end."""
        lineages = rebasing.Lineages()
        named: marking.Marked | None = None
        collected: int | None = None
        after = 0
        while True:
            with self.storage.read() as tx:
                header = rows.load_header(tx, self.thread)
                if header is None:  # deleted meanwhile
                    return True
                view = View(tx, self.thread, self.name)
                if named is None:
                    if not rebasing.has_edited(view):
                        return True
                    named, collected = marking.mark_named(view), header.collected
                if header.collected != collected:  # what stands nowhere any more must not be stood on
                    return False
                means = self._means(tx)
                change = rebasing.plan(view, header, after, self.until[0], named[0], lineages, means)
            if change is None:
                return True
            collected = self._put_edited(change, means)
            if collected is None:
                return False
            self.own_changes += 1
            after = change.last

    def _put_edited(self, change: rebasing.Change, means: repacking.Means) -> int | None:
        def work(tx: WriteTransaction) -> int | None:
            return rebasing.apply(tx, self.thread, change, means)

        return names.in_write(self.storage, (self.thread,), work)

    # --- all chunks

    def _chunks(self, series: int) -> None:
        before: repacking.ChunkChange | None = None
        while True:
            planned = self._plan(series, before)
            if planned is None:
                return
            change, means = planned
            changes = self._put_chunks(change, means)
            if changes is None:  # somebody wrote: look again
                self.tries += 1
                self.changes = None
                continue
            # 0: others wrote, so whatever is counted here, the header's count is larger
            self.own_changes += changes not in (0, self.changes)
            self.changes = changes
            before = change
            self.outcome.chunks_dropped += change.freed

    def _plan(
        self, series: int, before: repacking.ChunkChange | None
    ) -> tuple[repacking.ChunkChange, repacking.Means] | None:
        with self.storage.read() as tx:
            header = rows.load_header(tx, self.thread)
            if header is None:  # deleted meanwhile
                return None
            view = View(tx, self.thread, self.name)
            if self.tries >= MAX_TRIES:
                self.outcome.skipped |= self.needed is not None
                self.needed = None
            elif self.changes != header.changes:
                self.needed, self.changes = marking.mark(view), header.changes
            needed = None if self.needed is None else self.needed[series]
            means = self._means(tx)
            change = repacking.plan_chunks(view, header, series, before, needed, until=self.until[series], means=means)
            return None if change is None else (change, means)

    def _put_chunks(self, change: repacking.ChunkChange, means: repacking.Means) -> int | None:
        changes = self.changes

        def work(tx: WriteTransaction) -> int | None:
            return repacking.apply_chunks(tx, self.thread, change, changes, means)

        return names.in_write(self.storage, (self.thread,), work)


def drop_quarantined(storage: Storage, thread: int) -> int:
    """Remove what is quarantined of a thread, or of the store (0), in bounded transactions; return how many rows."""
    with storage.read() as tx:
        left = quarantine.count(tx, thread)
    dropped = 0
    while dropped < left:
        count = names.in_write(storage, (thread,), lambda tx: quarantine.drop(tx, thread, deleting.MAX_COLLECTED_ROWS))
        if not count:
            break
        dropped += count
    return dropped
