"""Loading a checkpoint: what a read takes out of a transaction, to be decoded after it.

Imports reading, finding, heads, registry and state. The invariant: only a `Reading` decodes user objects and runs user
reducers, and it needs no transaction.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.codec.blobs import Codec, assemble
from deltastore.codec.strict import STRICT
from deltastore.errors import BrokenChainError
from deltastore.log import ahead, finding, rows
from deltastore.log.heads import Head, HeadCache
from deltastore.log.reading import View, require
from deltastore.log.registry import Registry
from deltastore.log.state import Channel, State
from deltastore.reducers import FIRST_INTERNED_REDUCER, Reducer

_LISTS = (rec.LIST, rec.SNAPSHOT_LIST)


class WriteLoaded(NamedTuple):
    """A pending write with its chunks."""

    task: str
    path: str
    idx: int
    channel: str
    kind: int
    blobs: list[bytes]
    time_ms: int


class LoadedChannel(NamedTuple):
    """A channel's chunks as stored, and the writes that a user's reducer is still to fold: kind and chunks of each.

    `notes` are the codec's own, of these chunks, where the cache had them.
    """

    kind: int
    blobs: list[bytes] | None
    reducer: int
    writes: tuple[tuple[int, list[bytes]], ...]
    notes: object = None


class Reading(NamedTuple):
    """A checkpoint as read in one moment; decoding it needs no transaction any more."""

    ulid: bytes
    id: str
    parent_id: str | None
    record: rec.Record
    channels: dict[str, LoadedChannel]
    hidden: dict[int, LoadedChannel]
    reducers: dict[int, Reducer]
    writes: list[WriteLoaded]

    def values(self, codec: Codec, notes: dict[str, object] | None = None) -> dict[str, Any]:
        """Return the channels' values, as fresh objects.

        `notes`: the codec's, by channel, of a checkpoint decoded before, which has much of this one; then this one's.
        """
        return {name: self._noted(name, channel, codec, notes) for name, channel in self.channels.items()}

    def _noted(self, name: str, channel: LoadedChannel, codec: Codec, notes: dict[str, object] | None) -> Any:
        if notes is None or channel.kind not in _LISTS or channel.blobs is None or channel.writes:
            return self._value(channel, codec)
        known = notes.get(name) or channel.notes
        value = codec.decode_list(channel.blobs, known)
        notes[name] = codec.note(value, channel.blobs, known)
        return codec.wrap(value) if channel.kind == rec.SNAPSHOT_LIST else value

    def hidden_value(self, number: int, codec: Codec) -> Any:
        """Return a hidden channel's value; an empty dict where the checkpoint has none."""
        channel = self.hidden.get(number)
        return {} if channel is None else self._value(channel, codec)

    def _value(self, channel: LoadedChannel, codec: Codec) -> Any:
        value = None if channel.blobs is None else assemble(channel.kind, channel.blobs, codec, channel.notes)
        if not channel.writes:
            return value
        reducer = self.reducers[channel.reducer]
        writes = [assemble(kind, blobs, codec) for kind, blobs in channel.writes]
        return reducer.fold_all(value, writes, present=channel.blobs is not None)


def load(
    view: View,
    namespace: rows.Namespace,
    collected: int,
    ulid: bytes,
    heads: HeadCache,
    registry: Registry,
    *,
    wanted: Collection[str] | None,
    with_writes: bool,
) -> Reading:
    """Load a checkpoint, of its channels those `wanted`, or all; the cache is used and, by a whole tip, filled.

    Raises BrokenChainError, ChecksumError, ReducerMismatchError.
    """
    if view.tx.remote:
        ahead.bring(view, collected, [(namespace, ulid)], heads, registry, wanted=wanted, with_writes=with_writes)
    record = require(view, namespace, ulid)
    head = heads.head(view.thread, namespace.number, collected, ulid)
    known, notes = (head.blobs, head.notes) if head is not None else ({}, {})
    state = head.state if head is not None else view.state(namespace.number, ulid)
    channels: dict[str, LoadedChannel] = {}
    hidden: dict[int, LoadedChannel] = {}
    reducers: dict[int, Reducer] = {}
    folded: State = {}
    for number, channel in state.items():
        name = registry.channel_name(view.tx, number)
        if number >= rec.FIRST_CHANNEL and wanted is not None and name not in wanted:
            continue
        try:
            folded[number] = view.folded(number, channel)
            loaded = load_channel(view, number, folded[number], known.get(number), notes.get(number))
        except BrokenChainError as error:
            raise BrokenChainError(
                f"channel {name!r} of checkpoint {record.id or ulids.to_text(ulid)!r}: {error}"
            ) from error
        if loaded.writes:
            reducers[channel.reducer] = registry.reducer(view.tx, channel.reducer, name)
        if number < rec.FIRST_CHANNEL:
            hidden[number] = loaded
        else:
            channels[name] = loaded
    id_ = record.id or ulids.to_text(ulid)
    if head is None and wanted is None and namespace.tip == ulid:
        _keep_head(heads, view, namespace, collected, ulid, record, state, channels, hidden)
    writes = load_writes(view, registry, finding.tasks(view, namespace, id_)) if with_writes else []
    return Reading(ulid, id_, parent_id_of(namespace.front, record), record, channels, hidden, reducers, writes)


def _keep_head(
    heads: HeadCache,
    view: View,
    namespace: rows.Namespace,
    collected: int,
    ulid: bytes,
    record: rec.Record,
    state: State,
    channels: dict[str, LoadedChannel],
    hidden: dict[int, LoadedChannel],
) -> None:
    """Let the next put find what this read brought: a graph reads the tip, then puts on it."""
    by_number = dict(zip((n for n in state if n >= rec.FIRST_CHANNEL), channels.values(), strict=True)) | hidden
    blobs = {n: c.blobs for n, c in by_number.items() if c.blobs is not None and not state[n].writes}
    head = Head(ulid, record.id or ulids.to_text(ulid), record.depth, collected, state, blobs, bases=dict(view.bases))
    head.seeds = dict(record.seeds)
    if rec.VERSIONS_CHANNEL in hidden:
        head.versions = STRICT.decode_dict(blobs[rec.VERSIONS_CHANNEL])
    heads.keep(view.thread, namespace.number, head)


def load_write(view: View, registry: Registry, task: str, write: rows.StoredWrite) -> WriteLoaded:
    """Return a pending write with its chunks. Raises BrokenChainError, ChecksumError."""
    name = registry.channel_name(view.tx, write.channel)
    blobs = view.blobs(0, write.value.spans)
    return WriteLoaded(task, write.path, write.idx, name, write.value.kind, blobs, write.time_ms)


def load_writes(view: View, registry: Registry, tasks: rows.Tasks) -> list[WriteLoaded]:
    """Return writes with their chunks, in the order (path, task, idx)."""
    out = [load_write(view, registry, task, write) for task, writes in tasks.items() for write in writes.values()]
    return sorted(out, key=lambda write: (write.path, write.task, write.idx))


def load_channel(
    view: View, number: int, channel: Channel, known: list[bytes] | None, notes: object = None
) -> LoadedChannel:
    """Return a channel, its built-in folds done, with its chunks: those known, or as stored."""
    series = rec.series_of(number)
    if channel.writes and channel.reducer < FIRST_INTERNED_REDUCER:
        raise BrokenChainError(f"writes of channel {number} weren't folded")
    blobs = known
    if blobs is None and channel.value is not None:
        blobs = view.blobs(series, channel.value.spans)
    writes = tuple((write.kind, view.blobs(series, write.spans)) for write in channel.writes)
    return LoadedChannel(channel.value.kind if channel.value else rec.OPAQUE, blobs, channel.reducer, writes, notes)


def parent_id_of(front: int, record: rec.Record) -> str | None:
    """Return the parent's id as it was put."""
    if front == rows.NATIVE and record.parent_id is None:  # else the parent was deleted
        return None if record.parent is None else ulids.to_text(record.parent)
    return record.parent_id
