"""Walks over ancestors: what LangGraph's DeltaChannel is rebuilt from.

The store keeps seeds and writes of such channels and never folds them; it can't know which channels these are.
Imports reading, finding and rows. The invariant: a walk returns what InMemorySaver's does, and raises where an ancestor
was lost.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from deltastore import ulid as ulids
from deltastore.codec.records import Record, Value
from deltastore.errors import BrokenChainError
from deltastore.log import finding, rows
from deltastore.log.reading import View


@dataclass(slots=True)
class Walked:
    """What a walk found for a channel: the nearest ancestor's value, and all writes since, the oldest first."""

    seed: Value | None = None
    writes: list[tuple[str, rows.StoredWrite]] = field(default_factory=list)


def walk(view: View, namespace: rows.Namespace, target: bytes, channels: Collection[int]) -> dict[int, Walked]:
    """Walk from a checkpoint's parent up, for each channel as far as the nearest ancestor that has its value.

    The target's own value and writes don't count; the seed's writes do. Raises BrokenChainError.
    """
    found = {channel: Walked() for channel in channels}
    remaining = set(channels)
    seen = {target}
    current = _parent(view, namespace, target, view.record(namespace.number, target))
    while current is not None and remaining and current[0] not in seen:
        ulid, record = current
        seen.add(ulid)
        _collect(view, namespace, record.id, remaining, found)
        absent = {channel for channel, _ in record.seeds}
        if not remaining <= absent:  # else the record itself says that it has no value of these
            state = view.state(namespace.number, ulid)
            for channel in [channel for channel in remaining if channel in state]:
                found[channel].seed = state[channel].value
                remaining.discard(channel)
        current = _parent(view, namespace, ulid, record)
    for walked in found.values():
        walked.writes.reverse()
    return found


def _collect(
    view: View, namespace: rows.Namespace, id_: str, channels: Collection[int], found: dict[int, Walked]
) -> None:
    """Add the writes of one ancestor, the last of them first: the walk goes backwards."""
    writes = [
        (write.path, task, write.idx, write)
        for task, by_idx in finding.tasks(view, namespace, id_).items()
        for write in by_idx.values()
        if write.channel in channels
    ]
    for _, task, _, write in sorted(writes, key=lambda item: item[:3], reverse=True):
        found[write.channel].writes.append((task, write))


def _parent(view: View, namespace: rows.Namespace, ulid: bytes, record: Record | None) -> tuple[bytes, Record] | None:
    """Return a record's parent; None at a root, or where it wasn't stored when the record was put and isn't now."""
    if record is None or (record.parent is None and record.parent_id is None):
        return None
    parent = record.parent if record.parent is not None else finding.find(view, namespace, record.parent_id or "")
    if parent is None:
        return None
    found = view.record(namespace.number, parent)
    if found is None:
        raise BrokenChainError(
            f"thread {view.name!r}: {ulids.to_text(parent)}, the parent of checkpoint {record.id!r} "
            f"({ulids.to_text(ulid)}), is missing. Rows were lost or damaged; run check, and restore from a backup"
        )
    if found.is_hidden:  # deleted; or its id was put again, and then parents lead there, as a reader of tuples goes
        again = finding.find(view, namespace, found.id)
        record = view.record(namespace.number, again) if again is not None else None
        if again is not None and record is not None:
            return again, record
    return parent, found
