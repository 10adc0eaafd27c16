"""Spans, against lists of chunk numbers."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore.codec import spans as sp
from deltastore.errors import ChecksumError

STRETCHES = st.tuples(st.one_of(st.integers(1, 30), st.integers(1, 2**40)), st.integers(1, 6))
NUMBERS = st.lists(STRETCHES, max_size=10).map(
    lambda parts: [number for first, length in parts for number in range(first, first + length)]
)
"""Chunk numbers as values have them: stretches, with repeats."""
SPANS = NUMBERS.map(sp.of_numbers)


def is_normal(spans: sp.Spans) -> bool:
    return all(length > 0 for _, length in spans) and all(
        before[0] + before[1] != after[0] for before, after in pairwise(spans)
    )


@given(NUMBERS)
def test_spans_of_numbers_hold_these_numbers_and_are_normal(numbers: list[int]) -> None:
    spans = sp.of_numbers(numbers)
    assert sp.numbers(spans) == numbers
    assert sp.count(spans) == len(numbers)
    assert is_normal(spans)


@given(st.lists(SPANS, max_size=4))
def test_join_is_one_after_the_other_and_normal(parts: list[sp.Spans]) -> None:
    assert sp.join(parts) == sp.of_numbers(number for part in parts for number in sp.numbers(part))


@given(SPANS, st.integers(0, 40), st.integers(0, 40))
def test_a_slice_is_a_slice_of_the_numbers(spans: sp.Spans, start: int, stop: int) -> None:
    assert sp.numbers(sp.slice_of(spans, start, stop)) == sp.numbers(spans)[start:stop]


@given(SPANS, SPANS, st.data())
def test_a_splice_replaces_numbers_and_is_normal(spans: sp.Spans, inserted: sp.Spans, data: st.DataObject) -> None:
    numbers = sp.numbers(spans)
    place = data.draw(st.integers(0, len(numbers)))
    removed = data.draw(st.integers(0, len(numbers) - place))
    expected = numbers[:place] + sp.numbers(inserted) + numbers[place + removed :]
    assert sp.splice(spans, place, removed, inserted) == sp.of_numbers(expected)


@pytest.mark.parametrize(("place", "removed"), [(0, 4), (3, 1), (4, 0), (-1, 1), (-1, 0), (2, -1), (-2, 3)])
def test_a_splice_outside_the_value_is_refused(place: int, removed: int) -> None:
    with pytest.raises(ChecksumError):
        sp.splice(((7, 3),), place, removed, ())


@given(SPANS, st.integers(1, 40), st.integers(0, 2**40))
def test_a_shift_moves_the_numbers_from_the_base_on(spans: sp.Spans, base: int, by: int) -> None:
    expected = [number + by if number >= base else number for number in sp.numbers(spans)]
    shifted = sp.shift(spans, base, by)
    assert sp.numbers(shifted) == expected
    assert all(length > 0 for _, length in shifted)


def test_a_span_that_straddles_the_base_is_cut_there() -> None:
    assert sp.shift(((3, 5), (1, 2)), 5, 10) == ((3, 2), (15, 3), (1, 2))


class TestCoding:
    @given(SPANS, st.integers(0, 2**40))
    def test_what_was_encoded_is_decoded(self, spans: sp.Spans, base: int) -> None:
        assert sp.decode(sp.encode(spans, base), base) == spans

    def test_what_grows_from_the_base_takes_two_bytes(self) -> None:
        assert sp.encode(((1000, 1),), 1000) == b"\x00\x01"
        assert sp.encode(((990, 5), (1000, 2), (3, 1)), 1000).hex() == "1305" + "0a02" + "cd0f" + "01"

    @given(st.binary(), st.integers(0, 2**40))
    @example(b"\x00\x00", 1)  # an empty span
    @example(b"\x01\x01", 1)  # number 0
    @example(b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 1)  # endless
    @example(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01", 1)  # beyond what a key holds
    def test_any_bytes_decode_or_raise_a_checksum_error(self, data: bytes, base: int) -> None:
        try:
            spans = sp.decode(data, base)
        except ChecksumError:
            return
        assert sp.decode(sp.encode(spans, base), base) == spans
        assert all(0 < first < first + length <= sp.MAX_NUMBER for first, length in spans)
        assert sp.count(spans) <= sp.MAX_CHUNKS

    @given(SPANS, st.integers(0, 2**40), st.data())
    def test_damaged_bytes_decode_or_raise_a_checksum_error(
        self, spans: sp.Spans, base: int, data: st.DataObject
    ) -> None:
        encoded = bytearray(sp.encode(spans, base) + b"\0")
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = sp.decode(bytes(encoded), base)
        except ChecksumError:
            return
        assert sp.decode(sp.encode(found, base), base) == found

    @pytest.mark.parametrize(
        "data", [b"\x00\x00", b"\x01\x01", b"\x00", b"\x80", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01"]
    )
    def test_no_number_outside_what_a_key_holds_is_decoded(self, data: bytes) -> None:
        with pytest.raises(ChecksumError):
            sp.decode(data, 1)
