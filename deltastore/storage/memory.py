"""A storage in this process's memory, for tests and `:memory:`: a dict of rows and their sorted keys.

Imports the port, its rules and the errors. The invariant: a published moment never changes; a write transaction works
on its own copy and publishes it as the next moment when it commits.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Self

from deltastore.errors import ClosedError, StorageError
from deltastore.storage.info import StorageInfo
from deltastore.storage.port import Believed, Moment, Row, Wanted
from deltastore.storage.rules import (
    check_count,
    check_key,
    check_lookup,
    pack_counter,
    unpack_counter,
    visible_ranges,
)

_LOCATION = ":memory:"


class _Moment:
    """All rows at one time."""

    __slots__ = ("keys", "rows")

    def __init__(self, keys: list[bytes], rows: dict[bytes, bytes]) -> None:
        self.keys = keys
        self.rows = rows

    def copy(self) -> "_Moment":
        return _Moment(self.keys.copy(), self.rows.copy())


class MemoryReadTransaction:
    """One moment of a MemoryStorage. Used by one thread, inside its `with` block."""

    __slots__ = ("_moment", "_storage")
    remote: ClassVar[bool] = False

    def __init__(self, storage: "MemoryStorage") -> None:
        self._storage = storage
        self._moment: _Moment | None = None

    def __enter__(self) -> Self:
        self._moment = self._storage._published()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._moment = None

    def _now(self) -> _Moment:
        if self._moment is None:
            raise StorageError(f"a transaction of {_LOCATION} was used outside its block; begin another one")
        return self._moment

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        check_lookup(key)
        return self._now().rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""
        return [self.get(key) for key in keys]

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[Row | None]:
        """Return, for each (lower, upper), the first row with lower <= key < upper."""
        return [next(self.scan(lower, upper), None) for lower, upper in ranges]

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with lower <= key < upper, in key order or against it."""
        ranges = visible_ranges(lower, upper)
        return self._rows(ranges[::-1] if reverse else ranges, -1 if reverse else 1)

    def measure(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """Return how many rows have lower <= key < upper, and the bytes of their keys and values."""
        lengths = [len(key) + len(value) for key, value in self.scan(lower, upper)]
        return len(lengths), sum(lengths)

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Return what `measure` gives for each range."""
        return [self.measure(lower, upper) for lower, upper in ranges]

    def following(self, key: bytes) -> int:
        """Return the number that a counter gives next. Raises ChecksumError."""
        return unpack_counter(key, self.get(key), _LOCATION)

    def prefetch(self, wanted: Wanted, *, now: bool = False) -> None:
        """Do nothing: all is at hand."""

    def _rows(self, ranges: list[tuple[bytes, bytes]], step: int) -> Iterator[Row]:
        for lower, upper in ranges:
            moment = self._now()
            for key in moment.keys[bisect_left(moment.keys, lower) : bisect_left(moment.keys, upper)][::step]:
                yield key, self._now().rows[key]


class MemoryWriteTransaction(MemoryReadTransaction):
    """A transaction that sees its own writes, and publishes them when its block ends without an error."""

    __slots__ = ("_changed",)

    def __init__(self, storage: "MemoryStorage") -> None:
        super().__init__(storage)
        self._changed = False

    def __enter__(self) -> Self:
        self._storage._take_turn()
        try:
            return super().__enter__()
        except BaseException:
            self._storage._end_turn(None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        moment, self._moment = self._moment, None
        self._storage._end_turn(moment if kind is None and self._changed else None)

    def _own(self) -> _Moment:
        if not self._changed:
            self._moment = self._now().copy()
            self._changed = True
        return self._now()

    def moment(self) -> None:
        """Return nothing: looking costs no more."""

    def follows(self, _moment: Moment) -> bool:
        """Tell nothing."""
        return False

    def believe(self, _believed: Believed) -> bool:
        """Take nothing: all is at hand."""
        return False

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value under a key, in place of any earlier one."""
        check_key(key)
        moment = self._own()
        if key not in moment.rows:
            insort(moment.keys, key)
        moment.rows[key] = value

    def delete(self, key: bytes) -> bool:
        """Remove a key, and tell whether it was there."""
        check_key(key)
        if key not in self._now().rows:
            return False
        moment = self._own()
        del moment.rows[key]
        del moment.keys[bisect_left(moment.keys, key)]
        return True

    def delete_range(self, lower: bytes, upper: bytes, *, limit: int | None = None) -> int:
        """Remove the rows with lower <= key < upper, the first `limit` of them, and return how many went."""
        doomed = [key for key, _ in self.scan(lower, upper)][:limit]
        for key in doomed:
            self.delete(key)
        return len(doomed)

    def mint(self, key: bytes, count: int = 1) -> int:
        """Return the first of `count` numbers that nobody got before from this counter."""
        check_count(count)
        first = self.following(key)
        self.put(key, pack_counter(key, first + count))
        return first


class MemoryStorage:
    """Rows in memory, gone with the object. Thread-safe: readers never wait, writers take turns."""

    remote: ClassVar[bool] = False

    def __init__(self) -> None:
        self._moment: _Moment | None = _Moment([], {})
        self._turn = threading.Lock()
        self._writer: int | None = None

    @property
    def location(self) -> str:
        """Where the rows are, for messages."""
        return _LOCATION

    def read(self) -> MemoryReadTransaction:
        """Begin a read transaction. Raises ClosedError."""
        self._published()
        return MemoryReadTransaction(self)

    def write(self, threads: Sequence[int] = ()) -> MemoryWriteTransaction:
        """Begin a write transaction, waiting for its turn. Raises ClosedError, StorageError."""
        self._published()
        return MemoryWriteTransaction(self)

    def info(self) -> StorageInfo:
        """Return sizes; `used_bytes` counts keys and values."""
        rows = self._published().rows.copy()
        used = sum(len(key) + len(value) for key, value in rows.items())
        return StorageInfo("memory", _LOCATION, file_bytes=0, used_bytes=used, map_bytes=0, readers=0)

    def close(self) -> None:
        """Drop the rows; closing twice is harmless."""
        self._moment = None

    def _published(self) -> _Moment:
        if self._moment is None:
            raise ClosedError(f"{_LOCATION} was closed; open another one")
        return self._moment

    def _take_turn(self) -> None:
        if self._writer == threading.get_ident():
            raise StorageError("this thread is inside a write transaction already; end it before beginning another")
        self._turn.acquire()
        self._writer = threading.get_ident()

    def _end_turn(self, moment: _Moment | None) -> None:
        closed = self._moment is None
        if moment is not None and not closed:
            self._moment = moment
        self._writer = None
        self._turn.release()
        if moment is not None and closed:
            raise ClosedError(f"{_LOCATION} was closed before the transaction ended; nothing was written")
