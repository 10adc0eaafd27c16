"""Group commit: writers that come at the same time share one commit, each returning only when it is durable.

Whoever comes first while nobody commits leads: it runs what waits, in the order of arrival, in one write transaction,
and hands the lead to the first of those that came meanwhile. Nobody waits for company. Imports names and storage. The
invariant: what a writer is told happened is committed, and what one writer does is wholly in a commit or not at all.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from deltastore.errors import ConflictError, UnavailableError
from deltastore.log import names
from deltastore.storage.port import Storage, Wanted, WriteTransaction

MAX_BATCH = 256
"""How many writers share a commit at most: a transaction's dirty pages are in memory."""
REFUSALS = (ConflictError,)
"""What a work may raise before it has written anything; after anything else, all of a batch is undone."""

T = TypeVar("T")
_WAITING, _LEADS, _DONE = range(3)


class _Job:
    """One writer's work, and what wakes its thread, or calls back where no thread waits."""

    __slots__ = ("error", "outcome", "state", "wake", "wanted", "work")

    def __init__(
        self, work: Callable[[WriteTransaction], Any], wake: Callable[["_Job"], None], wanted: Callable[[], Wanted]
    ) -> None:
        self.work = work
        self.wanted = wanted
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.state = _WAITING
        self.wake = wake

    def settle(self, outcome: Any, error: BaseException | None) -> None:
        """Tell the writer how it ended."""
        self.outcome, self.error = outcome, error
        self.state = _DONE
        self.wake(self)

    def result(self) -> Any:
        """Return the outcome, or raise what the work raised."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # it holds this frame
        return self.outcome


class CommitQueue:
    """Where the writers of one storage handle queue up. Thread-safe; a forked child needs one of its own."""

    def __init__(self, storage: Storage, *, runs_user_code: bool = False) -> None:
        """Queue for a storage. `runs_user_code`: preparing may run reducers of the user's, which may wait for a put."""
        self._storage = storage
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._led = False
        self.turn: AbstractContextManager[object] = nullcontext() if runs_user_code else threading.RLock()
        """Held by whoever prepares or applies: the interpreter runs one thread at a time, and the storage's binding
        gives it up at every call, where threads beside each other would hand it over."""
        self.commits = 0
        self.works = 0
        self.largest = 0

    def run(self, work: Callable[[WriteTransaction], T], wanted: Callable[[], Wanted] = Wanted) -> T:
        """Run a work in a write transaction that others may share, and return its outcome once that is committed.

        `wanted` says what it looks at, where the storage is far away: all of a batch comes in one trip.
        It must write nothing before it raises one of `REFUSALS`, or returns an outcome that means that it refuses; it
        may be run several times, and only the last run counts. Raises what it raises, StoreFullError, StorageError.
        """
        turn = threading.Lock()
        turn.acquire()
        job = _Job(work, lambda _: turn.release(), wanted)
        try:
            leads = self._enqueue(job)
            if not leads:
                turn.acquire()
                leads = job.state == _LEADS
        except BaseException:  # interrupted
            self._leave(job)
            raise
        if leads:
            self._lead()  # who leads is the first of those that wait
        outcome: T = job.result()
        return outcome

    def submit(
        self,
        work: Callable[[WriteTransaction], T],
        done: Callable[[T | None, BaseException | None], None],
        in_pool: Callable[[Callable[[], None]], None],
        wanted: Callable[[], Wanted] = Wanted,
    ) -> None:
        """Queue a work as `run` does, without a thread that waits; `done` is told its outcome, or its error.

        `done` is called by whoever commits, and must be short. Whoever calls this may have to commit for others before
        it returns; `in_pool` has a function called by some thread, where it is this work's turn to do that later.
        """

        def wake(job: _Job) -> None:
            if job.state == _LEADS:
                in_pool(self._lead)
            else:
                done(job.outcome, job.error)

        if self._enqueue(_Job(work, wake, wanted)):
            self._lead()

    def _enqueue(self, job: _Job) -> bool:
        """Let a job wait for its turn; tell whether it has the lead at once."""
        with self._lock:
            self._waiting.append(job)
            leads, self._led = not self._led, True
            if leads:
                job.state = _LEADS
        return leads

    def _leave(self, job: _Job) -> None:
        """Forget a job whose thread goes, unless it is being committed; the lead must not be lost with it."""
        with self._lock:
            leads = job.state == _LEADS
            if job in self._waiting:
                self._waiting.remove(job)
        if leads:
            self._hand_over()

    def _lead(self) -> None:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        try:
            self._commit(batch)
        except BaseException as error:  # noqa: BLE001 - interrupted: for the others it is as if their turn had not come
            with self._lock:
                self._waiting.extendleft(job for job in reversed(batch[1:]) if job.state != _DONE)
            if batch[0].state != _DONE:
                batch[0].settle(None, error)
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            first = self._waiting[0] if self._waiting else None
            self._led = first is not None
            if first is not None:
                first.state = _LEADS
        if first is not None:
            first.wake(first)

    def _commit(self, batch: list[_Job]) -> None:
        """Settle all jobs of a batch: in one transaction, or each in its own where one of them fails in the middle."""
        outcomes: list[tuple[Any, BaseException | None]] = []

        def run_all(tx: WriteTransaction) -> None:
            outcomes.clear()  # the storage may run this again
            if tx.remote:
                for job in batch:
                    tx.prefetch(job.wanted())
                tx.prefetch(Wanted(), now=True)  # before others are kept from preparing: this may wait for locks
            with self.turn:
                for job in batch:
                    try:
                        outcomes.append((job.work(tx), None))
                    except REFUSALS as error:
                        outcomes.append((None, error))

        try:
            names.in_write(self._storage, (), run_all)
        except Exception as error:  # noqa: BLE001 - each is told below
            is_lost = isinstance(error, UnavailableError) and not outcomes  # before any ran: for all alike
            if is_lost or len(outcomes) == len(batch) or len(batch) == 1:  # the commit itself: never tried again
                for job in batch:
                    job.settle(None, copy.copy(error))
                return
            for job in batch:
                self._commit([job])
            return
        self.commits += 1  # by whoever leads, so one at a time
        self.works += len(batch)
        self.largest = max(self.largest, len(batch))
        for job, settled in zip(batch, outcomes, strict=True):
            job.settle(*settled)
