"""Whether two runs have led to the same states."""

from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from demo_agent.agent import CONFIG, build_agent, rounds_for
from demo_agent.stores import call_log, open_saver


def read_history(kind: str, directory: Path, steps: int) -> list[dict[str, Any]]:
    """Read the state at every checkpoint, the latest first."""
    with open_saver(kind, directory) as saver:
        agent = build_agent(saver, rounds_for(steps), call_log(directory))
        return [snapshot.values for snapshot in agent.get_state_history(CONFIG)]


def same(left: Any, right: Any) -> bool:
    """Compare values deeply: types, every field of messages, and the order of dict entries."""
    if type(left) is not type(right):
        return False
    if isinstance(left, BaseMessage):
        return same(left.model_dump(), right.model_dump())
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def differing_channels(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    missing = object()
    return sorted(
        name for name in left.keys() | right.keys() if not same(left.get(name, missing), right.get(name, missing))
    )
