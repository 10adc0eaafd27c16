"""A storage that tells of every call before it is made, so that a test may act, or die, at each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deltastore.storage import Row, Storage, WriteTransaction
from deltastore.storage.info import StorageInfo

Before = Callable[[str], object]
"""Called with the name of a call before it is made, also before each row of a scan, and before and after a commit."""


class Killed(BaseException):
    """What a test raises where a process would be killed: nothing catches it."""


@dataclass
class Watched:
    """Hands everything on, telling of it first; `changed` may give other bytes to a put."""

    inner: Storage
    before: Before
    changed: Callable[[bytes, bytes], bytes] = lambda key, value: value

    @property
    def location(self) -> str:
        return self.inner.location

    @contextmanager
    def read(self) -> Iterator[Any]:
        self.before("read")
        with self.inner.read() as tx:
            yield _Watched(tx, self)
        self.before("read end")

    @contextmanager
    def write(self, threads: Sequence[int] = ()) -> Iterator[Any]:
        self.before("write")
        with self.inner.write(threads) as tx:
            yield _Watched(tx, self)
            self.before("commit")
        self.before("committed")

    def info(self) -> StorageInfo:
        return self.inner.info()

    def close(self) -> None:
        self.inner.close()


class _Watched:
    def __init__(self, tx: Any, storage: Watched) -> None:
        self._tx: WriteTransaction = tx
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tx, name)
        if callable(found):
            self._storage.before(name)
        return found

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Row]:
        for row in self._tx.scan(lower, upper, reverse=reverse):
            self._storage.before("row")
            yield row

    def put(self, key: bytes, value: bytes) -> None:
        self._storage.before("put")
        self._tx.put(key, self._storage.changed(key, value))
