"""The embedded storage: an LMDB environment in a directory, one writer at a time over all processes.

Imports the port, the transactions, the shared environments, the directory, the cautions, the engine and the errors.
The invariant: a handle stands for the store's directory, not for a file: it goes along when the environment moves, and
opens its own in a forked child.
"""

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from deltastore.errors import ClosedError, CorruptionError, DeltastoreError, InvalidInputError, StorageError
from deltastore.storage import cautions, datafile, directory, engine, environment, sharing
from deltastore.storage.engine import EngineError, translate
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.port import SyncMode
from deltastore.storage.transaction import LmdbReadTransaction
from deltastore.storage.writing import LmdbWriteTransaction, used_pages

if TYPE_CHECKING:
    from deltastore.storage.info import OldestReader, StorageInfo

_WALKS = 100
"""How often a look at the file begins anew: two commits of others must come within microseconds to make it."""


class LmdbStorage:
    """A store in a directory, made if it isn't there. Thread-safe; usable in a forked child, which opens it anew.

    Handles of one process on the same store share one environment, whatever path they were given; a handle that asks
    for a weaker `sync` than it has gets the stronger one. `max_bytes` caps the map; without it the map grows.
    """

    remote: ClassVar[bool] = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: SyncMode = "full",
        max_bytes: int | None = None,
        create: bool = True,
    ) -> None:
        """Open or, with `create`, make the store.

        Raises StorePathError, SyncModeError, StorageError, StoreFullError, CorruptionError, InvalidInputError.
        """
        if sync not in ("full", "meta", "none"):
            raise InvalidInputError(f"sync is {sync!r}; expected 'full', 'meta' or 'none'")
        if max_bytes is not None and max_bytes < environment.MIN_MAX_BYTES:
            raise InvalidInputError(f"max_bytes is {max_bytes}; expected at least {environment.MIN_MAX_BYTES}")
        try:
            self._root = Path(os.path.realpath(path))
        except ValueError as error:
            raise InvalidInputError(f"the path {os.fspath(path)!r} can't be one: {error}") from error
        self._closed = False
        if not create:
            directory.check_store(self._root)
        cautions.warn_of_place(self.location)
        self.shared = _open_current(self._root, sync, max_bytes, create=True)
        try:
            with self.read():
                pass  # follows a move, and finds damage now rather than later
        except BaseException:
            self.close()
            raise
        cautions.warn_of_sync(self.location, self.shared.sync)

    @property
    def location(self) -> str:
        """The directory, for messages."""
        return os.fspath(self._root)

    def read(self) -> LmdbReadTransaction:
        """Begin a read transaction. Raises ClosedError, StorageError."""
        if self._closed:
            raise self._closed_error()
        return LmdbReadTransaction(self)

    def write(self, threads: Sequence[int] = ()) -> LmdbWriteTransaction:
        """Begin a write transaction, waiting for its turn; the names are ignored, for there is one writer at a time.

        Raises ClosedError, StorageError; StoreFullError and RetryTransaction also later, as the transaction says.
        """
        if self._closed:
            raise self._closed_error()
        return LmdbWriteTransaction(self)

    def info(self) -> "StorageInfo":
        """Return sizes, without reading payloads."""
        from deltastore.storage.info import StorageInfo  # seldom asked for

        with self.read() as transaction:
            shared = transaction._shared
            try:
                used = used_pages(transaction._txn) * shared.page_bytes
                listed = shared.env.readers()
                readers = len(listed.splitlines()) - 2  # without the heading and this transaction
                oldest = oldest_reader(listed, shared.env.info()["last_txnid"])
                file_bytes = (shared.path / directory.DATA_FILE).stat().st_size
            except EngineError as error:
                raise translate(error, shared.location) from error
            except OSError as error:
                raise engine.translate_os(error, shared.location) from error
            return StorageInfo("lmdb", self.location, file_bytes, used, shared.map_bytes, readers, oldest)

    def damaged_places(self) -> list[str]:
        """Return what is wrong with the pages of the file, read without the engine, which would crash on them.

        Of the moment of the call, at most the first ones. Raises ClosedError, StorageError.
        """
        found: list[str] | None = None
        for _ in range(_WALKS):
            with self.read() as transaction:
                shared = transaction._shared
                try:
                    found = datafile.damaged_places(shared.path / directory.DATA_FILE, transaction._txn.id())
                except OSError as error:
                    raise engine.translate_os(error, shared.location) from error
            if found is not None:
                return found
        raise StorageError(f"{self.location}: others commit faster than one can look at the file; try again")

    def close(self) -> None:
        """Give the environment back; closing twice is harmless. Transactions under way may end as usual."""
        with sharing.registry_lock():
            if self._closed:
                return
            self._closed = True
        sharing.release(self.shared)

    # Beginning a transaction, the rare ways.

    def reopen(self, shared: SharedEnvironment) -> None:
        """Make a handle usable whose environment had its gate shut."""
        if self._closed:
            raise self._closed_error()
        if shared.inherited:
            self._exchange(shared, _open_current(self._root, shared.sync, shared.max_bytes, create=False))
        else:
            shared.wait()

    def follow(self, shared: SharedEnvironment, value: bytes) -> None:
        """Go to the environment that a moved row names, after finishing the move for all."""
        name = directory.moved_name(value, shared.location)
        while True:
            try:
                directory.check_named(self._root, name)
                sharing.name_current(shared, instead_of=shared.path.name, name=name)
                # With the options of the one left behind: another handle may have asked for more than this one.
                new = sharing.acquire(self._root / name, shared.sync, shared.max_bytes)
                break
            except DeltastoreError:
                later = directory.current(self._root)
                if later is None or not directory.is_later(later, than=name):
                    raise
                name = later  # the store moved on since, and what it left was removed
        self._exchange(shared, new)

    def _exchange(self, old: SharedEnvironment, new: SharedEnvironment) -> None:
        with sharing.registry_lock():
            unused = new
            if self.shared is old and not self._closed:
                self.shared, unused = new, old
        sharing.release(unused)

    def recover(self, shared: SharedEnvironment, error: EngineError, attempt: int) -> None:
        """Do what lets a transaction begin that the engine refused, or raise."""
        if isinstance(error, engine.MapResizedError):
            shared.adopt()
            return
        if isinstance(error, engine.ReadersFullError):
            # Others may have cleaned up just before, so that nothing is left to clean and yet there is room.
            if shared.env.reader_check() or attempt == 0:
                return
            raise StorageError(
                f"{shared.location}: all {engine.MAX_READERS} reader slots are taken by living processes; end read "
                "transactions, or use fewer at a time"
            ) from error
        raise translate(error, shared.location) from error

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self.location} was closed; open it again")


def _open_current(root: Path, sync: SyncMode, max_bytes: int | None, *, create: bool) -> SharedEnvironment:
    """Open what `CURRENT` names; where there is none yet, make the first environment and name it."""
    while (name := directory.current(root)) is not None:
        try:
            directory.check_named(root, name)
            return sharing.acquire(root / name, sync, max_bytes)
        except DeltastoreError:
            if directory.current(root) == name:
                raise  # else the store moved, and what it left was removed
    if not create:
        raise StorageError(f"{root} holds no store any more; close this handle")
    directory.prepare(root)
    first = directory.FIRST_ENVIRONMENT
    shared = _acquire_first(root, sync, max_bytes)
    try:
        shared.make_durable()
        sharing.name_current(shared, instead_of=None, name=first)
    except BaseException:
        sharing.release(shared)
        raise
    return shared


def _acquire_first(root: Path, sync: SyncMode, max_bytes: int | None) -> SharedEnvironment:
    """Open the first environment, which nothing names yet; make it anew where a power cut left half of one."""
    path = root / directory.FIRST_ENVIRONMENT
    try:
        return sharing.acquire(path, sync, max_bytes)
    except CorruptionError:
        with directory.locked(root, wait=True):
            with contextlib.suppress(CorruptionError):
                return sharing.acquire(path, sync, max_bytes)  # somebody else made it anew meanwhile
            # It was named only after it was flushed, so a file without rows that nothing names was never used.
            if directory.current(root) is not None or not engine.is_without_rows(path / directory.DATA_FILE):
                raise
            directory.remove_data(path)
            return sharing.acquire(path, sync, max_bytes)


def oldest_reader(listed: str, last_transaction: int) -> "OldestReader | None":
    """Find the oldest in the engine's list of readers, which are lines of process, thread and transaction.

    This thread's own transaction is as old as the question, so it doesn't count.
    """
    from deltastore.storage.info import OldestReader  # seldom asked for

    oldest: OldestReader | None = None
    for line in listed.splitlines()[1:]:
        pid, thread, transaction = line.split()
        if not transaction.isdecimal() or (int(pid), int(thread, 16)) == (os.getpid(), threading.get_ident()):
            continue
        behind = last_transaction - int(transaction)
        if behind > (oldest.behind if oldest else 0):
            oldest = OldestReader(int(pid), behind)
    return oldest
