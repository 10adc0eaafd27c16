"""Retention: deletes what rules don't keep, thread by thread: plan, then apply.

Imports retention_thread, store and below. The invariant: a thread is decided about and changed in one transaction, so
whatever others put, tag or fork before it is seen; between threads nothing is held, and a sweep may be killed and run
again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from deltastore.errors import CorruptionError, InvalidInputError
from deltastore.log import choosing, deleting, finding, keys, listing, names, retention, rows
from deltastore.log.reading import View
from deltastore.log.retention import Retention, check_rules
from deltastore.log.rows import Header
from deltastore.storage.port import ReadTransaction, WriteTransaction
from deltastore.store import Store, check_name, check_open
from deltastore.terms import check_limit
from deltastore.upkeep.retention_rules import Reason
from deltastore.upkeep.retention_thread import CallPlan, CheckpointPlan, Decision, ThreadPlan, decide

__all__ = [
    "CallPlan",
    "CheckpointPlan",
    "Reason",
    "RetentionPlan",
    "RetentionReport",
    "ThreadPlan",
    "apply",
    "plan",
]

NO_RULES = "no rules are given, and neither the store nor a thread looked at has any, so everything stays"
"""What a plan or report says where nothing could go."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What retention would do: the plan of each thread that has rules.

    `damaged`: threads that can't be read, each with the error. `note`: why nothing goes, where that may surprise.
    """

    threads: tuple[ThreadPlan, ...]
    damaged: tuple[tuple[str, str], ...]
    note: str = ""

    @property
    def going(self) -> int:
        """How many checkpoints would go."""
        return sum(thread.going for thread in self.threads)

    @property
    def staying(self) -> int:
        """How many checkpoints of these threads would stay."""
        return sum(thread.staying for thread in self.threads)

    @property
    def stray_writes(self) -> int:
        """How many writes would go whose checkpoint never came."""
        return sum(thread.stray_writes for thread in self.threads)

    @property
    def freed_bytes(self) -> int:
        """What the rows that would go take, in bytes."""
        return sum(thread.freed_bytes for thread in self.threads)


@dataclass(slots=True)
class RetentionReport:
    """What a sweep did.

    `looked_at` threads had rules; `changed` of them lost something, `dropped` of these all. `checkpoints` are those
    that went, in all and `by_reason`. `more`: it stopped at its limit, and others may be due. `damaged` and `note` are
    as in a plan. Sizes are in bytes.
    """

    looked_at: int = 0
    changed: int = 0
    dropped: int = 0
    checkpoints: int = 0
    stray_writes: int = 0
    freed_bytes: int = 0
    by_reason: dict[Reason, int] = field(default_factory=dict)
    more: bool = False
    damaged: list[tuple[str, str]] = field(default_factory=list)
    note: str = ""

    def _add(self, plan: ThreadPlan) -> None:
        self.changed += 1
        self.dropped += plan.whole is not None
        self.checkpoints += plan.going
        self.stray_writes += plan.stray_writes
        self.freed_bytes += plan.freed_bytes
        for reason, count in plan.by_reason(stays=False).items():
            self.by_reason[reason] = self.by_reason.get(reason, 0) + count


def plan(
    store: Store,
    rules: Retention | None = None,
    *,
    threads: Sequence[str] | None = None,
    now: datetime | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RetentionPlan:
    """Return what `apply` would do at this moment, or at `now`; changes nothing.

    `rules` take the place of the store's; a thread's own come first in any case. `threads`: only these; unknown ones
    are none. `progress` is as that of `apply`. Raises InvalidInputError, ClosedError, StorageError.
    """
    sweep = _Sweep(store, rules, threads, now)
    found: list[ThreadPlan] = []
    total = sweep.count() if progress is not None else 0
    for done, name in enumerate(sweep.names(), 1):
        looked = sweep.look(name)
        if looked is not None:
            found.append(looked.decision.plan)
        if progress is not None:
            progress(done, max(total, done))
    return RetentionPlan(tuple(found), tuple(sweep.damaged), sweep.note(len(found)))


def apply(
    store: Store,
    rules: Retention | None = None,
    *,
    threads: Sequence[str] | None = None,
    now: datetime | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RetentionReport:
    """Delete what rules don't keep, each thread in one transaction of its own, and return what went.

    `rules` take the place of the store's; a thread's own come first in any case. `threads`: only these; unknown ones
    are none. `limit`: stop when so many threads were changed; the next call goes on with what is left. `progress` is
    called after each thread with how many are done, and how many there were at the beginning. Several may sweep at
    once, and a sweep may be killed: what is done is done, and running it again does the rest. A thread that can't be
    read is reported, and keeps nothing from the others.

    Raises InvalidInputError, ClosedError, StorageError.
    """
    check_limit(limit)
    report = RetentionReport()
    sweep = _Sweep(store, rules, threads, now)
    total = sweep.count() if progress is not None else 0
    for done, name in enumerate(sweep.names(), 1):
        if report.changed == limit:
            report.more = True
            break
        looked = sweep.look(name, to_change=True)
        report.looked_at += looked is not None
        if looked is not None and looked.decision.plan.changes:  # else nobody has to wait for a transaction
            changed = sweep.change(name, looked)
            if changed is not None:
                report._add(changed)
        if progress is not None:
            progress(done, max(total, done))
    if report.dropped or threads is None:  # what a killed sweep dropped is removed too
        store.collect()
    report.damaged = sweep.damaged
    report.note = sweep.note(report.looked_at)
    return report


class _Sweep:
    """What one call decides by: rules, time, threads; and the threads that it couldn't read."""

    def __init__(
        self, store: Store, rules: Retention | None, threads: Sequence[str] | None, now: datetime | None
    ) -> None:
        check_open(store)
        if isinstance(threads, str):  # a sequence of its letters
            raise InvalidInputError(f"threads {threads!r}; expected a list of names, as [{threads!r}]")
        self.log = store.log
        self.storage = store.log.storage
        self.threads = None if threads is None else [check_name(name, "thread") for name in threads]
        self.now_ms = store.log.now_ms() if now is None else _milliseconds(now)
        self.rules = check_rules(rules) or store.retention or Retention()
        self.damaged: list[tuple[str, str]] = []

    def names(self) -> Iterator[str]:
        """Iterate over the names of threads, the newest created first, holding no transaction."""
        if self.threads is not None:
            yield from self.threads
            return
        for row in listing.readable_threads(self.storage):
            if isinstance(row, listing.Damaged):
                self.damaged.append((row.name, str(row.error)))
            else:
                yield row.name

    def count(self) -> int:
        """Return how many threads there are to look at."""
        if self.threads is not None:
            return len(self.threads)
        prefix = keys.numbers_of(keys.THREAD)
        with self.storage.read() as tx:
            return tx.measure(prefix, keys.end_of(prefix))[0]

    def note(self, looked_at: int) -> str:
        """Return what a caller should know who may have forgotten to state rules."""
        return NO_RULES if self.rules.is_off and not looked_at and not self.damaged else ""

    def look(self, name: str, *, to_change: bool = False) -> "_Looked | None":
        """Decide about a thread; None where it isn't there, has no rules, or can't be read.

        `to_change`: find out what it takes too, so that nobody has to wait for that.
        """
        try:
            with self.storage.read() as tx:
                decided = self._decide(tx, name)
                if decided is None:
                    return None
                view, header, decision = decided
                choice = _choice(view, decision) if to_change and decision.plan.changes else None
        except CorruptionError as error:
            self.damaged.append((name, str(error)))
            return None
        return _Looked(view.thread, header.changes, decision, choice)

    def change(self, name: str, looked: "_Looked") -> ThreadPlan | None:
        """Do what was decided about a thread, in one transaction; None where nothing goes any more.

        It is decided anew in there if the thread isn't as it was when it was looked at.
        """
        try:
            changed = names.in_write(self.storage, (), lambda tx: self._change(tx, name, looked))
        except CorruptionError as error:
            self.damaged.append((name, str(error)))
            return None
        if changed is None:
            return None
        for thread, namespace, tip, was, now in changed.tips:  # else the next put reads again what this handle knows
            self.log.heads.renew(thread, namespace, tip, was, now)
        return changed.plan

    def _decide(self, tx: ReadTransaction, name: str) -> tuple[View, Header, Decision] | None:
        found = finding.find_thread(tx, name)
        if found is None:
            return None
        own = retention.load(tx, found[0])
        rules = self.rules if own is None else own
        view = View(tx, found[0], name)
        return None if rules.is_off else (view, found[1], decide(view, found[1], rules, self.now_ms))

    def _change(self, tx: WriteTransaction, name: str, looked: "_Looked") -> "_Changed | None":
        found = finding.find_thread(tx, name)
        if found is None:
            return None
        thread, header = found
        if looked.choice is not None and (looked.thread, looked.changes) == (thread, header.changes):
            view, decision, choice = View(tx, thread, name), looked.decision, looked.choice
        else:
            decided = self._decide(tx, name)
            if decided is None or not decided[2].plan.changes:
                return None
            view, header, decision = decided
            choice = _choice(view, decision)
        if decision.plan.whole is not None:
            deleting.delete_thread(tx, name, self.now_ms)
            return _Changed(decision.plan, [])
        was = header.collected
        for key in decision.stray_rows:
            tx.delete(key)
        header.collected += bool(decision.stray_rows)
        deleting.apply_choice(tx, view, header, choice)
        if decision.stray_rows:
            rows.store_header(tx, view.thread, header)
        spaces = [made.namespace for made in choice.plans if made.namespace.tip not in made.removed]
        tips = [(view.thread, space.number, space.tip, was, header.collected) for space in spaces if space.tip]
        return _Changed(decision.plan, tips)


def _choice(view: View, decision: Decision) -> choosing.Choice:
    if decision.plan.whole is not None:
        return choosing.Choice((), ())
    return choosing.all_but(lambda _: decision.kept)(view)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was decided about a thread, and what it takes; `changes`: the moment of the thread, as its header counts."""

    thread: int
    changes: int
    decision: Decision
    choice: choosing.Choice | None


@dataclass(frozen=True, slots=True)
class _Changed:
    """What was done to a thread, and which tips stayed: thread, namespace, ULID, `collected` before and after."""

    plan: ThreadPlan
    tips: list[tuple[int, int, bytes, int, int]]


def _milliseconds(now: datetime) -> int:
    if getattr(now, "tzinfo", None) is None:
        raise InvalidInputError(f"now={now!r}; expected a datetime with a time zone, as datetime.now(UTC)")
    return (now - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
