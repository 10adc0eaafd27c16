"""Reading: checkpoint tuples, lists and histories, as LangGraph asks for them.

Imports base, configs, filters and threads. The invariant: what a read returns equals what InMemorySaver would return.
"""

import builtins
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, DeltaChannelHistory

from deltastore import terms
from deltastore.codec.blobs import assemble
from deltastore.codec.records import SEEN_CHANNEL, VERSIONS_CHANNEL, Record
from deltastore.codec.strict import STRICT
from deltastore.errors import FrontMismatchError
from deltastore.langgraph import filters
from deltastore.langgraph.base import SaverBase, off_loop
from deltastore.langgraph.configs import address, config_of, id_of, thread_name
from deltastore.log import rows
from deltastore.log.answering import Entry
from deltastore.log.loading import Reading

if TYPE_CHECKING:
    from deltastore.log.forks import Fork

PAGE = 32
"""Checkpoints that `list` looks up at a time, without their values; no transaction is held between pages."""
HISTORY_PAGE = 512
"""The same where values aren't wanted at all."""


class ReadingSaver(SaverBase):
    """The methods that read."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the config's checkpoint, the latest without id, or None where there is none.

        Raises InvalidIdError, BrokenChainError, ChecksumError, CodecMismatchError, FrontMismatchError; nothing missing
        reads as empty.
        """
        thread, namespace = address(config)
        id_ = id_of(config)
        reading = self._log.read(thread, namespace, id_, with_writes=True)
        if reading is None:
            return None
        own = config if id_ else config_of(config["configurable"]["thread_id"], namespace, reading.id)
        return self._tuple(own, config["configurable"]["thread_id"], namespace, reading)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, off the event loop."""
        return await off_loop(self.get_tuple, config)

    def _tuple(
        self,
        config: RunnableConfig,
        thread_id: Any,
        namespace: str,
        reading: Reading,
        notes: dict[str, object] | None = None,
    ) -> CheckpointTuple:
        frame = self._frame(reading.record, namespace)
        values = reading.values(self._codec, notes)
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
            parent_config=config_of(thread_id, namespace, parent) if parent else None,
            pending_writes=[
                (write.task, write.channel, assemble(write.kind, write.blobs, self._codec)) for write in reading.writes
            ],
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what DeltaChannels are rebuilt from: the nearest ancestor's value, and all writes since, oldest first.

        Reads only the ancestors that count. Raises InvalidIdError; BrokenChainError where one of them was lost;
        CheckpointNotFoundError where the checkpoint was deleted meanwhile, or its parent before it was put.
        """
        if not channels:
            return {}
        thread, namespace = address(config)
        out: dict[str, DeltaChannelHistory] = {}
        for name, (seed, writes) in self._log.walk(thread, namespace, id_of(config), channels).items():
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
        return await off_loop(self.get_delta_channel_history, config=config, channels=channels)

    def _frame(self, record: Record, namespace: str) -> dict[str, Any]:
        """Return what of a checkpoint is neither values nor versions.

        Raises FrontMismatchError where there is no such part.
        """
        if record.frame is None:
            raise _native(namespace)
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
        `get_tuple` does, InvalidInputError for a filter that isn't a dict and a limit that isn't an int from 0 on,
        EncodeError naming the key where a value of the filter can't be stored.
        """
        wanted = filters.as_stored(filter, self._codec.reload)
        limit_id = id_of(before) if before else None
        left = int(limit) if isinstance(limit, bool) else limit  # True is 1, as for other savers
        terms.check_limit(left)
        for thread_id, thread in self._threads(config):
            if left == 0:
                return
            if config and not wanted and left is not None and left <= PAGE and _is_plain(config):
                yield from self._page(thread_id, thread, config["configurable"]["checkpoint_ns"], limit_id, left)
                return
            first = PAGE if left is None or wanted else min(left, PAGE)
            entries = (e for e in self._entries(config, thread, limit_id, first) if self._matches(e, wanted))
            # without a limit the first comes at once, and whoever goes on gets more at a time: they share much
            size = 1 if left is None else min(left, PAGE)
            notes: dict[str, object] = {}
            while page := list(islice(entries, size if left is None else min(size, left))):
                readings = self._log.read_many(thread, [(entry.namespace, entry.id) for entry in page])
                for entry, reading in zip(page, readings, strict=True):
                    if reading is not None:  # else deleted since
                        own = config_of(thread_id, entry.namespace, entry.id)
                        shared = notes if len(page) > 1 else None
                        yield self._tuple(own, thread_id, entry.namespace, reading, shared)
                size = min(2 * size, PAGE)
                left = None if left is None else left - len(page)

    def _page(
        self, thread_id: Any, thread: str, namespace: str, before: str | None, limit: int
    ) -> Iterator[CheckpointTuple]:
        """Iterate over the one page that is asked for, which is read at once."""
        found = self._log.read_page(thread, namespace, before, limit)
        notes: dict[str, object] | None = {} if len(found) > 1 else None
        for entry, reading in found:
            yield self._tuple(config_of(thread_id, namespace, entry.id), thread_id, namespace, reading, notes)

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
        while (found := await off_loop(next, items, None)) is not None:
            yield found

    def history(
        self, config: RunnableConfig, *, limit: int | None = None, before: RunnableConfig | None = None
    ) -> Iterator[terms.Checkpoint]:
        """Iterate over the checkpoints of the config's namespace, the greatest id first, without reading their values.

        What a page about a long thread shows: ids, parents, times and metadata; all branches are listed. Lazy; holds no
        transaction while the caller has the iterator. Raises InvalidInputError, and as `get_tuple` does.
        """
        terms.check_limit(limit)
        thread, namespace = address(config)
        return self._history(thread, namespace, limit, id_of(before) if before else None)

    def _history(
        self, thread: str, namespace: str, limit: int | None, before: str | None
    ) -> Iterator[terms.Checkpoint]:
        left = limit
        while left != 0:
            size = HISTORY_PAGE if left is None else min(HISTORY_PAGE, left)
            page = self._log.page(thread, namespace, before, size)
            for entry in page:
                if entry.record.frame is None:
                    raise _native(namespace)
                metadata = self._codec.decode(entry.record.metadata)
                created = terms.when(entry.record.time_ms)
                yield terms.Checkpoint(entry.id, thread, namespace, entry.parent_id, created, metadata)
            if len(page) < size:
                return
            before, left = page[-1].id, None if left is None else left - len(page)

    async def ahistory(
        self, config: RunnableConfig, *, limit: int | None = None, before: RunnableConfig | None = None
    ) -> AsyncIterator[terms.Checkpoint]:
        """Iterate as `history` does, each step off the event loop."""
        items = self.history(config, limit=limit, before=before)
        while (found := await off_loop(next, items, None)) is not None:
            yield found

    def threads(
        self,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        limit: int | None = None,
        before: Any = None,
    ) -> Iterator[terms.ThreadInfo]:
        """Iterate over the threads with LangGraph checkpoints, the newest created first; `name` is the thread id.

        `metadata` is the thread's: that of the latest checkpoint of its root namespace, or of its first where it has no
        root, without what belongs to one step; `filter` compares it as `list` does. `before`: only threads older than
        this one. Lazy; reads no values, and holds no transaction while the caller has the iterator.

        Raises InvalidInputError, ThreadNotFoundError. A thread that can't be read raises as `get_tuple` does, naming
        it, when it is reached; `before` lists those after it.
        """
        name = None if before is None else thread_name(before)
        from deltastore.langgraph.threads import list_threads  # an agent's run lists no threads

        return list_threads(
            self._log, self._codec, filters.as_stored(filter, self._codec.reload), before=name, limit=limit
        )

    async def athreads(
        self,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        limit: int | None = None,
        before: Any = None,
    ) -> AsyncIterator[terms.ThreadInfo]:
        """Iterate as `threads` does, each step off the event loop."""
        items = await off_loop(self.threads, filter=filter, limit=limit, before=before)
        while (found := await off_loop(next, items, None)) is not None:
            yield found

    def forks(self, config: RunnableConfig) -> "builtins.list[Fork]":
        """Return where the config's namespace branched: roots first, then by the parent's id. Reads no values.

        Raises InvalidIdError.
        """
        return self._log.forks(*address(config))

    async def aforks(self, config: RunnableConfig) -> "builtins.list[Fork]":
        """Return where a namespace branched, off the event loop."""
        return await off_loop(self.forks, config)

    def _matches(self, entry: Entry, wanted: dict[str, Any]) -> bool:
        return not wanted or filters.matches(wanted, self._codec.decode(entry.record.metadata))

    def _threads(self, config: RunnableConfig | None) -> Iterator[tuple[Any, str]]:
        if config:
            thread, _ = address(config)
            yield config["configurable"]["thread_id"], thread
        else:
            yield from ((row.name, row.name) for row in self._log.all_threads())

    def _entries(self, config: RunnableConfig | None, thread: str, before: str | None, first: int) -> Iterator[Entry]:
        """Iterate over a thread's checkpoints, namespaces merged by id; `first` of each are looked up at once."""
        namespace = config["configurable"].get("checkpoint_ns") if config else None
        namespaces = self._log.namespaces(thread, rows.LANGGRAPH) if namespace is None else [namespace]
        id_ = id_of(config) if config else None
        if id_ is not None:
            found = [self._log.entry(thread, name, id_) for name in namespaces]
            yield from (entry for entry in found if entry is not None and (before is None or entry.id < before))
            return
        streams = [self._down(thread, name, before, first) for name in namespaces]
        yield from streams[0] if len(streams) == 1 else merge(*streams, key=lambda entry: entry.id, reverse=True)

    def _down(self, thread: str, namespace: str, before: str | None, first: int) -> Iterator[Entry]:
        size = first
        while page := self._log.page(thread, namespace, before, size):
            yield from page
            if len(page) < size:
                return
            before, size = page[-1].id, PAGE


def _native(namespace: str) -> FrontMismatchError:
    return FrontMismatchError(
        f"namespace {namespace!r} of this thread is written by the native API; read it with store.thread(…), "
        "and an agent's run with deltastore.agent"
    )


def _is_plain(config: RunnableConfig) -> bool:
    """Tell whether a config names a namespace and no checkpoint of it."""
    return isinstance(config["configurable"].get("checkpoint_ns"), str) and id_of(config) is None
