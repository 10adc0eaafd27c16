"""Chunk rows: what they hold comes back; malformed ones raise ChecksumError and nothing else."""

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deltastore.codec import chunkrow as cr
from deltastore.codec.chunkrow import Based, ChunkRow
from deltastore.codec.primitives import PACK_LEVEL, ROW_LEVEL, pack, put_varint
from deltastore.errors import ChecksumError, EncodeError

MEGABYTE = 1 << 20
BLOBS = st.binary(min_size=1, max_size=40)


@st.composite
def chunk_rows(draw: st.DrawFn) -> ChunkRow:
    """Rows with gaps between their numbers, of whole and of based chunks."""
    gaps = draw(st.lists(st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 2**40)), min_size=1, max_size=8))
    numbers = [sum(gaps[: place + 1]) for place in range(len(gaps))]
    tags = draw(st.binary(min_size=len(numbers), max_size=len(numbers)))
    whole: dict[int, bytes] = {}
    based: dict[int, Based] = {}
    for place, number in enumerate(numbers):
        if number > cr.MAX_DEPTH and draw(st.booleans()):
            bases = draw(st.sets(st.integers(1, number - 1), min_size=1, max_size=cr.MAX_DEPTH))
            plain = draw(st.integers(0, 2**31))
            based[number] = Based(tuple(sorted(bases, reverse=True)), plain, draw(st.binary(max_size=20)))
        else:
            whole[number] = tags[place : place + 1] + draw(st.binary(max_size=40))
    return ChunkRow(tuple(numbers), tags, whole, based)


def encoded(row: ChunkRow, level: int = ROW_LEVEL) -> bytes:
    return cr.encode_row(row, cr.encode_body(row, level))


def varints(*numbers: int) -> bytes:
    out = bytearray()
    for number in numbers:
        put_varint(out, number)
    return bytes(out)


class TestRoundTrip:
    @given(chunk_rows(), st.booleans())
    def test_a_row_comes_back(self, row: ChunkRow, packing: bool) -> None:
        assert cr.decode_row(encoded(row, PACK_LEVEL if packing else ROW_LEVEL), row.numbers[-1], None) == row

    @given(chunk_rows())
    def test_the_head_alone_tells_numbers_and_bases(self, row: ChunkRow) -> None:
        head = cr.decode_head(encoded(row), row.numbers[-1])
        assert head.numbers == row.numbers
        assert head.based == row.based

    @given(chunk_rows(), st.integers(1, 2**40))
    def test_the_body_does_not_depend_on_the_numbers(self, row: ChunkRow, by: int) -> None:
        moved = ChunkRow(
            tuple(number + by for number in row.numbers),
            row.tags,
            {number + by: blob for number, blob in row.whole.items()},
            {
                number + by: Based(tuple(base + by for base in based.bases), based.plain_bytes, based.frame)
                for number, based in row.based.items()
            },
        )
        assert cr.encode_body(moved) == cr.encode_body(row)
        assert cr.decode_row(cr.encode_row(moved, cr.encode_body(row)), moved.numbers[-1], None) == moved

    @given(chunk_rows(), st.data())
    def test_rows_joined_hold_what_they_held_apart(self, row: ChunkRow, data: st.DataObject) -> None:
        places = sorted({0, len(row.numbers), *data.draw(st.sets(st.integers(0, len(row.numbers))))})
        parts = []
        for start, stop in pairwise(places):
            numbers = row.numbers[start:stop]
            parts.append(
                ChunkRow(
                    numbers,
                    row.tags[start:stop],
                    {number: row.whole[number] for number in numbers if number in row.whole},
                    {number: row.based[number] for number in numbers if number in row.based},
                )
            )
        assert cr.join_rows(parts) == row
        assert sum(part.plain_bytes for part in parts) == row.plain_bytes

    @given(chunk_rows())
    def test_tags_stand_for_whole_and_based_chunks(self, row: ChunkRow) -> None:
        assert bytes(map(row.tag, row.numbers)) == row.tags

    def test_more_chunks_than_can_be_read_again_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cr, "MAX_CHUNKS_PER_ROW", 3)
        row = ChunkRow((1, 2, 3), b"abc", {1: b"a", 2: b"b", 3: b"c"}, {})
        assert cr.decode_row(encoded(row), 3, None) == row
        with pytest.raises(EncodeError, match="4"):
            cr.encode_body(ChunkRow((1, 2, 3, 4), b"abcd", {1: b"a", 2: b"b", 3: b"c", 4: b"d"}, {}))


class TestBased:
    def text(self, seed: int, length: int = 20_000) -> bytes:
        return b"\x01" + random.Random(seed).randbytes(length)

    def edits(self, count: int) -> list[bytes]:
        blobs = [self.text(1)]
        for edit in range(count):
            before = blobs[-1]
            place = 1 + edit * 100
            blobs.append(before[:place] + b"edit %d" % edit + before[place + 3 :])
        return blobs

    def test_a_chain_of_edits_comes_back_and_ends_at_the_depth_limit(self) -> None:
        blobs = self.edits(cr.MAX_DEPTH + 1)
        whole: dict[int, bytes] = {1: blobs[0]}
        based: dict[int, Based] = {}
        for number, blob in enumerate(blobs[1:], 2):
            behind = based[number - 1].bases if number - 1 in based else ()
            made = cr.make_based(blob, number - 1, blobs[number - 2], behind)
            if made is None:
                whole[number] = blob
            else:
                assert made.bases == tuple(range(number - 1, 0, -1))
                assert len(made.frame) < 200
                based[number] = made
        assert list(based) == list(range(2, cr.MAX_DEPTH + 2))
        assert list(whole) == [1, cr.MAX_DEPTH + 2]
        numbers = tuple(range(1, len(blobs) + 1))
        row = cr.decode_row(encoded(ChunkRow(numbers, b"\x01" * len(numbers), whole, based)), numbers[-1], None)

        def blob_of(number: int) -> bytes:
            return cr.resolve(number, row, blob_of)

        assert [blob_of(number) for number in numbers] == blobs
        assert row.plain_bytes < 3 * len(blobs[0])

    def test_a_chunk_keeps_its_own_tag_on_a_base_of_another(self) -> None:
        base, blob = self.text(1), b"\x07" + self.text(1)[1:]
        made = cr.make_based(blob, 1, base, ())
        assert made is not None
        row = ChunkRow((2,), b"\x07", {}, {2: made})
        assert cr.resolve(2, row, {1: base}.__getitem__) == blob

    def test_small_chunks_are_not_worth_a_frame(self) -> None:
        at_limit = self.text(1, cr.MIN_BASED_BYTES - 1)
        assert cr.make_based(at_limit, 1, at_limit, ()) is None
        above = self.text(1, cr.MIN_BASED_BYTES)
        assert cr.make_based(above, 1, above, ()) is not None

    def test_a_frame_that_saves_little_is_not_worth_it(self) -> None:
        assert cr.make_based(self.text(1), 1, self.text(2), ()) is None
        assert cr.make_based(self.text(1), 1, b"\x01", ()) is None
        half = self.text(1)[:10_000] + self.text(2)[:10_000]
        assert cr.make_based(half, 1, self.text(1), ()) is None

    @given(st.binary(max_size=60), st.binary(max_size=60), st.integers(0, 30_000))
    def test_any_edit_that_is_stored_as_a_difference_comes_back(self, before: bytes, after: bytes, place: int) -> None:
        base = self.text(1)
        blob = base[: 1 + place] + before + base[1 + place :] + after
        made = cr.make_based(blob, 5, base, (3, 2))
        assert made is not None
        assert made.bases == (5, 3, 2)
        assert cr.resolve(9, ChunkRow((9,), blob[:1], {}, {9: made}), {5: base}.__getitem__) == blob

    @given(st.binary(), st.integers(0, 2**40))
    def test_a_malformed_difference_raises_a_checksum_error(self, frame: bytes, plain: int) -> None:
        row = ChunkRow((2,), b"\x01", {}, {2: Based((1,), plain, frame)})
        with pytest.raises(ChecksumError):
            cr.resolve(2, row, lambda number: b"\x01base")


def decodes_or_is_damaged(data: bytes, last: int) -> None:
    """A row that decodes says what it holds, and says it again when encoded."""
    try:
        row = cr.decode_row(data, last, None)
    except ChecksumError:
        return
    assert row.numbers[-1] == last
    assert row.numbers[0] > 0
    assert all(before < after for before, after in pairwise(row.numbers))
    assert set(row.whole) | set(row.based) == set(row.numbers)
    assert cr.decode_row(encoded(row), last, None) == row


class TestDamage:
    @given(st.binary(), st.integers(1, 2**48 - 1))
    def test_any_bytes_decode_or_raise_a_checksum_error(self, data: bytes, last: int) -> None:
        for prefix in (b"", b"\x02", b"\x02\x01\x00\x01\x00"):
            decodes_or_is_damaged(prefix + data, last)

    @given(chunk_rows(), st.data())
    def test_damaged_rows_decode_or_raise_a_checksum_error(self, row: ChunkRow, data: st.DataObject) -> None:
        damaged = bytearray(encoded(row))
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(damaged) - 1))
            damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
            assume(damaged)
        decodes_or_is_damaged(bytes(damaged), row.numbers[-1])

    @given(chunk_rows(), st.data())
    def test_rows_cut_short_raise_a_checksum_error(self, row: ChunkRow, data: st.DataObject) -> None:
        whole = encoded(row)
        with pytest.raises(ChecksumError):
            cr.decode_row(whole[: data.draw(st.integers(0, len(whole) - 1))], row.numbers[-1], None)
        with pytest.raises(ChecksumError):
            cr.decode_row(whole + b"\0", row.numbers[-1], None)

    @pytest.mark.parametrize(
        "head",
        [
            pytest.param(varints(3), id="kind of row"),
            pytest.param(varints(2, 0), id="no run"),
            pytest.param(varints(2, 1, 0, 0), id="empty run"),
            pytest.param(varints(2, 1, 1, 1), id="key isn't the greatest number"),
            pytest.param(varints(2, 1, 0, 10), id="number 0"),
            pytest.param(varints(2, 1, 0, 11), id="number below 0"),
            pytest.param(varints(2, 2, 0, 1, 20, 1), id="gap below 0"),
            pytest.param(varints(2, 1, 0, 1, 1, 1, 1, 1, 0, 0), id="place of a based chunk"),
            pytest.param(varints(2, 1, 0, 1, 1, 0, 0, 0, 0), id="depth 0"),
            pytest.param(varints(2, 1, 0, 1, 1, 0, 9, *range(1, 10), 0, 0), id="depth 9"),
            pytest.param(varints(2, 1, 0, 1, 1, 0, 1, 0, 0, 0), id="stands on itself"),
            pytest.param(varints(2, 1, 0, 1, 1, 0, 1, 9, 0, 0), id="base 0"),
            pytest.param(varints(2, 1, 0, 1, 1, 0, 1, 10, 0, 0), id="base below 0"),
            pytest.param(varints(2, 1, 0, 1, 1, 0, 2, 2, 1, 0, 0), id="base newer than what stands on it"),
            pytest.param(varints(2, 1, 0, 2, 2, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0), id="based twice"),
        ],
    )
    def test_a_head_that_cannot_be_is_refused(self, head: bytes) -> None:
        row = head + varints(2) + b"\0\x01"
        with pytest.raises(ChecksumError):
            cr.decode_row(row, 9, None)

    @pytest.mark.parametrize(
        "head",
        [
            varints(2, 1, 0, 2**24, 0),
            varints(2, 1, 0, 2**40, 0),
            varints(2, 200, 0, *[2**24, 0] * 199, 2**24, 0),
            varints(2, 2**60, 0, 1),
            varints(2, 1, 0, 1, 2**60),
            varints(2, 1, 0, 1, 0, 2**60),
        ],
    )
    def test_a_head_that_claims_too_much_takes_little_memory(self, head: bytes) -> None:
        row = head + varints(2) + b"\0\x01"
        tracemalloc.start()
        try:
            with pytest.raises(ChecksumError):
                cr.decode_row(row, 2**47, None)
            assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("lengths", [varints(3), varints(1), varints(2**40), b"\x80"])
    def test_a_body_with_other_lengths_than_its_payloads_is_refused(self, lengths: bytes) -> None:
        body = pack(b"\x05" + lengths + b"ab")
        row = varints(2, 1, 0, 1, 0, len(body)) + body
        with pytest.raises(ChecksumError):
            cr.decode_row(row, 9, None)


def test_the_bytes_of_a_row_in_format_1() -> None:
    """A change here is a change of the format: docs/format.md first, then its version."""
    row = ChunkRow(
        (5, 6, 9), b"\x01\x02\x01", {5: b"\x01\x91\x01", 6: b"\x02\x81\xa1k\xc3"}, {9: Based((6, 3), 9000, b"DIFF")}
    )
    assert encoded(row).hex() == (
        "02"  # chunk row
         "02" + "0001" + "0202"  # two runs: 9, and below two skipped ones 6 and 5
        + "01" + "02" + "02" + "0306" + "a846" + "04"  # one based: place 2, two bases, plain length, frame length
        + "0c" + "00" + "010201" + "02" + "04" + "9101" + "81a16bc3"  # body: plain, tags, lengths, payloads
        + "44494646"
    )  # fmt: skip
    assert cr.decode_row(encoded(row), 9, None) == row
