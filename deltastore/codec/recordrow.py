"""Record rows: a record in a row of its own, or many as a pack, which `recordpack` encodes.

Pure; imports recordpack, records, primitives and errors. The invariant: what is read from a row has its real chunk
numbers, whatever numbering the record was prepared in.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deltastore.codec import recordpack
from deltastore.codec import spans as sp
from deltastore.codec.dictionary import Dictionaries, Dictionary
from deltastore.codec.primitives import PACK_LEVEL, Reader, dictionary_of, pack, put_varint, unpack
from deltastore.codec.records import Record, parse_record, shifted, unpackb
from deltastore.errors import ChecksumError

RECORD_KIND, PACK_KIND = 1, 3


def encode_row(body: bytes, shifts: Sequence[int]) -> bytes:
    """Return the stored form, unsealed, of a record of its own."""
    out = bytearray((RECORD_KIND,))
    for shift in shifts:
        put_varint(out, shift)
    return bytes(out) + body


class RecordRow(NamedTuple):
    """The records of one row, in ULID order; `writes` only in a pack: by checkpoint id, its write rows."""

    packed: bool
    ulids: tuple[bytes, ...]
    records: Sequence[Record]
    writes: Mapping[str, dict[bytes, bytes]]

    def visible(self, id_: str) -> int | None:
        """Return the place of the record that isn't hidden and has this id, or None."""
        if isinstance(self.records, recordpack.PackedRecords):
            return self.records.visible(id_)
        return next((n for n, record in enumerate(self.records) if record.id == id_ and not record.is_hidden), None)


def encode_pack(row: RecordRow, level: int = PACK_LEVEL, dictionary: Dictionary | None = None) -> bytes:
    """Return the stored form, unsealed, of a record pack. `level` is zstd's."""
    out = bytearray((PACK_KIND,))
    put_varint(out, len(row.records))
    return bytes(out) + pack(recordpack.encode(row.ulids, row.records, row.writes), level, dictionary)


def dictionary_of_row(data: bytes) -> int | None:
    """Return the number of the dictionary that a record row needs, or None. Raises ChecksumError."""
    reader = Reader(data)
    for _ in range({RECORD_KIND: 2, PACK_KIND: 1}.get(reader.take(1)[0], 0)):
        reader.varint()
    return dictionary_of(data[reader.place :])


def decode_row(data: bytes, last: bytes, dictionaries: Dictionaries | None) -> RecordRow:
    """Parse a record row, or a record pack with all its records. Raises ChecksumError."""
    row = open_row(data, last, dictionaries)
    return row._replace(records=tuple(row.records), writes=dict(row.writes))


def open_row(data: bytes, last: bytes, dictionaries: Dictionaries | None) -> RecordRow:
    """Parse a record row whose key ends with the ULID `last`; the records of a pack are parsed when they are looked at.

    Raises ChecksumError.
    """
    reader = Reader(data)
    match reader.take(1)[0]:
        case 1:
            shifts = (reader.varint(), reader.varint())
            if max(shifts) > sp.MAX_NUMBER:
                raise ChecksumError(f"malformed record row: shifts {shifts}")
            record = shifted(parse_record(unpackb(unpack(data[reader.place :], dictionaries))), shifts)
            return RecordRow(False, (last,), (record,), {})
        case 3:
            count = reader.varint()
            members, records, writes = recordpack.decode(unpack(data[reader.place :], dictionaries), count)
            if members[-1] != last:
                raise ChecksumError("malformed record pack: its key isn't that of its last record")
            return RecordRow(True, members, records, writes)
        case kind:
            raise ChecksumError(f"malformed record row: kind {kind} is unknown")
