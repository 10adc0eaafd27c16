"""Inspection: a checkpoint with all that it holds, as plain data and names of classes, for people and tools.

It needs neither the serializer nor the reducers that wrote it. Imports log and below. The invariant: no code of the
user's is imported or run; what only that could make of the stored parts stays parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltastore.codec import records as rec
from deltastore.codec.blobs import assemble
from deltastore.codec.generic import SNAPSHOT, Built, GenericCodec
from deltastore.codec.strict import STRICT
from deltastore.errors import CheckpointNotFoundError, ThreadNotFoundError
from deltastore.log import finding, keys, loading, names, rows, tagging, walking
from deltastore.log.engine import Log
from deltastore.log.reading import View, require
from deltastore.log.state import Channel
from deltastore.reducers import FIRST_INTERNED_REDUCER
from deltastore.storage.port import ReadTransaction
from deltastore.terms import PendingWrite, when

COUNTERS = "counters_since_delta_snapshot"
"""The metadata in which LangGraph names the DeltaChannels that were written to since their last snapshot."""


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A channel that only its own reducer can fold: a seed, and the writes since, the oldest first.

    `reducer`: its name, or None for LangGraph's DeltaChannel, whose reducer only the graph knows. `present`: whether
    there is a seed.
    """

    reducer: str | None
    present: bool
    seed: Any
    writes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Inspected:
    """A checkpoint with all that it holds. A channel's value is plain data, or an Unfolded."""

    thread: str
    namespace: str
    front: str
    id: str
    parent_id: str | None
    created_at: datetime
    is_anchor: bool
    metadata: Any
    tags: tuple[str, ...]
    channels: Mapping[str, Any]
    writes: tuple[PendingWrite, ...]


def generic_codec(log: Log) -> GenericCodec:
    """Return the decoder of everything that a store holds."""

    def type_of(tag: int) -> str:
        with log.storage.read() as tx:
            return log.names.name(tx, keys.TAG, tag)

    return GenericCodec(type_of)


def inspect(log: Log, thread: str, namespace: str = "", id_: str | None = None) -> Inspected:
    """Return a checkpoint, the latest without id.

    Raises ThreadNotFoundError, CheckpointNotFoundError, BrokenChainError, ChecksumError.
    """
    codec = generic_codec(log)
    with log.storage.read() as tx:
        loaded = _load(log, tx, thread, namespace, id_)
    metadata = codec.decode(loaded.record.metadata)
    channels = {name: _value(channel, codec) for name, channel in loaded.channels.items()}
    for name, (seed, writes) in loaded.histories.items():
        values = tuple(assemble(write.kind, write.blobs, codec) for write in writes)
        value = None if seed is None else _value(seed, codec)
        if isinstance(value, Built) and value.name == SNAPSHOT:
            channels[name] = Unfolded(None, True, value.parts, values)
        elif _names(metadata, name):
            channels[name] = Unfolded(None, seed is not None, value, values)
    return Inspected(
        thread=thread,
        namespace=namespace,
        front=rows.FRONT_NAMES[loaded.front],
        id=loaded.id,
        parent_id=loading.parent_id_of(loaded.front, loaded.record),
        created_at=when(loaded.record.time_ms),
        is_anchor=loaded.record.is_anchor,
        metadata=metadata,
        tags=loaded.tags,
        channels=channels,
        writes=tuple(
            PendingWrite(write.task, write.channel, assemble(write.kind, write.blobs, codec)) for write in loaded.writes
        ),
    )


def _names(metadata: Any, channel: str) -> bool:
    counters = metadata.get(COUNTERS) if isinstance(metadata, dict) else None
    return isinstance(counters, dict) and channel in counters


@dataclass(frozen=True, slots=True)
class _Channel:
    """A channel's chunks, out of the transaction; `reducer` names the one that its writes wait for."""

    loaded: loading.LoadedChannel
    reducer: str


@dataclass(frozen=True, slots=True)
class _Loaded:
    front: int
    id: str
    record: rec.Record
    tags: tuple[str, ...]
    channels: dict[str, _Channel]
    histories: dict[str, tuple[_Channel | None, list[loading.WriteLoaded]]]
    writes: list[loading.WriteLoaded]


def _load(log: Log, tx: ReadTransaction, thread: str, namespace: str, id_: str | None) -> _Loaded:
    located = finding.find_thread(tx, thread)
    if located is None:
        raise ThreadNotFoundError(f"no thread is named {thread!r}; see the store's threads")
    view = View(tx, located[0], thread)
    found = rows.load_namespace(tx, view.thread, keys.encode_name(namespace))
    wanted = found.latest if found is not None and id_ is None else id_
    ulid = None if found is None or wanted is None else finding.find(view, found, wanted)
    if found is None or wanted is None or ulid is None:
        raise CheckpointNotFoundError(
            f"thread {thread!r}, namespace {namespace!r} has no checkpoint {wanted or 'at all'!r}; see its history"
        )
    record = require(view, found, ulid)
    channels: dict[str, _Channel] = {}
    versions: Mapping[str, Any] = {}
    for number, channel in view.state(found.number, ulid).items():
        loaded = _channel(log, view, number, channel)
        if number >= rec.FIRST_CHANNEL:
            channels[log.registry.channel_name(tx, number)] = loaded
        elif number == rec.VERSIONS_CHANNEL:
            versions = STRICT.decode_dict(loaded.loaded.blobs or [])
    return _Loaded(
        found.front,
        wanted,
        record,
        tuple(name for name, tagged in tagging.load(tx, view.thread, found.number).items() if tagged == wanted),
        channels,
        _histories(log, view, found, ulid, [name for name in versions if name not in channels]),
        loading.load_writes(view, log.registry, finding.tasks(view, found, wanted)),
    )


def _channel(log: Log, view: View, number: int, channel: Channel) -> _Channel:
    folded = view.folded(number, channel)
    waits = folded.writes and folded.reducer >= FIRST_INTERNED_REDUCER
    reducer = log.registry.describe(view.tx, folded.reducer) if waits else ""
    return _Channel(loading.load_channel(view, number, folded, None), reducer)


def _histories(
    log: Log, view: View, namespace: rows.Namespace, ulid: bytes, wanted: list[str]
) -> dict[str, tuple[_Channel | None, list[loading.WriteLoaded]]]:
    """Return seed and writes of the channels that have a version here and no value; some are DeltaChannels."""
    numbers = {
        number: name
        for name in wanted
        if (number := names.find(view.tx, keys.CHANNEL, keys.encode_name(name))) is not None
    }
    out: dict[str, tuple[_Channel | None, list[loading.WriteLoaded]]] = {}
    for number, walked in walking.walk(view, namespace, ulid, numbers).items() if numbers else ():
        seed = None if walked.seed is None else _channel(log, view, number, Channel(walked.seed, 0))
        writes = [loading.load_write(view, log.registry, task, write) for task, write in walked.writes]
        out[numbers[number]] = (seed, writes)
    return out


def _value(channel: _Channel, codec: GenericCodec) -> Any:
    loaded = channel.loaded
    value = None if loaded.blobs is None else assemble(loaded.kind, loaded.blobs, codec)
    if not loaded.writes:
        return value
    writes = tuple(assemble(kind, blobs, codec) for kind, blobs in loaded.writes)
    return Unfolded(channel.reducer, loaded.blobs is not None, value, writes)
