"""One open environment per data file and process, shared by all handles, and the gate before its transactions.

Imports the engine, the turns, the redo records, the directory rules and the errors. The invariant: while the map is
replaced or the environment is closed, no transaction of this process is alive in it; a forked child never uses what it
inherited; an open environment holds all that was acknowledged, also before a power cut.

The gate costs a transaction two dict operations and two looks at a flag. A transaction enters itself into `live`,
*then* looks at `blocked`; whoever needs quiet sets `blocked`, *then* waits for an empty `live`. One sees the other.
"""

import itertools
import os
import threading
from pathlib import Path
from typing import Protocol

from deltastore.errors import StorageError, StoreFullError, SyncModeError
from deltastore.storage import datafile, directory, engine
from deltastore.storage.directory import Identity
from deltastore.storage.port import SyncMode
from deltastore.storage.redo import Redo
from deltastore.storage.turns import Turns

_MIB = 1 << 20

_serials = itertools.count()
"""Tell environments of this process apart, also those that follow each other in one place."""

RESERVED_MAP_BYTES = 1 << 40
"""Address space asked for at first, 1 TiB: costs nothing where pointers are 64 bits wide, for the file stays sparse,
and spares growing the map, during which all transactions stand still."""

STEP_BYTES = 64 * _MIB
"""First size, and smallest growth worth a standstill, of a map where the address space is limited."""

_SMALLEST_MAP_BYTES = 8 * _MIB
"""What is tried last; less isn't worth opening."""

_OPENING_TRIES = 8
"""How often all sizes are tried: another process may grow the file beyond a map between two steps of opening it."""

MIN_MAX_BYTES = _MIB
"""The smallest cap on a store: below it the reserve would be most of it."""

_RESERVE_SHARE = 8
_RESERVE_BYTES = 256 * 1024
"""Part of a capped map, 1/8 and at least 256 KiB, that growing writes leave alone. A delete first copies the pages that
it changes, so a store filled to the last page couldn't be emptied."""

_META_PAGES = 2

_STRENGTH: dict[SyncMode, int] = {"none": 0, "meta": 1, "full": 2}


class Inmate(Protocol):
    """A transaction, as the gate knows it."""

    def disown(self) -> object:
        """In a forked child: give up the inherited engine transaction, refuse further use, and return it."""


class SharedEnvironment:
    """An open environment. Thread-safe. Made by `acquire`; `release` it once for each time."""

    def __init__(self, path: Path, sync: SyncMode, max_bytes: int | None) -> None:
        self.path = path
        self.location = os.fspath(path)
        self.sync = sync
        self.max_bytes = max_bytes
        self.serial = next(_serials)
        self.last_own: tuple[int, int] | None = None
        """The engine's number of this process's last commit, if it wrote anything and didn't move the store, and how
        often it wrote. While the next transaction's number follows it, nobody else has written."""
        self.live: dict[Inmate, int] = {}
        self.blocked = False
        self.inherited = False
        self.references = 0
        self._resizing = False
        self._changed = threading.Condition()
        self._mode = sync
        self.env = self._open()
        self.turns = Turns(path)
        self.map_bytes = self.env.info()["map_size"]
        self.page_bytes = self.env.stat()["psize"]
        self.page_limit = 0 if max_bytes is None else (max_bytes - _reserve(max_bytes)) // self.page_bytes
        self.redo: Redo | None = None
        self.record_room = -1
        """Bytes that a commit may change to have a redo record; -1: none has one, in this mode or on this system."""
        self.confirmed = 0
        """The last commit that is known to survive a power cut, or to need it not in this mode."""
        self._flush_error: engine.EngineError | None = None
        try:
            self.identity = self._identify()
            self.env.reader_check()
            if Redo.is_possible(self.page_bytes):
                self.redo = Redo(path / directory.DATA_FILE, self.page_bytes)
                self.record_room = self.redo.room if sync == "full" else -1
            self.turns.enter(self._redo_lost)
            self._confirm_last()
        except BaseException:
            self._close()
            raise

    def _identify(self) -> Identity:
        identity = directory.identify(self.path)
        if identity is None:
            raise StorageError(f"{self.path} lost its data file while it was opened; open it again")
        return identity

    def _confirm_last(self) -> None:
        """What is found here others may have seen already that were killed before they flushed it."""
        try:
            self.confirm(self.env.info()["last_txnid"])
        except engine.EngineError as error:
            raise engine.translate(error, self.location) from error

    def _open(self) -> engine.Environment:
        # Elsewhere than on POSIX the file takes the size of its map at once.
        sizes = (RESERVED_MAP_BYTES, STEP_BYTES, _SMALLEST_MAP_BYTES)[0 if os.name == "posix" else 1 :]
        if self.max_bytes is not None:
            sizes = (self.max_bytes, min(_SMALLEST_MAP_BYTES, self.max_bytes))
        for size in sizes * _OPENING_TRIES:
            try:
                datafile.check_openable(self.path / directory.DATA_FILE)
                engine.check_lock_room(self.path)
                return engine.open_environment(self.path, size, self._mode, forked=_process.forked)
            except (engine.NoMemoryError, engine.MapResizedError, OverflowError) as error:
                refusal: Exception = error
            except engine.EngineError as error:
                raise engine.translate(error, self.location) from error
            except OSError as error:
                raise engine.translate_os(error, self.location) from error
        raise StorageError(f"{self.location}: no address space even for a small map ({refusal}); raise the limit")

    # The gate. `Transaction.__enter__` does its first half itself, for speed.

    def may_pass(self, inmate: Inmate) -> bool:
        """Tell whether a transaction that found the gate shut may begin all the same; else it is no longer in `live`.

        A thread that is inside a transaction may: whoever shut the gate waits for that one anyway, and would for ever.
        """
        with self._changed:
            thread = self.live[inmate]
            if not self.inherited and any(own == thread and other is not inmate for other, own in self._inmates()):
                return True
        self.leave(inmate)
        return False

    def wait(self) -> None:
        """Wait until a map being replaced is there again."""
        with self._changed:
            while self._resizing:
                self._changed.wait()

    def leave(self, inmate: Inmate) -> None:
        """Note the end of a transaction."""
        self.live.pop(inmate, None)
        if self.blocked and not self.inherited:
            with self._changed:
                self._changed.notify_all()
            _close_if_unused(self)

    def refer(self, by: int) -> None:
        """Count handles; without any the gate stays shut."""
        with self._changed:
            self.references += by
            self.blocked = self._resizing or self.references == 0

    def close_if_unused(self) -> bool:
        """Close when no handle and no transaction is left, and tell whether that was so."""
        with self._changed:
            if self.references or self.live or self._resizing:
                return False
            self._close()
            return True

    def _close(self) -> None:
        self.env.close()
        self.close_files()

    def close_files(self) -> None:
        """Give back what was opened beside the engine; a forked child does so too."""
        self.turns.close()
        if self.redo is not None:
            self.redo.close()

    def _inmates(self) -> list[tuple[Inmate, int]]:
        return list(self.live.items())  # one step, as others come and go without the lock

    # The map.

    def enlarge(self, seen_bytes: int) -> None:
        """Make the map larger than the caller saw it. The caller has ended its transaction, and nothing was written.

        Raises StoreFullError at `max_bytes` or when no address space is left, StorageError where it can't be done now.
        """
        if self.max_bytes is not None and seen_bytes >= self.max_bytes:
            raise StoreFullError(
                f"{self.location} is full: max_bytes is {self.max_bytes}, and nothing of this transaction was written; "
                "delete something, end transactions that have been open for long, or raise max_bytes"
            )
        self._replace_map(seen_bytes)

    def adopt(self) -> None:
        """Make the map as large as another process made the file."""
        self._replace_map(None)

    def _replace_map(self, seen_bytes: int | None) -> None:
        with self._changed:
            if threading.get_ident() in self.live.values():
                raise StorageError(
                    f"{self.location}: the map must grow, but this thread is inside another transaction of the store; "
                    "end it first"
                )
            while self._resizing:
                self._changed.wait()
            if self.map_bytes > (self._file_bytes() if seen_bytes is None else seen_bytes):
                return
            self._resizing = self.blocked = True
            try:
                while self.live:
                    self._changed.wait()
                self._remap()
            except engine.EngineError as error:
                raise engine.translate(error, self.location) from error
            finally:
                self._resizing = False
                self.blocked = self.references == 0
                self._changed.notify_all()
        if self.blocked:
            _close_if_unused(self)

    def _file_bytes(self) -> int:
        return (self.env.info()["last_pgno"] + 1) * self.page_bytes

    def _remap(self) -> None:
        # A file grown by another process decides; not the map that process chose, for it may have more address space.
        least = max(self.map_bytes, self._file_bytes())
        sizes = [least * 2, least + STEP_BYTES]
        if self.max_bytes is not None:
            sizes = [min(size, max(least, self.max_bytes)) for size in sizes]
        for size in sizes:
            if size <= self.map_bytes or not engine.can_map(size - self.map_bytes):
                continue
            try:
                self.env.set_mapsize(size)
            except engine.EngineError:
                # Somebody else took the space meanwhile, and the old map is gone too.
                self.env.close()
                self.env = self._open()
            mapped = self.env.info()["map_size"]
            if mapped > self.map_bytes:
                self.map_bytes = mapped
                return
        raise StoreFullError(
            f"{self.location}: the process has no address space for more than {self.map_bytes} bytes of the store, and "
            "nothing of this transaction was written; raise its limit of virtual memory"
        )

    # The file.

    def check_in_place(self) -> None:
        """Raise StorageError when the data file was deleted or replaced, for a write would go nowhere."""
        if directory.identify(self.path) != self.identity:
            raise StorageError(
                f"{self.path / directory.DATA_FILE} was deleted or replaced while it was open; nothing was written; "
                "close this store and open it again"
            )

    def confirm(self, number: int) -> None:
        """Flush the file, with `full`, unless that commit is known to survive a power cut.

        Once a flush has failed this raises for good: the system reports an error once, and then knows no more of the
        pages. Raises the engine's errors, StorageError.
        """
        if self.sync == "full" and number > self.confirmed and not (self.redo is not None and self.redo.has(number)):
            self.flush()
        self.confirmed = number

    def flush(self) -> None:
        """Flush the file. Raises the engine's errors, and the first one again ever after."""
        if self._flush_error is not None:
            raise self._flush_error
        try:
            self.env.sync(True)
        except engine.EngineError as error:
            self._flush_error = error
            raise

    def _redo_lost(self) -> None:
        """Do again what a power cut took back of the last commit that returned. Before the first transaction of all.

        Also what a process was about to commit when it was killed, which nobody was told of.
        """
        if self.redo is None or not self.redo.is_ahead(self.env.info()["last_txnid"]):
            return
        try:
            if self.sync == "none":  # it would let the disk name what isn't there yet
                self._reopen("meta")
            while not self._redo(self.redo):
                if self.max_bytes is not None:
                    raise StoreFullError(
                        f"{self.location} is full: max_bytes={self.max_bytes} has no room to do its last write again, "
                        "and nothing of that is lost; raise max_bytes"
                    )
                self._remap()
            if self.sync == "none":
                self._reopen("none")
        except engine.EngineError as error:
            raise engine.translate(error, self.location) from error

    def _reopen(self, mode: SyncMode) -> None:
        self.env.close()
        self._mode = mode
        self.env = self._open()
        self.map_bytes = self.env.info()["map_size"]

    def _redo(self, records: Redo) -> bool:
        """Do again what is missing, durably; tell whether the map had room for it."""
        txn = self.env.begin(write=True)
        try:
            for key, value in records.lost(txn.id()):
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
            txn.commit()
        except engine.MapFullError:
            return False
        finally:
            txn.abort()
        self.env.sync(True)
        return True

    def make_durable(self) -> None:
        """Flush the file and its directory: before a new environment is named anywhere."""
        try:
            self.env.sync(True)
            for path in (self.path, self.path.parent, self.path.parent.parent):
                directory.sync_directory(path)
        except engine.EngineError as error:
            raise engine.translate(error, self.location) from error
        except OSError as error:
            raise engine.translate_os(error, self.location) from error


class _Process:
    """What this process has open, and what it inherited and must not finalise while it may be in use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[Identity, SharedEnvironment] = {}
        self.inherited: list[SharedEnvironment] = []
        self.forked = False


_process = _Process()


def acquire(path: Path, sync: SyncMode, max_bytes: int | None) -> SharedEnvironment:
    """Return the environment in a directory, opened if this process doesn't have it open.

    Raises SyncModeError, StorageError, CorruptionError, StoreFullError.
    """
    with _process.lock:
        identity = directory.identify(path)
        shared = None if identity is None else _process.open.get(identity)
        if shared is None:
            shared = SharedEnvironment(path, sync, max_bytes)
            _process.open[shared.identity] = shared
        elif _STRENGTH[sync] > _STRENGTH[shared.sync]:
            raise SyncModeError(
                f"{path} is open in this process with sync={shared.sync!r}, and sync={sync!r} was asked for; close the "
                "other handles first, or open them all alike"
            )
        elif max_bytes not in (None, shared.max_bytes):
            raise StorageError(
                f"{path} is open in this process with max_bytes={shared.max_bytes}, and max_bytes={max_bytes} was "
                "asked for; close the other handles first, or open them all alike"
            )
        shared.refer(1)
        return shared


def release(shared: SharedEnvironment) -> None:
    """Give back an environment; the last one out closes it, after the transactions under way."""
    with _process.lock:
        if shared.inherited:
            return
        shared.refer(-1)
    _close_if_unused(shared)


def name_current(shared: SharedEnvironment, *, instead_of: str | None, name: str) -> None:
    """Make `CURRENT` name an environment, if it still holds `instead_of`. `shared` is the one that knows its successor.

    Its write lock makes sure, over all processes, that a slow one doesn't undo what others did since.
    """
    root = shared.path.parent
    turn = _Turn()
    while shared.references and directory.current(root) == instead_of:
        shared.live[turn] = threading.get_ident()
        try:
            if shared.blocked and not shared.may_pass(turn):
                shared.wait()
                continue
            turn.queued = shared.turns.take()
            turn.txn = shared.env.begin(write=True)
            # A store made anew at this path has nothing to do with the one that `shared` belongs to.
            if directory.identify(shared.path) == shared.identity and directory.current(root) == instead_of:
                shared.env.sync(True)  # or a power cut could take the moved row, and leave its successor named nowhere
                directory.write_current(root, name)
            break
        except engine.MapResizedError:
            shared.leave(turn)
            shared.adopt()
        except engine.EngineError as error:
            raise engine.translate(error, shared.location) from error
        finally:
            if turn.txn is not None:
                turn.txn.abort()
            if turn.queued:
                turn.queued = False
                shared.turns.leave()
            shared.leave(turn)


class _Turn:
    """A write transaction for the sake of its lock."""

    def __init__(self) -> None:
        self.txn: engine.Transaction | None = None
        self.queued = False

    def disown(self) -> object:
        """In a forked child: give up the inherited transaction, and return it."""
        inherited, self.txn = self.txn, None
        return inherited


def registry_lock() -> threading.Lock:
    """Return the lock under which handles change their environment; another one after a fork."""
    return _process.lock


def _close_if_unused(shared: SharedEnvironment) -> None:
    with _process.lock:
        if _process.open.get(shared.identity) is shared and shared.close_if_unused():
            del _process.open[shared.identity]


def _reserve(max_bytes: int) -> int:
    return max(max_bytes // _RESERVE_SHARE, _RESERVE_BYTES)


def _disown_all() -> None:
    """In a forked child: put away what was inherited. The locks may be held by threads that aren't here."""
    _process.lock = threading.Lock()
    _process.forked = True
    for shared in _process.open.values():
        shared._changed = threading.Condition()
        shared.inherited = shared.blocked = True
        shared.close_files()
        _process.inherited.append(shared)
        if shared.live:
            engine.keep_for_ever((shared.env, [inmate.disown() for inmate in list(shared.live)]))
    _process.open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
