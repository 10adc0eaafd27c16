"""Moving a store into a fresh environment: fill it beside, bring it up to date, and let it take over.

Knows rows, not what they mean: which of them changed meanwhile is the caller's to say. Imports filling, the shared
environments, the directory rules and the engine. The invariant: until the moved row is committed the store is the old
environment; from then on it is the new one, which holds, durably, all that the old one acknowledged.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deltastore.errors import ConflictError, StorageError
from deltastore.storage import directory, sharing
from deltastore.storage.engine import EngineError, translate
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.filling import UNFINISHED, Filled, fill, write
from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.port import Row
from deltastore.storage.writing import LmdbWriteTransaction

if TYPE_CHECKING:
    from deltastore.storage.engine import Transaction

GONE = ".gone"
"""What the name of an environment that is being removed ends with: opening half of one would make a new, empty file."""

Rows = Callable[[], Iterable[Row]]
"""Gives rows in ascending order of their keys, as often as it is called."""


class Move:
    """A store's move to the next environment, from `moving`. Not thread-safe."""

    def __init__(self, storage: LmdbStorage, target: Path) -> None:
        self._storage = storage
        self._target = target

    def fill(self, rows: Iterable[Row]) -> Filled:
        """Make the next environment of rows in ascending order of their keys. Raises what `filling.fill` does."""
        return fill(self._target, rows)

    def amend(self, lower: bytes, upper: bytes, rows: Rows) -> int:
        """Let the next environment hold exactly these rows from `lower` to below `upper`; return how many differed.

        Not durable before `take_over`. Raises StorageError, StoreFullError.
        """
        with self._open() as shared:
            return write(shared, lambda txn: _amend(txn, lower, upper, rows()))

    def take_over(self, tx: LmdbWriteTransaction) -> None:
        """Let the next environment take over when this transaction of the old one commits: it must hold all rows now.

        Raises StorageError.
        """
        with self._open() as shared:
            shared.make_durable()
        tx.move_to(self._target.name)

    @contextlib.contextmanager
    def _open(self) -> Iterator[SharedEnvironment]:
        shared = sharing.acquire(self._target, "none", None)
        try:
            yield shared
        except EngineError as error:
            raise translate(error, shared.location) from error
        finally:
            sharing.release(shared)


@contextlib.contextmanager
def moving(storage: LmdbStorage) -> Iterator[Move]:
    """Begin a move; at its end, however it comes, all environments go that aren't the store's.

    Raises ConflictError where another one moves the store, StorageError.
    """
    root = Path(storage.location)
    with _locked(root):
        name = _current(storage)
        _remove_others(root, name)  # what an earlier move left behind that was killed
        target = root / f"env-{int(name.removeprefix('env-')) + 1}"
        try:
            yield Move(storage, target)
        finally:
            _remove_others(root, _current(storage))


def _current(storage: LmdbStorage) -> str:
    """Return the name of the store's environment, after finishing a move that was committed."""
    with storage.read():
        pass
    return storage.shared.path.name


def _remove_others(root: Path, name: str) -> None:
    """Remove environments that nothing leads to any more.

    Handles that have one open keep it, nameless, until their next transaction follows to the new one.
    """
    for path in root.glob("env-*"):
        known = path.name.removesuffix(UNFINISHED).removesuffix(GONE)
        if path.name == name or not known.removeprefix("env-").isdigit():
            continue
        doomed = path
        if path.name == known:
            doomed = path.with_name(known + GONE)
            shutil.rmtree(doomed, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    if os.name != "posix":
        raise StorageError(f"{root}: moving a store needs POSIX locks; make a backup, which is as small, and use that")
    with directory.locked(root, wait=False) as is_ours:
        if not is_ours:
            raise ConflictError(f"{root} is being moved by another process or thread; wait for it to end")
        yield


def _amend(txn: "Transaction", lower: bytes, upper: bytes, rows: Iterable[Row]) -> int:
    wanted = dict(rows)
    held = txn.cursor()
    gone: list[bytes] = []
    found = held.set_range(lower)
    while found and held.key() < upper:
        key = held.key()
        if key not in wanted:
            gone.append(key)
        elif wanted[key] == held.value():
            del wanted[key]
        found = held.next()
    for key in gone:
        txn.delete(key)
    for key, row in wanted.items():
        txn.put(key, row)
    return len(gone) + len(wanted)
