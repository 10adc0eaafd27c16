"""What a listing needs of a record, without building the record: parsing ops takes nine tenths of the time.

Pure; imports records, primitives and errors. The invariant: what it tells is what `recordrow.open_row` tells.
"""

from typing import NamedTuple

import ormsgpack

from deltastore.codec.dictionary import Dictionaries
from deltastore.codec.primitives import Reader, unpack
from deltastore.codec.recordrow import RECORD_KIND
from deltastore.codec.records import HIDDEN, unpack_id
from deltastore.errors import ChecksumError


class Glance(NamedTuple):
    """A record's id (`""` in a native namespace), whether it is hidden, and its metadata, encoded."""

    id: str
    is_hidden: bool
    metadata: bytes


def glance(data: bytes, dictionaries: Dictionaries | None) -> Glance | None:
    """Look at the row of one record; None for a pack. Raises ChecksumError."""
    reader = Reader(data)
    if reader.take(1)[0] != RECORD_KIND:
        return None
    for _ in range(2):  # shifts, which concern ops only
        reader.varint()
    try:
        fields = ormsgpack.unpackb(unpack(data[reader.place :], dictionaries))
    except ValueError as error:
        raise ChecksumError(f"malformed record: {error}") from error
    match fields:
        case [int(flags), bytes() | str() as id_, _, _, _, _, _, _, bytes(metadata), _, _, _, _]:
            return Glance(unpack_id(id_) or "", bool(flags & HIDDEN), metadata)
    raise ChecksumError("malformed record: its fields aren't those of a record")
