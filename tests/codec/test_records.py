"""Records and record packs: what they say comes back; malformed ones raise ChecksumError and nothing else."""

import uuid
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore import ulid as ulids
from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.primitives import name_hash, unpack
from deltastore.codec.recordrow import RecordRow
from deltastore.codec.records import Drop, Fold, Patch, Record, Set, Value
from deltastore.errors import ChecksumError, EncodeError

UUIDS = st.uuids().flatmap(
    lambda id_: st.sampled_from(
        [str(id_), str(id_).upper(), id_.hex, f"{{{id_}}}", id_.urn, f" {str(id_)[1:]}", str(id_)[:35] + "_"]
    )
)
IDS = st.one_of(st.text(), UUIDS)
ULIDS = st.binary(min_size=16, max_size=16)
SPANS = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 2**40)), max_size=12).map(sp.of_numbers)
CHANNELS = st.one_of(st.sampled_from([1, 2, 16, 17]), st.integers(1, 2**32 - 1))
REDUCERS = st.one_of(st.integers(0, 4), st.integers(16, 2**32 - 1))
RECORD_VALUES = st.builds(Value, st.sampled_from(rec.KINDS), SPANS)
OPS = st.one_of(
    st.builds(Set, CHANNELS, REDUCERS, RECORD_VALUES),
    st.builds(Patch, CHANNELS, st.integers(0, 2**32), st.integers(0, 2**32), SPANS),
    st.builds(Fold, CHANNELS, REDUCERS, st.lists(RECORD_VALUES, min_size=1, max_size=3).map(tuple)),
    st.builds(Drop, CHANNELS),
)
BASES = st.one_of(st.integers(1, 40), st.integers(1, 2**40))
RECORDS = st.builds(
    Record,
    st.integers(0, 7),
    IDS,
    st.none() | IDS,
    st.none() | ULIDS,
    st.integers(0, 10_000),
    st.integers(-(2**40), 2**50),
    st.none() | IDS,
    st.none() | st.binary(),
    st.binary(),
    st.lists(OPS, max_size=3).map(tuple),
    st.none() | st.lists(CHANNELS, max_size=4).map(tuple),
    st.lists(st.tuples(CHANNELS, st.integers(0, 2**32)), max_size=3).map(tuple),
    st.tuples(BASES, BASES),
)
LAST = b"\xff" * 16


TASKS = st.one_of(st.text(), UUIDS, st.text(st.characters(exclude_categories=())))


def write_rows(tasks: dict[str, bytes]) -> dict[bytes, bytes]:
    """Return a plain write row for each task, by its hash."""
    out: dict[bytes, bytes] = {}
    for task, rest in tasks.items():
        name = task.encode("utf-8", "surrogatepass")
        out[name_hash(name)] = b"\0" + ormsgpack.packb([[rec.pack_task(name), [rest]]])
    return out


@st.composite
def packs(draw: st.DrawFn) -> RecordRow:
    records = draw(st.lists(RECORDS, min_size=2, max_size=3))
    members = draw(st.sets(ULIDS, min_size=len(records), max_size=len(records)))
    tasks = st.dictionaries(TASKS, st.binary(), max_size=2).map(write_rows)
    for place in range(1, len(records)):  # as most are
        if draw(st.booleans()):
            parent = draw(st.integers(0, place - 1))
            records[place] = records[place]._replace(parent=sorted(members)[parent], parent_id=records[parent].id)
    return RecordRow(True, tuple(sorted(members)), tuple(records), draw(st.dictionaries(IDS, tasks, max_size=3)))


def row_of(record: Record, shifts: tuple[int, int] = (0, 0)) -> bytes:
    return recordrow.encode_row(rec.encode_record(record), shifts)


def read(data: bytes) -> Record:
    row = recordrow.decode_row(data, LAST, None)
    assert (row.packed, row.ulids, row.writes) == (False, (LAST,), {})
    (record,) = row.records
    return record


def spans_of(op: rec.Op) -> list[sp.Spans]:
    match op:
        case Set():
            return [op.value.spans]
        case Patch():
            return [op.spans]
        case Fold():
            return [write.spans for write in op.writes]
        case Drop():
            return []


class TestRoundTrip:
    @given(RECORDS)
    def test_a_record_comes_back(self, record: Record) -> None:
        assert read(row_of(record)) == record

    @given(RECORDS, st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)))
    def test_a_shift_moves_the_numbers_of_its_series_from_the_base_on(
        self, record: Record, shifts: tuple[int, int]
    ) -> None:
        found = read(row_of(record, shifts))
        assert found == rec.shifted(record, shifts)
        assert found.bases == (record.bases[0] + shifts[0], record.bases[1] + shifts[1])
        for before, after in zip(record.ops, found.ops, strict=True):
            series = rec.series_of(before.channel)
            base, by = record.bases[series], shifts[series]
            assert type(before) is type(after)
            assert [sp.numbers(spans) for spans in spans_of(after)] == [
                [number + by if number >= base else number for number in sp.numbers(spans)]
                for spans in spans_of(before)
            ]
        assert found._replace(ops=(), bases=record.bases) == record._replace(ops=())

    @given(packs())
    def test_a_pack_comes_back(self, pack: RecordRow) -> None:
        assert recordrow.decode_row(recordrow.encode_pack(pack), pack.ulids[-1], None) == pack

    @given(RECORDS)
    def test_flags_tell_anchors_and_hidden_records(self, record: Record) -> None:
        assert record.is_anchor == bool(record.flags & rec.ANCHOR)
        assert record.is_hidden == bool(record.flags & rec.HIDDEN)

    def test_channels_below_the_first_are_the_second_series(self) -> None:
        assert [rec.series_of(number) for number in (1, 2, rec.FIRST_CHANNEL - 1, rec.FIRST_CHANNEL, 2**32)] == [
            1, 1, 1, 0, 0,
        ]  # fmt: skip

    @pytest.mark.parametrize("place", ["id", "parent_id", "root"])
    def test_an_id_that_is_no_valid_unicode_is_refused(self, place: str) -> None:
        with pytest.raises(EncodeError):
            rec.encode_record(PLAIN._replace(**{place: "a\ud800"}))


class TestIds:
    @given(st.none() | IDS)
    @example("00000000-0000-0000-0000-000000000000")
    @example("0000000000000000000000000000000000ab")
    @example("1ef4f797-8335-6428-8001-8A1503F9B875")
    def test_an_id_comes_back_as_it_was_given(self, id_: str | None) -> None:
        assert rec.unpack_id(ormsgpack.unpackb(ormsgpack.packb(rec.pack_id(id_)))) == id_

    @given(st.uuids())
    def test_only_a_uuid_in_canonical_text_takes_16_bytes(self, id_: uuid.UUID) -> None:
        assert rec.pack_id(str(id_)) == id_.bytes
        upper = str(id_).upper()
        assert upper == str(id_) or rec.pack_id(upper) == upper
        for other in (id_.hex, f"{{{id_}}}", id_.urn, f"{id_} "):
            assert rec.pack_id(other) == other

    @pytest.mark.parametrize("stored", [b"", b"x" * 15, b"x" * 17, 1, 1.5, [], {}, True])
    def test_what_is_no_id_is_damage(self, stored: Any) -> None:
        with pytest.raises(ChecksumError):
            rec.unpack_id(stored)


PLAIN = Record(
    rec.ANCHOR,
    "a",
    "b",
    b"\x01" * 16,
    3,
    1000,
    None,
    None,
    b"\x04\x80",
    (Set(16, 2, Value(rec.LIST, ((1, 2),))), Patch(17, 0, 1, ((3, 1),)), Fold(18, 2, (Value(rec.LIST, ()),)), Drop(19)),
    (17, 16),
    ((20, 1),),
    (3, 1),
)
ODD = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=17),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)


def with_odd(data: st.DataObject, value: Any) -> Any:
    """Put something odd in one place of nested lists."""
    if isinstance(value, list) and value and data.draw(st.integers(0, 5)):
        place = data.draw(st.integers(0, len(value) - 1))
        change = data.draw(st.sampled_from(["in", "in", "in", "drop", "double"]))
        if change == "in":
            return [*value[:place], with_odd(data, value[place]), *value[place + 1 :]]
        return value[:place] + value[place:][:1] * 2 * (change == "double") + value[place + 1 :]
    return data.draw(ODD)


def decodes_or_is_damaged(data: bytes, last: bytes = LAST) -> None:
    """What decodes can be encoded, and says the same again; no other error than ChecksumError."""
    try:
        row = recordrow.decode_row(data, last, None)
    except ChecksumError:
        return
    if row.packed:
        assert recordrow.decode_row(recordrow.encode_pack(row), last, None) == row
    else:
        assert read(row_of(row.records[0])) == row.records[0]
    for record in row.records:
        numbers = [number for op in record.ops for spans in spans_of(op) for number, _ in spans]
        assert all(0 < number < 2**48 for number in numbers)


class TestDamage:
    @given(st.binary())
    def test_any_bytes_decode_or_raise_a_checksum_error(self, data: bytes) -> None:
        for prefix in (b"", b"\x01\0\0", b"\x01\0\0\0", b"\x01\0\0\x01", b"\x03\x02", b"\x03\x02\0"):
            decodes_or_is_damaged(prefix + data)

    @given(RECORDS, st.data())
    def test_damaged_records_decode_or_raise_a_checksum_error(self, record: Record, data: st.DataObject) -> None:
        damaged = bytearray(row_of(record, (1, 2)))
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        decodes_or_is_damaged(bytes(damaged))

    @given(st.one_of(st.just(PLAIN), RECORDS), st.integers(0, 2**50), st.data())
    def test_records_of_odd_fields_decode_or_raise_a_checksum_error(
        self, record: Record, shift: int, data: st.DataObject
    ) -> None:
        fields = ormsgpack.unpackb(unpack(rec.encode_record(record)))
        odd = with_odd(data, fields)
        decodes_or_is_damaged(recordrow.encode_row(b"\0" + ormsgpack.packb(odd), (shift, shift)))

    @given(packs(), st.data())
    def test_packs_of_odd_columns_decode_or_raise_a_checksum_error(self, pack: RecordRow, data: st.DataObject) -> None:
        encoded = recordrow.encode_pack(pack)
        odd = with_odd(data, ormsgpack.unpackb(unpack(encoded[2:])))
        decodes_or_is_damaged(encoded[:2] + b"\0" + ormsgpack.packb(odd), pack.ulids[-1])

    @pytest.mark.parametrize("odd", [2**40, 2**63, -1, float("inf"), "text", None, [1], [256], b"", b"\x91\x91\x05"])
    def test_packed_writes_that_are_no_write_rows_are_damage(self, odd: Any) -> None:
        pack = RecordRow(True, (b"\0" * 16, b"\x01" * 16), (PLAIN, PLAIN), {})
        members, columns, _ = ormsgpack.unpackb(unpack(recordrow.encode_pack(pack)[2:]))
        good = ormsgpack.packb([["task", []]])
        for writes in (["a", [odd]], ["a", odd], [odd, [good]], [[odd], [good]], odd):
            if writes == ["text", [good]] or writes == ["a", [1]]:
                continue
            body = ormsgpack.packb([members, columns, [writes]])
            with pytest.raises(ChecksumError):
                recordrow.decode_row(b"\x03\x02\0" + body, b"\x01" * 16, None)

    @pytest.mark.parametrize(
        ("field", "odd"),
        [
            (1, b"short"), (3, [None, 0]), (3, [None, 2]), (3, [1, None]), (3, [None, -1]), (5, [0, None]),
            (5, [0, 1.5]), (12, [[1, 0]]), (12, [[1, 0], [1]]), (12, [[1, 0], [1, None]]), (12, [[1, 0], [1, 2**62]]),
            (12, [[1, 0], [1, -2]]), (12, None), (0, 5), (2, [None, 0]),
        ],
    )  # fmt: skip
    def test_a_column_that_cannot_be_is_damage(self, field: int, odd: Any) -> None:
        pack = RecordRow(True, (b"\0" * 16, b"\x01" * 16), (PLAIN, PLAIN), {})
        members, columns, writes = ormsgpack.unpackb(unpack(recordrow.encode_pack(pack)[2:]))
        columns[field] = odd
        with pytest.raises(ChecksumError):
            recordrow.decode_row(b"\x03\x02\0" + ormsgpack.packb([members, columns, writes]), b"\x01" * 16, None)

    @pytest.mark.parametrize(
        ("place", "odd"),
        [
            (0, 256), (0, -1), (0, None), (1, None), (1, b"short"), (2, 5), (3, b"short"), (3, "x" * 16),
            (4, float("inf")), (4, "3"), (4, -1), (5, 1.5), (7, "frame"), (8, None), (8, "text"), (9, None), (9, {}),
            (10, [[]]), (10, "ab"), (11, [1]), (11, [["a", 1]]), (12, [1]), (12, [1, "1"]), (12, [1, -1]),
            (12, [2**48, 1]),
        ],
    )  # fmt: skip
    def test_a_field_that_cannot_be_is_damage(self, place: int, odd: Any) -> None:
        fields = ormsgpack.unpackb(unpack(rec.encode_record(PLAIN)))
        fields[place] = odd
        with pytest.raises(ChecksumError):
            recordrow.decode_row(b"\x01\0\0\0" + ormsgpack.packb(fields), LAST, None)

    @pytest.mark.parametrize(
        "op",
        [
            [], [16], 5, None, "ab", [16, 4], [16, 3, 0], [0, 3], [-1, 3], [2**32, 3], ["16", 3], [16.5, 3],
            [16, 0, 1, 5, b""], [16, 0, 1, -1, b""], [16, 0, 1, [], b""], [16, 0, -1, 1, b""], [16, 0, 2**32, 1, b""],
            [16, 0, 1, 1, "text"], [16, 0, 1, 1, [0, 1]], [16, 0, 1, 1, b"\x80"], [16, 0, 1, 1, b"\0\0"],
            [16, 1, -1, 1, b""], [16, 1, 1, -1, b""], [16, 1, 0, 0], [16, 2, 2], [16, 2, 2, 5], [16, 2, 2, [1]],
            [16, 2, 2, [5, b""]], [16, 2, 2, [1, [1]]],
        ],
    )  # fmt: skip
    def test_an_op_that_cannot_be_is_damage(self, op: Any) -> None:
        fields = ormsgpack.unpackb(unpack(rec.encode_record(PLAIN)))
        fields[9] = [op]
        with pytest.raises(ChecksumError):
            recordrow.decode_row(b"\x01\0\0\0" + ormsgpack.packb(fields), LAST, None)

    def test_a_pack_under_another_key_or_out_of_order_is_damage(self) -> None:
        first, second, third = b"\0" * 16, b"\x01" * 16, b"\x02" * 16
        pack = RecordRow(True, (first, second), (PLAIN, PLAIN), {})
        assert recordrow.decode_row(recordrow.encode_pack(pack), second, None) == pack
        for other in (
            recordrow.encode_pack(pack._replace(ulids=(first, third))),
            recordrow.encode_pack(pack._replace(ulids=(third, second))),
            recordrow.encode_pack(pack._replace(ulids=(second, second))),
            b"\x03\x01" + recordrow.encode_pack(pack)[2:],
        ):
            with pytest.raises(ChecksumError):
                recordrow.decode_row(other, second, None)

    def test_a_shift_beyond_what_a_key_holds_is_damage(self) -> None:
        with pytest.raises(ChecksumError):
            recordrow.decode_row(row_of(PLAIN, (2**48, 0)), LAST, None)

    @pytest.mark.parametrize(
        "data", [b"", b"\0", b"\x02", b"\x04\0\0", b"\x01", b"\x01\0", b"\x01\0\0", b"\x01\0\0\x02"]
    )
    def test_an_unknown_kind_or_method_is_damage(self, data: bytes) -> None:
        with pytest.raises(ChecksumError):
            recordrow.decode_row(data, LAST, None)


def test_the_bytes_of_a_record_in_format_1() -> None:
    """A change here is a change of the format: docs/format.md first, then its version."""
    record = Record(
        rec.ANCHOR, "a", None, None, 0, 5, None, None, b"\x04\x80", (Set(16, 2, Value(rec.LIST, ((7, 2),))), Drop(17)),
        None, ((18, 1),), (7, 1),
    )  # fmt: skip
    assert row_of(record, (0, 130)).hex() == (
        "01" + "00" + "8201"  # a record alone, its two shifts
        + "00"  # packed plain
        + "9d" + "01" + "a161" + "c0" + "c0" + "00" + "05" + "c0" + "c0" + "c4020480"
        + "92" + "95" + "10" + "00" + "02" + "01" + "c4020002" + "92" + "11" + "03"  # ops
        + "c0" + "91921201" + "920701"
    )  # fmt: skip


def test_the_bytes_of_a_record_pack_in_format_1() -> None:
    """A change here is a change of the format: docs/format.md first, then its version."""
    uuid_text = "00112233-4455-6677-8899-aabbccddeeff"
    members = (b"\0" * 16, b"\0" * 5 + b"\x03" + b"\0" * 10)
    first = Record(0, uuid_text, None, None, 0, 5, None, None, b"", (), None, (), (1, 1))
    second = first._replace(parent_id=uuid_text, parent=members[0], bases=(4, 1))
    writes = write_rows({uuid_text: b"w"})
    row = RecordRow(True, members, (first, second), {uuid_text: writes, "never put": writes})
    encoded = recordrow.encode_pack(row)
    assert encoded[:2] == b"\x03\x02"
    ids = "".join(f"{byte:02x}" * 2 for byte in bytes.fromhex(uuid_text.replace("-", "")))
    written = "91" + "c418" + "9192" + "c410" + uuid_text.replace("-", "") + "91" + "c40177"
    assert unpack(encoded[2:]).hex() == (
        "93"
        "c420" + "00" * 16 + "00" * 5 + "03" + "00" * 10
        + "9d" + "920000" + "c420" + ids + "92c000" + "92c001" + "920000" + "920502"
        + "92c0c0" + "92c0c0" + "92c400c400" + "929090" + "92c0c0" + "929090" + "92" + "920103" + "920100"
        + "92" + "92" + "01" + written + "92" + "a96e6576657220707574" + written
    )  # fmt: skip
    assert ulids.ULID_BYTES == 16
