"""RecordedCall: a call as the journal has it, for people and tools.

Imports journal and values. The invariant: it is frozen, and its values are fresh objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltastore.agent import journal as jn
from deltastore.agent.values import Values


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a tool or a model, or a question. `state`: started, done or failed, of the last of its attempts.

    `arguments` of a model's call are its name, prompt and sampling parameters, with the defaults of those not given.
    `result`: None unless it is done. `tokens`: those of a stream that were shown.
    """

    kind: str
    name: str
    arguments: Mapping[str, Any]
    state: str
    result: Any
    error: Mapping[str, Any] | None
    usage: Mapping[str, int]
    attempts: int
    step_index: int
    node_name: str | None
    idempotency_key: str
    tokens: tuple[Any, ...]


def recorded(entry: jn.Entry, values: Values) -> RecordedCall:
    """Return an entry as it is shown. Raises TypeLostError."""
    last = entry.last
    output = values.decode(last.output)
    result = None
    if last.state == jn.DONE:
        result = output["result"] if entry.kind == jn.TOOL else output
    return RecordedCall(
        entry.kind,
        entry.name,
        values.decode({**entry.defaults, **entry.arguments}),
        last.state,
        result,
        output["error"] if last.state == jn.FAILED else None,
        last.facts.get("usage", {}),
        len(entry.attempts),
        entry.step_index,
        entry.node_name,
        entry.key,
        tuple(values.decode(list(entry.tokens))),
    )
