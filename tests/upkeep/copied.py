"""What the tests of copied stores share: rows, and which of them a copy has."""

from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage

Rows = dict[bytes, bytes]


class Original(Rows):
    """Rows that a failing example doesn't show one by one."""

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


def moved(rows: Rows) -> Rows:
    """Return what of a store's rows a copy has: all but the queue and the threads in it."""
    queued = {key[-keys.THREAD_BYTES :] for key in rows if key.startswith(keys.QUEUE)}
    return {
        key: row
        for key, row in rows.items()
        if not key.startswith(keys.QUEUE) and key[: keys.THREAD_BYTES] not in queued
    }


def rows_and_bytes(rows: Rows) -> tuple[int, int]:
    """Return what a report tells of rows: counters are the storage's own, and don't count."""
    counted = {key: row for key, row in rows.items() if not key.startswith(keys.COUNTERS)}
    return len(counted), sum(len(key) + len(row) for key, row in counted.items())


def in_memory(rows: Rows) -> MemoryStorage:
    storage = MemoryStorage()
    with storage.write() as tx:
        for key, row in rows.items():
            tx.put(key, row)
    return storage
