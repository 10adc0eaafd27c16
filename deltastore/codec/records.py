"""Records: what one checkpoint stores, alone in a row or with others in a record pack.

Pure; imports spans, primitives and errors. The invariant: in memory all chunk numbers are the real ones; the numbering that
`prepare` saw exists only in stored bytes, beside the shift that mends it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import spans as sp
from deltastore.codec.primitives import PACK_LEVEL, Reader, pack, put_varint, unpack
from deltastore.errors import ChecksumError

RECORD_KIND, PACK_KIND = 1, 3
ANCHOR, HIDDEN, PARENT_MISSING = 1, 2, 4
OPAQUE, LIST, DICT = 0, 1, 2
SET, PATCH, FOLD, DROP = 0, 1, 2, 3
SERIES = 2
"""Value chunks are series 0, chunks of hidden channels series 1."""
VERSIONS_CHANNEL, SEEN_CHANNEL = 1, 2
FIRST_CHANNEL = 16
"""Smaller channel numbers are reserved for hidden channels."""


def series_of(channel: int) -> int:
    """Return the series that a channel's chunks are numbered in."""
    return 1 if channel < FIRST_CHANNEL else 0


@dataclass(frozen=True, slots=True)
class Value:
    """A value as its kind and the numbers of its chunks."""

    kind: int
    spans: sp.Spans


@dataclass(frozen=True, slots=True)
class Set:
    """The channel is this value."""

    channel: int
    reducer: int
    value: Value


@dataclass(frozen=True, slots=True)
class Patch:
    """The parent's chunks, with `removed` of them at `place` replaced."""

    channel: int
    place: int
    removed: int
    spans: sp.Spans


@dataclass(frozen=True, slots=True)
class Fold:
    """These writes, folded by the reducer onto the parent's value."""

    channel: int
    reducer: int
    writes: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """The channel is absent."""

    channel: int


Op = Set | Patch | Fold | Drop


@dataclass(frozen=True, slots=True)
class Record:
    """One checkpoint as stored. `parent` is a ULID or None; `bases` are the next chunk numbers when it was prepared."""

    flags: int
    id: str
    parent_id: str | None
    parent: bytes | None
    depth: int
    time_ms: int
    root: str | None
    frame: bytes | None
    metadata: bytes
    ops: tuple[Op, ...]
    order: tuple[int, ...] | None
    seeds: tuple[tuple[int, int], ...]
    bases: tuple[int, int]

    @property
    def is_anchor(self) -> bool:
        """Whether it states every channel in full."""
        return bool(self.flags & ANCHOR)

    @property
    def is_hidden(self) -> bool:
        """Whether it is kept only for what others need of it."""
        return bool(self.flags & HIDDEN)


# --- one record -----------------------------------------------------------------


def encode_record(record: Record) -> bytes:
    """Return the packed body of a record; shifts come before it, see `encode_row`."""
    return pack(ormsgpack.packb(_fields(record)))


def encode_row(body: bytes, shifts: Sequence[int]) -> bytes:
    """Return the stored form, unsealed, of a record of its own."""
    out = bytearray((RECORD_KIND,))
    for shift in shifts:
        put_varint(out, shift)
    return bytes(out) + body


def shifted(record: Record, shifts: tuple[int, int]) -> Record:
    """Return the record as readers see it once its row states these shifts."""
    if not any(shifts):
        return record
    ops = tuple(_shift_op(op, record.bases, shifts) for op in record.ops)
    bases = (record.bases[0] + shifts[0], record.bases[1] + shifts[1])
    return replace(record, ops=ops, bases=bases)


def _shift_op(op: Op, bases: tuple[int, int], shifts: tuple[int, int]) -> Op:
    series = series_of(op.channel)

    def moved(spans: sp.Spans) -> sp.Spans:
        return sp.join((sp.shift(spans, bases[series], shifts[series]),))

    match op:
        case Set():
            return replace(op, value=Value(op.value.kind, moved(op.value.spans)))
        case Patch():
            return replace(op, spans=moved(op.spans))
        case Fold():
            return replace(op, writes=tuple(Value(write.kind, moved(write.spans)) for write in op.writes))
        case Drop():
            return op


def _fields(record: Record) -> list[Any]:
    return [
        record.flags,
        pack_id(record.id),
        pack_id(record.parent_id),
        record.parent,
        record.depth,
        record.time_ms,
        pack_id(record.root),
        record.frame,
        record.metadata,
        [_op_fields(op, record.bases) for op in record.ops],
        None if record.order is None else list(record.order),
        [list(seed) for seed in record.seeds],
        list(record.bases),
    ]


def _op_fields(op: Op, bases: tuple[int, int]) -> list[Any]:
    base = bases[series_of(op.channel)]
    match op:
        case Set():
            return [op.channel, SET, op.reducer, op.value.kind, sp.encode(op.value.spans, base)]
        case Patch():
            return [op.channel, PATCH, op.place, op.removed, sp.encode(op.spans, base)]
        case Fold():
            writes = [[write.kind, sp.encode(write.spans, base)] for write in op.writes]
            return [op.channel, FOLD, op.reducer, *writes]
        case Drop():
            return [op.channel, DROP]


def _parse(fields: Any) -> Record:
    """Build a record from its fields. Raises ChecksumError where they aren't what the format says."""
    try:
        flags, id_, parent_id, parent, depth, time_ms, root, frame, metadata, ops, order, seeds, bases = fields
        value_base, version_base = bases
        own_id = unpack_id(id_)
        if own_id is None or not isinstance(metadata, bytes) or not isinstance(flags, int):
            raise ChecksumError("malformed record: id, flags or metadata missing")
        if parent is not None and (not isinstance(parent, bytes) or len(parent) != ulids.ULID_BYTES):
            raise ChecksumError("malformed record: its parent is no ULID")
        return Record(
            flags,
            own_id,
            unpack_id(parent_id),
            parent,
            int(depth),
            int(time_ms),
            unpack_id(root),
            frame,
            metadata,
            tuple(_parse_op(op, (value_base, version_base)) for op in ops),
            None if order is None else tuple(order),
            tuple((channel, distance) for channel, distance in seeds),
            (value_base, version_base),
        )
    except (TypeError, ValueError, LookupError) as error:
        raise ChecksumError(f"malformed record: {error}") from error


def _parse_op(fields: list[Any], bases: tuple[int, int]) -> Op:
    channel, code, *rest = fields
    base = bases[series_of(channel)]
    match code, rest:
        case 0, [int(reducer), int(kind), bytes(data)] if kind in (OPAQUE, LIST, DICT):
            return Set(channel, reducer, Value(kind, sp.decode(data, base)))
        case 1, [int(place), int(removed), bytes(data)]:
            return Patch(channel, place, removed, sp.decode(data, base))
        case 2, [int(reducer), *writes]:
            return Fold(channel, reducer, tuple(Value(kind, sp.decode(data, base)) for kind, data in writes))
        case 3, []:
            return Drop(channel)
    raise ChecksumError(f"malformed record: op {code} of channel {channel}")


def pack_id(text: str | None) -> bytes | str | None:
    """Return an id in its shortest stored form: 16 bytes for a UUID in canonical text."""
    if text is not None and len(text) == 36:
        try:
            parsed = uuid.UUID(text)
        except ValueError:
            return text
        if str(parsed) == text:
            return parsed.bytes
    return text


def unpack_id(stored: Any) -> str | None:
    """Undo `pack_id`. Raises ChecksumError."""
    if isinstance(stored, bytes):
        if len(stored) != 16:
            raise ChecksumError(f"malformed id of {len(stored)} bytes")
        return str(uuid.UUID(bytes=stored))
    if stored is None or isinstance(stored, str):
        return stored
    raise ChecksumError(f"malformed id: {type(stored).__name__}")


# --- rows -------------------------------------------------------------------------


TaskRows = tuple[bytes, ...]
"""The write rows of one checkpoint, unsealed."""


@dataclass(frozen=True, slots=True)
class RecordRow:
    """The records of one row, in ULID order; `writes` only in a pack: by checkpoint id, its write rows."""

    packed: bool
    ulids: tuple[bytes, ...]
    records: tuple[Record, ...]
    writes: dict[str, dict[bytes, bytes]]


def encode_pack(row: RecordRow) -> bytes:
    """Return the stored form, unsealed, of a record pack."""
    columns = [list(column) for column in zip(*map(_fields, row.records), strict=True)]
    writes = [[pack_id(id_), list(tasks.items())] for id_, tasks in row.writes.items()]
    out = bytearray((PACK_KIND,))
    put_varint(out, len(row.records))
    return bytes(out) + pack(ormsgpack.packb([b"".join(row.ulids), columns, writes]), PACK_LEVEL)


def decode_row(data: bytes, last: bytes) -> RecordRow:
    """Parse a record row, or a record pack, whose key ends with the ULID `last`. Raises ChecksumError."""
    reader = Reader(data)
    match reader.take(1)[0]:
        case 1:
            shifts = (reader.varint(), reader.varint())
            record = shifted(_parse(_unpackb(unpack(data[reader.place :]))), shifts)
            return RecordRow(False, (last,), (record,), {})
        case 3:
            return _decode_pack(data, reader, last)
        case kind:
            raise ChecksumError(f"malformed record row: kind {kind} is unknown")


def _decode_pack(data: bytes, reader: Reader, last: bytes) -> RecordRow:
    count = reader.varint()
    try:
        joined, columns, writes = _unpackb(unpack(data[reader.place :]))
        size = ulids.ULID_BYTES
        members = tuple(joined[start : start + size] for start in range(0, len(joined), size))
        records = tuple(_parse(list(fields)) for fields in zip(*columns, strict=True))
        packed_writes = {unpack_id(id_) or "": {bytes(task): bytes(row) for task, row in tasks} for id_, tasks in writes}
    except (TypeError, ValueError) as error:
        raise ChecksumError(f"malformed record pack: {error}") from error
    if not len(members) == len(records) == count or count < 2 or members[-1] != last:
        raise ChecksumError(f"malformed record pack: {len(records)} records where {count} were stated")
    return RecordRow(True, members, records, packed_writes)


def _unpackb(data: bytes) -> Any:
    try:
        return ormsgpack.unpackb(data)
    except ValueError as error:
        raise ChecksumError(f"malformed record: {error}") from error
