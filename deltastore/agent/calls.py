"""Calls: what is recorded is answered from the journal, what isn't is recorded, made, and recorded as ended.

Imports journal, place, progress, tools, failures, preconditions. Calls of one run may be concurrent. The invariant: a
start is durable before the function runs, and a result is durable before it is returned.
"""

import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from deltastore.agent import failures, preconditions
from deltastore.agent import journal as jn
from deltastore.agent.effects import Invoked, Steps, Stored, is_asynchronous
from deltastore.agent.fingerprints import Position
from deltastore.agent.messages import usage_of
from deltastore.agent.place import Asked, Place
from deltastore.agent.policies import SavePolicy
from deltastore.agent.progress import Progress
from deltastore.agent.requests import Request
from deltastore.agent.tools import CALL, KEY_PARAMETER, CurrentCall, Done, InDoubt, NotDone, takes_key
from deltastore.agent.values import Values
from deltastore.errors import (
    ChangedPathError,
    ChangedPathWarning,
    ConflictError,
    InDoubtError,
    InvalidInputError,
    Paused,
)
from deltastore.store import Thread

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


class Calls:
    """The calls of one run. `place` is replaced when the run comes to the next one."""

    def __init__(self, progress: Progress, thread: Thread, rules: Rules, place: Place, *, check: bool) -> None:
        """Begin at a place; `check`: before the first execution, look whether stored results still hold."""
        self.progress = progress
        self.thread = thread
        self.rules = rules
        self.place = place
        self._unchecked = check
        self._life = os.urandom(_LIFE_BYTES).hex()
        self._lock = threading.Lock()

    def make(self, request: Request) -> Steps[Any]:
        """Answer a call from the journal, or make it. Raises what the function raises, RunError, EncodeError."""
        place, slot = self.place, 0
        with self._lock:
            asked = self.ask(place, request)
            entry = asked.entry
            if request.kind == jn.TOOL:
                given = self.rules.values.decode(dict(request.arguments))
                slot = self.progress.begin_tool({"id": entry.key, "name": entry.name, "arguments": given})
        verdict = jn.judge(entry if asked.recorded else None, last_began=place.last_began, fresh=request.fresh)
        if verdict.action is jn.Action.ANSWER:
            return self._answer(entry, slot)
        if verdict.action is jn.Action.FAIL:
            kept = entry.last.output
            self._end(slot, self.rules.values.decode(kept))
            raise failures.rebuild(self.progress.run_id, entry.name, kept["error"], self.rules.values)
        if verdict.action is jn.Action.DOUBT:
            found = yield from self._look_up(entry, request)
            if isinstance(found, Done):
                return (yield from self._record_done(place, entry, request, slot, found.result))
        yield from self.before_execution(place, entry, recorded=asked.recorded)
        return (yield from self._execute(place, entry, request, slot))

    def ask(self, place: Place, request: Request) -> Asked:
        """Take up a call at this place."""
        progress = self.progress
        position = Position(progress.run_id, place.checkpoint_id, progress.step_index, progress.node_name)
        return place.ask(position, request.kind, request.name, request.arguments, nested=CALL.get() is not None)

    def before_execution(self, place: Place, entry: jn.Entry, *, recorded: bool) -> Steps[None]:
        """Look whether the program still goes the recorded way, and whether what it was answered still holds."""
        if not recorded and entry.sequential:
            self.report(place.overlooked(sequential=True), f"calls {entry.kind} {entry.name!r}, which isn't recorded")
        if self._unchecked:
            yield Stored(lambda: self.check(but=entry.key))
            self._unchecked = False

    def check(self, *, but: str = "") -> None:
        """Look whether what stored results rest on still is so, but for a call that is made anew.

        Raises RottenResultError.
        """
        records = {record["id"]: record for record in self.progress.tool_results}
        if not self.place.branch:
            records |= {key: record for key, record in self.place.results().items() if key not in records}
        records.pop(but, None)
        taken = [(record["name"], held) for record in records.values() for held in record.get("holds", ())]
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
            raise ChangedPathError(f"{text}. Nothing was executed", run_id=run_id)
        warnings.warn(f"{text}. It goes on as new", ChangedPathWarning, stacklevel=2)

    def put(self, place: Place, task: str, writes: Sequence[tuple[str, Any]]) -> Stored:
        """Return the effect that keeps writes of a task in the place's journal."""
        return Stored(functools.partial(self.thread.put_writes, place.checkpoint_id, writes, task=task))

    # --- steps of a call

    def _answer(self, entry: jn.Entry, slot: int) -> Any:
        found = self.rules.values.decode(entry.last.output)
        self._end(slot, found, entry.last.facts["usage"])
        return found["result"] if slot else found

    def _end(self, slot: int, shown: Any, usage: Mapping[str, int] = MappingProxyType({})) -> None:
        with self._lock:
            self.progress.add_usage(usage)
            if slot:
                self.progress.end_tool(slot, shown)

    def _look_up(self, entry: jn.Entry, request: Request) -> Steps[Any]:
        """Return what a look-up found of a call in doubt, None where it is simply made again."""
        otherwise = "retry" if request.kind == jn.MODEL else self.rules.in_doubt
        chosen = request.options.in_doubt or otherwise
        if chosen == "retry":
            return None
        run_id = self.progress.run_id
        if not callable(chosen):
            raise InDoubtError(
                f"run {run_id!r}: {entry} was begun, and whether it took effect isn't known. Its idempotency key is "
                f"{entry.key}. Say in_doubt='retry' for what may be done twice, or give a function that looks it up",
                run_id=run_id,
                name=entry.name,
                key=entry.key,
            )
        call = self.current(entry, entry.last.number)
        found = yield Invoked(lambda: chosen(call), f"look-up of {entry.name}", is_asynchronous(chosen))
        if not isinstance(found, (Done, NotDone)):
            raise InvalidInputError(
                f"the look-up of {entry.name!r} returned a {type(found).__name__}; expected Done(result) or NOT_DONE"
            )
        return found

    def current(self, entry: jn.Entry, attempt: int) -> CurrentCall:
        """Return what the function of a call may ask about it."""
        read = functools.partial(self.rules.values.decode, dict(entry.arguments))
        return CurrentCall(self.progress.run_id, entry.name, entry.key, attempt, read)

    def begin(self, place: Place, entry: jn.Entry, *, since: int = 0) -> tuple[jn.Entry, Stored]:
        """Return a call's entry with one more attempt, and the effect that records its start."""
        attempt = jn.Attempt(len(entry.attempts), place.tick(), since, self._life)
        begun = entry._replace(attempts=(*entry.attempts, attempt))
        return begun, self.put(place, jn.task_of(entry.key, attempt.number), jn.start_writes(begun, attempt))

    def _execute(self, place: Place, entry: jn.Entry, request: Request, slot: int) -> Steps[Any]:
        entry, start = self.begin(place, entry)
        kwargs = dict(request.kwargs)
        if takes_key(request.function, kwargs):
            kwargs[KEY_PARAMETER] = entry.key
        function = functools.partial(request.function, *request.args, **kwargs)
        place.in_flight[entry.key] = str(entry)
        within = CALL.set(self.current(entry, entry.last.number))
        try:
            yield start
            if entry.kind == jn.TOOL:  # a model that is asked twice did no harm
                yield from self._claim(place, entry)
            try:
                result = yield Invoked(function, request.name, is_asynchronous(request.function))
            except Exception as error:
                yield from self.record_failure(place, entry, slot, error)
                raise
            return (yield from self._record_done(place, entry, request, slot, result))
        finally:
            CALL.reset(within)
            place.in_flight.pop(entry.key, None)

    def _claim(self, place: Place, entry: jn.Entry) -> Steps[None]:
        """Look whether this attempt was begun by this life of the run. Raises ConflictError."""
        task = jn.task_of(entry.key, entry.last.number)
        stored = yield Stored(lambda: jn.read(self.thread.writes(place.checkpoint_id, task=task)))
        if stored[entry.key].last.life != self._life:
            raise ConflictError(
                f"run {self.progress.run_id!r}: {entry} was begun by another process just now; nothing was executed. "
                "Let one process have a run, or restore it when that one has ended"
            )

    def _record_done(self, place: Place, entry: jn.Entry, request: Request, slot: int, result: Any) -> Steps[Any]:
        values = self.rules.values
        usage = usage_of(result) if request.kind == jn.MODEL else {}
        shown = result
        if slot:
            shown = {"id": entry.key, "name": entry.name, "result": result}
            holds = request.options.holds
            conditions = holds(result) if callable(holds) else holds
            if conditions:
                take = functools.partial(preconditions.take, checks=self.rules.checks, values=values)
                shown["holds"] = yield Stored(lambda: [take(condition) for condition in conditions])
        output = values.encode(shown, f"result of {entry.name!r}")
        facts = {"ended": place.tick(), "usage": usage}
        writes = jn.end_writes(entry.kind, jn.DONE, facts, output)
        yield self.put(place, jn.task_of(entry.key, entry.last.number), writes)
        self._end(slot, shown, usage)
        return result

    def record_failure(self, place: Place, entry: jn.Entry, slot: int, error: Exception) -> Steps[None]:
        """Record that an attempt ended with an error."""
        shown = {"id": entry.key, "name": entry.name, "error": failures.record(error, self.rules.values)}
        facts = {"ended": place.tick(), "paused": isinstance(error, Paused)}
        writes = jn.end_writes(entry.kind, jn.FAILED, facts, shown)
        yield self.put(place, jn.task_of(entry.key, entry.last.number), writes)
        self._end(slot, shown)
