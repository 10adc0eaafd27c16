"""LangGraph's configs: which thread, namespace and checkpoint they name.

Imports errors and LangGraph. The invariant: nothing is taken for a name that isn't one.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id

from deltastore.errors import InvalidIdError, InvalidInputError
from deltastore.store import check_name


def several(ids: Sequence[Any], what: str) -> Sequence[Any]:
    """Return a sequence of ids. Raises InvalidInputError on a single one, whose letters it would be taken for."""
    if isinstance(ids, str | bytes):
        raise InvalidInputError(f"{what} {ids!r}; expected a sequence of ids, as [{ids!r}]")
    return ids


def run_name(run_id: Any) -> str:
    """Return a run's id as metadata have it: text as it is, UUIDs as their text. Raises InvalidIdError."""
    return str(run_id) if isinstance(run_id, uuid.UUID) else check_name(run_id, "run", empty=True)


def config_of(thread_id: Any, namespace: str, id_: str) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id_}}


def id_of(config: RunnableConfig) -> str | None:
    """Return a config's checkpoint id; an empty one is none, as for other savers."""
    return get_checkpoint_id(config) or None


def address(config: RunnableConfig) -> tuple[str, str]:
    """Return the names of a config's thread and namespace. Raises InvalidIdError."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    if "thread_id" not in configurable:
        raise InvalidIdError('the config names no thread: expected {"configurable": {"thread_id": …}}')
    namespace = check_name(configurable.get("checkpoint_ns") or "", "namespace", empty=True)
    return thread_name(configurable["thread_id"]), namespace


def thread_name(thread_id: Any) -> str:
    """Return a thread's name: text as it is, ints and UUIDs as their text. Raises InvalidIdError."""
    if type(thread_id) is int or isinstance(thread_id, uuid.UUID):
        return str(thread_id)
    return check_name(thread_id, "thread")
