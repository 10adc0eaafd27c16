"""Cutting values into chunks and putting them together, with the strict codec and with codecs that can't be cut."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore.codec import blobs as bl
from deltastore.codec.blobs import Cut, assemble, cut, encode_whole, runs
from deltastore.codec.records import DICT, LIST, OPAQUE
from deltastore.codec.strict import REMOVE_ALL, STRICT, Remove
from deltastore.errors import ChecksumError, CodecMismatchError, EncodeError

FLOATS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", bits.to_bytes(8))[0])
SHORT = st.text(max_size=bl.MAX_RUN_STRING_BYTES // 4)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), FLOATS, SHORT)
LEAVES = st.one_of(SCALARS, st.text(), st.binary())
VALUES = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner), st.dictionaries(LEAVES, inner)), max_leaves=20)


@st.composite
def long_scalars(draw: st.DrawFn) -> list[Any]:
    """Some thousands of scalars, made of few drawn ones."""
    parts = draw(st.lists(st.tuples(st.lists(SCALARS, min_size=1, max_size=4), st.integers(1, 700)), max_size=4))
    return [value for values, repeats in parts for value in values * repeats]


def exact(value: Any) -> Any:
    """Something whose equality is that of type, bits and order."""
    if type(value) is float:
        return "float", struct.pack(">d", value)
    if type(value) is list:
        return "list", [exact(item) for item in value]
    if type(value) is dict:
        return "dict", [(exact(key), exact(item)) for key, item in value.items()]
    return type(value).__name__, value


@dataclass(frozen=True)
class Whole:
    """A codec of somebody's, which knows values only as wholes."""

    name: str = "whole 1"
    elementwise: bool = False

    def encode(self, value: Any) -> bytes:
        if "{1}" in repr(value):
            raise TypeError("no sets")
        return bytes((bl.FIRST_INTERNED_TAG,)) + repr(value).encode()

    def decode(self, blob: bytes) -> Any:
        return eval(blob[1:])

    def unwrap(self, value: Any) -> None:
        raise NotImplementedError

    def wrap(self, value: Any) -> Any:
        raise NotImplementedError

    def encode_elements(self, values: list[Any]) -> list[bytes]:
        raise NotImplementedError

    def encode_entry(self, key: Any, value: Any) -> bytes:
        raise NotImplementedError

    def encode_run(self, values: list[Any]) -> bytes:
        raise NotImplementedError

    def decode_list(self, blobs: Sequence[bytes]) -> list[Any]:
        raise NotImplementedError

    def decode_dict(self, blobs: Sequence[bytes]) -> dict[Any, Any]:
        raise NotImplementedError


class TestRoundTrip:
    @given(VALUES)
    @example([])
    @example({})
    @example({"": {}, "k": []})
    @example([True, 1, 1.0, -0.0, None, "a", b"b"])
    @example(["x" * (bl.MAX_RUN_STRING_BYTES + 1)])
    def test_assemble_of_cut_is_the_codecs_own_round_trip(self, value: Any) -> None:
        made = cut(value, STRICT, "channel")
        assert exact(assemble(made.kind, made.blobs, STRICT)) == exact(STRICT.decode(STRICT.encode(value)))
        assert made.keys == (tuple(value) if type(value) is dict else None)

    @given(long_scalars())
    def test_long_lists_of_scalars_come_back(self, values: list[Any]) -> None:
        made = cut(values, STRICT, "channel")
        assert made.kind == LIST
        assert exact(assemble(made.kind, made.blobs, STRICT)) == exact(values)

    @given(VALUES)
    def test_a_codec_of_wholes_gets_each_value_once(self, value: Any) -> None:
        made = cut(value, Whole(), "channel")
        assert made == Cut(OPAQUE, [Whole().encode(value)])

    def test_kinds(self) -> None:
        assert cut([1], STRICT, "c").kind == LIST
        assert cut({1: 1}, STRICT, "c").kind == DICT
        assert cut("a", STRICT, "c").kind == OPAQUE

    @pytest.mark.parametrize(("kind", "count"), [(OPAQUE, 0), (OPAQUE, 2), (5, 1), (7, 0)])
    def test_a_value_of_unknown_shape_is_damage(self, kind: int, count: int) -> None:
        with pytest.raises(ChecksumError):
            assemble(kind, [STRICT.encode(1)] * count, STRICT)


class TestRuns:
    @given(long_scalars())
    def test_runs_hold_the_values_in_order_within_their_limits(self, values: list[Any]) -> None:
        made = list(runs(values))
        assert exact([value for run in made for value in run]) == exact(values)
        for run in made:
            assert 0 < len(run) <= bl.MAX_RUN_ELEMENTS
            assert len(STRICT.encode_run(run)) <= bl.MAX_RUN_BYTES + 4  # its tag and the head of the list

    @given(long_scalars(), long_scalars())
    def test_a_list_of_scalars_that_only_grew_keeps_all_runs_but_the_last(
        self, values: list[Any], more: list[Any]
    ) -> None:
        before = cut(values, STRICT, "channel").blobs
        after = cut(values + more, STRICT, "channel").blobs
        kept = before[:-1]
        assert after[: len(kept)] == kept

    def test_numbers_that_grow_by_one_rewrite_one_run(self) -> None:
        before = cut(list(range(10_000)), STRICT, "channel").blobs
        after = cut(list(range(10_001)), STRICT, "channel").blobs
        assert before[:-1] == after[: len(before) - 1]
        assert len(before) < 13

    @given(st.lists(st.dictionaries(st.text(), LEAVES), min_size=1), st.dictionaries(st.text(), LEAVES))
    def test_a_list_of_elements_that_grew_keeps_all_its_chunks(self, values: list[Any], more: Any) -> None:
        assert cut([*values, more], STRICT, "c").blobs[:-1] == cut(values, STRICT, "c").blobs

    def test_long_strings_are_elements_of_their_own(self) -> None:
        short, long = "é" * (bl.MAX_RUN_STRING_BYTES // 2), "é" * (bl.MAX_RUN_STRING_BYTES // 2) + "x"
        assert len(cut([short] * 5, STRICT, "c").blobs) == 1
        assert len(cut([short, long] * 2, STRICT, "c").blobs) == 4


class TestErrors:
    @pytest.mark.parametrize(
        ("value", "path", "kind"),
        [
            (object(), "", "object"),
            ([1, 2**64], "[1]", "int"),
            (["a", "\ud800"], "[1]", "str"),
            ([{"a": 1}, {"b": {1, 2}}], "[1]['b']", "set"),
            ({"a": [1, [2, b"", (3,)]]}, "['a'][1][2]", "tuple"),
            ({"a": 1, "b": {("x", 1): 2}}, "['b']", "dict"),
            ({("x", 1): 2}, "", "dict"),
            ({1: bytearray()}, "[1]", "bytearray"),
            ([Remove("a"), REMOVE_ALL, {"id": "b", "x": object()}], "[2]['x']", "object"),
            ([Remove("a"), [Remove("a")]], "[1][0]", "Remove"),
            ([{"id": 1}, Remove(1.5)], "[1]", "Remove"),  # type: ignore[arg-type]
            ({"k": Remove("a")}, "['k']", "Remove"),
            (Remove("a"), "", "Remove"),
        ],
    )
    def test_what_cannot_be_stored_is_named_by_channel_path_and_type(self, value: Any, path: str, kind: str) -> None:
        with pytest.raises(EncodeError) as caught:
            cut(value, STRICT, "messages")
        assert (caught.value.channel, caught.value.path) == ("messages", path)
        assert f"the {kind} at messages{path} " in str(caught.value)
        assert STRICT.name in str(caught.value)

    def test_the_reason_is_that_of_the_part_named(self) -> None:
        with pytest.raises(EncodeError, match=r"\(type builtins\.complex isn't taken"):
            cut([1, (2, 1j)], STRICT, "c")

    @pytest.mark.parametrize("depth", [201, 1_000, 100_000])
    def test_what_nests_too_deep_raises_an_encode_error(self, depth: int) -> None:
        value: Any = 1
        for level in range(depth):
            value = [value] if level % 2 else {"k": value}
        with pytest.raises(EncodeError, match="deeper") as caught:
            cut(value, STRICT, "c")
        assert caught.value.channel == "c"
        assert bool(caught.value.path) == (depth > 201)

    def test_what_holds_itself_raises_an_encode_error(self) -> None:
        items: list[Any] = [1]
        items.extend((items, items))
        fields: dict[str, Any] = {}
        fields["k"] = [fields]
        for value in (items, fields, [fields], {"k": items}):
            with pytest.raises(EncodeError):
                cut(value, STRICT, "c")

    def test_whatever_a_serializer_raises_becomes_an_encode_error(self) -> None:
        for encode in (cut, encode_whole):
            with pytest.raises(EncodeError, match="TypeError: no sets") as caught:
                encode({"a": [{1}]}, Whole(), "c")
            assert caught.value.path == "['a'][0]"
            assert isinstance(caught.value.__cause__, TypeError)

    def test_a_chunk_beyond_the_limit_is_refused_naming_the_channel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bl, "MAX_CHUNK_BYTES", 100)
        cut([b"x" * 50] * 10, STRICT, "c")
        with pytest.raises(EncodeError, match=r"'c'.*100"):
            cut([b"x", b"x" * 101], STRICT, "c")

    @pytest.mark.parametrize(
        ("tag", "writer", "advice"),
        [
            (bl.STRICT_ELEMENT, "native", "store.thread"),
            (bl.JSONPLUS_RUN, "JsonPlus", "DeltaSaver"),
            (bl.LAST_TAG, "another", "DeltaSaver"),
        ],
    )
    def test_a_mismatch_names_writer_reader_and_who_reads_it(self, tag: int, writer: str, advice: str) -> None:
        error = bl.wrong_tag(tag, Whole())
        assert isinstance(error, CodecMismatchError)
        assert writer in str(error)
        assert "whole 1" in str(error)
        assert f"read it with {advice}" in str(error)
