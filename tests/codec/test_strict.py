"""The strict codec: what comes back equals what was put, in type and bits; everything else is refused."""

import datetime
import decimal
import enum
import struct
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore.codec import blobs as bl
from deltastore.codec import strict
from deltastore.codec.records import LIST
from deltastore.codec.strict import MAX_NESTING, REMOVE_ALL, STRICT, Remove
from deltastore.errors import ChecksumError, CodecMismatchError, EncodeError

FLOATS = st.one_of(st.floats(), st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", bits.to_bytes(8))[0]))
"""Every float that there is, payloads of NaN included."""
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), FLOATS, st.text(), st.binary())
VALUES = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner), st.dictionaries(LEAVES, inner)), max_leaves=20)


def exact(value: Any) -> Any:
    """Something whose equality is that of type, bits and order."""
    if type(value) is float:
        return "float", struct.pack(">d", value)
    if type(value) is list:
        return "list", [exact(item) for item in value]
    if type(value) is dict:
        return "dict", [(exact(key), exact(item)) for key, item in value.items()]
    return type(value).__name__, value


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


class TestRoundTrip:
    @given(VALUES)
    @example([True, 1, 1.0, -0.0, 0.0, 0, False, None, "", b""])
    @example([2**64 - 1, 2**63, 2**63 - 1, -(2**63), 2**32, -1, 127, 128, -32, -33])
    @example({True: 1, b"": 2, None: 3, 2.5: 4, -7: 5, "x": 6})
    @example({"z": 1, "a": {"y": 2, "b": 3}})
    def test_every_supported_value_comes_back_in_type_bits_and_order(self, value: Any) -> None:
        assert exact(STRICT.decode(STRICT.encode(value))) == exact(value)
        assert exact(strict.strict_unpack(strict.strict_pack(value))) == exact(value)

    @given(VALUES)
    def test_encoding_is_deterministic(self, value: Any) -> None:
        assert STRICT.encode(value) == STRICT.encode(value)

    @pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF4DEAD00000000, 0x8000000000000000])
    def test_a_float_keeps_its_bits(self, bits: int) -> None:
        value = struct.unpack(">d", bits.to_bytes(8))[0]
        (found,) = STRICT.decode(STRICT.encode([value]))
        assert struct.pack(">d", found) == bits.to_bytes(8)

    def test_the_deepest_value_comes_back(self) -> None:
        assert STRICT.decode(STRICT.encode(nested(MAX_NESTING))) == nested(MAX_NESTING)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Items(list[Any]):
    pass


class Fields(dict[Any, Any]):
    pass


class Real(float):
    pass


class Data(bytes):
    pass


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


@dataclass
class Point:
    x: int = 1


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - any namedtuple

REFUSED: dict[str, Any] = {
    "tuple": (1,),
    "empty tuple": (),
    "namedtuple": Pair(1, 2),
    "set": {1},
    "frozenset": frozenset(),
    "str subclass": Text("a"),
    "int subclass": Number(1),
    "list subclass": Items(),
    "dict subclass": Fields(),
    "float subclass": Real(1.5),
    "bytes subclass": Data(b"a"),
    "OrderedDict": OrderedDict(a=1),
    "defaultdict": defaultdict(list),
    "enum": Colour.RED,
    "int enum": Level.LOW,
    "str enum": Word.A,
    "dataclass": Point(),
    "datetime": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "date": datetime.date(2026, 1, 1),
    "time": datetime.time(1),
    "uuid": uuid.UUID(int=1),
    "decimal": decimal.Decimal(1),
    "complex": 1j,
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "range": range(3),
    "generator": (item for item in ()),
    "class": int,
    "function": len,
    "ellipsis": ...,
    "object": object(),
    "Remove": Remove("a"),
    "lone surrogate": "\ud800",
    "surrogate in the middle": "a\udc00b",
    "int of 65 bits": 2**64,
    "negative int of 65 bits": -(2**63) - 1,
    "huge int": 10**1000,
}

UNHASHABLE = {"set", "list subclass", "dict subclass", "OrderedDict", "defaultdict", "dataclass", "bytearray"}
ODD_KEYS = {name: value for name, value in REFUSED.items() if name not in UNHASHABLE}


class TestRefusal:
    @pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
    def test_what_would_come_back_as_something_else_is_refused_anywhere(self, value: Any) -> None:
        for holder in (value, [value], {"k": value}, [1, {"k": [value]}]):
            with pytest.raises(EncodeError):
                STRICT.encode(holder)

    @pytest.mark.parametrize("key", ODD_KEYS.values(), ids=ODD_KEYS)
    def test_odd_keys_are_refused_anywhere(self, key: Any) -> None:
        for holder in ({key: 1}, [{"k": {key: 1}}]):
            with pytest.raises(EncodeError):
                STRICT.encode(holder)
        with pytest.raises(EncodeError):
            STRICT.encode_entry(key, 1)

    @pytest.mark.parametrize("depth", [MAX_NESTING + 1, 1_000, 100_000])
    def test_what_nests_too_deep_is_refused(self, depth: int) -> None:
        with pytest.raises(EncodeError, match=str(MAX_NESTING)):
            STRICT.encode(nested(depth))

    def test_what_holds_itself_is_refused(self) -> None:
        items: list[Any] = []
        items.append(items)
        fields: dict[str, Any] = {}
        fields["k"] = [fields]
        for value in (items, fields):
            with pytest.raises(EncodeError):
                STRICT.encode(value)

    @pytest.mark.parametrize("id_", [None, 1.5, True, ["a"], object(), 2**70, "\ud800"])
    def test_a_removal_of_what_can_be_no_id_is_refused(self, id_: Any) -> None:
        with pytest.raises(EncodeError):
            STRICT.encode_elements([Remove(id_)])


def cut_or_error(value: Any, before: bl.Cut | None) -> bl.Cut | str:
    try:
        return bl.cut(value, STRICT, "c", before)
    except EncodeError as error:
        return str(error)


ALIKE: dict[str, tuple[Any, Any]] = {
    "bytes": (b"a", bytearray(b"a")),
    "other bytes": (b"a", memoryview(b"a")),
    "true": (1, True),
    "float": (1, 1.0),
    "zero": (0.0, -0.0),
    "tuple": ([1, "a"], (1, "a")),
    "str": ("a" * 99, Text("a" * 99)),
    "key": ({"a": 1}, {Text("a"): 1}),
    "int key": ({1: 1}, {True: 1}),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "packed": ("a" * 99, ormsgpack.Ext(1, b"a")),
    "remove": ({"id": "a"}, Remove("a")),
}
"""What equals, or is packed as, something of another type."""


class TestBefore:
    """What was there before changes nothing but the time that a list takes."""

    @given(st.lists(VALUES, max_size=20), st.data())
    def test_a_list_is_cut_as_without(self, values: list[Any], data: st.DataObject) -> None:
        before = bl.cut(values, STRICT, "c")
        edited = data.draw(
            st.one_of(
                st.just(values),
                VALUES.map(lambda new: [*values, new]),
                st.integers(0, 20).map(lambda end: values[:end]),
                st.permutations(values),
                st.lists(VALUES),
            )
        )
        assert cut_or_error(edited, before) == cut_or_error(edited, None)

    @pytest.mark.parametrize("nest", [lambda value: value, lambda value: [value], lambda value: {"k": [1, value]}])
    @pytest.mark.parametrize(("value", "alike"), ALIKE.values(), ids=ALIKE)
    @pytest.mark.parametrize("length", [1, 15, 16, 200])
    def test_what_only_seems_to_be_there_is_noticed(self, value: Any, alike: Any, nest: Any, length: int) -> None:
        held = [{"n": place} for place in range(length)]
        for place in {0, length // 2, length - 1}:
            was, new = [*held], [*held]
            was[place], new[place] = nest(value), nest(alike)
            assert cut_or_error(new, bl.cut(was, STRICT, "c")) == cut_or_error(new, None)
            assert bl.cut(was, STRICT, "c", bl.cut(was, STRICT, "c")) == bl.cut(was, STRICT, "c")

    @given(st.lists(st.sampled_from([1, "a", "b" * 99, {"id": "a"}, Remove("a"), REMOVE_ALL]), max_size=6))
    def test_so_are_runs_and_removals(self, values: list[Any]) -> None:
        before = bl.cut(values, STRICT, "c")
        assert bl.cut(values, STRICT, "c", before) == before
        assert bl.cut(values[::-1], STRICT, "c", before) == bl.cut(values[::-1], STRICT, "c")

    def test_so_is_what_another_serializer_wrote(self) -> None:
        before = bl.Cut(LIST, [bytes((bl.JSONPLUS_ELEMENT,)) + strict.strict_pack([{"a": 1}])] * 3)
        assert bl.cut([{"a": 1}] * 3, STRICT, "c", before) == bl.cut([{"a": 1}] * 3, STRICT, "c")


class TestChunks:
    def test_removals_come_back_as_they_were_put(self) -> None:
        values = [Remove("a"), {"id": "a"}, REMOVE_ALL, Remove(0), Remove(b"")]
        assert STRICT.decode_list(STRICT.encode_elements(values)) == values

    @pytest.mark.parametrize("tag", [bl.JSONPLUS_ELEMENT, bl.JSONPLUS_MSGPACK, bl.FIRST_INTERNED_TAG, bl.LAST_TAG])
    def test_chunks_of_another_serializer_are_told_from_damage(self, tag: int) -> None:
        blob = bytes((tag,)) + strict.strict_pack([1])
        for decode in (STRICT.decode, lambda blob: STRICT.decode_list([blob]), lambda blob: STRICT.decode_dict([blob])):
            with pytest.raises(CodecMismatchError):
                decode(blob)

    @given(st.integers(1, 5), st.one_of(st.binary(), VALUES.map(strict.strict_pack)))
    @example(bl.STRICT_ELEMENT, strict.strict_pack("abc"))  # not the list of three letters
    @example(bl.STRICT_ELEMENT, strict.strict_pack([]))
    @example(bl.STRICT_ENTRY, strict.strict_pack([]))
    @example(bl.STRICT_ENTRY, strict.strict_pack({}))
    @example(bl.STRICT_ENTRY, strict.strict_pack({1: 2, 3: 4}))
    @example(bl.STRICT_ENTRY, b"\x81\x91\x01\x01")  # a list for a key
    @example(bl.STRICT_REMOVAL, strict.strict_pack([1]))
    @example(bl.STRICT_OPAQUE, b"\x91" * 2000 + b"\xc0")
    @example(bl.STRICT_OPAQUE, b"\xdd\xff\xff\xff\xff")
    @example(bl.STRICT_OPAQUE, b"\xd6\xff\0\0\0\0")  # a timestamp
    def test_malformed_chunks_raise_a_checksum_error(self, tag: int, payload: bytes) -> None:
        blob = bytes((tag,)) + payload
        for read in (
            STRICT.decode,
            lambda blob: STRICT.decode_list([blob]),
            lambda blob: STRICT.decode_dict([blob]),
            strict.element_id,
            strict.entry_key,
            lambda blob: strict.removal_id(blob) if tag == bl.STRICT_REMOVAL else None,
        ):
            try:
                read(blob)
            except (ChecksumError, CodecMismatchError):
                continue

    def test_a_text_in_place_of_elements_is_damage(self) -> None:
        with pytest.raises(ChecksumError):
            STRICT.decode_list([bytes((bl.STRICT_RUN,)) + strict.strict_pack("abc")])
        with pytest.raises(ChecksumError):
            STRICT.decode_dict([bytes((bl.STRICT_ENTRY,)) + strict.strict_pack([["a", 1]])])
