"""A draft: rows as they are to be after a repair, over those that were found. Written nowhere but in memory.

Imports quarantine and the port. The invariant: a row that is taken out of its place stands in the draft's quarantine,
with its bytes as they were found.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from deltastore.codec.primitives import seal
from deltastore.log import quarantine
from deltastore.storage.port import Row, Wanted
from deltastore.storage.rules import unpack_counter
from deltastore.upkeep.repair_plan import Change


class Draft:
    """Rows of one thread, or of the store (0), to be read as a transaction's. Not thread-safe."""

    def __init__(self, found: Iterable[Row], owner: int, now_ms: int) -> None:
        self._found = dict(found)
        self._rows = dict(self._found)
        self._keys = sorted(self._rows)
        self._owner = owner
        self._now_ms = now_ms

    remote: ClassVar[bool] = False

    # --- reading, as the port has it

    def get(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        return self._rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return rows, in the order of the keys."""
        return [self._rows.get(key) for key in keys]

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[Row | None]:
        """Return the first row of each range."""
        return [next(self.scan(lower, upper), None) for lower, upper in ranges]

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows of a range as they are now; it may be written to meanwhile."""
        place = bisect_left(self._keys, upper if reverse else lower)
        while True:  # one step at a time, for most who scan want the first row only
            if reverse:
                place -= 1
            if not 0 <= place < len(self._keys) or not lower <= self._keys[place] < upper:
                return
            key = self._keys[place]
            yield key, self._rows[key]
            place = bisect_left(self._keys, key) if reverse else bisect_right(self._keys, key)

    def measure(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """Return how many rows a range has, and their bytes."""
        sizes = [len(key) + len(row) for key, row in self.scan(lower, upper)]
        return len(sizes), sum(sizes)

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Return what `measure` gives for each range."""
        return [self.measure(lower, upper) for lower, upper in ranges]

    def following(self, key: bytes) -> int:
        """Return the number that a counter gives next. Raises ChecksumError."""
        return unpack_counter(key, self.get(key), "the draft")

    def prefetch(self, wanted: Wanted, *, now: bool = False) -> None:
        """Do nothing: all is at hand."""

    # --- changing

    def put(self, key: bytes, value: bytes) -> None:
        """Put a row in place, sealed."""
        self._put(key, seal(key, value))

    def _put(self, key: bytes, row: bytes) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row

    def remove(self, key: bytes) -> None:
        """Take a row out that says nothing that others don't, or that was quarantined before."""
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def keep_copy(self, key: bytes, reason: object) -> None:
        """Quarantine a row as it was found, of which something goes and something stays."""
        row = self._found.get(key)
        if row is not None:
            self._put(*quarantine.sealed(self._owner, quarantine.Quarantined(key, row, str(reason), self._now_ms)))

    def quarantine(self, key: bytes, reason: object) -> None:
        """Move a row, as it was found, out of its place."""
        self.keep_copy(key, reason)
        self.remove(key)

    def take(self, key: bytes, row: bytes, reason: object) -> None:
        """Quarantine a row that isn't among those that the draft was begun with."""
        self._found[key] = row
        self.keep_copy(key, reason)

    def changes(self, *without: bytes) -> tuple[Change, ...]:
        """Return the rows that are to be other than they were found, in an order that may be cut anywhere.

        First what is put, then what goes: a reader finds what he found before, or what is there after.
        """
        changed = [
            Change(key, self._found.get(key), self._rows.get(key))
            for key in sorted(self._found.keys() | self._rows.keys())
            if self._found.get(key) != self._rows.get(key) and key not in without
        ]
        return tuple(sorted(changed, key=lambda change: change.after is None))
