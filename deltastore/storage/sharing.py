"""The environments that this process has open, one for each data file, however many handles use it.

Imports environment, the engine, the directory rules and the errors. The invariant: no data file is open twice in a
process, for closing either would drop the file locks of both; a forked child never uses what it inherited.
"""

import os
import threading
from pathlib import Path

from deltastore.errors import StorageError, SyncModeError
from deltastore.storage import directory, engine
from deltastore.storage.directory import Identity
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.port import SyncMode

_STRENGTH: dict[SyncMode, int] = {"none": 0, "meta": 1, "full": 2}


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
            shared = SharedEnvironment(path, sync, max_bytes, forked=_process.forked, when_idle=_close_if_unused)
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


def _disown_all() -> None:
    """In a forked child: put away what was inherited. The locks may be held by threads that aren't here."""
    _process.lock = threading.Lock()
    _process.forked = True
    for shared in _process.open.values():
        shared.disown()
        _process.inherited.append(shared)
    _process.open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
