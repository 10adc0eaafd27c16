"""A storage that counts what is read from it: rows by kind, and transactions that are open."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from deltastore.storage import ReadTransaction, Storage, WriteTransaction
from deltastore.storage.info import StorageInfo

THREAD_BYTES = 6
CHUNKS, RECORDS, IDS, WRITES, HEADERS, NAMESPACES, STORE = "c", "r", "i", "w", "h", "n", "store"
"""Kinds of rows, as their keys name them."""


@dataclass
class Counting:
    """Counts every row that a read asks for or is given, by kind, until `clear`; and what is open now."""

    remote = False
    inner: Storage
    rows: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    open: int = 0

    @property
    def location(self) -> str:
        return self.inner.location

    @property
    def total(self) -> int:
        """All rows counted."""
        return sum(self.rows.values())

    def clear(self) -> None:
        self.rows.clear()
        self.reads = 0

    @contextmanager
    def read(self) -> Iterator[ReadTransaction]:
        self.reads += 1
        self.open += 1
        try:
            with self.inner.read() as tx:
                yield _CountingReads(tx, self.rows)
        finally:
            self.open -= 1

    def write(self, threads: Sequence[int] = ()) -> AbstractContextManager[WriteTransaction]:
        return self.inner.write(threads)

    def info(self) -> StorageInfo:
        return self.inner.info()

    def close(self) -> None:
        self.inner.close()


def _kind(key: bytes) -> str:
    thread, rest = key[:THREAD_BYTES], key[THREAD_BYTES:]
    return rest[:1].decode("latin-1") if any(thread) else STORE


class _CountingReads:
    def __init__(self, tx: ReadTransaction, rows: Counter[str]) -> None:
        self._tx = tx
        self._rows = rows

    def get(self, key: bytes) -> bytes | None:
        self._rows[_kind(key)] += 1
        return self._tx.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._rows.update(map(_kind, keys))
        return self._tx.get_many(keys)

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes] | None]:
        self._rows.update(_kind(lower) for lower, _ in ranges)
        return self._tx.seek_many(ranges)

    remote = False

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        return self._tx.measure_many(ranges)

    def following(self, key: bytes) -> int:
        return self._tx.following(key)

    def measure(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        return self._tx.measure(lower, upper)  # reads no row

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Any]:
        self._rows[_kind(lower)] += 1  # finding the place costs as much as a row
        for row in self._tx.scan(lower, upper, reverse=reverse):
            self._rows[_kind(row[0])] += 1
            yield row
