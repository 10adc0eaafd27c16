"""What a transaction knows of the rows: stretches of the key space that it has seen whole, and the rows in them.

Pure. The invariant: within a known stretch a key without a row has none; outside nothing is claimed. Not thread-safe.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from deltastore.storage.port import Row


class Known:
    """Stretches that don't touch each other, in order, and the rows in them."""

    __slots__ = ("_ends", "_keys", "_starts", "rows")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        self._keys: list[bytes] = []
        self.rows: dict[bytes, bytes] = {}

    def end_at(self, key: bytes) -> bytes | None:
        """Return the end of the stretch that holds a key, or None."""
        place = bisect_right(self._starts, key) - 1
        return self._ends[place] if place >= 0 and key < self._ends[place] else None

    def start_before(self, key: bytes) -> bytes | None:
        """Return the start of the stretch that holds what comes right before a key, or None."""
        place = bisect_left(self._starts, key) - 1
        return self._starts[place] if place >= 0 and key <= self._ends[place] else None

    def holds(self, key: bytes) -> bool:
        """Tell whether it is known what a key has."""
        return self.end_at(key) is not None

    def between(self, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the keys of the known rows with lower <= key < upper."""
        return self._keys[bisect_left(self._keys, lower) : bisect_left(self._keys, upper)]

    def first(self, lower: bytes, upper: bytes) -> bytes | None:
        """Return the first key of the known rows with lower <= key < upper."""
        place = bisect_left(self._keys, lower)
        return self._keys[place] if place < len(self._keys) and self._keys[place] < upper else None

    def add(self, lower: bytes, upper: bytes, rows: Iterable[Row]) -> None:
        """Learn all rows with lower <= key < upper; what was known there before stays as it was."""
        for key, value in rows:
            if not self.holds(key):
                self._insert(key, value)
        self._cover(lower, upper)

    def put(self, key: bytes, value: bytes) -> None:
        """Learn that a row is this from now on."""
        if key in self.rows:
            self.rows[key] = value
        else:
            self._insert(key, value)
        self._cover(key, key + b"\0")

    def remove(self, key: bytes) -> None:
        """Learn that a row is gone from now on."""
        if self.rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]
        self._cover(key, key + b"\0")

    def _insert(self, key: bytes, value: bytes) -> None:
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or self._keys[place] != key:
            self._keys.insert(place, key)
        self.rows[key] = value

    def _cover(self, lower: bytes, upper: bytes) -> None:
        if lower >= upper:
            return
        first = bisect_left(self._ends, lower)  # the first stretch that ends at or after it
        after = bisect_right(self._starts, upper)
        if first < after:
            lower, upper = min(lower, self._starts[first]), max(upper, self._ends[after - 1])
        self._starts[first:after] = [lower]
        self._ends[first:after] = [upper]

    def stretches(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over what is known."""
        return zip(self._starts, self._ends, strict=True)
