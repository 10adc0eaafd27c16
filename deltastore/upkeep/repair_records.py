"""Records of a namespace under repair: which can be rebuilt, and what becomes of those that stand on others.

Pure but for the draft that it reads. Imports chunks under repair, and log and below. The invariant: a record that could
be rebuilt is kept with the state that it had, be it as an anchor; and what its history needs is there, or its walks
raise.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.errors import CorruptionError
from deltastore.log import hiding, rows
from deltastore.log import state as st
from deltastore.log.reading import View
from deltastore.upkeep import marking
from deltastore.upkeep.repair_chunks import Chunks


@dataclass(frozen=True, slots=True)
class Broken:
    """Why a record can't be rebuilt, and its channels, by number, that can't; empty: none can."""

    reason: str
    channels: tuple[int, ...] = ()


@dataclass(slots=True)
class Judged:
    """What becomes of a namespace's records, by ULID, in their order."""

    states: dict[bytes, st.State]
    """Of those that can be rebuilt."""
    broken: dict[bytes, Broken]
    visible: dict[str, bytes]
    """Of those, the listed ones, by id."""
    made: dict[bytes, rec.Record]
    """Of those, all: as they are to be."""
    cut: set[bytes]
    """Of those, whose history is lost from now on."""


def id_of(ulid: bytes, record: rec.Record) -> str:
    """Return the id of a record, in either front."""
    return record.id or ulids.to_text(ulid)


def judge(view: View, chunks: Chunks, records: Mapping[bytes, rec.Record], unfit: Mapping[bytes, str]) -> Judged:
    """Fold all records and tell which can be rebuilt. `unfit`: those that can't for another reason."""
    found = Judged({}, {}, {}, {}, set())
    state: st.State | None = {}
    previous: bytes | None = None
    for ulid, record in records.items():
        why: Broken | None = None
        try:
            if record.is_anchor:
                state = st.fold({}, record)
            elif state is None or record.parent != previous:
                state, why = None, Broken("what it is a delta on can't be read")
            else:
                state = st.fold(state, record)
        except CorruptionError as error:
            state, why = None, Broken(str(error))
        previous = ulid
        if ulid in unfit:
            why = Broken(unfit[ulid])
        elif state is not None:
            why = _lacking(view, chunks, state)
        if why is not None or state is None:
            found.broken[ulid] = why or Broken("what it is a delta on can't be read")
            continue
        found.states[ulid] = state
        found.made[ulid] = record
        if not record.is_hidden:
            id_ = id_of(ulid, record)
            earlier = found.visible.get(id_)
            if earlier is not None:  # the later put took the id over, and didn't find the row that led to this one
                found.made[earlier] = records[earlier]._replace(flags=records[earlier].flags | rec.HIDDEN)
            found.visible[id_] = ulid
    return found


def _lacking(view: View, chunks: Chunks, state: st.State) -> Broken | None:
    """Tell what of a state can't be read; None: nothing."""
    channels: list[int] = []
    reason = ""
    for number, channel in state.items():
        series = rec.series_of(number)
        try:
            folded = view.folded(number, channel)
            values = [value for value in (folded.value, *folded.writes) if value is not None]
            missing = next(
                (lost for value in values if (lost := chunks.missing(series, value.spans)) is not None), None
            )
            if missing is None:
                continue
            reason = reason or f"chunk {missing} of series {series} is lost"
        except CorruptionError as error:
            reason = reason or str(error)
        channels.append(number)
    return Broken(reason, tuple(channels)) if channels else None


def mend(
    view: View,
    chunks: Chunks,
    front: int,
    records: Mapping[bytes, rec.Record],
    found: Judged,
    gone_ids: Collection[str],
    lost_writes: Collection[str],
) -> None:
    """Let what stays stand by itself: deltas whose base goes become anchors, ways to what is lost raise.

    `gone_ids`: of checkpoints that were there and aren't any more; `lost_writes`: of those that lost pending writes.
    """
    previous: bytes | None = None
    depth = 0
    for ulid, held in list(found.made.items()):
        stands = held.is_anchor or held.parent == previous
        record = held if stands and _has_ops(chunks, held) else anchor(view, held, found.states[ulid])
        if front == rows.NATIVE:
            record = _relinked(record, records, found)
        elif not record.flags & (rec.HISTORY_LOST | rec.HISTORY_ENDS):
            record = _linked(ulid, record, records, found, gone_ids, lost_writes)
        depth = 0 if record.is_anchor else depth + 1
        if record.depth < depth or (record.is_anchor and record.depth):
            record = record._replace(depth=depth)
        found.made[ulid] = record
        previous = ulid


def anchor(view: View, record: rec.Record, state: st.State) -> rec.Record:
    """Return a record as an anchor; writes that wait for a user's reducer go on waiting, beside the value."""
    ops: list[rec.Op] = []
    for number, channel in state.items():
        folded = view.folded(number, channel)
        if folded.value is not None:
            ops.append(rec.Set(number, folded.reducer, folded.value))
        if folded.writes:
            ops.append(rec.Fold(number, folded.reducer, folded.writes))
    return record._replace(flags=record.flags | rec.ANCHOR, depth=0, ops=tuple(ops), order=None)


def _has_ops(chunks: Chunks, record: rec.Record) -> bool:
    """Tell whether all that a record names can be read; a state may lack some of it, for a later write replaced it."""
    return all(
        chunks.has(rec.series_of(channel), spans) for op in record.ops for channel, spans in marking.spans_of(op)
    )


def _relinked(record: rec.Record, records: Mapping[bytes, rec.Record], found: Judged) -> rec.Record:
    """Lead a native record whose parent goes to the nearest ancestor that stays, so that branches end where they do."""
    if not record.is_anchor or record.parent not in found.broken:
        return record
    staying = set(found.visible.values())
    return hiding.relinked(record, records.get, staying.__contains__)


def _linked(
    ulid: bytes,
    record: rec.Record,
    records: Mapping[bytes, rec.Record],
    found: Judged,
    gone_ids: Collection[str],
    lost_writes: Collection[str],
) -> rec.Record:
    """Return a LangGraph record whose way up is whole, or raises."""
    parent = record.parent
    named = found.visible.get(record.parent_id) if record.parent_id is not None else None
    lost = False
    if parent is not None and parent not in found.made:
        held = records.get(parent)
        if held is not None and held.is_hidden and not held.is_remnant and named is not None:
            parent = named  # over the hidden one the way led here
        else:
            parent, lost = None, True
    elif parent is not None:
        held = found.made[parent]
        # a put took the id over, and was lost: its children would be given the earlier one
        taken_over = held.is_hidden and not held.is_remnant
        lost = (taken_over and held.id not in found.visible) or (not held.is_remnant and held.id in lost_writes)
    elif record.parent_id is not None:
        lost = (named is None and record.parent_id in gone_ids) or record.parent_id in lost_writes
    if lost:
        found.cut.add(ulid)
        return record._replace(parent=parent, flags=record.flags | rec.HISTORY_LOST)
    return record if parent == record.parent else record._replace(parent=parent)
