"""Dictionaries: what they shorten comes back, and nothing that anybody wrote stands in a shape."""

from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.codec import primitives as pr
from deltastore.codec.dictionary import MAX_SHORTENED_BYTES, Dictionary
from deltastore.codec.shape import MAX_COMMON_BYTES, WELL_KNOWN, shape_of, short_texts
from deltastore.errors import ChecksumError

CANARY = "Wachtmeister Dimpfelmoser fürchtet 0123456789 Räuber"
OTHER = Dictionary(2, b"something else altogether, of no use for anything")


def runs(data: bytes, size: int = MAX_COMMON_BYTES + 1) -> set[bytes]:
    return {data[start : start + size] for start in range(len(data) - size + 1)}


class TestPacking:
    @given(st.binary(max_size=300), st.binary(min_size=8, max_size=300), st.sampled_from([1, 3, 7, 19]))
    def test_what_a_dictionary_shortens_comes_back(self, data: bytes, content: bytes, level: int) -> None:
        dictionary = Dictionary(300, content)
        packed = pr.pack(data * 3, level, dictionary)
        assert pr.unpack(packed, {300: dictionary}.__getitem__) == data * 3
        assert pr.plain_size(packed) == len(data) * 3
        assert pr.dictionary_of(packed) == (300 if packed[:1] == b"\2" else None)
        assert len(packed) <= len(data) * 3 + 1

    def test_it_shortens_and_says_which_it_needs(self) -> None:
        dictionary = Dictionary(300, bytes(range(256)))
        packed = pr.pack(bytes(range(256)), dictionary=dictionary)
        assert (packed[:3], pr.dictionary_of(packed)) == (b"\2\xac\2", 300)
        assert len(packed) < 30

    def test_long_parts_do_without(self) -> None:
        data = bytes(range(256)) * (MAX_SHORTENED_BYTES // 256)
        dictionary = Dictionary(1, data[:1000])
        assert pr.dictionary_of(pr.pack(data, 7, dictionary)) is None or len(data) <= MAX_SHORTENED_BYTES
        assert pr.dictionary_of(pr.pack(data + b"x", 7, dictionary)) is None

    def test_without_the_dictionary_it_is_refused(self) -> None:
        packed = pr.pack(bytes(range(256)), dictionary=Dictionary(1, bytes(range(256))))
        with pytest.raises(ChecksumError, match="dictionary"):
            pr.unpack(packed)

    @given(st.binary(max_size=60))
    def test_damaged_frames_raise_a_checksum_error(self, data: bytes) -> None:
        for packed in (b"\2" + data, b"\2\1" + data):
            for ask in (pr.plain_size, pr.dictionary_of, lambda packed: pr.unpack(packed, lambda _: OTHER)):
                raised_or_fine(ask, packed)


def raised_or_fine(ask: Callable[[bytes], Any], packed: bytes) -> None:
    try:
        ask(packed)
    except ChecksumError:
        return


TEXTS = st.sampled_from([CANARY, CANARY[:12], CANARY[5:30], f"{CANARY} again"])
LEAVES = st.one_of(
    TEXTS, TEXTS.map(str.encode), TEXTS.map(lambda text: list(text.encode())), st.floats(), st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from(sorted(WELL_KNOWN)), st.text(max_size=4), st.booleans(),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(TEXTS, st.text(max_size=4), st.integers(-9, 9)), inner, max_size=4),
        inner.map(lambda value: ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)),
        inner.map(lambda value: b"\x05" + ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)),
        inner.map(lambda value: [ormsgpack.Ext(5, ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))]),
    )


def packed_ext(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


class TestShapes:
    @given(st.recursive(LEAVES, nested, max_leaves=12))
    def test_no_run_of_a_text_stands_in_a_shape(self, value: Any) -> None:
        data = packed_ext(value)
        common = {CANARY, CANARY[:12], *short_texts(data)}
        assert not runs(CANARY.encode()) & runs(shape_of(data, common))

    def test_structure_field_names_and_common_short_texts_stay(self) -> None:
        data = packed_ext({"content": CANARY, "usage_metadata": {"input_tokens": 731, "own": 3}, "kind": "mine"})
        shape = ormsgpack.unpackb(shape_of(data, {"kind", "own"}))
        assert shape == {"content": "", "usage_metadata": {"input_tokens": 0, "own": 3}, "kind": ""}

    def test_what_is_no_msgpack_has_no_shape(self) -> None:
        for data in (b"", b"\xc1", b"plain text that somebody wrote", packed_ext(5), packed_ext([1])[:-1]):
            assert shape_of(data, ()) == b""
            assert short_texts(data) == set()
