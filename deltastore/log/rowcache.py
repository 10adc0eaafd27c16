"""The cache of rows as reads decoded them: packs, above all, which hold what many checkpoints share.

Imports codec and lru. Thread-safe. The invariant: what is given back was made of the very bytes that the transaction
sees, so no writer has to tell the cache anything.
"""

from deltastore.codec.chunkrow import ChunkRow
from deltastore.codec.recordrow import RecordRow
from deltastore.log.lru import Lru

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
        self._kept: Lru[bytes, tuple[bytes, Decoded]] = Lru(limit_bytes)

    def get(self, key: bytes, sealed: bytes) -> Decoded | None:
        """Return what a row was decoded to, if it still is these bytes."""
        found = self._kept.get(key)
        return found[1] if found is not None and found[0] == sealed else None

    def keep(self, key: bytes, sealed: bytes, row: Decoded) -> None:
        """Keep a decoded row, which nobody changes from now on."""
        self._kept.put(key, (sealed, row), len(sealed) + _weight(sealed, row))

    @property
    def held_bytes(self) -> int:
        """About what the cache holds."""
        return self._kept.held_bytes


def _weight(sealed: bytes, row: Decoded) -> int:
    if isinstance(row, ChunkRow):
        return row.plain_bytes + CHUNK_OVERHEAD_BYTES * len(row.numbers)
    return EXPANSION * len(sealed) + RECORD_BYTES * len(row.ulids)
