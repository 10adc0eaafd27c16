"""Writes that are prepared outside a write transaction and applied in one, again while others come between.

Run by a thread that waits, or by a small pool, so that an event loop waits for nothing and no thread for a commit.
Imports committing. The invariant: what is applied was prepared on what still stands.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Generic, NamedTuple, TypeVar, cast

from deltastore.errors import ContentionError
from deltastore.log import names
from deltastore.log.committing import CommitQueue
from deltastore.storage.port import ReadTransaction, Storage, Wanted, WriteTransaction

MAX_ATTEMPTS = 100
"""How often a write is prepared anew while others write to the same thread."""
BELIEVED_ATTEMPTS = 2
"""How often what a write stands on is believed without a look."""
POOL_THREADS = 4
"""Preparing takes the interpreter, of which there is one; a thread more commits meanwhile."""

P = TypeVar("P")
T = TypeVar("T")
R = TypeVar("R")


class Write(NamedTuple, Generic[P, T, R]):
    """How to prepare a write, to apply it (a text says why it must be prepared again), and what to do at the end.

    `recall` prepares by what is in memory, or returns None where that isn't enough. `wanted`: what `apply` looks at,
    asked for only where the storage is far away.
    """

    thread: str
    recall: Callable[[], P | None]
    prepare: Callable[[ReadTransaction], P]
    apply: Callable[[WriteTransaction, P], T | str]
    end: Callable[[P, T], R]
    wanted: Callable[[P], Wanted]


def run(write: Write[P, T, R], storage: Storage, commits: CommitQueue) -> R:
    """Carry a write out, and return what its end returns. Raises what its parts do, ContentionError."""
    reason = ""
    for attempt in range(MAX_ATTEMPTS):
        prepared = _prepared(write, attempt == 0, storage, commits)
        outcome = commits.run(partial(_apply, write.apply, prepared), partial(_wanted, write, prepared, attempt))
        if not isinstance(outcome, str):
            return write.end(prepared, outcome)
        reason = outcome
    raise _contention(write.thread, reason)


@names.again
def _prepared(write: Write[P, T, R], first: bool, storage: Storage, commits: CommitQueue) -> P:
    """Prepare a write: at the first attempt by what is in memory, if that is enough."""
    with commits.turn:
        recalled = write.recall() if first else None
        if recalled is not None:
            return recalled
    # who waits for a server must not keep others from preparing, nor from the connection that is waited for
    with nullcontext() if storage.remote else commits.turn, storage.read() as tx:
        return write.prepare(tx)


def _wanted(write: Write[P, T, R], prepared: P, attempt: int) -> Wanted:
    """Return what `apply` looks at; from the third attempt on it looks: others change the thread all the time, maybe in
    ways that don't matter to it.
    """
    wanted = write.wanted(prepared)
    return wanted if attempt < BELIEVED_ATTEMPTS else wanted._replace(believed=None)


def _apply(apply: Callable[[WriteTransaction, P], T | str], prepared: P, tx: WriteTransaction) -> T | str:
    return apply(tx, prepared)


def _contention(thread: str, reason: str) -> ContentionError:
    return ContentionError(
        f"thread {thread!r}: {MAX_ATTEMPTS} attempts to write failed, the last because {reason}. "
        "Others write to this thread all the time; try again, or give each writer a thread of its own"
    )


class Pool:
    """A few threads that carry writes out, started when the first comes. Thread-safe; a forked child needs its own."""

    def __init__(self, storage: Storage, commits: CommitQueue) -> None:
        self._storage = storage
        self._commits = commits
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False

    def start(self, begin: Callable[[], Write[P, T, R]]) -> "Future[R]":
        """Carry out the write that `begin` makes. It can't be cancelled; the future has what `run` would give.

        Raises RuntimeError where no more threads are given, as when the interpreter shuts down.
        """
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._executor is None and not self._closed:
                self._executor = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="deltastore")
            executor = self._executor
        if executor is None:
            self._attempt(begin, future, 1)  # the storage says that it was closed
        else:
            executor.submit(self._attempt, begin, future, 1)
        return future

    def close(self) -> None:
        """Wait for the writes under way."""
        with self._lock:
            executor, self._executor, self._closed = self._executor, None, True
        if executor is not None:
            executor.shutdown()

    def _attempt(self, begin: Callable[[], Write[P, T, R]], future: "Future[R]", attempt: int) -> None:
        try:
            write = begin()
            prepared = _prepared(write, attempt == 1, self._storage, self._commits)
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            future.set_exception(error)
            return

        def done(outcome: T | str | None, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            elif not isinstance(outcome, str):
                _end(write, prepared, cast(T, outcome), future)  # None may be an outcome
            elif attempt < MAX_ATTEMPTS:
                self._call(lambda: self._attempt(lambda: write, future, attempt + 1))
            else:
                future.set_exception(_contention(write.thread, outcome))

        work, wanted = partial(_apply, write.apply, prepared), partial(_wanted, write, prepared, attempt - 1)
        self._commits.submit(work, done, self._call, wanted)

    def _call(self, function: Callable[[], None]) -> None:
        """Have a function called by a thread of the pool, or at once where none is left."""
        executor = self._executor
        if executor is not None:
            try:
                executor.submit(function)
            except RuntimeError:  # the interpreter shuts down
                pass
            else:
                return
        function()


def _end(write: Write[P, T, R], prepared: P, outcome: T, future: "Future[R]") -> None:
    try:
        future.set_result(write.end(prepared, outcome))
    except Exception as error:  # noqa: BLE001 - whoever waits is told
        future.set_exception(error)
