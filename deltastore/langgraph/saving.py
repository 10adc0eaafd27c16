"""Saving: LangGraph's checkpoints and writes as puts of the log.

Async methods encode before their first await and do the rest off the event loop. Imports base and configs. The
invariant: what is put is fixed when the call is made, and a channel's value is that of its version.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.types import TASKS

from deltastore.codec.blobs import Cut, assemble, cut, encode_whole
from deltastore.codec.records import SEEN_CHANNEL, VERSIONS_CHANNEL
from deltastore.codec.strict import STRICT
from deltastore.errors import InvalidInputError
from deltastore.langgraph.base import SaverBase
from deltastore.langgraph.configs import address, config_of, id_of
from deltastore.log import keys, rows
from deltastore.log.intents import Versioned
from deltastore.log.pending import PutWrites
from deltastore.log.putting import At, Put
from deltastore.store import check_name

M = TypeVar("M")
_OWN_CHANNELS = frozenset(("__start__", TASKS))
_TRIGGER = "branch:to:"
"""How the channels begin by which LangGraph starts nodes; no state key can, for it holds colons."""
_OWN_KEYS = frozenset(("id", "channel_values", "channel_versions", "versions_seen"))
"""What of a checkpoint isn't part of its frame."""


class SavingSaver(SaverBase):
    """The methods that put."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint under its parent, the config's checkpoint. Durable on return.

        Raises EncodeError naming channel and path, InvalidIdError, FrontMismatchError, ContentionError; ConflictError
        from a fenced saver whose parent isn't the last checkpoint any more.
        """
        made = self._make_put(config, checkpoint, metadata)
        self._put(made)
        return config_of(config["configurable"]["thread_id"], made.namespace, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; values are encoded before the first await. Raises as `put` does."""
        made = self._make_put(config, checkpoint, metadata)
        await _when_done(self._log.put_soon, self._log.put, made)
        self._tell_tidier(made)
        return config_of(config["configurable"]["thread_id"], made.namespace, checkpoint["id"])

    def _put(self, made: Put) -> None:
        self._log.put(made)
        self._tell_tidier(made)

    def _tell_tidier(self, made: Put) -> None:
        if self._tidier is not None:
            self._tidier.note(made.thread)

    def _make_put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> Put:
        thread, namespace = address(config)
        parent = id_of(config)
        if parent is not None:
            keys.encode_id(parent)
        keys.encode_id(checkpoint["id"])
        described = get_checkpoint_metadata(config, metadata)
        root = (described.get("parents") or {}).get("")
        frame = {key: value for key, value in checkpoint.items() if key not in _OWN_KEYS}
        encoded = encode_whole(described, self._codec, "metadata")
        if self.validate:
            _warn_of_losses("metadata", described, partial(self._codec.decode, encoded))
        return Put(
            thread=thread,
            namespace=namespace,
            front=rows.LANGGRAPH,
            id=checkpoint["id"],
            parent=parent if parent is not None else At.ROOT,
            must_exist=False,
            time_ms=self._log.now_ms(),
            root=root if isinstance(root, str) else None,
            frame=encode_whole(frame, self._codec, "checkpoint"),
            metadata=encoded,
            intent=self._intent(thread, namespace, parent, checkpoint),
            codec=self._codec,
            expected=(parent or "") if self.fenced else None,
        )

    def _intent(self, thread: str, namespace: str, parent: str | None, checkpoint: Checkpoint) -> Versioned:
        versions = dict(checkpoint["channel_versions"])
        values = checkpoint["channel_values"]
        seen = {node: dict(found) for node, found in checkpoint["versions_seen"].items()}
        cuts: dict[str, Cut] = {}

        head = self._log.cached_head(thread, namespace) if parent is not None else None
        if head is not None and head.id != parent:
            head = None
        before = (head.versions or {}) if head else {}
        for name, version in versions.items():
            # values are fixed now, not when the put is prepared; a value with the parent's version is the parent's
            if name in values:
                kept = head.cut(self._number(name)) if head is not None and name in before else None
                same = kept is not None and before[name] == version
                cuts[name] = kept if kept is not None and same else self._cut(name, values[name], kept)
        return Versioned(
            versions=versions,
            present=frozenset(values),
            cut=cuts.__getitem__,
            number=partial(self._log.names.numbers, keys.CHANNEL),
            is_walked=_is_walked,
            hidden={
                VERSIONS_CHANNEL: cut(versions, STRICT, "channel_versions"),
                SEEN_CHANNEL: cut(seen, STRICT, "versions_seen"),
            },
        )

    def _number(self, name: str) -> int:
        return self._log.names.numbers(keys.CHANNEL, (name,))[0]

    def _cut(self, channel: str, value: Any, before: Cut | None = None) -> Cut:
        """Take a value apart, and with `validate` warn of what won't come back. Raises EncodeError."""
        made = cut(value, self._codec, channel, before)
        if self.validate:
            _warn_of_losses(channel, value, partial(assemble, made.kind, made.blobs, self._codec))
        return made

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes for the config's checkpoint, which may not be stored yet. Durable on return.

        Ordinary writes stay as first written, special ones (errors, interrupts …) are replaced, decided for each.
        Raises EncodeError, InvalidIdError, FrontMismatchError, ContentionError.
        """
        self._log.put_writes(self._make_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes; values are encoded before the first await. Raises as `put_writes` does."""
        made = self._make_writes(config, writes, task_id, task_path)
        await _when_done(self._log.put_writes_soon, self._log.put_writes, made)

    def _make_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> PutWrites:
        thread, namespace = address(config)
        id_ = id_of(config)
        if id_ is None:
            raise InvalidInputError("put_writes needs a config with a checkpoint_id; found none")
        keys.encode_id(id_)
        made: dict[int, tuple[int, str, Cut]] = {}
        for place, (channel, value) in enumerate(writes):
            idx = WRITES_IDX_MAP.get(channel, place)
            made[idx] = (idx, channel, self._cut(channel, value))
        return PutWrites(
            thread,
            namespace,
            rows.LANGGRAPH,
            id_,
            check_name(task_id, "task", empty=True),
            task_path,
            self._log.now_ms(),
            list(made.values()),
            False,
        )


def _warn_of_losses(channel: str, given: Any, reload: Callable[[], Any]) -> None:
    from deltastore.langgraph.validating import warn_of_losses  # seldom wanted

    warn_of_losses(channel, given, reload)


async def _when_done(start: Callable[[M], "Future[Any]"], run: Callable[[M], object], made: M) -> None:
    """Start a write and wait for its end; where no more threads are given, run it at once.

    That is so when the interpreter is shutting down, where what is still to be saved must be saved all the same.
    """
    try:
        started = start(made)
    except RuntimeError:
        run(made)
        return
    await asyncio.wrap_future(started)


def _is_walked(channel: str) -> bool:
    """Tell whether a graph may rebuild a channel from its history: LangGraph's own channels never are."""
    return channel not in _OWN_CHANNELS and not channel.startswith(_TRIGGER)
