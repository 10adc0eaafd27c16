"""Hashes of checkpoint tuples, in parts, so that two savers' answers can be compared and a difference named."""

import hashlib
import random
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from langchain_core.messages import BaseMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from bench.recording import Record
from bench.workloads import WORKLOADS, delta_channels

DIGEST_BYTES = 10
"""Enough that no two of a few thousand states meet by chance."""

REBUILT_STATES = 60
"""States with delta channels rebuilt that are compared: a rebuild may read the whole thread."""

FRAME_KEYS = ("v", "id", "ts", "channel_versions", "versions_seen")


def _encode(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"~message": type(value).__name__, "fields": value.model_dump()}
    if isinstance(value, _DeltaSnapshot):
        return {"~delta_snapshot": value.value}
    if isinstance(value, Send):
        return {"~send": [value.node, value.arg]}
    if isinstance(value, (set, frozenset)):
        return {"~set": sorted(map(digest, value))}
    if isinstance(value, Iterable):
        return {"~iterable": type(value).__name__, "items": list(value)}
    return {"~object": repr(value)}


def digest(value: Any, *, in_order: bool = True) -> str:
    """Hash a value by content, with the order of a dict's keys unless told otherwise. Lists and tuples hash alike."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS | (0 if in_order else orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(orjson.dumps(value, default=_encode, option=options), digest_size=DIGEST_BYTES).hexdigest()


def fields_digest(fields: Mapping[str, Any]) -> str:
    """Hash a mapping whose own order is the saver's to choose, as that of channels is."""
    return digest(sorted((name, digest(value)) for name, value in fields.items()))


def tuple_digests(found: CheckpointTuple | None) -> dict[str, str]:
    """Hash the parts of a checkpoint tuple."""
    if found is None:
        return {"missing": "missing"}
    parent = found.parent_config and found.parent_config["configurable"].get("checkpoint_id")
    frame = {key: found.checkpoint.get(key) for key in FRAME_KEYS}
    return {
        "values": fields_digest(found.checkpoint["channel_values"]),
        "frame": digest(frame, in_order=False),
        "keys in order": digest(frame),
        "metadata": fields_digest(found.metadata),
        "parent": digest(parent),
        "writes in order": digest([list(write) for write in found.pending_writes or ()]),
    }


def tuple_key(config: dict[str, Any]) -> str:
    configurable = config["configurable"]
    return "|".join(str(configurable.get(key, "")) for key in ("thread_id", "checkpoint_ns", "checkpoint_id"))


def differing_parts(expected: dict[str, dict[str, str]], actual: dict[str, dict[str, str]]) -> dict[str, int]:
    """Count, for each part of a checkpoint, the checkpoints in which it differs."""
    counts: dict[str, int] = {}
    for key in expected.keys() | actual.keys():
        wanted, got = expected.get(key), actual.get(key)
        if wanted is None or got is None or "missing" in got:
            differing = ["checkpoint absent" if wanted is not None else "checkpoint unexpected"]
        else:
            differing = [part for part in wanted if wanted[part] != got.get(part)]
        for part in differing:
            counts[part] = counts.get(part, 0) + 1
    return counts


def state_values(
    saver: BaseCheckpointSaver, config: dict[str, Any], channels: dict[str, DeltaChannel]
) -> dict[str, Any]:
    """Read a checkpoint's state as the graph runtime does: with delta channels rebuilt."""
    found = saver.get_tuple(config)
    if found is None:
        return {}
    values = dict(found.checkpoint["channel_values"])
    versions = found.checkpoint["channel_versions"]
    missing = [name for name in channels if name not in values and name in versions]
    if missing:
        history = saver.get_delta_channel_history(config=found.config, channels=missing)
        for name in missing:
            channel = channels[name].from_checkpoint(history[name].get("seed"))
            channel.replay_writes(history[name]["writes"])
            values[name] = channel.get()
    for name in channels:
        if isinstance(values.get(name), _DeltaSnapshot):
            values[name] = values[name].value
    return values


def hash_answers(trace: Record, saver: Any, workload: str) -> dict[str, dict[str, str]]:
    """Hash the tuple of every checkpoint of a record; where there are delta channels, rebuild some states too."""
    checkpoints = trace.checkpoints()
    found = {tuple_key(config): tuple_digests(saver.get_tuple(config)) for config in checkpoints}
    if channels := delta_channels(WORKLOADS[workload]):
        for config in random.Random("states").sample(checkpoints, min(REBUILT_STATES, len(checkpoints))):
            found[tuple_key(config)]["rebuilt state"] = fields_digest(state_values(saver, config, channels))
    return found
