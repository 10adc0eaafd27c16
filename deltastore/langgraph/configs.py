"""LangGraph's configs: which thread, namespace and checkpoint they name.

Imports errors and LangGraph. The invariant: nothing is taken for a name that isn't one.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id

from deltastore.errors import InvalidIdError, InvalidInputError
from deltastore.store import check_name


def several(ids: Sequence[Any], what: str) -> Sequence[Any]:
    """Return a sequence of ids. Raises InvalidInputError on anything else, and on a text, which is one id."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidInputError(f"{what} {ids!r}; expected a sequence of ids, as [{ids!r}]")
    return ids


def run_name(run_id: Any) -> str:
    """Return a run's id as metadata have it: text as it is, UUIDs as their text. Raises InvalidIdError."""
    if isinstance(run_id, str):
        return check_name(run_id, "run", empty=True)
    if isinstance(run_id, uuid.UUID):
        return str(run_id)
    raise InvalidIdError(f"a run id of type {type(run_id).__name__} ({run_id!r}); expected a str or a UUID")


def config_of(thread_id: Any, namespace: str, id_: str) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id_}}


def id_of(config: RunnableConfig) -> str | None:
    """Return a config's checkpoint id; an empty one is none, as for other savers. Raises InvalidIdError."""
    try:
        id_ = get_checkpoint_id(config) or None
    except (AttributeError, KeyError, TypeError):
        raise _no_config(config) from None
    if id_ is not None and not isinstance(id_, str):
        raise InvalidIdError(f"a checkpoint id of type {type(id_).__name__} ({id_!r}); expected a str")
    return id_


def address(config: RunnableConfig) -> tuple[str, str]:
    """Return the names of a config's thread and namespace. Raises InvalidIdError."""
    try:
        configurable = config.get("configurable", {})
        thread_id, namespace = configurable["thread_id"], configurable.get("checkpoint_ns") or ""
    except KeyError:
        raise InvalidIdError('the config names no thread: expected {"configurable": {"thread_id": …}}') from None
    except (AttributeError, TypeError):
        raise _no_config(config) from None
    return thread_name(thread_id), check_name(namespace, "namespace", empty=True)


def _no_config(found: Any) -> InvalidIdError:
    return InvalidIdError(f'{found!r:.200} is no config; expected {{"configurable": {{"thread_id": …}}}}')


def thread_name(thread_id: Any) -> str:
    """Return a thread's name: text as it is, ints and UUIDs as their text. Raises InvalidIdError."""
    if isinstance(thread_id, str):
        return check_name(thread_id, "thread")
    if type(thread_id) is int or isinstance(thread_id, uuid.UUID):
        return str(thread_id)
    raise InvalidIdError(
        f"a thread id of type {type(thread_id).__name__} ({thread_id!r}); expected a str, or an int or UUID, which are "
        "taken as their text. Give the text that shall name the thread"
    )
