"""Record rows: a record in a row of its own, or many as the columns of a pack.

Pure; imports records, primitives and errors. The invariant: what is read from a row has its real chunk numbers,
whatever numbering the record was prepared in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, overload

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import spans as sp
from deltastore.codec.primitives import PACK_LEVEL, Reader, pack, put_varint, unpack
from deltastore.codec.records import Record, fields_of, pack_id, parse_record, shifted, unpack_id
from deltastore.errors import ChecksumError

RECORD_KIND, PACK_KIND = 1, 3
FIELDS = 13
"""How many fields a record has."""


def encode_row(body: bytes, shifts: Sequence[int]) -> bytes:
    """Return the stored form, unsealed, of a record of its own."""
    out = bytearray((RECORD_KIND,))
    for shift in shifts:
        put_varint(out, shift)
    return bytes(out) + body


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
            record = self._parsed[place] = parse_record([column[place] for column in self._columns])
        return record

    def visible(self, id_: str) -> int | None:
        """Return the place of the record that isn't hidden and has this id, or None."""
        wanted = pack_id(id_)
        places = (place for place, found in enumerate(self._columns[1]) if found == wanted)
        return next((place for place in places if not self[place].is_hidden), None)


def encode_pack(row: RecordRow) -> bytes:
    """Return the stored form, unsealed, of a record pack."""
    columns = [list(column) for column in zip(*map(fields_of, row.records), strict=True)]
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
            record = shifted(parse_record(_unpackb(unpack(data[reader.place :]))), shifts)
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
    if len(members) != count or len(columns) != FIELDS or count < 1 or members[-1] != last:
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
