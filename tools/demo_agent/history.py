"""What a store has of the agent: its history, its branches, and whether two of them are the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from demo_agent.agent import CONFIG, other_instruction, run_config

SHARE_BEFORE_FORK = 0.3
"""How far into the run the agent is sent back."""
FORK_STEPS = 50
"""More than the fork takes, for LangGraph's limit."""


@dataclass(frozen=True)
class Seen:
    """A checkpoint as get_state_history gives it, with a digest for each channel of its state."""

    id: str
    parent_id: str | None
    step: int
    source: str
    next: tuple[str, ...]
    channels: Mapping[str, str]


def id_of(config: Mapping[str, Any] | None) -> str | None:
    return config["configurable"]["checkpoint_id"] if config else None


def seen(snapshot: StateSnapshot) -> Seen:
    return Seen(
        id=str(id_of(snapshot.config)),
        parent_id=id_of(snapshot.parent_config),
        step=snapshot.metadata["step"],
        source=snapshot.metadata["source"],
        next=snapshot.next,
        channels={name: _digest(value) for name, value in snapshot.values.items()},
    )


def _digest(value: Any) -> str:
    """Digest types, every field of messages, and the order of dict entries."""
    return blake2b(repr(_plain(value)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """Replace messages, whose repr leaves things out, by all of their fields."""
    if isinstance(value, BaseMessage):
        return type(value).__name__, value.model_dump()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def read_history(agent: CompiledStateGraph) -> list[Seen]:
    """Read the state at every checkpoint of the thread, the latest first."""
    return [seen(snapshot) for snapshot in agent.get_state_history(CONFIG)]


def branch(history: Sequence[Seen], head_id: str) -> list[Seen]:
    """Return the checkpoints from a head down to the first of the thread."""
    by_id = {item.id: item for item in history}
    found = []
    at: str | None = head_id
    while at is not None:
        found.append(by_id[at])
        at = by_id[at].parent_id
    return found


def differences(found: Sequence[Seen], expected: Sequence[Seen]) -> list[str]:
    """Say in which states two runs differ, whatever the ids of their checkpoints are."""
    out = []
    for left, right in zip_longest(reversed(found), reversed(expected)):
        if left is None or right is None:
            out.append(f"{len(found)} checkpoints instead of {len(expected)}")
            break
        names = [name for name in ("step", "source", "next") if getattr(left, name) != getattr(right, name)]
        channels = left.channels.keys() | right.channels.keys()
        names += sorted(name for name in channels if left.channels.get(name) != right.channels.get(name))
        if names:
            out.append(f"step {right.step}: {', '.join(names)}")
    return out


@dataclass(frozen=True)
class Travel:
    """What came of listing the history, going back and forking."""

    recent: Sequence[StateSnapshot]
    """The latest checkpoints before the fork, and one more, of which it is known what ran next."""
    old: StateSnapshot
    """The state that was gone back to."""
    head: StateSnapshot
    """The old branch's head, read again after the fork by its id."""
    fork_head: StateSnapshot
    """The thread's latest state after the fork."""
    main: Sequence[Seen]
    """The old branch, read after the fork."""
    fork: Sequence[Seen]
    """The fork's branch; its checkpoints before the fork are the old branch's."""
    own: int
    """How many checkpoints are the fork's alone."""
    problems: Sequence[str]
    """What isn't as it should be."""


def travel(agent: CompiledStateGraph, before: Sequence[Seen], recent: int) -> Travel:
    """List the latest checkpoints, go back, fork from there with another instruction, and read everything again."""
    listed = list(agent.get_state_history(CONFIG, limit=recent + 1))
    head_config = listed[0].config
    wanted = before[0].step * SHARE_BEFORE_FORK
    # Where the agent is to think next: there it can be told something else.
    place = min(
        (item for item in before if item.next == ("think",) and item.step > 0),
        key=lambda item: abs(item.step - wanted),
    )
    address = {"checkpoint_ns": "", "checkpoint_id": place.id}
    old = agent.get_state({"configurable": {**CONFIG["configurable"], **address}})
    told = agent.update_state(old.config, other_instruction(), as_node="act")
    agent.invoke(None, run_config(FORK_STEPS) | told, durability="sync")
    fork_head, head = agent.get_state(CONFIG), agent.get_state(head_config)
    after = read_history(agent)
    main, fork = branch(after, before[0].id), branch(after, seen(fork_head).id)
    own = len({item.id for item in fork} - {item.id for item in main})
    checks = {
        "the state gone back to isn't the one in the history": seen(old) == place,
        "the old branch has changed": main == list(before),
        "the old branch's head has changed": seen(head) == before[0],
        "the fork has no head of its own": own > 1 and fork[0].id not in {item.id for item in before},
        "the fork doesn't begin at the state gone back to": fork[min(own, len(fork) - 1)].id == place.id,
        "there are checkpoints of neither branch": len(after) == len(before) + own,
    }
    problems = [text for text, holds in checks.items() if not holds]
    return Travel(listed, old, head, fork_head, main, fork, own, problems)
