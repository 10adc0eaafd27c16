"""ULIDs: they grow whatever the clock does, and sort as text as they do as bytes."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore import ulid
from deltastore.errors import InvalidIdError

NOW = 1_780_000_000_000
CLOCKS = st.lists(st.one_of(st.integers(0, 2**47), st.integers(NOW - 3, NOW + 3)), min_size=1, max_size=40)
ULIDS = st.binary(min_size=16, max_size=16)
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class TestMint:
    @given(CLOCKS)
    def test_each_is_greater_than_the_last_whatever_the_clock_does(self, clock: list[int]) -> None:
        last: bytes | None = None
        for now in clock:
            minted = ulid.mint(last, now)
            assert len(minted) == ulid.ULID_BYTES
            assert last is None or minted > last
            assert ulid.milliseconds(minted) >= now
            last = minted

    @given(st.binary(min_size=16, max_size=16).filter(lambda last: last < b"\xff" * 16), st.integers(0, 2**48 - 1))
    @example(b"\x01" * 6 + b"\xff" * 10, 0)
    @example(b"\x01" * 6 + b"\xff" * 10, int.from_bytes(b"\x01" * 6, "big") + 1)
    def test_any_last_one_is_followed_by_a_greater_one(self, last: bytes, now: int) -> None:
        minted = ulid.mint(last, now)
        assert minted > last
        assert ulid.milliseconds(minted) >= now

    def test_the_time_is_that_of_a_clock_that_goes_forward(self) -> None:
        first = ulid.mint(None, NOW)
        assert ulid.milliseconds(first) == NOW
        assert ulid.milliseconds(ulid.mint(first, NOW + 5)) == NOW + 5

    def test_a_clock_that_stands_or_goes_back_counts_on(self) -> None:
        first = ulid.mint(None, NOW)
        second = ulid.mint(first, NOW)
        third = ulid.mint(second, NOW - 10_000)
        assert [int.from_bytes(each, "big") - int.from_bytes(first, "big") for each in (second, third)] == [1, 2]

    def test_a_counter_that_overflows_within_a_millisecond_goes_on(self) -> None:
        last = ulid.mint(None, NOW)[:-2] + b"\xff\xfe"
        for _ in range(3):
            minted = ulid.mint(last, NOW)
            assert minted > last
            assert ulid.milliseconds(minted) == NOW or last[6:14] == b"\xff" * 8
            last = minted
        later = ulid.mint(last, NOW + 1)
        assert later > last
        assert later[-2:] == b"\0\0"

    def test_the_middle_stays_from_one_to_the_next(self) -> None:
        first = ulid.mint(None, NOW)
        later = ulid.mint(ulid.mint(first, NOW), NOW + 1000)
        assert later[6:14] == first[6:14]
        assert later[14:] == b"\0\0"

    def test_the_first_ones_of_two_threads_differ(self) -> None:
        assert len({ulid.mint(None, NOW) for _ in range(1000)}) == 1000


class TestText:
    @given(ULIDS)
    @example(b"\0" * 16)
    @example(b"\xff" * 16)
    def test_the_text_is_undone(self, minted: bytes) -> None:
        text = ulid.to_text(minted)
        assert ulid.from_text(text) == minted
        assert len(text) == ulid.ULID_CHARACTERS
        assert set(text) <= set(ALPHABET)

    @given(ULIDS, ULIDS)
    def test_texts_sort_as_bytes_do(self, one: bytes, other: bytes) -> None:
        assert (ulid.to_text(one) < ulid.to_text(other)) == (one < other)

    def test_the_text_is_that_of_the_specification(self) -> None:
        assert ulid.to_text(bytes.fromhex("01563e3ab5d3d6764c61efb99302bd5b")) == "01ARZ3NDEKTSV4RRFFQ69G5FAV"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "0" * 25,
            "0" * 27,
            "8" + "0" * 25,  # 129 bits
            "Z" * 26,
            "01arz3ndektsv4rrffq69g5fav",  # lower case
            "01ARZ3NDEKTSV4RRFFQ69G5FAI",
            "01ARZ3NDEKTSV4RRFFQ69G5FAL",
            "01ARZ3NDEKTSV4RRFFQ69G5FAO",
            "01ARZ3NDEKTSV4RRFFQ69G5FAU",
            "01ARZ3NDEKTSV4RRFFQ69G5FA ",
            "01ARZ3NDEKTSV4RRFFQ69G5FA\n",
            "01ARZ3NDEKTSV4RRFFQ69G5FA\ud800",
            "\u0660" * 26,  # digits of another script
        ],
    )
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidIdError):
            ulid.from_text(text)

    @given(st.one_of(st.text(), st.text(alphabet=ALPHABET + "ilou-", min_size=26, max_size=26)))
    def test_only_what_to_text_gives_is_taken(self, text: str) -> None:
        try:
            minted = ulid.from_text(text)
        except InvalidIdError:
            return
        assert ulid.to_text(minted) == text

    @pytest.mark.parametrize("value", [None, 5, b"0" * 26, ["0"] * 26, 1.5])
    def test_what_is_no_text_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidIdError):
            ulid.from_text(value)
