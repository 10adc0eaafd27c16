"""What the tests do behind the store's back: rows as stored, and storages where another writer comes between."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from deltastore import Store, Thread
from deltastore.codec import chunkrow
from deltastore.codec.primitives import unseal
from deltastore.log import keys, pending, putting
from deltastore.log.heads import HeadCache
from deltastore.storage import ReadTransaction, RetryTransaction, Storage, WriteTransaction
from deltastore.storage.info import StorageInfo
from deltastore.storage.memory import MemoryStorage

EVERYTHING = (b"", b"\xff" * 8)


def rows_of(storage: Storage) -> dict[bytes, bytes]:
    """Return all rows, sealed as they are."""
    with storage.read() as tx:
        return dict(tx.scan(*EVERYTHING))


def put_raw(storage: Storage, key: bytes, row: bytes | None) -> None:
    """Store a row as it is, or remove it."""
    with storage.write() as tx:
        if row is None:
            tx.delete(key)
        else:
            tx.put(key, row)


def chunk_sizes(store: Store, thread: int = 1, series: int = 0) -> dict[int, int]:
    """Return the bytes of each chunk of a thread, by number: a frame's where it is stored against another."""
    prefix = keys.chunks(thread, series)
    out: dict[int, int] = {}
    for key, row in rows_of(store.log.storage).items():
        if key.startswith(prefix):
            found = chunkrow.decode_row(unseal(key, row), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"), None)
            out |= {number: len(blob) for number, blob in found.whole.items()}
            out |= {number: len(based.frame) for number, based in found.based.items()}
    return out


def states(thread: Thread) -> dict[str, dict[str, Any]]:
    """Return all checkpoints of a thread with their states, the newest first."""
    return {checkpoint.id: thread.state(at=checkpoint) for checkpoint in thread.history()}


def everything(store: Store) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return all that a store's main namespaces hold: thread → checkpoint → state, metadata, parent, writes."""
    return {
        found.name: {
            checkpoint.id: (
                store.thread(found.name).state(at=checkpoint),
                checkpoint.metadata,
                checkpoint.parent_id,
                store.thread(found.name).writes(checkpoint),
            )
            for checkpoint in store.thread(found.name).history()
        }
        for found in store.threads()
    }


@dataclass
class Interrupted:
    """A storage in which something happens once: just after a snapshot was taken, or in place of a commit."""

    remote = False
    inner: Storage
    after_snapshot: list[Callable[[], object]] = field(default_factory=list)
    retries: int = 0

    @property
    def location(self) -> str:
        return self.inner.location

    @contextmanager
    def read(self) -> Iterator[ReadTransaction]:
        with self.inner.read() as tx:
            tx.get(b"\0")  # the snapshot is taken
            if self.after_snapshot:
                self.after_snapshot.pop()()
            yield tx

    @contextmanager
    def write(self, threads: Any = ()) -> Iterator[WriteTransaction]:
        with self.inner.write(threads) as tx:
            yield tx
            if self.retries:
                self.retries -= 1
                raise RetryTransaction("the map has grown; run it again")

    def info(self) -> StorageInfo:
        return self.inner.info()

    def close(self) -> None:
        self.inner.close()


def interrupted(way: str, patch: pytest.MonkeyPatch) -> Interrupted:
    """Return a storage where something happens once a write was prepared, by a snapshot or by what is remembered."""
    storage = Interrupted(MemoryStorage())
    if way == "read":
        patch.setattr(HeadCache, "standing", lambda *_: None)
        return storage
    for module in (putting, pending):

        def prepare(*given: Any, prepare: Any = module.prepare_remembered) -> Any:
            made = prepare(*given)
            if made is not None and storage.after_snapshot:
                storage.after_snapshot.pop()()
            return made

        patch.setattr(module, "prepare_remembered", prepare)
    return storage
