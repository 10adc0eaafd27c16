"""Whose turn it is to write, in front of the engine's own lock: so that nobody has to wait in that one.

LMDB's write lock is a robust mutex. When it is given up, one sleeper is woken. If that one's process is killed before
it runs, while another writer holds the lock without having slept, all other sleepers are forgotten: they sleep until
two more writers happen to meet. Locks of files have no such hole: the system keeps the queue.

The same file tells who has the environment open. Imports nothing of the project. The invariant: the engine's lock alone
decides who writes; a turn that can't be had is done without.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - another system, where the engine has other locks
    fcntl = None  # type: ignore[assignment]

TURN_FILE = "turn.lock"

_TURN, _OPENING, _OPEN = range(3)
"""The bytes of the file that are locked: alone by whoever is about to write; alone by whoever opens the environment; by
all that have it open, together."""

_AGAIN_S = 0.001
"""Pause before a lock is asked for again that the system refused to wait for."""


class Turns:
    """The turns to write into one environment. Thread-safe. One for each environment and process: closing any
    descriptor of the file gives up the process's lock.
    """

    def __init__(self, environment: Path) -> None:
        self._own = threading.Lock()  # a file's lock is the whole process's
        self._holder = 0
        self._descriptor: int | None = None
        if fcntl is not None:
            with contextlib.suppress(OSError):  # no permission, say
                self._descriptor = os.open(environment / TURN_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)

    def enter(self, first: Callable[[], None]) -> None:
        """Be one of the processes that have the environment open; before that, call `first` if no other is.

        Whoever else opens it waits meanwhile; whoever has it open isn't waited for. Where the system has no locks,
        `first` is called in any case. Raises what it does; then this process isn't one of them, and the next is first.
        """
        descriptor = self._descriptor
        if descriptor is None or not _has_lock(descriptor, fcntl.LOCK_EX, _OPENING):
            first()
            return
        try:
            if _is_free(descriptor, _OPEN):
                first()
            _has_lock(descriptor, fcntl.LOCK_SH, _OPEN)
        except BaseException:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 2, _OPENING)  # both at once, or who waits would not find it free
            raise
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _OPENING)

    def take(self) -> bool:
        """Wait for a turn; False at once where this OS thread has it, so that the engine refuses a write in a write."""
        if self._holder == threading.get_ident():
            return False
        self._own.acquire()
        self._holder = threading.get_ident()
        if self._descriptor is None:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, _TURN)
        except OSError:
            pass  # the system sees a circle where threads wait for two stores, or has no locks here
        except BaseException:  # a signal's handler
            self._holder = 0
            self._own.release()
            raise
        return True

    def leave(self) -> None:
        """Give the turn to whoever waits longest, once the engine's lock is free."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _TURN)
        self._holder = 0
        self._own.release()

    def close(self) -> None:
        """Give the file back; a forked child does so too, and has no lock of its parent."""
        descriptor, self._descriptor = self._descriptor, None  # first, for the system gives its number away again
        if descriptor is not None:
            os.close(descriptor)


def _has_lock(descriptor: int, kind: int, place: int) -> bool:
    """Wait for a lock; False where the system has none."""
    while True:
        try:
            fcntl.lockf(descriptor, kind, 1, place)
        except OSError as error:
            # The system takes all threads of a process for one, and sees circles of waiting that are none.
            if error.errno != errno.EDEADLK:
                return False
            time.sleep(_AGAIN_S)
        else:
            return True


def _is_free(descriptor: int, place: int) -> bool:
    """Take a lock alone, and tell whether no other process has it; so too where the system has no more locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
