"""Shrinking: a store moves into a fresh environment, rows in the order of their keys, so that pages are full.

Others read and write all the while: the rows are copied as of one moment, then what changed since, and the last of it
in the write transaction that lets the new environment take over. Imports store and below. The invariant: no
acknowledged write is lost, and a move that is stopped leaves the store as it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from deltastore.errors import UnavailableError
from deltastore.log import keys, names, rows
from deltastore.storage.port import ReadTransaction, Row
from deltastore.store import Store, check_open
from deltastore.upkeep.progress import Progress

MAX_ROUNDS = 5
"""How often what changed is copied beside writers, before they wait for the rest."""
FEW_THREADS = 8
"""Threads that may be copied while writers wait."""
PAGE = 1000
_ALL = (b"", b"\xff" * (keys.THREAD_BYTES + 1))


@dataclass(frozen=True, slots=True)
class ShrinkReport:
    """What a shrinking did: the sizes of the data file, in bytes."""

    bytes_before: int
    bytes_after: int


Stamps = dict[int, bytes]
"""By thread number what tells whether any row of the thread changed: its header as stored; nothing for queued ones,
which have no name, and change without their header."""


def shrink(store: Store, *, progress: Progress | None = None) -> ShrinkReport:
    """Move a store on LMDB into an environment that is as small as its rows allow. Others go on meanwhile.

    Needs room for the new file beside the old one, which goes when all who have it open have followed. `progress`
    counts bytes. Raises UnavailableError for other storages, ConflictError where it is being moved already,
    StoreFullError, StorageError; then the store is as it was.
    """
    from deltastore.storage.lmdb import LmdbStorage
    from deltastore.storage.moving import Move, moving
    from deltastore.storage.writing import LmdbWriteTransaction

    check_open(store)
    storage = store.log.storage
    if not isinstance(storage, LmdbStorage):
        raise UnavailableError(
            f"{storage.location}: only a store on LMDB has a file to shrink; PostgreSQL's autovacuum makes freed room "
            "usable again, and VACUUM FULL gives it back to the disk"
        )
    store.collect()  # else deleted threads would move too, again and again
    before = storage.info().file_bytes

    def catch_up(tx: ReadTransaction, move: Move, stamps: Stamps) -> Stamps:
        now = _stamps(tx)
        for number in _changed(stamps, now):
            span = keys.thread(number), keys.thread(number + 1)
            move.amend(*span, lambda span=span: tx.scan(*span))  # type: ignore[misc]
        move.amend(b"", keys.thread(1), lambda: tx.scan(b"", keys.thread(1)))
        return now

    with moving(storage) as move:
        with storage.read() as tx:
            stamps = _stamps(tx)
            move.fill(_told(tx, progress))
        for _ in range(MAX_ROUNDS):
            with storage.read() as tx:
                if len(_changed(stamps, _stamps(tx))) <= FEW_THREADS:
                    break
                stamps = catch_up(tx, move, stamps)

        def finish(tx: LmdbWriteTransaction) -> None:
            catch_up(tx, move, stamps)
            move.take_over(tx)

        names.in_write(storage, (), lambda tx: finish(cast(LmdbWriteTransaction, tx)))
    return ShrinkReport(before, storage.info().file_bytes)


def _told(tx: ReadTransaction, progress: Progress | None) -> Iterator[Row]:
    _, total = tx.measure(*_ALL)
    done = 0
    for key, row in tx.scan(*_ALL):
        yield key, row
        done += len(key) + len(row)
        if progress is not None:
            progress(done, total)


def _stamps(tx: ReadTransaction) -> Stamps:
    """Return the stamp of each thread that has a name, or is queued."""
    prefix = keys.numbers_of(keys.THREAD)
    numbers = [int.from_bytes(key[len(prefix) :], "big") for key, _ in tx.scan(prefix, keys.end_of(prefix))]
    out: Stamps = {queued.thread: b"" for queued in rows.load_queue(tx)}
    for start in range(0, len(numbers), PAGE):
        some = numbers[start : start + PAGE]
        headers = tx.get_many([keys.header(number) for number in some])
        out |= {number: header or b"" for number, header in zip(some, headers, strict=True)}
    return out


def _changed(before: Stamps, now: Stamps) -> list[int]:
    """Return the threads whose rows may not be what they were."""
    return sorted(
        number
        for number in before.keys() | now.keys()
        if not now.get(number, b"") or before.get(number) != now.get(number)
    )
