"""Pausing: questions that a run ends with, and the decisions that it goes on with.

A question is an entry of the journal like a call, begun when it is asked and done when it is decided, so it may be
decided in any process while no program runs. Imports calls, journal, saving. The invariant: one decision stands.
"""

from typing import Any

from deltastore.agent import journal as jn
from deltastore.agent import policies
from deltastore.agent import progress as pg
from deltastore.agent.calls import Calls
from deltastore.agent.effects import Steps, Stored
from deltastore.agent.requests import Request
from deltastore.agent.saving import Saves
from deltastore.errors import ConflictError, InvalidInputError, Paused


def pause(calls: Calls, saves: Saves, question: Any) -> Steps[Any]:
    """Return the decision on a question. Raises Paused where there is none yet."""
    values, progress, place = calls.rules.values, calls.progress, calls.place
    kept = values.encode(question, "question")
    asked = calls.ask(place, Request(jn.PAUSE, "pause", {"question": kept}, pause))
    entry = asked.entry
    if asked.recorded and entry.last.state == jn.DONE:
        return values.decode(entry.last.output)
    if not asked.recorded:
        yield from calls.before_execution(place, entry, recorded=False)
        entry, start = calls.begin(place, entry)
        yield start
        place.entries[entry.key] = entry
    progress.status = pg.PAUSED
    yield from saves.put(policies.INTERRUPT, "a decision is asked for", restart=False, question=kept)
    raise Paused(question, progress.run_id)


def resume(calls: Calls, decision: Any) -> Steps[None]:
    """Give the decision on the last question that is open. Raises InvalidInputError, EncodeError, ConflictError."""
    values, place, run_id = calls.rules.values, calls.place, calls.progress.run_id
    questions = [entry for entry in place.entries.values() if entry.kind == jn.PAUSE]
    entry = max((entry for entry in questions if entry.last.state == jn.STARTED), key=_began, default=None)
    if entry is None:
        raise InvalidInputError(f"run {run_id!r} waits for no decision; its status is {calls.progress.status!r}")
    output = values.encode(decision, "decision")
    task = jn.task_of(entry.key, entry.last.number)
    yield calls.put(place, task, jn.end_writes(jn.PAUSE, jn.DONE, {"ended": place.tick()}, output))
    stored = yield Stored(lambda: jn.read(calls.thread.writes(place.checkpoint_id)))
    place.entries = {found: stored.get(known.key, known) for found, known in place.entries.items()}
    calls.progress.status = pg.RUNNING
    standing = stored[entry.key].last.output
    if standing != output:
        raise ConflictError(f"run {run_id!r}: somebody else decided first: {values.decode(standing)!r}; that stands")


def _began(entry: jn.Entry) -> int:
    return entry.last.began
