"""How writers are kept apart: which locks a write transaction holds for what it reads and writes.

Advisory locks that end with the transaction: they write nothing, take no place in the table, and pass through poolers.
Whoever reads or writes a thread's rows in a write transaction has the thread's lock, so writers of one thread come one
after the other and each sees what the last one left; writers of different threads don't meet. The store's own rows are
locked one by one where they are looked up by name, else by kind: to read them together, or to write them alone.
Where a server has no such locks, transactions are serializable instead, and run again when they meet.

Pure: what to lock, as numbers. The invariant: locks of store rows are taken before locks of threads, each sort in
order, so that those who know beforehand what they want never wait for each other in a circle.
"""

from collections.abc import Iterable
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from deltastore.storage.postgres.arrays import integers
from deltastore.storage.postgres.statements import THREAD_BYTES, is_of_one_thread
from deltastore.storage.postgres.wire import Statement

STORE = bytes(THREAD_BYTES)
"""The thread number of rows that belong to no thread."""
BY_KEY = (b"F", b"H", b"N", b"Q")
"""Kinds of store rows that are looked up one at a time; to read a range of them, all writers of store rows wait."""
_GATE = STORE + b"*"
_TAKE = (
    b"SELECT pg_advisory_xact_lock_shared(k) FROM unnest($1::bigint[]) AS k "
    b"UNION ALL SELECT pg_advisory_xact_lock(k) FROM unnest($2::bigint[]) AS k"
)
"""Shared ones first, which is in order: those of threads are exclusive, and of store rows the shared sort first."""
_HALF, _WHOLE = 1 << 63, 1 << 64


class Lock(NamedTuple):
    """A lock by the bytes that name it; all of a transaction's sort as they are to be taken."""

    of_thread: bool
    exclusive: bool
    name: bytes


class Locks:
    """The locks that one transaction holds. Not thread-safe."""

    def __init__(self, salt: bytes) -> None:
        """`salt` tells stores of one database apart."""
        self._salt = salt
        self._held: set[Lock] = set()

    def statements(self, needed: Iterable[Lock]) -> list[Statement]:
        """Return what takes those locks that aren't held yet, and count them as held."""
        missing = sorted({lock for lock in needed if not self._holds(lock)})
        if not missing:
            return []
        self._held.update(missing)
        both = (integers([self._number(lock.name) for lock in missing if lock.exclusive is it]) for it in (False, True))
        return [Statement(_TAKE, tuple(both), often=True)]

    def clear(self) -> None:
        """Forget all: the transaction ended."""
        self._held.clear()

    def _holds(self, lock: Lock) -> bool:
        return lock in self._held or (not lock.exclusive and lock._replace(exclusive=True) in self._held)

    def _number(self, name: bytes) -> int:
        number = xxh3_64_intdigest(self._salt + name)
        return number - _WHOLE if number >= _HALF else number


def to_look_up(key: bytes) -> Lock:
    """Return the lock for reading one row."""
    thread, kind = key[:THREAD_BYTES], key[THREAD_BYTES : THREAD_BYTES + 1]
    if thread != STORE:
        return Lock(True, True, thread)
    if kind in BY_KEY:
        return Lock(False, True, key)
    return Lock(False, False, STORE + kind)


def to_read(lower: bytes, upper: bytes) -> list[Lock]:
    """Return the locks for reading a range."""
    thread, kind = lower[:THREAD_BYTES], lower[THREAD_BYTES : THREAD_BYTES + 1]
    if thread != STORE and is_of_one_thread(lower, upper):
        return [Lock(True, True, thread)]
    of_one_kind = thread == STORE and kind and upper <= STORE + bytes((kind[0] + 1,))
    if of_one_kind and kind not in BY_KEY:
        return [Lock(False, False, STORE + kind)]
    return [Lock(False, True, _GATE)]


def to_write(key: bytes) -> list[Lock]:
    """Return the locks for writing or removing one row."""
    if key[:THREAD_BYTES] != STORE:
        return [to_look_up(key)]
    return [Lock(False, False, _GATE), to_look_up(key)._replace(exclusive=True)]


def to_remove(lower: bytes, upper: bytes) -> list[Lock]:
    """Return the locks for removing a range."""
    if lower[:THREAD_BYTES] != STORE and is_of_one_thread(lower, upper):
        return to_read(lower, upper)
    return [Lock(False, True, _GATE)]
