"""Checkpoint: one saved state of a run, as it is listed.

Imports progress, values and the store. The invariant: it is frozen, and holds no values: each is read when it is asked
for, and is a fresh object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deltastore.agent.progress import VERSION, state_of
from deltastore.agent.values import Values
from deltastore.errors import InvalidInputError
from deltastore.store import Thread
from deltastore.terms import Checkpoint as Stored


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state of a run. Thread-safe.

    `kind` is the boundary that it was put at and `reason` why. `resumes_at` is the checkpoint that a run restored from
    this one starts again from: itself, unless it was put within a step. Reading values raises as `Thread.state` does,
    and TypeLostError.
    """

    run_id: str
    checkpoint_id: str
    parent_id: str | None
    created_at: datetime
    kind: str
    reason: str
    step_index: int
    node_name: str | None
    status: str
    resumes_at: str
    token_usage: Mapping[str, int]
    metadata: Mapping[str, Any]
    question: Any
    error: str | None
    forked_from: Mapping[str, str] | None
    _thread: Thread = field(repr=False, compare=False)
    _values: Values = field(repr=False, compare=False)

    @property
    def state(self) -> dict[str, Any]:
        """The state's names and values."""
        return state_of(self._thread.state(self.checkpoint_id), self._values)

    @property
    def messages(self) -> list[Any]:
        """The messages, as they were added."""
        return self._list("messages")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Records of the calls of tools: id, name, arguments."""
        return self._list("tool_calls")

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """Records of their results, in the order in which the calls began: id, name, and result or error."""
        return self._list("tool_results")

    @property
    def edges(self) -> list[dict[str, Any]]:
        """The nodes walked: from, to, step, inputs, outputs."""
        return self._list("edges")

    def _list(self, channel: str) -> list[Any]:
        found: list[Any] = self._values.decode(self._thread.state(self.checkpoint_id, channels=[channel])[channel])
        return found


def listed(stored: Stored, thread: Thread, values: Values) -> Checkpoint:
    """Return a stored checkpoint as one of a run. Raises InvalidInputError where it is none."""
    found = stored.metadata
    if found.get("agent") != VERSION:
        raise InvalidInputError(
            f"thread {stored.thread!r} isn't a run: its checkpoint {stored.id} was put by another API; "
            f"if it was one, store.thread({stored.thread!r}).delete({stored.id!r}) makes it one again"
        )
    return Checkpoint(
        stored.thread,
        stored.id,
        stored.parent_id,
        stored.created_at,
        found["kind"],
        found["reason"],
        found["step"],
        found["node"],
        found["status"],
        found.get("resumes_at", stored.id),
        found["usage"],
        values.decode(found["user"]),
        values.decode(found.get("question")),
        found.get("error"),
        found.get("forked_from"),
        thread,
        values,
    )
