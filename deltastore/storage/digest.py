"""What tells two runs of rows apart: a digest over keys and values, in their order.

Imports the port and xxhash. The invariant: runs that differ in any byte, or in where a row ends, have other digests,
but for chance; not for a foe, who could make two alike.
"""

import struct
from typing import NamedTuple

from xxhash import xxh3_128

from deltastore.storage.port import Row

_LENGTHS = struct.Struct(">HQ")
"""Before each row: the lengths of its key and its value, so that no byte can change sides."""


class Digest(NamedTuple):
    """A run of rows: how many, the bytes of their keys and values together, and a hash of it all."""

    rows: int
    size: int
    hash: bytes


class Digester:
    """Takes rows one after the other. Not thread-safe."""

    __slots__ = ("_hash", "rows", "size")

    def __init__(self) -> None:
        self._hash = xxh3_128()
        self.rows = self.size = 0

    def take(self, row: Row) -> None:
        """Take the next row."""
        key, value = row
        self._hash.update(_LENGTHS.pack(len(key), len(value)) + key)
        self._hash.update(value)
        self.rows += 1
        self.size += len(key) + len(value)

    def digest(self) -> Digest:
        """Return the digest of the rows so far."""
        return Digest(self.rows, self.size, self._hash.digest())
