"""The inside of a record pack: the fields of many records as columns, each stated as what it adds to the others.

Ids, parents, times and bases of neighbouring records nearly tell each other; what is left of them is mostly random
bits. Pure; imports records, primitives and errors. The invariant: what comes back is what was put in, field by field.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, overload

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec.primitives import PLAIN, name_hash, unpack
from deltastore.codec.records import Record, fields_of, pack_id, parse_record, unpack_id, unpack_task, unpackb
from deltastore.errors import ChecksumError

FIELDS = 13
"""How many fields a record has."""
_ID, _PARENT_ID, _PARENT, _TIME, _BASES = 1, 2, 3, 5, 12
_MAX_STEP = 1 << 62
"""What a column of differences may hold, so that sums of damaged ones stay small numbers."""


def encode(members: Sequence[bytes], records: Sequence[Record], writes: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    """Return the plain bytes of a pack: ULIDs ascending, their records, and write rows by checkpoint id and task."""
    places = {ulid: place for place, ulid in enumerate(members)}
    columns: list[Any] = [list(column) for column in zip(*map(fields_of, records), strict=True)]
    parents, parent_ids, ids = columns[_PARENT], columns[_PARENT_ID], columns[_ID]
    for place, parent in enumerate(parents):
        before = places.get(parent, place)
        if before >= place:  # in another row, or damage
            continue
        parents[place] = place - before
        if parent_ids[place] == ids[before]:
            parent_ids[place] = 0
    columns[_TIME] = [time - _milliseconds(ulid) for time, ulid in zip(columns[_TIME], members, strict=True)]
    columns[_BASES] = [_steps([bases[series] for bases in columns[_BASES]]) for series in range(2)]
    if all(isinstance(id_, bytes) for id_ in ids):
        columns[_ID] = _turned(ids)
    known = {record.id or ulids.to_text(members[place]): place for place, record in enumerate(records)}
    stored = [[known.get(id_, pack_id(id_)), [unpack(row) for row in tasks.values()]] for id_, tasks in writes.items()]
    return ormsgpack.packb([b"".join(members), columns, stored])


def decode(plain: bytes, count: int) -> tuple[tuple[bytes, ...], "PackedRecords", "PackedWrites"]:
    """Undo `encode`. Raises ChecksumError."""
    match unpackb(plain):
        case [bytes(joined), list(columns), list(writes)] if count >= 1 and len(joined) == count * ulids.ULID_BYTES:
            size = ulids.ULID_BYTES
            members = tuple(joined[start : start + size] for start in range(0, len(joined), size))
        case _:
            raise ChecksumError(f"malformed record pack: {count} records are stated, and others held")
    if any(earlier >= later for earlier, later in pairwise(members)):
        raise ChecksumError("malformed record pack: its records aren't in the order of their ULIDs")
    if len(columns) != FIELDS:
        raise ChecksumError(f"malformed record pack: {len(columns)} fields where {FIELDS} were expected")
    if isinstance(columns[_ID], bytes) and len(columns[_ID]) == count * ulids.ULID_BYTES:
        columns[_ID] = _turned_back(columns[_ID], count)
    match columns[_BASES]:
        case [list(values), list(versions)]:
            columns[_BASES] = list(zip(_summed(values), _summed(versions), strict=False))
    if not all(isinstance(column, list) and len(column) == count for column in columns):
        raise ChecksumError(f"malformed record pack: its columns aren't those of {count} records")
    records = PackedRecords(members, columns)
    return members, records, PackedWrites(records, writes)


def _turned(items: Sequence[bytes]) -> bytes:
    """Join items of 16 bytes, the first bytes of all first: what neighbours share then stands together."""
    joined = b"".join(items)
    return b"".join(joined[place :: ulids.ULID_BYTES] for place in range(ulids.ULID_BYTES))


def _turned_back(turned: bytes, count: int) -> list[bytes]:
    return [turned[place::count] for place in range(count)]


def _milliseconds(ulid: bytes) -> int:
    return int.from_bytes(ulid[:6], "big")


def _steps(numbers: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise([0, *numbers])]


def _summed(steps: list[Any]) -> Iterator[int]:
    if not all(isinstance(step, int) and abs(step) < _MAX_STEP for step in steps):
        raise ChecksumError("malformed record pack: bases that aren't numbers")
    return accumulate(steps)


class PackedRecords(Sequence[Record]):
    """The records of a pack, each parsed when it is looked at: most reads want one of many. Thread-safe, for what is
    parsed twice is the same.
    """

    __slots__ = ("_columns", "_members", "_parsed")

    def __init__(self, members: tuple[bytes, ...], columns: list[list[Any]]) -> None:
        self._members = members
        self._columns = columns
        self._parsed: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._members)

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
            record = self._parsed[place] = parse_record(self._fields(range(len(self))[place]))
        return record

    def _fields(self, place: int) -> list[Any]:
        """Return a record's fields as a row of its own has them. Raises ChecksumError."""
        fields = [column[place] for column in self._columns]
        parent, time = fields[_PARENT], fields[_TIME]
        if isinstance(parent, int):
            if not 1 <= parent <= place:
                raise ChecksumError(f"malformed record pack: a parent {parent} records before record {place}")
            fields[_PARENT] = self._members[place - parent]
            if fields[_PARENT_ID] == 0:
                fields[_PARENT_ID] = self._columns[_ID][place - parent]
        if not isinstance(time, int):
            raise ChecksumError("malformed record pack: a time that is no number")
        fields[_TIME] = time + _milliseconds(self._members[place])
        fields[_BASES] = list(fields[_BASES]) if isinstance(fields[_BASES], tuple) else None
        return fields

    def id(self, place: int) -> str:
        """Return the id that a record goes by. Raises ChecksumError."""
        return unpack_id(self._columns[_ID][place]) or ulids.to_text(self._members[place])

    def visible(self, id_: str) -> int | None:
        """Return the place of the record that isn't hidden and has this id, or None."""
        wanted = pack_id(id_)
        places = (place for place, found in enumerate(self._columns[_ID]) if found == wanted)
        return next((place for place in places if not self[place].is_hidden), None)


class PackedWrites(Mapping[str, dict[bytes, bytes]]):
    """The write rows of a pack: by checkpoint id, then by the hash of the task. Raises ChecksumError as it is read."""

    __slots__ = ("_by_id",)

    def __init__(self, records: PackedRecords, stored: list[Any]) -> None:
        self._by_id: dict[str, list[Any]] = {}
        for fields in stored:
            match fields:
                case [int(place), list(tasks)] if 0 <= place < len(records):
                    self._by_id[records.id(place)] = tasks
                case [bytes() | str() as id_, list(tasks)]:
                    self._by_id[unpack_id(id_) or ""] = tasks
                case _:
                    raise ChecksumError("malformed record pack: writes without a checkpoint")

    def __getitem__(self, id_: str) -> dict[bytes, bytes]:
        """Return a checkpoint's write rows by the hash of their task."""
        return {_hash_of(row): PLAIN + row for row in self._by_id[id_]}

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)


def _hash_of(row: Any) -> bytes:
    """Return the hash that all tasks of a write row share."""
    match unpackb(row) if isinstance(row, bytes) else None:
        case [[task, *_], *_]:
            return name_hash(unpack_task(task))
    raise ChecksumError("malformed record pack: writes without a task")
