"""Records: what one checkpoint stores. How rows hold them is recordrow's.

Pure; imports spans, primitives and errors. The invariant: in memory all chunk numbers are the real ones; the numbering
that `prepare` saw exists only in stored bytes, beside the shift that mends it.
"""

from typing import Any, NamedTuple

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import spans as sp
from deltastore.codec.dictionary import Dictionary
from deltastore.codec.primitives import pack
from deltastore.errors import ChecksumError, EncodeError

ANCHOR, HIDDEN, PARENT_MISSING, REMNANT, HISTORY_ENDS, PARENT_DELETED, SETTLED = 1, 2, 4, 8, 16, 32, 64
HISTORY_LOST = 128
_ALL_FLAGS = ANCHOR | HIDDEN | PARENT_MISSING | REMNANT | HISTORY_ENDS | PARENT_DELETED | SETTLED | HISTORY_LOST
OPAQUE, LIST, DICT, SNAPSHOT_LIST, SNAPSHOT_DICT = 0, 1, 2, 3, 4
KINDS = (OPAQUE, LIST, DICT, SNAPSHOT_LIST, SNAPSHOT_DICT)
"""What a value may be. A snapshot is a list or dict in the wrapping of the API that put it: see `Codec.unwrap`."""
SNAPSHOTS = (SNAPSHOT_LIST, SNAPSHOT_DICT)
SET, PATCH, FOLD, DROP = 0, 1, 2, 3
SERIES = 2
"""Value chunks are series 0, chunks of hidden channels series 1."""
VERSIONS_CHANNEL, SEEN_CHANNEL = 1, 2
FIRST_CHANNEL = 16
"""Smaller channel numbers are reserved for hidden channels."""
UUID_BYTES, _UUID_CHARACTERS = 16, 36
MAX_INTERNED = 1 << 32
"""Numbers of channels and reducers are smaller: a damaged one must not overflow a key."""


def series_of(channel: int) -> int:
    """Return the series that a channel's chunks are numbered in."""
    return 1 if channel < FIRST_CHANNEL else 0


class Value(NamedTuple):
    """A value as its kind and the numbers of its chunks."""

    kind: int
    spans: sp.Spans


class Set(NamedTuple):
    """The channel is this value."""

    channel: int
    reducer: int
    value: Value


class Patch(NamedTuple):
    """The parent's chunks, with `removed` of them at `place` replaced."""

    channel: int
    place: int
    removed: int
    spans: sp.Spans


class Fold(NamedTuple):
    """These writes, folded by the reducer onto the parent's value."""

    channel: int
    reducer: int
    writes: tuple[Value, ...]


class Drop(NamedTuple):
    """The channel is absent."""

    channel: int


Op = Set | Patch | Fold | Drop


class Record(NamedTuple):
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

    @property
    def is_remnant(self) -> bool:
        """Whether it was deleted, and only holds the values and writes that walks from others need."""
        return bool(self.flags & REMNANT)


# --- one record -----------------------------------------------------------------


def encode_record(record: Record, dictionary: Dictionary | None = None) -> bytes:
    """Return the packed body of a record; shifts come before it, see `recordrow.encode_row`. Raises EncodeError."""
    try:
        return pack(ormsgpack.packb(fields_of(record)), dictionary=dictionary)
    except TypeError as error:  # all else was encoded before
        raise EncodeError(f"an id of a checkpoint, its parent or its root can't be stored: {error}") from error


def shifted(record: Record, shifts: tuple[int, int]) -> Record:
    """Return the record as readers see it once its row states these shifts."""
    if not any(shifts):
        return record
    ops = tuple(_shift_op(op, record.bases, shifts) for op in record.ops)
    bases = (record.bases[0] + shifts[0], record.bases[1] + shifts[1])
    return record._replace(ops=ops, bases=bases)


def _shift_op(op: Op, bases: tuple[int, int], shifts: tuple[int, int]) -> Op:
    series = series_of(op.channel)

    def moved(spans: sp.Spans) -> sp.Spans:
        return sp.join((sp.shift(spans, bases[series], shifts[series]),))

    match op:
        case Set():
            return op._replace(value=Value(op.value.kind, moved(op.value.spans)))
        case Patch():
            return op._replace(spans=moved(op.spans))
        case Fold():
            return op._replace(writes=tuple(Value(write.kind, moved(write.spans)) for write in op.writes))
        case Drop():
            return op


def fields_of(record: Record) -> list[Any]:
    """Return the stored fields of a record, spans counted from its bases."""
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


def parse_record(fields: Any) -> Record:
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
    if kind not in KINDS or not isinstance(data, bytes):
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


def unpackb(data: bytes) -> Any:
    """Parse msgpack. Raises ChecksumError."""
    try:
        return ormsgpack.unpackb(data)
    except ValueError as error:
        raise ChecksumError(f"malformed record: {error}") from error


def pack_id(text: str | None) -> bytes | str | None:
    """Return an id in its shortest stored form: 16 bytes for a UUID in canonical text."""
    if text is not None and len(text) == _UUID_CHARACTERS and text[8] == "-":
        try:
            packed = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            return text
        if len(packed) == UUID_BYTES and _uuid_text(packed) == text:  # capitals, say, must come back
            return packed
    return text


def _uuid_text(packed: bytes) -> str:
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def unpack_id(stored: Any) -> str | None:
    """Undo `pack_id`. Raises ChecksumError."""
    if isinstance(stored, bytes):
        if len(stored) != UUID_BYTES:
            raise ChecksumError(f"malformed id of {len(stored)} bytes")
        return _uuid_text(stored)
    if stored is None or isinstance(stored, str):
        return stored
    raise ChecksumError(f"malformed id: {type(stored).__name__}")


def pack_task(task: bytes) -> Any:
    """Return a task's name in its shortest stored form: 16 bytes for a UUID in canonical text."""
    try:
        return pack_id(task.decode())
    except UnicodeDecodeError:  # it holds surrogates
        return [task]


def unpack_task(stored: Any) -> bytes:
    """Undo `pack_task`. Raises ChecksumError."""
    match stored:
        case [bytes(task)]:
            return task
        case bytes() | str():
            return (unpack_id(stored) or "").encode()
    raise ChecksumError(f"malformed task of type {type(stored).__name__}")
