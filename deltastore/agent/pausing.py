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
    calls.go_on()
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
    raise calls.stop(Paused(question, progress.run_id))


def resume(calls: Calls, decision: Any, about: tuple[Any, ...]) -> Steps[None]:
    """Give the decision on the question `about`, where it is given, else on the last that is open.

    Raises InvalidInputError, EncodeError, ConflictError.
    """
    values, place, run_id = calls.rules.values, calls.place, calls.progress.run_id
    entry = _open(calls, about)
    output = values.encode(decision, "decision")
    task = jn.task_of(entry.key, entry.last.number)
    yield calls.put(place, task, jn.end_writes(jn.PAUSE, jn.DONE, {"ended": place.tick()}, output))
    stored = yield Stored(lambda: jn.read(calls.thread.writes(place.checkpoint_id)))
    place.entries = {found: stored.get(known.key, known) for found, known in place.entries.items()}
    calls.progress.status = pg.RUNNING
    if calls.stopped is not None:
        calls.stop(InvalidInputError(f"run {run_id!r} was given its decision; restore it, and run its program again"))
    standing = stored[entry.key].last.output
    if standing != output:
        raise ConflictError(f"run {run_id!r}: somebody else decided first: {values.decode(standing)!r}; that stands")


def _open(calls: Calls, about: tuple[Any, ...]) -> jn.Entry:
    values, run_id = calls.rules.values, calls.progress.run_id
    found = [entry for entry in calls.place.entries.values() if entry.kind == jn.PAUSE]
    waiting = sorted((entry for entry in found if entry.last.state == jn.STARTED), key=_began)
    if not waiting:
        raise InvalidInputError(f"run {run_id!r} waits for no decision; its status is {calls.progress.status!r}")
    if about:
        asked = values.encode(about[0], "question")
        waiting = [entry for entry in waiting if entry.arguments["question"] == asked]
        if not waiting:
            raise InvalidInputError(f"run {run_id!r} doesn't wait for a decision on {about[0]!r}")
    elif sum(entry.last.life == waiting[-1].last.life for entry in waiting) > 1:  # of others the program went on
        questions = [values.decode(entry.arguments["question"]) for entry in waiting]
        raise InvalidInputError(f"run {run_id!r} waits for decisions on {questions}; say which: resume(…, question=…)")
    return waiting[-1]


def _began(entry: jn.Entry) -> int:
    return entry.last.began
