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

from deltastore.errors import CommitUnknownError, ConflictError, UnavailableError
from deltastore.log import names
from deltastore.storage.port import Storage, Wanted, WriteTransaction

MAX_BATCH = 256
"""How many writers share a commit at most: a transaction's dirty pages are in memory."""
LONGEST_PAUSE = 256
"""For how many commits a look is taken, at most, after what was remembered turned out not to be so."""
WAS_WRONG = "another writer was there first"
"""The outcome, which means that it refuses, of a work that believed what wasn't so."""
_INTERRUPTED = (
    "the thread that committed for this one was interrupted in the middle, and nothing tells whether it had; read, "
    "then decide"
)
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


class _Trust:
    """Whether what those of a batch remember is taken for true without a look: not for a while after it wasn't.

    One who was wrong makes all come again. Who writes alone may always believe: a look wouldn't spare him the second
    preparation.
    """

    def __init__(self) -> None:
        self._left = self._pause = 0

    def is_given(self) -> bool:
        """Tell whether to trust this time."""
        self._left = max(0, self._left - 1)
        return self._left == 0

    def weigh(self, *, was_right: bool) -> None:
        """Take in how it went."""
        self._pause = self._pause // 2 if was_right else min(4 * self._pause + 4, LONGEST_PAUSE)
        self._left = 0 if was_right else self._pause


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
        self._trust = _Trust()
        self.commits = 0
        self.works = 0
        self.largest = 0

    def run(self, work: Callable[[WriteTransaction], T], wanted: Callable[[], Wanted] = Wanted) -> T:
        """Run a work in a write transaction that others may share, and return its outcome once that is committed.

        `wanted` says what it looks at, where the storage is far away: all of a batch comes in one trip.
        It must write nothing before it raises one of `REFUSALS`, or returns a text, which means that it refuses; it
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
            if leads:
                self._lead()  # who leads is the first of those that wait
        except BaseException:  # interrupted
            self._leave(job)
            raise
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
        batch: list[_Job] = []
        try:
            with self._lock:
                while self._waiting and len(batch) < MAX_BATCH:
                    batch.append(self._waiting.popleft())
            self._commit(batch)
        except BaseException as error:
            with self._lock:
                self._waiting.extendleft(job for job in reversed(batch[1:]) if job.state != _DONE)
            if not batch or batch[0].state == _DONE:
                raise
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

        is_one = len(batch) == 1
        trusts = is_one or self._trust.is_given()
        runs, has_believed = 0, False

        def run_all(tx: WriteTransaction) -> None:
            nonlocal runs, has_believed
            runs += 1
            outcomes.clear()  # the storage may run this again
            if has_believed and is_one:  # it was wrong, so what was prepared on it doesn't stand
                outcomes.append((WAS_WRONG, None))
                return
            if tx.remote:
                unsure = _believe(tx, [job.wanted() for job in batch], trusts and not has_believed)
                has_believed |= len(unsure) < len(batch)
                _look(tx, unsure)
            with self.turn:
                for job in batch:
                    try:
                        outcomes.append((job.work(tx), None))
                    except REFUSALS as error:
                        outcomes.append((None, error))

        try:
            names.in_write(self._storage, (), run_all)
        except BaseException as error:  # noqa: BLE001 - each is told
            self._fail(batch, error, ran=len(outcomes))
            return
        try:
            if has_believed and not is_one:
                self._trust.weigh(was_right=runs == 1)
            self.commits += 1  # by whoever leads, so one at a time
            self.works += len(batch)
            self.largest = max(self.largest, len(batch))
            for job, settled in zip(batch, outcomes, strict=True):
                job.settle(*settled)
        except BaseException:  # interrupted: none of these may come again
            for job, settled in zip(batch, outcomes, strict=True):
                if job.state == _WAITING:
                    job.settle(*settled)
            raise

    def _fail(self, batch: list[_Job], error: BaseException, *, ran: int) -> None:
        """Settle the jobs of a commit that failed, of which so many ran, or let each have its own."""
        may_be_committed = ran == len(batch)
        if not isinstance(error, Exception):  # interrupted: whoever leads is told so by what is raised
            for job in batch:
                if may_be_committed and job.state == _WAITING:  # else its turn comes again
                    job.settle(None, CommitUnknownError(_INTERRUPTED))
            raise error
        is_lost = isinstance(error, UnavailableError) and not ran  # before any ran: for all alike
        if is_lost or may_be_committed or len(batch) == 1:  # the commit itself: never tried again
            for job in batch:
                job.settle(None, copy.copy(error))
            return
        for job in batch:
            self._commit([job])


def _believe(tx: WriteTransaction, all_wanted: list[Wanted], trusts: bool) -> list[Wanted]:
    """Let a transaction that looks far away believe what is remembered; return the others, for whom it must look."""
    return [
        wanted for wanted in all_wanted if not (trusts and wanted.believed is not None and tx.believe(wanted.believed))
    ]


def _look(tx: WriteTransaction, all_wanted: list[Wanted]) -> None:
    """Look at all that is wanted in one trip, before others are kept from preparing: it may wait for locks."""
    for wanted in all_wanted:
        tx.prefetch(wanted)
    if all_wanted:
        tx.prefetch(Wanted(), now=True)
