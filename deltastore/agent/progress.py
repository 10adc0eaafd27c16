"""Progress: what a run has come to, and its form as channels and metadata of a checkpoint.

Imports values. The invariant: what is read back from a checkpoint's channels and metadata is what they were made of.
"""

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deltastore.agent.values import Values
from deltastore.codec.blobs import Cut
from deltastore.errors import InvalidInputError

LISTS: Final = ("messages", "tool_calls", "tool_results", "edges")
STATE_PREFIX: Final = "state."
"""Before each key of the state, which is a channel of its own."""
VERSION: Final = 1
"""Of the metadata that mark a checkpoint as a run's."""

RUNNING, PAUSED, DONE, FAILED, CANCELLED = "running", "paused", "done", "failed", "cancelled"


@dataclass(slots=True, eq=False)
class Progress:
    """The state of a run, the caller's to read and, but for `run_id`, to change.

    `state`: names to values. `tool_calls` and `tool_results` are records, in the order in which calls began.
    `token_usage` sums up what replies said. `metadata` are the caller's own.
    """

    run_id: str
    step_index: int = 0
    node_name: str | None = None
    status: str = RUNNING
    state: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tool_results: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    token_usage: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list, repr=False)
    _slots: int = field(default=0, repr=False)

    def begin_tool(self, record: dict[str, Any]) -> int:
        """Take up a tool's call; return the slot that its result belongs into."""
        self.tool_calls.append(record)
        self._slots += 1
        return self._slots

    def end_tool(self, slot: int, record: dict[str, Any]) -> None:
        """Put a result into its slot: before those of calls that began later, however early they ended."""
        insort(self._order, slot)
        later = len(self._order) - 1 - self._order.index(slot)
        self.tool_results.insert(len(self.tool_results) - later, record)

    def add_usage(self, usage: Mapping[str, int]) -> None:
        """Sum up what a reply took."""
        for name, count in usage.items():
            self.token_usage[name] = self.token_usage.get(name, 0) + count


def channels(progress: Progress, values: Values, last: Callable[[str], Cut | None]) -> dict[str, Cut]:
    """Return the channels of a checkpoint, taken apart; `last` gives one of an earlier checkpoint, where it is known.

    Raises EncodeError, InvalidInputError.
    """
    made: dict[str, Cut] = {}
    for name in LISTS:
        found = getattr(progress, name)
        if type(found) is not list:
            raise InvalidInputError(f"run.{name} is a {type(found).__name__}; expected a list")
        made[name] = values.cut(found, name, last(name))
    for key, value in progress.state.items():
        if type(key) is not str:
            raise InvalidInputError(f"run.state has a key of type {type(key).__name__}; expected names, as str")
        made[STATE_PREFIX + key] = values.cut(value, f"state[{key!r}]", last(STATE_PREFIX + key))
    return made


def described(progress: Progress, values: Values) -> dict[str, Any]:
    """Return the metadata of a checkpoint that tell of the progress. Raises EncodeError."""
    return {
        "agent": VERSION,
        "step": progress.step_index,
        "node": progress.node_name,
        "status": progress.status,
        "usage": dict(progress.token_usage),
        "user": values.encode(progress.metadata, "metadata"),
    }


def state_of(stored: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Return the state that channels hold. Raises TypeLostError."""
    return {
        name.removeprefix(STATE_PREFIX): values.decode(value)
        for name, value in stored.items()
        if name.startswith(STATE_PREFIX)
    }


def restored(run_id: str, stored: Mapping[str, Any], metadata: Mapping[str, Any], values: Values) -> Progress:
    """Return the progress that a checkpoint holds. Raises TypeLostError."""
    lists = {name: values.decode(stored[name]) for name in LISTS}
    return Progress(
        run_id,
        metadata["step"],
        metadata["node"],
        metadata["status"],
        state_of(stored, values),
        **lists,
        token_usage=dict(metadata["usage"]),
        metadata=values.decode(metadata["user"]),
    )
