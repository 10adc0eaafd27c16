"""The cache of rows as reads decoded them: packs, above all, which hold what many checkpoints share.

Imports codec. Thread-safe. The invariant: what is given back was made of the very bytes that the transaction sees, so
no writer has to tell the cache anything.
"""

import threading
from collections import OrderedDict

from deltastore.codec.chunkrow import ChunkRow
from deltastore.codec.recordrow import RecordRow

SHARE = 4
"""The cache gets a quarter of a handle's memory, heads the rest."""
CHUNK_OVERHEAD_BYTES = 96
RECORD_BYTES = 1500
EXPANSION = 8
"""About what a compressed byte of a record pack takes in memory."""

Decoded = ChunkRow | RecordRow


class RowCache:
    """The most recently used rows, up to a number of bytes. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[bytes, Decoded, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes, sealed: bytes) -> Decoded | None:
        """Return what a row was decoded to, if it still is these bytes."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[0] != sealed:
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def keep(self, key: bytes, sealed: bytes, row: Decoded) -> None:
        """Keep a decoded row, which nobody changes from now on."""
        weight = len(sealed) + _weight(sealed, row)
        if weight > self.limit_bytes:
            return
        with self._lock:
            earlier = self._entries.pop(key, None)
            if earlier is not None:
                self._bytes -= earlier[2]
            self._entries[key] = (sealed, row, weight)
            self._bytes += weight
            while self._bytes > self.limit_bytes:
                _, (_, _, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    @property
    def held_bytes(self) -> int:
        """About what the cache holds."""
        return self._bytes


def _weight(sealed: bytes, row: Decoded) -> int:
    if isinstance(row, ChunkRow):
        return row.plain_bytes + CHUNK_OVERHEAD_BYTES * len(row.numbers)
    return EXPANSION * len(sealed) + RECORD_BYTES * len(row.ulids)
