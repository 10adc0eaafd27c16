"""Walks over ancestors: what LangGraph's DeltaChannel is rebuilt from.

The store keeps seeds and writes of such channels and never folds them; it can't know which channels these are.
Imports reading, finding and rows. The invariant: a walk returns what InMemorySaver's does, and raises where an ancestor
was lost.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from deltastore import ulid as ulids
from deltastore.codec.records import (
    HISTORY_ENDS,
    HISTORY_LOST,
    PARENT_DELETED,
    SETTLED,
    VERSIONS_CHANNEL,
    Record,
    Value,
    series_of,
)
from deltastore.codec.spans import Span
from deltastore.codec.strict import STRICT
from deltastore.errors import BrokenChainError, CheckpointNotFoundError, CorruptionError
from deltastore.log import announcing, finding, keys, names, rows
from deltastore.log.reading import View, require


@dataclass(slots=True, repr=False)
class Walked:
    """What a walk found for a channel: the nearest ancestor's value, and all writes since, the oldest first."""

    seed: Value | None = None
    writes: list[tuple[str, rows.StoredWrite]] = field(default_factory=list)


def walk(view: View, namespace: rows.Namespace, target: bytes, channels: Collection[int]) -> dict[int, Walked]:
    """Walk from a checkpoint's parent up, for each channel as far as the nearest ancestor that has its value.

    The target's own value and writes don't count, unless its history was erased and it was given what that came to:
    whoever read it before asks for it now. The seed's writes do count.
    Raises BrokenChainError, CheckpointNotFoundError where an ancestor was deleted before its child was put.
    """
    if view.tx.remote:
        _announce(view, namespace, target)
    found = {channel: Walked() for channel in channels}
    remaining = set(channels)
    seen = {target}
    record = require(view, namespace, target)
    if record.flags & SETTLED:
        state = view.state(namespace.number, target)
        for channel in [channel for channel in remaining if channel in state]:
            found[channel].seed = state[channel].value
            remaining.discard(channel)
    current = _up(view, namespace, target, record, remaining) if remaining else None
    while current is not None and current[0] not in seen:
        ulid, record = current
        seen.add(ulid)
        _collect(view, namespace, ulid, record, remaining, found)
        absent = {channel for channel, _ in record.seeds}
        if not remaining <= absent:  # else the record itself says that it has no value of these
            state = view.state(namespace.number, ulid)
            for channel in [channel for channel in remaining if channel in state]:
                found[channel].seed = state[channel].value
                remaining.discard(channel)
        current = _up(view, namespace, ulid, record, remaining) if remaining else None
    for walked in found.values():
        walked.writes.reverse()
    return found


def _announce(view: View, namespace: rows.Namespace, target: bytes) -> None:
    """Say beforehand that the pending writes of the checkpoints up to this one will be looked at."""
    known = announcing.Known(view.thread, namespace.number)
    announcing.records(view.tx, known, (target,), announcing.CHAIN_ROWS)
    with contextlib.suppress(CorruptionError):
        behind = islice(view.record_rows(namespace.number, target, reverse=True), announcing.CHAIN_ROWS)
        ids = [record.id for found in behind for record in found.row.records if record.id and not record.is_remnant]
        announcing.writes(view.tx, known, ids)


def spans_of(walked: Mapping[int, Walked]) -> list[tuple[int, Span]]:
    """Return where the chunks are that walks found, each span with its series."""
    out: list[tuple[int, Span]] = []
    for channel, found in walked.items():
        out += [(series_of(channel), span) for span in (found.seed.spans if found.seed else ())]
        out += [(0, span) for _, write in found.writes for span in write.value.spans]
    return out


def _collect(
    view: View,
    namespace: rows.Namespace,
    ulid: bytes,
    record: Record,
    channels: Collection[int],
    found: dict[int, Walked],
) -> None:
    """Add the writes of one ancestor, the last of them first: the walk goes backwards."""
    writes = [
        (write.path, task, write.idx, write)
        for task, by_idx in tasks_at(view, namespace, ulid, record).items()
        for write in by_idx.values()
        if write.channel in channels
    ]
    for _, task, _, write in sorted(writes, key=lambda item: item[:3], reverse=True):
        found[write.channel].writes.append((task, write))


def tasks_at(view: View, namespace: rows.Namespace, ulid: bytes, record: Record) -> rows.Tasks:
    """Return the writes that a walk finds at a record: those of its id, or a remnant's own, which its row holds.

    Packed ones are taken from the row that holds the record, not by its id: rows by id may be lost without a trace.
    """
    holder = view.row_of(namespace.number, ulid)
    packed: rows.Tasks = {}
    for hashed, row in (holder.row.writes.get(record.id, {}) if holder else {}).items():
        packed |= rows.decode_tasks(hashed, row)
    return packed if record.is_remnant else rows.merge_tasks(packed, finding.loose_tasks(view, namespace, record.id))


def _up(
    view: View, namespace: rows.Namespace, ulid: bytes, record: Record, channels: Collection[int]
) -> tuple[bytes, Record] | None:
    if record.flags & HISTORY_LOST:
        raise BrokenChainError(
            f"thread {view.name!r}: what the history of checkpoint {record.id!r} needs of {record.parent_id!r}, its "
            "parent, was lost and quarantined. Go on from a checkpoint before it, put one that states its delta "
            "channels in full, or restore from a backup"
        )
    if record.flags & PARENT_DELETED and finding.find(view, namespace, record.parent_id or "") is None:
        versioned = _versioned(view, namespace, ulid, record)
        if versioned is not None and versioned.isdisjoint(channels):
            return None  # they began after it
        raise CheckpointNotFoundError(
            f"thread {view.name!r}: checkpoint {record.id!r} was put after its parent {record.parent_id!r} had been "
            "deleted, so the history of its delta channels is lost. Go on from a checkpoint before it, or put one that "
            "states these channels in full"
        )
    return parent_of(
        view,
        ulid,
        record,
        lambda parent: view.record(namespace.number, parent),
        lambda id_: finding.find(view, namespace, id_),
    )


def _versioned(view: View, namespace: rows.Namespace, ulid: bytes, record: Record) -> set[int] | None:
    """Return the channels that a checkpoint has a version of; of a remnant those that walks come for, without a value.

    None where it doesn't tell.
    """
    if record.is_remnant:
        return {channel for channel, _ in record.seeds}
    versions = view.state(namespace.number, ulid).get(VERSIONS_CHANNEL)
    if versions is None or versions.value is None:
        return None
    known = STRICT.decode_dict(view.blobs(series_of(VERSIONS_CHANNEL), versions.value.spans))
    found = (names.find(view.tx, keys.CHANNEL, keys.encode_name(name)) for name in known)
    return {number for number in found if number is not None}


def parent_of(
    view: View,
    ulid: bytes,
    record: Record,
    lookup: Callable[[bytes], Record | None],
    find: Callable[[str], bytes | None],
) -> tuple[bytes, Record] | None:
    """Return a record's parent as a walk finds it; None at a root, where it wasn't stored when the record was put
    and isn't now, and where a walk has to raise because it was lost. `lookup` finds records, `find` visible ids.
    Raises BrokenChainError.
    """
    if record.flags & (HISTORY_ENDS | HISTORY_LOST):
        return None
    parent = record.parent
    if parent is None:
        parent = None if record.parent_id is None else find(record.parent_id)
        if parent is None:
            return None
    found = lookup(parent)
    if found is None:
        raise BrokenChainError(
            f"thread {view.name!r}: {ulids.to_text(parent)}, the parent of checkpoint {record.id!r} "
            f"({ulids.to_text(ulid)}), is missing. Rows were lost or damaged; run check, and restore from a backup"
        )
    if found.is_hidden and not found.is_remnant:  # its id was put again: parents lead there, as a reader of tuples goes
        again = find(found.id)
        taken_over = None if again is None else lookup(again)
        if again is not None and taken_over is not None:
            return again, taken_over
    return parent, found
