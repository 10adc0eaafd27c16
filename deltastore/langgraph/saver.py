"""DeltaSaver: LangGraph's checkpoint saver on a deltastore.

Translates between LangGraph's configs, checkpoints and tuples and the log's puts and readings. Async methods encode
before their first await and do the rest off the event loop. The invariant: what a read returns equals what
InMemorySaver would return.
"""

import asyncio
import builtins
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import islice
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS

from deltastore.codec.blobs import Cut, assemble, cut, encode_whole
from deltastore.codec.records import SEEN_CHANNEL, VERSIONS_CHANNEL, Record
from deltastore.codec.strict import STRICT
from deltastore.errors import FrontMismatchError, InvalidIdError, InvalidInputError, ThreadNotFoundError
from deltastore.langgraph import deletions, filters
from deltastore.langgraph.serializer import OpaqueCodec, codec_for
from deltastore.langgraph.strict import restricted
from deltastore.langgraph.threads import list_threads
from deltastore.langgraph.validating import warn_of_losses
from deltastore.log import choosing, keys, rows
from deltastore.log.engine import Entry
from deltastore.log.forks import Fork
from deltastore.log.heads import DEFAULT_CACHE_BYTES, Head
from deltastore.log.intents import Versioned
from deltastore.log.loading import Reading
from deltastore.log.pending import PutWrites
from deltastore.log.putting import At, Put
from deltastore.opening import open as open_store
from deltastore.storage.port import SyncMode
from deltastore.store import Store, check_name
from deltastore.terms import ThreadInfo

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

_OWN_CHANNELS = frozenset(("__start__", TASKS))
_TRIGGER = "branch:to:"
"""How the channels begin by which LangGraph starts nodes; no state key can, for it holds colons."""
PAGE = 32
"""Checkpoints that `list` looks up at a time, without their values; no transaction is held between pages."""
_OWN_KEYS = frozenset(("id", "channel_values", "channel_versions", "versions_seen"))
"""What of a checkpoint isn't part of its frame."""


class DeltaSaver(BaseCheckpointSaver[str]):
    """A LangGraph checkpoint saver that stores what changed. Sync and async; thread-safe; no set-up call.

    ::

        with DeltaSaver.from_path("runs.ds") as saver:
            graph = builder.compile(checkpointer=saver)

    Thread ids may be any text; ints and UUIDs are taken as their text, as other savers do. Everything else is refused.
    """

    def __init__(
        self,
        store: Store,
        *,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        validate: bool = False,
        fenced: bool = False,
    ) -> None:
        """Use an open store, which stays the caller's to close.

        `serde` defaults to LangGraph's own, with pickle off. With `strict`, only classes on its allowlist are rebuilt,
        by default LangGraph's and langchain-core's; when it is read, any other raises TypeRefusedError, and one that
        is gone TypeLostError. With `validate`, each value put is compared with what it will come back as, and a
        DegradedValueWarning names what differs. With `fenced`, a put on anything but the checkpoint that was put last
        in its namespace raises ConflictError. Raises InvalidInputError for a serializer that can't be strict.
        """
        super().__init__(serde=restricted(serde or JsonPlusSerializer()) if strict else serde)
        self.store = store
        self.strict = strict
        self.validate = validate
        self.fenced = fenced
        self._log = store.log
        self._owns_store = False
        self._made: tuple[SerializerProtocol, OpaqueCodec] | None = None

    @classmethod
    def from_path(
        cls,
        path: str | PathLike[str],
        *,
        snapshot_frequency: int | None = None,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        validate: bool = False,
        fenced: bool = False,
        sync: SyncMode = "full",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> Self:
        """Open the store in a directory, making it if there is none; closing the saver closes it.

        `snapshot_frequency`, `sync` and `cache_bytes` are those of `deltastore.open`, `serde`, `strict`, `validate` and
        `fenced` those of the class. Raises StorePathError, SyncModeError, FormatError, CorruptionError,
        InvalidInputError.
        """
        store = open_store(path, snapshot_frequency=snapshot_frequency, sync=sync, cache_bytes=cache_bytes)
        try:
            saver = cls(store, serde=serde, strict=strict, validate=validate, fenced=fenced)
        except BaseException:
            store.close()
            raise
        saver._owns_store = True
        return saver

    @property
    def _codec(self) -> OpaqueCodec:
        """The codec of the serializer, made anew where somebody gave the saver another one."""
        made = self._made
        if made is None or made[0] is not self.serde:
            registry = self._log.names

            def type_of(tag: int) -> str:
                with self._log.storage.read() as tx:
                    return registry.name(tx, keys.TAG, tag)

            codec = codec_for(self.serde, lambda name: registry.number(keys.TAG, name), type_of, strict=self.strict)
            made = self._made = (self.serde, codec)
        return made[1]

    def close(self) -> None:
        """Close the store if `from_path` opened it. Closing twice is harmless."""
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def with_allowlist(self, extra_allowlist: Any) -> "DeltaSaver":
        """Return a saver over the same store whose serializer also takes these types; it doesn't own closing."""
        clone = cast(DeltaSaver, super().with_allowlist(extra_allowlist))
        if clone is not self:
            clone._owns_store = False
        return clone

    # --- writing

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
        self._log.put(made)
        return _config(config["configurable"]["thread_id"], made.namespace, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; values are encoded before the first await. Raises as `put` does."""
        made = self._make_put(config, checkpoint, metadata)
        await asyncio.to_thread(self._log.put, made)
        return _config(config["configurable"]["thread_id"], made.namespace, checkpoint["id"])

    def _make_put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> Put:
        thread, namespace = _address(config)
        parent = _id(config)
        if parent is not None:
            keys.encode_id(parent)
        keys.encode_id(checkpoint["id"])
        described = get_checkpoint_metadata(config, metadata)
        root = (described.get("parents") or {}).get("")
        frame = {key: value for key, value in checkpoint.items() if key not in _OWN_KEYS}
        encoded = encode_whole(described, self._codec, "metadata")
        if self.validate:
            warn_of_losses("metadata", described, partial(self._codec.decode, encoded))
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

        head = self._log.cached_head(thread, namespace, parent)
        before = (head.versions or {}) if head else {}
        for name, version in versions.items():
            # values are fixed now, not when the put is prepared; a value with the parent's version is the parent's
            if name in values:
                same = head is not None and name in before and before[name] == version
                cuts[name] = (self._kept(head, name) if head and same else None) or self._cut(name, values[name])
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

    def _cut(self, channel: str, value: Any) -> Cut:
        """Take a value apart, and with `validate` warn of what won't come back. Raises EncodeError."""
        made = cut(value, self._codec, channel)
        if self.validate:
            warn_of_losses(channel, value, partial(assemble, made.kind, made.blobs, self._codec))
        return made

    def _kept(self, head: Head, name: str) -> Cut | None:
        """Return a channel's value as the head holds it, encoded; None where it doesn't."""
        (number,) = self._log.names.numbers(keys.CHANNEL, (name,))
        channel, blobs = head.state.get(number), head.blobs.get(number)
        if channel is None or channel.value is None or channel.writes or blobs is None:
            return None
        return Cut(channel.value.kind, blobs, head.keys.get(number))

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
        await asyncio.to_thread(self._log.put_writes, self._make_writes(config, writes, task_id, task_path))

    def _make_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> PutWrites:
        thread, namespace = _address(config)
        id_ = _id(config)
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

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces; an unknown one is none. Its bytes go with the next compaction."""
        self._log.delete_thread(_thread_name(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, off the event loop."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    def delete_for_runs(
        self, run_ids: Sequence[str], *, erase: bool = False, graph: "Pregel[Any, Any, Any, Any] | None" = None
    ) -> None:
        """Delete the checkpoints whose metadata names one of these runs, with their writes, in all threads.

        Each thread in one transaction, its sub-graph calls included; unknown runs are none. What the history of other
        checkpoints' delta channels needs stays, hidden; with `erase` nothing stays, and `graph`, which wrote the
        threads, folds what would be lacking. Reads the metadata of all checkpoints of the store.

        Raises InvalidInputError, BrokenChainError.
        """
        runs = frozenset(_several(run_ids, "run_ids"))
        if not runs:
            return
        for row in self._log.all_threads():
            found = deletions.of_runs(self._log, self._codec, row.name, runs)
            if found:
                self._delete(row.name, partial(choosing.these, found), erase, graph)

    async def adelete_for_runs(
        self, run_ids: Sequence[str], *, erase: bool = False, graph: "Pregel[Any, Any, Any, Any] | None" = None
    ) -> None:
        """Delete runs, off the event loop."""
        await asyncio.to_thread(partial(self.delete_for_runs, run_ids, erase=erase, graph=graph))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, writes and tags under a new id; an unknown one is none.

        Raises ThreadExistsError where the new id is in use.
        """
        source, target = _thread_name(source_thread_id), _thread_name(target_thread_id)
        with suppress(ThreadNotFoundError):
            self._log.copy_thread(source, target)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, off the event loop."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        erase: bool = False,
        graph: "Pregel[Any, Any, Any, Any] | None" = None,
    ) -> None:
        """Delete all checkpoints of threads but the latest of each namespace and the tagged ones.

        Strategy `"delete"` deletes the threads. Each thread in one transaction; unknown ones are none. A sub-graph
        call's namespace goes with the root checkpoint it started from. What the history of kept delta channels needs
        stays, hidden; with `erase` nothing stays, and `graph`, which wrote the threads, folds what would be lacking.

        Raises InvalidInputError, BrokenChainError.
        """
        threads = [_thread_name(thread_id) for thread_id in _several(thread_ids, "thread_ids")]
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInputError(f"strategy {strategy!r}; expected 'keep_latest' or 'delete'")
        for thread in threads:
            if strategy == "delete":
                self._log.delete_thread(thread)
            else:
                self._delete(thread, choosing.all_but_latest, erase, graph)

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        erase: bool = False,
        graph: "Pregel[Any, Any, Any, Any] | None" = None,
    ) -> None:
        """Prune threads, off the event loop."""
        await asyncio.to_thread(partial(self.prune, thread_ids, strategy=strategy, erase=erase, graph=graph))

    def _delete(
        self,
        thread: str,
        choose: Callable[..., choosing.Choose],
        erase: bool,
        graph: "Pregel[Any, Any, Any, Any] | None",
    ) -> None:
        def history(namespace: str, id_: str, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
            return self.get_delta_channel_history(config=_config(thread, namespace, id_), channels=channels)

        deletions.delete(self._log, self._codec, thread, choose, erase=erase, graph=graph, history=history)

    def tag(self, config: RunnableConfig, name: str) -> RunnableConfig:
        """Give the config's checkpoint, the latest without id, a name that keeps it from being pruned.

        Within a namespace of a thread a name stands for one checkpoint: giving it again moves it. Returns the
        checkpoint's config. Raises ThreadNotFoundError, CheckpointNotFoundError, InvalidIdError.
        """
        thread, namespace = _address(config)
        id_ = self._log.tag(thread, namespace, _id(config), check_name(name, "tag"))
        return _config(config["configurable"]["thread_id"], namespace, id_)

    def untag(self, config: RunnableConfig, name: str) -> bool:
        """Take a name away in the config's namespace; tell whether it was given."""
        thread, namespace = _address(config)
        return self._log.untag(thread, namespace, check_name(name, "tag"))

    def tags(self, config: RunnableConfig) -> dict[str, RunnableConfig]:
        """Return the names given in the config's namespace, each with its checkpoint's config."""
        thread, namespace = _address(config)
        found = self._log.tags(thread, namespace)
        return {name: _config(config["configurable"]["thread_id"], namespace, id_) for name, id_ in found.items()}

    # --- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the config's checkpoint, the latest without id, or None where there is none.

        Raises BrokenChainError, ChecksumError, CodecMismatchError, FrontMismatchError; nothing missing reads as empty.
        """
        thread, namespace = _address(config)
        id_ = _id(config)
        reading = self._log.read(thread, namespace, id_, with_writes=True)
        if reading is None:
            return None
        own = config if id_ else _config(config["configurable"]["thread_id"], namespace, reading.id)
        return self._tuple(own, config["configurable"]["thread_id"], namespace, reading)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, off the event loop."""
        return await asyncio.to_thread(self.get_tuple, config)

    def _tuple(self, config: RunnableConfig, thread_id: Any, namespace: str, reading: Reading) -> CheckpointTuple:
        frame = self._frame(reading.record, namespace)
        values = reading.values(self._codec)
        versions = reading.hidden_value(VERSIONS_CHANNEL, STRICT)
        checkpoint = {
            **frame,
            "id": reading.id,
            "channel_versions": versions,
            "versions_seen": reading.hidden_value(SEEN_CHANNEL, STRICT),
            "channel_values": {name: values[name] for name in versions if name in values},
        }
        parent = reading.parent_id
        return CheckpointTuple(
            config=config,
            checkpoint=cast(Checkpoint, checkpoint),
            metadata=self._codec.decode(reading.record.metadata),
            parent_config=_config(thread_id, namespace, parent) if parent else None,
            pending_writes=[
                (write.task, write.channel, assemble(write.kind, write.blobs, self._codec)) for write in reading.writes
            ],
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what DeltaChannels are rebuilt from: the nearest ancestor's value, and all writes since, oldest first.

        Reads only the ancestors that count. Raises BrokenChainError where one of them was lost, CheckpointNotFoundError
        where the checkpoint was deleted meanwhile, or its parent before it was put.
        """
        if not channels:
            return {}
        thread, namespace = _address(config)
        out: dict[str, DeltaChannelHistory] = {}
        for name, (seed, writes) in self._log.walk(thread, namespace, _id(config), channels).items():
            history: DeltaChannelHistory = {
                "writes": [(write.task, name, assemble(write.kind, write.blobs, self._codec)) for write in writes]
            }
            if seed is not None and seed.blobs is not None:
                history["seed"] = assemble(seed.kind, seed.blobs, self._codec)
            out[name] = history
        return out

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what DeltaChannels are rebuilt from, off the event loop."""
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

    def _frame(self, record: Record, namespace: str) -> dict[str, Any]:
        """Return what of a checkpoint is neither values nor versions.

        Raises FrontMismatchError where there is no such part.
        """
        if record.frame is None:
            raise FrontMismatchError(
                f"namespace {namespace!r} of this thread is written by the native API; read it with store.thread(…)"
            )
        frame: dict[str, Any] = self._codec.decode(record.frame)
        return frame

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, the greatest id first; across threads thread by thread, the newest created first.

        `filter` names metadata that must be as given: compared as stored, type by type (True isn't 1, 1 isn't 1.0, a
        tuple is the list it became); None matches a key that is None or missing.

        Lazy: reads what it returns, and holds no transaction while the caller has the iterator. Raises as
        `get_tuple` does, InvalidInputError for a filter that isn't a dict, EncodeError naming the key where a value
        of it can't be stored.
        """
        wanted = filters.as_stored(filter, self._codec.reload)
        limit_id = _id(before) if before else None
        left = None if limit is None else max(limit, 0)
        for thread_id, thread in self._threads(config):
            if left == 0:
                return
            entries = (entry for entry in self._entries(config, thread, limit_id) if self._matches(entry, wanted))
            # without a limit the first comes at once, and whoever goes on gets more at a time: they share much
            size = 1 if left is None else min(left, PAGE)
            while page := list(islice(entries, size if left is None else min(size, left))):
                readings = self._log.read_many(thread, [(entry.namespace, entry.id) for entry in page])
                for entry, reading in zip(page, readings, strict=True):
                    if reading is not None:  # else deleted since
                        own = _config(thread_id, entry.namespace, entry.id)
                        yield self._tuple(own, thread_id, entry.namespace, reading)
                size = min(2 * size, PAGE)
                left = None if left is None else left - len(page)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate as `list` does, each step off the event loop. Filters and errors are those of `list`."""
        items = self.list(config, filter=filter, before=before, limit=limit)
        while (found := await asyncio.to_thread(next, items, None)) is not None:
            yield found

    def threads(
        self,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        limit: int | None = None,
        before: Any = None,
    ) -> Iterator[ThreadInfo]:
        """Iterate over the threads with LangGraph checkpoints, the newest created first; `name` is the thread id.

        `metadata` is the thread's: that of the latest checkpoint of its root namespace, or of its first where it has no
        root, without what belongs to one step; `filter` compares it as `list` does. `before`: only threads older than
        this one. Lazy; reads no values, and holds no transaction while the caller has the iterator.

        Raises InvalidInputError, ThreadNotFoundError. A thread that can't be read raises as `get_tuple` does, naming
        it, when it is reached; `before` lists those after it.
        """
        name = None if before is None else _thread_name(before)
        return list_threads(
            self._log, self._codec, filters.as_stored(filter, self._codec.reload), before=name, limit=limit
        )

    async def athreads(
        self,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        limit: int | None = None,
        before: Any = None,
    ) -> AsyncIterator[ThreadInfo]:
        """Iterate as `threads` does, each step off the event loop."""
        items = await asyncio.to_thread(self.threads, filter=filter, limit=limit, before=before)
        while (found := await asyncio.to_thread(next, items, None)) is not None:
            yield found

    def forks(self, config: RunnableConfig) -> builtins.list[Fork]:
        """Return where the config's namespace branched: roots first, then by the parent's id. Reads no values."""
        return self._log.forks(*_address(config))

    async def aforks(self, config: RunnableConfig) -> builtins.list[Fork]:
        """Return where a namespace branched, off the event loop."""
        return await asyncio.to_thread(self.forks, config)

    def _matches(self, entry: Entry, wanted: dict[str, Any]) -> bool:
        return not wanted or filters.matches(wanted, self._codec.decode(entry.record.metadata))

    def _threads(self, config: RunnableConfig | None) -> Iterator[tuple[Any, str]]:
        if config:
            thread, _ = _address(config)
            yield config["configurable"]["thread_id"], thread
        else:
            yield from ((row.name, row.name) for row in self._log.all_threads())

    def _entries(self, config: RunnableConfig | None, thread: str, before: str | None) -> Iterator[Entry]:
        """Iterate over a thread's checkpoints, namespaces merged by id."""
        namespace = config["configurable"].get("checkpoint_ns") if config else None
        namespaces = self._log.namespaces(thread, rows.LANGGRAPH) if namespace is None else [namespace]
        id_ = _id(config) if config else None
        if id_ is not None:
            found = [self._log.entry(thread, name, id_) for name in namespaces]
            yield from (entry for entry in found if entry is not None and (before is None or entry.id < before))
            return
        streams = [self._down(thread, name, before) for name in namespaces]
        yield from streams[0] if len(streams) == 1 else merge(*streams, key=lambda entry: entry.id, reverse=True)

    def _down(self, thread: str, namespace: str, before: str | None) -> Iterator[Entry]:
        while page := self._log.page(thread, namespace, before, PAGE):
            yield from page
            before = page[-1].id

    # --- versions

    def get_next_version(self, current: str | float | None, channel: None) -> str:
        """Return the version after `current`; the random tail keeps those of two branches apart."""
        if current is None:
            number = 0
        elif isinstance(current, (int, float)):
            number = int(current)
        else:
            number = int(current.split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311


def _several(ids: Sequence[str], what: str) -> Sequence[str]:
    """Return a sequence of ids. Raises InvalidInputError on a single one, whose letters it would be taken for."""
    if isinstance(ids, str | bytes):
        raise InvalidInputError(f"{what} {ids!r}; expected a sequence of ids, as [{ids!r}]")
    return ids


def _is_walked(channel: str) -> bool:
    """Tell whether a graph may rebuild a channel from its history: LangGraph's own channels never are."""
    return channel not in _OWN_CHANNELS and not channel.startswith(_TRIGGER)


def _config(thread_id: Any, namespace: str, id_: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id_}}


def _id(config: RunnableConfig) -> str | None:
    """Return a config's checkpoint id; an empty one is none, as for other savers."""
    return get_checkpoint_id(config) or None


def _address(config: RunnableConfig) -> tuple[str, str]:
    """Return the names of a config's thread and namespace. Raises InvalidIdError."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    if "thread_id" not in configurable:
        raise InvalidIdError('the config names no thread: expected {"configurable": {"thread_id": …}}')
    namespace = check_name(configurable.get("checkpoint_ns") or "", "namespace", empty=True)
    return _thread_name(configurable["thread_id"]), namespace


def _thread_name(thread_id: Any) -> str:
    """Return a thread's name: text as it is, ints and UUIDs as their text. Raises InvalidIdError."""
    if type(thread_id) is int or isinstance(thread_id, uuid.UUID):
        return str(thread_id)
    return check_name(thread_id, "thread")
