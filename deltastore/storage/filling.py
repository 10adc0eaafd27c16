"""Filling a fresh environment from rows in key order: how a store is copied, or made smaller.

Rows are appended, so pages are full and follow each other as the keys do. Imports the shared environments, the
directory rules, the engine and the errors. The invariant: an environment gets its name when all rows are in it,
durably; until then it stands under one that no store goes by, and is never opened as one.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from deltastore.errors import InvalidInputError, StorageError, StorePathError
from deltastore.storage import directory, sharing
from deltastore.storage.engine import EngineError, MapFullError, translate, translate_os, translate_path
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.port import Row

if TYPE_CHECKING:
    from deltastore.storage.engine import Transaction

T = TypeVar("T")

UNFINISHED = ".filling"
"""What the name of an environment that is being filled ends with."""

MAX_BATCH_BYTES = 16 << 20
MAX_BATCH_ROWS = 50_000
"""What one transaction appends at most: it is held in memory until it is committed, and a row takes a page at worst."""


class Filled(NamedTuple):
    """What was written: rows, and the bytes of their keys and values together."""

    rows: int
    bytes: int


def prepare_empty(root: Path) -> bool:
    """Make the directory of a store to be filled, and tell whether it wasn't there.

    Raises StorePathError unless it is new or empty: nothing is ever overwritten.
    """
    try:
        root.mkdir()
    except FileExistsError:
        pass
    except OSError as error:
        text = f"no store can be made at {root}: {error}; its parent must be a directory, and writable"
        raise translate_path(error, os.fspath(root), text) from error
    else:
        return True
    try:
        found = sorted(path.name for path in root.iterdir())
    except OSError as error:
        text = f"no store can be made at {root}: {error}; expected a directory"
        raise translate_path(error, os.fspath(root), text) from error
    if found:
        cut_short = found == [directory.FIRST_ENVIRONMENT + UNFINISHED]
        hint = "which another writer fills or left behind unfinished; remove it, or" if cut_short else "so"
        raise StorePathError(
            f"{root} isn't empty: it holds {', '.join(found[:3])}, {hint} name another directory, empty or to be made"
        )
    return False


def fill(target: Path, rows: Iterable[Row]) -> Filled:
    """Make an environment, such as `env-2` of a store, of rows in ascending order of their keys; durable on return.

    In bounded transactions, and flushed once. What ends it early, an error of `rows` included, leaves nothing behind;
    a kill leaves a directory ending in `.filling`, to be removed. Nothing names the environment afterwards but itself.
    Raises StorePathError where it is there or being filled, InvalidInputError for rows out of order, StoreFullError,
    StorageError.
    """
    unfinished = target.with_name(target.name + UNFINISHED)
    try:
        unfinished.mkdir()
    except OSError as error:
        text = f"{target} can't be filled: {error}; end whoever fills it, or remove {unfinished.name} left behind"
        raise translate_path(error, os.fspath(target), text) from error
    try:
        filled = _fill(unfinished, rows)
        _name(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return filled


def _name(unfinished: Path, target: Path) -> None:
    """Give a filled environment its name, durably."""
    try:
        unfinished.rename(target)
        directory.sync_directory(target.parent)
    except OSError as error:
        text = f"{target} can't be named: {error}; somebody else made it meanwhile"
        raise translate_path(error, os.fspath(target), text) from error


def _fill(unfinished: Path, rows: Iterable[Row]) -> Filled:
    # Nothing is flushed before the end: an environment that a crash leaves half-written is of no use in any case.
    shared = sharing.acquire(unfinished, "none", None)
    try:
        count = size = 0
        for batch in _batches(rows):
            _append(shared, batch)
            count += len(batch)
            size += sum(len(key) + len(row) for key, row in batch)
        shared.make_durable()
        found = shared.env.stat()["entries"]
        if found != count:
            raise StorageError(f"{unfinished} holds {found} rows where {count} were written; try again elsewhere")
        return Filled(count, size)
    except EngineError as error:
        raise translate(error, shared.location) from error
    except OSError as error:
        raise translate_os(error, os.fspath(unfinished)) from error
    finally:
        sharing.release(shared)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for key, row in rows:
        batch.append((key, row))
        size += len(key) + len(row)
        if size >= MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Turn:
    """A write transaction, as the gate of its environment and a fork know it."""

    def __init__(self) -> None:
        self.txn: Transaction | None = None

    def disown(self) -> object:
        """In a forked child: give up the inherited transaction, and return it."""
        inherited, self.txn = self.txn, None
        return inherited


def _append(shared: SharedEnvironment, batch: list[Row]) -> None:
    def append(txn: "Transaction") -> None:
        _, added = txn.cursor().putmulti(batch, append=True)
        if added != len(batch):
            raise InvalidInputError(f"rows for {shared.location} aren't in ascending order of their keys")

    write(shared, append)


def write(shared: SharedEnvironment, work: Callable[["Transaction"], T]) -> T:
    """Do work in one write transaction of an environment, again where the map had to grow; return what it gives."""
    turn = _Turn()
    while True:
        seen_bytes = shared.map_bytes
        shared.live[turn] = get_ident()
        try:
            turn.txn = shared.env.begin(write=True)
            outcome = work(turn.txn)
            turn.txn.commit()
        except MapFullError:
            pass
        else:
            return outcome
        finally:
            if turn.txn is not None:
                with contextlib.suppress(EngineError):
                    turn.txn.abort()
                turn.txn = None
            shared.leave(turn)
        shared.enlarge(seen_bytes)
