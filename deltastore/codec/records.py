"""Records: what one checkpoint stores, alone in a row or with others in a record pack.

Pure; imports spans, primitives and errors. The invariant: in memory all chunk numbers are the real ones; the numbering
that `prepare` saw exists only in stored bytes, beside the shift that mends it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, overload

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import spans as sp
from deltastore.codec.primitives import PACK_LEVEL, Reader, pack, put_varint, unpack
from deltastore.errors import ChecksumError, EncodeError

RECORD_KIND, PACK_KIND = 1, 3
FIELDS = 13
"""How many fields a record has."""
ANCHOR, HIDDEN, PARENT_MISSING = 1, 2, 4
_ALL_FLAGS = ANCHOR | HIDDEN | PARENT_MISSING
OPAQUE, LIST, DICT = 0, 1, 2
SET, PATCH, FOLD, DROP = 0, 1, 2, 3
SERIES = 2
"""Value chunks are series 0, chunks of hidden channels series 1."""
VERSIONS_CHANNEL, SEEN_CHANNEL = 1, 2
FIRST_CHANNEL = 16
"""Smaller channel numbers are reserved for hidden channels."""
MAX_INTERNED = 1 << 32
"""Numbers of channels and reducers are smaller: a damaged one must not overflow a key."""


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
    """Return the packed body of a record; shifts come before it, see `encode_row`. Raises EncodeError."""
    try:
        return pack(ormsgpack.packb(_fields(record)))
    except TypeError as error:  # all else was encoded before
        raise EncodeError(f"an id of a checkpoint, its parent or its root can't be stored: {error}") from error


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
    match fields:
        case [
            int(flags),
            bytes() | str() as id_,
            parent_id,
            bytes() | None as parent,
            int(depth),
            int(time_ms),
            root,
            bytes() | None as frame,
            bytes(metadata),
            list(ops),
            list() | None as order,
            list(seeds),
            [int(value_base), int(version_base)],
        ] if 0 <= flags <= _ALL_FLAGS and depth >= 0 and (parent is None or len(parent) == ulids.ULID_BYTES):
            bases = (value_base, version_base)
            if not all(0 <= base <= sp.MAX_NUMBER for base in bases):
                raise ChecksumError(f"malformed record: bases {bases}")
            return Record(
                flags,
                unpack_id(id_) or "",
                unpack_id(parent_id),
                parent,
                depth,
                time_ms,
                unpack_id(root),
                frame,
                metadata,
                tuple(_parse_op(op, bases) for op in ops),
                None if order is None else tuple(map(_parse_number, order)),
                tuple(map(_parse_seed, seeds)),
                bases,
            )
    raise ChecksumError("malformed record: its fields aren't those of a record")


def _parse_op(fields: Any, bases: tuple[int, int]) -> Op:
    match fields:
        case [int(channel), int(code), *rest] if 0 < channel < MAX_INTERNED:
            base = bases[series_of(channel)]
        case _:
            raise ChecksumError(f"malformed record: an op of type {type(fields).__name__} names no channel")
    match code, rest:
        case 0, [int(reducer), kind, data] if 0 <= reducer < MAX_INTERNED:
            return Set(channel, reducer, _parse_value(kind, data, base))
        case 1, [int(place), int(removed), bytes(data)] if place >= 0 and removed >= 0:
            return Patch(channel, place, removed, sp.decode(data, base))
        case 2, [int(reducer), _, *_] if 0 <= reducer < MAX_INTERNED:
            return Fold(channel, reducer, tuple(_parse_write(write, base) for write in rest[1:]))
        case 3, []:
            return Drop(channel)
    raise ChecksumError(f"malformed record: op {code} of channel {channel}")


def _parse_value(kind: Any, data: Any, base: int) -> Value:
    if kind not in (OPAQUE, LIST, DICT) or not isinstance(data, bytes):
        raise ChecksumError(f"malformed record: a value of kind {kind}")
    return Value(kind, sp.decode(data, base))


def _parse_write(fields: Any, base: int) -> Value:
    match fields:
        case [kind, data]:
            return _parse_value(kind, data, base)
    raise ChecksumError("malformed record: a write that is no value")


def _parse_number(number: Any) -> int:
    if not isinstance(number, int):
        raise ChecksumError(f"malformed record: a channel of type {type(number).__name__}")
    return number


def _parse_seed(fields: Any) -> tuple[int, int]:
    match fields:
        case [int(channel), int(distance)]:
            return channel, distance
    raise ChecksumError("malformed record: a seed that is no channel and distance")


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
    records: Sequence[Record]
    writes: dict[str, dict[bytes, bytes]]

    def visible(self, id_: str) -> int | None:
        """Return the place of the record that isn't hidden and has this id, or None."""
        if isinstance(self.records, PackedRecords):
            return self.records.visible(id_)
        return next((n for n, record in enumerate(self.records) if record.id == id_ and not record.is_hidden), None)


class PackedRecords(Sequence[Record]):
    """The records of a pack, each parsed when it is looked at: most reads want one of many. Not thread-safe."""

    __slots__ = ("_columns", "_parsed")

    def __init__(self, columns: list[list[Any]]) -> None:
        self._columns = columns
        self._parsed: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | Sequence[Record]:
        """Return a record, or several. Raises ChecksumError where one doesn't parse."""
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        record = self._parsed.get(place)
        if record is None:
            record = self._parsed[place] = _parse([column[place] for column in self._columns])
        return record

    def visible(self, id_: str) -> int | None:
        """Return the place of the record that isn't hidden and has this id, or None."""
        wanted = pack_id(id_)
        places = (place for place, found in enumerate(self._columns[1]) if found == wanted)
        return next((place for place in places if not self[place].is_hidden), None)


def encode_pack(row: RecordRow) -> bytes:
    """Return the stored form, unsealed, of a record pack."""
    columns = [list(column) for column in zip(*map(_fields, row.records), strict=True)]
    writes = [[pack_id(id_), list(tasks.items())] for id_, tasks in row.writes.items()]
    out = bytearray((PACK_KIND,))
    put_varint(out, len(row.records))
    return bytes(out) + pack(ormsgpack.packb([b"".join(row.ulids), columns, writes]), PACK_LEVEL)


def decode_row(data: bytes, last: bytes) -> RecordRow:
    """Parse a record row, or a record pack with all its records. Raises ChecksumError."""
    row = open_row(data, last)
    return replace(row, records=tuple(row.records))


def open_row(data: bytes, last: bytes) -> RecordRow:
    """Parse a record row whose key ends with the ULID `last`; the records of a pack are parsed when they are looked at.

    Raises ChecksumError.
    """
    reader = Reader(data)
    match reader.take(1)[0]:
        case 1:
            shifts = (reader.varint(), reader.varint())
            if max(shifts) > sp.MAX_NUMBER:
                raise ChecksumError(f"malformed record row: shifts {shifts}")
            record = shifted(_parse(_unpackb(unpack(data[reader.place :]))), shifts)
            return RecordRow(False, (last,), (record,), {})
        case 3:
            return _decode_pack(data, reader, last)
        case kind:
            raise ChecksumError(f"malformed record row: kind {kind} is unknown")


def _decode_pack(data: bytes, reader: Reader, last: bytes) -> RecordRow:
    count = reader.varint()
    match _unpackb(unpack(data[reader.place :])):
        case [bytes(joined), list(columns), list(writes)] if all(
            isinstance(column, list) and len(column) == count for column in columns
        ):
            size = ulids.ULID_BYTES
            members = tuple(joined[start : start + size] for start in range(0, len(joined), size))
        case _:
            raise ChecksumError(f"malformed record pack: its columns aren't those of {count} records")
    if len(members) != count or len(columns) != FIELDS or count < 2 or members[-1] != last:
        raise ChecksumError(f"malformed record pack: {len(members)} records of {len(columns)} fields, {count} stated")
    if any(earlier >= later for earlier, later in pairwise(members)):
        raise ChecksumError("malformed record pack: its records aren't in the order of their ULIDs")
    return RecordRow(True, members, PackedRecords(columns), dict(map(_parse_writes, writes)))


def _parse_writes(fields: Any) -> tuple[str, dict[bytes, bytes]]:
    match fields:
        case [bytes() | str() as id_, list(tasks)]:
            rows: dict[bytes, bytes] = {}
            for task in tasks:
                match task:
                    case [bytes(hashed), bytes(row)]:
                        rows[hashed] = row
                    case _:
                        raise ChecksumError("malformed record pack: writes that aren't bytes")
            return unpack_id(id_) or "", rows
    raise ChecksumError("malformed record pack: writes without a checkpoint")


def _unpackb(data: bytes) -> Any:
    try:
        return ormsgpack.unpackb(data)
    except ValueError as error:
        raise ChecksumError(f"malformed record: {error}") from error
