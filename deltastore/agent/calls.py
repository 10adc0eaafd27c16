"""Calls: what is recorded is answered from the journal, what isn't is recorded, made, and recorded as ended.

Imports journal, place, progress, tools, failures, preconditions, callers. Calls of one run may be concurrent. The
invariant: a start is durable before the function runs, and a result is durable before it is returned.
"""

import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from deltastore.agent import callers, failures, preconditions
from deltastore.agent import journal as jn
from deltastore.agent.effects import Invoked, Steps, Stored, is_asynchronous
from deltastore.agent.fingerprints import Position
from deltastore.agent.messages import sum_of, usage_of
from deltastore.agent.place import Asked, Place
from deltastore.agent.policies import SavePolicy
from deltastore.agent.progress import Progress
from deltastore.agent.requests import Request
from deltastore.agent.tools import CALL, KEY_PARAMETER, CurrentCall, Done, InDoubt, Inner, NotDone, takes_key
from deltastore.agent.values import Values
from deltastore.errors import (
    ChangedPathError,
    ChangedPathWarning,
    ConflictError,
    InDoubtError,
    InvalidInputError,
    Paused,
    RottenResultError,
)
from deltastore.store import Thread

Stopping = TypeVar("Stopping", bound=Exception)

_LIFE_BYTES: Final = 8
"""What tells a life of a run from others: enough that no two are taken for one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a manager's runs have in common."""

    values: Values
    policy: SavePolicy
    in_doubt: InDoubt
    on_changed_path: str
    flush_s: float
    flush_bytes: int
    checks: dict[str, Callable[[Any], Any]]


class Making(NamedTuple):
    """A call as it is being made: its slot among the tools' results, and the call that it is made by, if any."""

    place: Place
    request: Request
    slot: int
    outer: CurrentCall | None


class Calls:
    """The calls of one run. `place` is replaced when the run comes to the next one."""

    def __init__(self, progress: Progress, thread: Thread, rules: Rules, place: Place, *, check: bool) -> None:
        """Begin at a place; `check`: before the first execution, look whether stored results still hold."""
        self.progress = progress
        self.thread = thread
        self.rules = rules
        self.place = place
        self.stopped: Exception | None = None
        """Why this life of the run can't go on, where it can't: a program that caught it learns it again."""
        self.node: Any = None
        """The node that the run is in, the innermost one."""
        self._unchecked = check
        self._life = os.urandom(_LIFE_BYTES).hex()
        self._lock = threading.Lock()

    def go_on(self) -> None:
        """Raise again what stopped this life of the run, if something did."""
        if self.stopped is not None:
            raise self.stopped

    def stop(self, error: Stopping) -> Stopping:
        """Note that this life of the run can't go on, and return why."""
        self.stopped = error
        return error

    def make(self, request: Request) -> Steps[Any]:
        """Answer a call from the journal, or make it. Raises what the function raises, RunError, EncodeError."""
        self.go_on()
        preconditions.validate(request.options.holds, self.rules.checks)
        place, outer, slot = self.place, CALL.get(), 0
        with self._lock:
            asked = self.ask(place, request)
            entry = asked.entry
            if request.kind == jn.TOOL and outer is None:
                given = self.rules.values.decode(dict(request.arguments))
                slot = self.progress.begin_tool({"id": entry.key, "name": entry.name, "arguments": given})
        making = Making(place, request, slot, outer)
        verdict = jn.judge(entry if asked.recorded else None, last_began=place.last_began, fresh=request.fresh)
        if verdict.action is jn.Action.ANSWER:
            return self._answer(making, entry)
        if verdict.action is jn.Action.FAIL:
            self.end(making, entry.last)
            raise self.failure(place, entry)
        if verdict.action is jn.Action.DOUBT:
            found = yield from self._look_up(entry, request)
            if isinstance(found, Done):
                return (yield from self._record_done(making, entry, Inner(), found.result))
        yield from self.before_execution(place, entry, recorded=asked.recorded)
        return (yield from self._execute(making, entry))

    def ask(self, place: Place, request: Request) -> Asked:
        """Take up a call at this place."""
        progress, outer = self.progress, CALL.get()
        within = "" if outer is None else outer.idempotency_key
        position = Position(progress.run_id, place.checkpoint_id, progress.step_index, progress.node_name, within)
        return place.ask(position, request)

    def before_execution(self, place: Place, entry: jn.Entry, *, recorded: bool) -> Steps[None]:
        """Look whether the program still goes the recorded way, and whether what it was answered still holds."""
        if not recorded and entry.sequential:
            self.report(place.overlooked(sequential=True), f"calls {entry.kind} {entry.name!r}, which isn't recorded")
        if self._unchecked:
            try:
                yield Stored(lambda: self.check(but=entry.key))
            except RottenResultError as error:
                self.stop(error)
                raise
            self._unchecked = False

    def check(self, *, but: str = "") -> None:
        """Look whether what stored results rest on still is so, but for a call that is made anew.

        Raises RottenResultError.
        """
        decode = self.rules.values.decode
        asked = {record["id"]: record["arguments"] for record in self.progress.tool_calls}
        records = {record["id"]: record for record in self.progress.tool_results}
        for entry in () if self.place.branch else self.place.done():
            asked.setdefault(entry.key, decode(dict(entry.arguments)))
            records.setdefault(entry.key, decode(entry.last.output))
        records.pop(but, None)
        taken = [
            preconditions.Taken(record["name"], repr(asked.get(key)), held)
            for key, record in records.items()
            for held in record.get("holds", ())
        ]
        preconditions.check(self.progress.run_id, taken, self.rules.checks, self.rules.values)

    def report(self, missed: Sequence[jn.Entry], instead: str) -> None:
        """Say that the program went another way. Raises ChangedPathError where that is asked for."""
        if not missed:
            return
        run_id = self.progress.run_id
        text = (
            f"run {run_id!r}: recorded here is {'; '.join(map(str, missed))}; the program now {instead}. Its code or "
            "its inputs changed since"
        )
        if self.rules.on_changed_path == "raise":
            raise self.stop(ChangedPathError(f"{text}. Nothing was executed", run_id=run_id))
        warnings.warn(f"{text}. It goes on as new", ChangedPathWarning, stacklevel=callers.level())

    def put(self, place: Place, task: str, writes: Sequence[tuple[str, Any]]) -> Stored:
        """Return the effect that keeps writes of a task in the place's journal."""
        return Stored(functools.partial(self.thread.put_writes, place.checkpoint_id, writes, task=task))

    # --- what a call comes to

    def _answer(self, making: Making, entry: jn.Entry) -> Any:
        self.end(making, entry.last)
        found = self.rules.values.decode(entry.last.output)
        return found["result"] if entry.kind == jn.TOOL else found

    def failure(self, place: Place, entry: jn.Entry) -> Exception:
        """Return the error that a call failed with, to be raised again."""
        error = failures.rebuild(self.progress.run_id, entry.name, entry.last.output["error"], self.rules.values)
        failures.mark(error, (place, entry))
        return error

    def end(self, making: Making, ended: jn.Attempt) -> None:
        """Count a call as ended: for the run, or for the call that it is made by."""
        usage, outer = ended.facts.get("usage", {}), making.outer
        shown = self.rules.values.decode(ended.output) if making.request.kind == jn.TOOL else {}
        with self._lock:
            if outer is not None:
                outer.inner.usage = sum_of(outer.inner.usage, usage)
                outer.inner.holds += shown.get("holds", ())
                return
            self.progress.add_usage(usage)
            if making.slot:
                self.progress.end_tool(making.slot, shown)

    # --- steps of a call

    def _look_up(self, entry: jn.Entry, request: Request) -> Steps[Any]:
        """Return what a look-up found of a call in doubt, None where it is simply made again."""
        otherwise = "retry" if request.kind == jn.MODEL else self.rules.in_doubt
        chosen = request.options.in_doubt or otherwise
        if chosen == "retry":
            return None
        run_id = self.progress.run_id
        if not callable(chosen):
            error = InDoubtError(
                f"run {run_id!r}: {entry} was begun, and whether it took effect isn't known. Its idempotency key is "
                f"{entry.key}. Say in_doubt='retry' for what may be done twice, or give a function that looks it up",
                run_id=run_id,
                name=entry.name,
                key=entry.key,
            )
            raise self.stop(error)
        call = self._current(entry, entry.last.number, Inner())
        found = yield Invoked(lambda: chosen(call), f"look-up of {entry.name}", is_asynchronous(chosen))
        if not isinstance(found, (Done, NotDone)):
            raise InvalidInputError(
                f"the look-up of {entry.name!r} returned a value of type {type(found).__name__}; "
                "expected Done(result) or NOT_DONE"
            )
        return found

    def _current(self, entry: jn.Entry, attempt: int, inner: Inner) -> CurrentCall:
        read = functools.partial(self.rules.values.decode, dict(entry.arguments))
        return CurrentCall(self.progress.run_id, entry.name, entry.key, attempt, inner, read)

    def begin(self, place: Place, entry: jn.Entry, *, since: int = 0) -> tuple[jn.Entry, Stored]:
        """Return a call with one more attempt, and the effect that records its start.

        That raises ConflictError where another life of the run began it.
        """
        attempt = jn.Attempt(len(entry.attempts), place.tick(), since, self._life)
        begun = entry._replace(attempts=(*entry.attempts, attempt))
        return begun, Stored(functools.partial(self._start, place, begun))

    def _start(self, place: Place, begun: jn.Entry) -> None:
        task = jn.task_of(begun.key, begun.last.number)
        self.thread.put_writes(place.checkpoint_id, jn.start_writes(begun, begun.last), task=task)
        stored = jn.read(self.thread.writes(place.checkpoint_id, task=task))
        if stored[begun.key].last.life != self._life:  # the first one's stays
            raise self.stop(
                ConflictError(
                    f"run {self.progress.run_id!r}: {begun} was begun by another process just now; nothing was "
                    "executed. Let one process have a run, or restore it when that one has ended"
                )
            )

    def _execute(self, making: Making, entry: jn.Entry) -> Steps[Any]:
        place, request, inner = making.place, making.request, Inner()
        entry, start = self.begin(place, entry)
        kwargs = dict(request.kwargs)
        if takes_key(request.function, kwargs):
            kwargs[KEY_PARAMETER] = entry.key
        invoked = False

        def invoke() -> Any:
            nonlocal invoked
            invoked = True
            return request.function(*request.args, **kwargs)

        place.in_flight[entry.key] = str(entry)
        within = CALL.set(self._current(entry, entry.last.number, inner))
        try:
            yield start
            try:
                result = yield Invoked(invoke, request.name, is_asynchronous(request.function))
            except Exception as error:
                yield from self.record_failure(making, entry, error, usage=inner.usage)
                raise
            except BaseException as error:
                if not invoked and not isinstance(error, GeneratorExit):  # it is known not to have taken effect
                    yield from self.record_failure(making, entry, error, again=True)
                raise
            return (yield from self._record_done(making, entry, inner, result))
        finally:
            CALL.reset(within)
            place.in_flight.pop(entry.key, None)

    def _record_done(self, making: Making, entry: jn.Entry, inner: Inner, result: Any) -> Steps[Any]:
        values, request = self.rules.values, making.request
        shown = result
        if request.kind == jn.TOOL:
            shown = {"id": entry.key, "name": entry.name, "result": result}
            holds = request.options.holds
            conditions = holds(result) if callable(holds) else holds
            taken = list(inner.holds)
            if conditions:
                take = functools.partial(preconditions.take, checks=self.rules.checks, values=values)
                taken += yield Stored(lambda: [take(condition) for condition in conditions])
            if taken:
                shown["holds"] = taken
        output = values.encode(shown, f"result of {entry.name!r}")
        usage = sum_of(inner.usage, usage_of(result) if request.kind == jn.MODEL else {})
        facts = {"ended": making.place.tick(), "usage": usage}
        yield from self.record_end(making, entry, jn.DONE, facts, output)
        return result

    def record_failure(
        self,
        making: Making,
        entry: jn.Entry,
        error: BaseException,
        *,
        usage: Mapping[str, int] = MappingProxyType({}),
        again: bool = False,
    ) -> Steps[None]:
        """Record that an attempt ended with an error. `again`: that isn't final, whatever is called after it."""
        shown = {"id": entry.key, "name": entry.name, "error": failures.record(error, self.rules.values)}
        facts = {"ended": making.place.tick(), "usage": dict(usage), jn.AGAIN: again or isinstance(error, Paused)}
        yield from self.record_end(making, entry, jn.FAILED, facts, shown)
        failures.mark(error, (making.place, entry))

    def record_end(
        self, making: Making, entry: jn.Entry, state: str, facts: dict[str, Any], output: Any
    ) -> Steps[None]:
        """Record that an attempt ended, and count it."""
        task = jn.task_of(entry.key, entry.last.number)
        yield self.put(making.place, task, jn.end_writes(entry.kind, state, facts, output))
        self.end(making, entry.last._replace(state=state, facts=facts, output=output))

    def not_final(self, error: BaseException) -> Steps[None]:
        """Record, of the calls that ended the run by failing with an error, that they are to be made again."""
        for place, entry in failures.marks(error):
            if place is self.place:
                yield self.put(place, jn.task_of(entry.key, entry.last.number), jn.again_writes(entry.kind))
