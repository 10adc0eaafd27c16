"""The journal of one place of a run: which calls were begun, how they ended, what is done when one comes again.

Pure; a journal stands in the store as pending writes of the checkpoint that the program would start again from. A
call's task is its fingerprint (`fingerprint/1` and on for further attempts), its places are started, what it was called
with, its end, and its result; what a stream showed stands in tasks `fingerprint/s0` and on. Imports terms. The
invariant: a verdict is reached from what is recorded alone, and says why.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from deltastore.terms import PendingWrite

TOOL, MODEL, STREAM, PAUSE = "tool", "model", "stream", "pause"
STARTED, DONE, FAILED = "started", "done", "failed"
TOKENS: Final = "tokens"
AGAIN: Final = "again"
INPUT_CHANNELS: Final[Mapping[str, str]] = {
    TOOL: "tool_calls",
    MODEL: "messages",
    STREAM: "messages",
    PAUSE: "question",
}
OUTPUT_CHANNELS: Final[Mapping[str, str]] = {
    TOOL: "tool_results",
    MODEL: "replies",
    STREAM: "replies",
    PAUSE: "decision",
}
"""Where the input and the output of each kind of call are written to: where the run's state has such a channel, the
chunks are the same ones."""
_STREAM: Final = "s"
"""What the number of a task of tokens begins with."""


class Attempt(NamedTuple):
    """One try of a call. `began` and `ended` are places in the order of all that happened; `output` is encoded.

    `since`: the first flush of a stream's tokens that counts. `life`: what tells the process, and its run, from others.
    """

    number: int
    began: int
    since: int = 0
    life: str = ""
    state: str = STARTED
    ended: int = -1
    facts: Mapping[str, Any] = {}
    output: Any = None

    @property
    def again(self) -> bool:
        """Whether it failed in a way that isn't final, whatever the program did after it."""
        return self.state == FAILED and bool(self.facts.get(AGAIN))


class Entry(NamedTuple):
    """A recorded call. `arguments`, and the `defaults` of those that weren't given, are encoded.

    `sequential`: no other call of the run was concurrent by intent. `within`: the key of the call that made this one.
    """

    key: str
    kind: str
    name: str
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any]
    occurrence: int
    step_index: int
    node_name: str | None
    sequential: bool
    within: str
    attempts: tuple[Attempt, ...]
    tokens: tuple[Any, ...] = ()
    flushes: int = 0

    @property
    def last(self) -> Attempt:
        """The attempt that counts."""
        return self.attempts[-1]

    def __str__(self) -> str:
        where = f"step {self.step_index}" + (f", node {self.node_name!r}" if self.node_name else "")
        return f"{self.kind} {self.name!r} at {where} ({self.last.state})"


class Action(Enum):
    """What is done about a call."""

    RUN = "run"
    ANSWER = "answer"
    FAIL = "fail"
    DOUBT = "doubt"


class Verdict(NamedTuple):
    """What is done about a call, and why."""

    action: Action
    reason: str


def judge(entry: Entry | None, *, last_began: int, fresh: bool = False) -> Verdict:
    """Decide about a call. `last_began`: when the last recorded call began, in the journal's own order."""
    if entry is None:
        return Verdict(Action.RUN, "it isn't recorded here")
    if fresh:
        return Verdict(Action.RUN, "it was asked for anew")
    last = entry.last
    if last.state == DONE:
        return Verdict(Action.ANSWER, "it is recorded as done")
    if last.state == FAILED:
        if last.again:
            return Verdict(Action.RUN, "it asked for a decision, or ended the run, or never began in earnest")
        if last_began > last.ended:
            return Verdict(Action.FAIL, "it is recorded as failed, and the program went on to other calls")
        return Verdict(Action.RUN, "it failed, and nothing was called after it")
    if entry.tokens:
        return Verdict(Action.RUN, "its stream broke off, and goes on after what was shown")
    return Verdict(Action.DOUBT, "it was begun, and no end is recorded")


def expected(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the recorded calls that the program should make again, by what they are found by.

    Those that failed at last, those made by other calls and the questions of pauses don't count, nor what was called
    between a failure that isn't final and the next attempt: the program needn't come that way again.
    """
    strays = [span for entry in entries.values() for span in _strays(entry)]
    return {
        key: entry
        for key, entry in entries.items()
        if entry.kind != PAUSE
        and not entry.within
        and entry.last.state != FAILED
        and not any(start < entry.attempts[0].began < end for start, end in strays)
    }


def _strays(entry: Entry) -> list[tuple[int, float]]:
    following = [*(float(attempt.began) for attempt in entry.attempts[1:]), float("inf")]
    return [(attempt.ended, end) for attempt, end in zip(entry.attempts, following, strict=True) if attempt.again]


# --- as pending writes --------------------------------------------------------------------


def start_writes(entry: Entry, attempt: Attempt) -> list[tuple[str, Any]]:
    """Return the writes that record the start of an attempt.

    A model's prompt is written to the channel of the messages, where its chunks are known already.
    """
    arguments: dict[str, Any] = dict(entry.arguments)
    given: list[Any] = []
    prompted = entry.kind in (MODEL, STREAM) and type(arguments.get("messages")) is list
    if entry.kind == TOOL:
        given = [{"id": entry.key, "name": entry.name, "arguments": arguments}]
        arguments = {}
    elif prompted:
        given = arguments.pop("messages")
    note = {
        "kind": entry.kind,
        "name": entry.name,
        "arguments": arguments,
        "defaults": dict(entry.defaults),
        "prompted": prompted,
        "occurrence": entry.occurrence,
        "step": entry.step_index,
        "node": entry.node_name,
        "sequential": entry.sequential,
        "within": entry.within,
        "attempt": attempt.number,
        "began": attempt.began,
        "since": attempt.since,
        "life": attempt.life,
    }
    return [(STARTED, note), (INPUT_CHANNELS[entry.kind], given)]


def end_writes(kind: str, state: str, facts: Mapping[str, Any], output: Any) -> list[tuple[str, Any]]:
    """Return the writes that record an end.

    The places of the start come first, empty: of one task the first write in each place stays.
    """
    return [(STARTED, None), (INPUT_CHANNELS[kind], None), (state, dict(facts)), (OUTPUT_CHANNELS[kind], [output])]


def again_writes(kind: str) -> list[tuple[str, Any]]:
    """Return the writes that record, of a failure, that it ended the run: it isn't final then."""
    return [(STARTED, None), (INPUT_CHANNELS[kind], None), (FAILED, None), (OUTPUT_CHANNELS[kind], None), (AGAIN, True)]


def task_of(key: str, attempt: int) -> str:
    """Return the task of an attempt."""
    return f"{key}/{attempt}" if attempt else key


def tokens_task(key: str, flush: int) -> str:
    """Return the task of some tokens of a stream."""
    return f"{key}/{_STREAM}{flush}"


def read(writes: Iterable[PendingWrite]) -> dict[str, Entry]:
    """Return the calls that these writes record, by key. Writes of other tasks are ignored."""
    tasks: dict[str, dict[str, Any]] = {}
    for write in writes:
        tasks.setdefault(write.task, {})[write.channel] = write.value
    entries: dict[str, Entry] = {}
    flushes: dict[str, dict[int, list[Any]]] = {}
    for task, found in tasks.items():
        key, _, number = task.partition("/")
        if TOKENS in found and number.startswith(_STREAM):
            flushes.setdefault(key, {})[int(number[1:])] = found[TOKENS]
        elif found.get(STARTED):
            made = _entry(key, found)
            before = entries.get(key)
            if before is not None:
                attempts = sorted((*before.attempts, *made.attempts), key=lambda attempt: attempt.number)
                made = before._replace(attempts=tuple(attempts))
            entries[key] = made
    for key, shown in flushes.items():
        if key in entries:
            since = entries[key].last.since
            tokens = tuple(token for flush in sorted(shown) if flush >= since for token in shown[flush])
            tokens = tokens[: entries[key].last.facts.get("shown")]
            entries[key] = entries[key]._replace(tokens=tokens, flushes=max(shown) + 1)
    return entries


def _entry(key: str, found: Mapping[str, Any]) -> Entry:
    note = found[STARTED]
    kind, arguments = note["kind"], note["arguments"]
    given = found[INPUT_CHANNELS[kind]]
    if kind == TOOL:
        arguments = given[0]["arguments"]
    elif note["prompted"]:
        arguments = {**arguments, "messages": given}
    attempt = Attempt(note["attempt"], note["began"], note["since"], note["life"])
    state = next((state for state in (DONE, FAILED) if state in found), None)
    if state is not None:
        facts = {**found[state], **({AGAIN: True} if AGAIN in found else {})}
        attempt = attempt._replace(
            state=state, ended=facts["ended"], facts=facts, output=found[OUTPUT_CHANNELS[kind]][0]
        )
    return Entry(
        key,
        kind,
        note["name"],
        arguments,
        note["defaults"],
        note["occurrence"],
        note["step"],
        note["node"],
        note["sequential"],
        note["within"],
        (attempt,),
    )
