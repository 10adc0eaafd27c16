"""Ordered bytes in transactions: the port, and the storages that implement it.

`deltastore.storage.lmdb` and `deltastore.storage.memory` are imported by whoever opens a store, so that no storage is
loaded for another one's sake. Imports only `deltastore.errors`.
"""

from deltastore.storage.port import (
    MAX_KEY_BYTES,
    RESERVED_PREFIX,
    ReadTransaction,
    Row,
    Storage,
    SyncMode,
    WriteTransaction,
)
from deltastore.storage.retry import RetryTransaction

__all__ = [
    "MAX_KEY_BYTES",
    "RESERVED_PREFIX",
    "ReadTransaction",
    "RetryTransaction",
    "Row",
    "Storage",
    "SyncMode",
    "WriteTransaction",
]
