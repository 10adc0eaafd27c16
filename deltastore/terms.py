"""What the store's calls give and what they take, as plain values: checkpoints, threads as listed, times, limits.

Imports log and below. The invariant: what is given is frozen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deltastore.errors import ChecksumError, InvalidInputError

if TYPE_CHECKING:
    from deltastore.log.listing import ThreadRow

DEFAULT_DEPTH = 4
"""How many keys and places a path of a diff has at most: deeper, the whole part counts as changed."""
STEP_KEYS = frozenset(("source", "step", "parents", "writes", "run_id", "run_attempt", "counters_since_delta_snapshot"))
"""Metadata that LangGraph's runtime gives to one checkpoint or run."""
STEP_PREFIXES = ("langgraph_", "__pregel")
"""How the runtime's own other keys begin: node, step and task that a run is in."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One saved step of a thread. `id` is a ULID's text: later checkpoints of a thread have greater ids.

    `parent_id` is the checkpoint it was put after (None: the first), also when that one is deleted since.
    """

    id: str
    thread: str
    namespace: str
    parent_id: str | None
    created_at: datetime
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A value that a task sent to a channel and that no checkpoint has taken up yet."""

    task: str
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread as listed, without its values: `checkpoints` of all its namespaces, `bytes` as stored.

    `metadata`: from `Store.threads`, that of the latest checkpoint of the root namespace, empty where that isn't the
    native API's; from `DeltaSaver.threads`, what of it isn't about one step.
    """

    name: str
    created_at: datetime
    updated_at: datetime
    checkpoints: int
    bytes: int
    metadata: Mapping[str, Any]


def check_limit(limit: int | None) -> None:
    """Raise InvalidInputError unless this is how many items a list may have at most."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidInputError(f"limit {limit!r}; expected None or an int from 0 on")


def thread_info(row: "ThreadRow", metadata: Mapping[str, Any], size: int) -> ThreadInfo:
    """Return a thread as listed."""
    header = row.header
    return ThreadInfo(row.name, when(header.created_ms), when(header.updated_ms), header.checkpoints, size, metadata)


def thread_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a LangGraph checkpoint's metadata says something about its thread."""
    return {key: value for key, value in metadata.items() if key not in STEP_KEYS and not key.startswith(STEP_PREFIXES)}


def when(milliseconds: int) -> datetime:
    """Return a stored time. Raises ChecksumError."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ChecksumError(f"a stored time of {milliseconds} ms is no time: {error}; run check") from error
