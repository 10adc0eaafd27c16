"""The generic decoder: what codecs encoded, without classes; bytes that are no such thing raise ChecksumError."""

import contextlib
import re
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PosixPath
from typing import Any, NamedTuple

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from deltastore.codec import blobs as bl
from deltastore.codec.blobs import assemble, cut
from deltastore.codec.generic import SNAPSHOT, Built, GenericCodec, Sealed
from deltastore.codec.messageforms import FORMS, MODULE
from deltastore.codec.strict import STRICT
from deltastore.errors import ChecksumError
from deltastore.langgraph.serializer import codec_for

NAMES = {40: "m.Serializer\x001\x00opaque\x00msgpack+aes", 41: "odd"}
GENERIC = GenericCodec(NAMES.__getitem__)
JSONPLUS = codec_for(JsonPlusSerializer(), {"": 40}.__getitem__, NAMES.__getitem__)


def shown(value: Any) -> Any:
    made = cut(value, JSONPLUS, "c")
    return assemble(made.kind, made.blobs, GENERIC)


class Pair(NamedTuple):
    a: int
    b: Any


@dataclass
class Data:
    x: Any


HERE = Data.__module__


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"x", b"x"),
        (bytearray(b"x"), bytearray(b"x")),
        ([1, 2.5, "a", None, True], [1, 2.5, "a", None, True]),
        ({1: "a", "b": [Data(1)]}, {1: "a", "b": [Built(f"{HERE}.Data", {"x": 1})]}),
        (Data([Data(2)]), Built(f"{HERE}.Data", {"x": [Built(f"{HERE}.Data", {"x": 2})]})),
        (Pair(1, {"c": 2}), Built(f"{HERE}.Pair", {"a": 1, "b": {"c": 2}})),
        (uuid.UUID(int=1), Built("uuid.UUID", uuid.UUID(int=1).hex)),
        (Decimal("1.50"), Built("decimal.Decimal", "1.50")),
        (PosixPath("/a/b"), Built("pathlib.PosixPath", ("/", "a", "b"))),
        (re.compile("a+"), Built("re.compile", ("a+", 32))),
        ({3}, Built("builtins.set", [3])),
        (deque([1]), Built("collections.deque", [1])),
        (Send("node", {"a": 1}), Built("langgraph.types.Send", ("node", {"a": 1}))),
        (_DeltaSnapshot([1, 2]), Built(SNAPSHOT, [1, 2])),
        (_DeltaSnapshot({"a": Data(1)}), Built(SNAPSHOT, {"a": Built(f"{HERE}.Data", {"x": 1})})),
        (_DeltaSnapshot("text"), Built(SNAPSHOT, "text")),
    ],
)
def test_what_langgraph_stores(value: Any, expected: Any) -> None:
    found = shown(value)
    assert type(found) is type(expected)
    assert found == expected


def test_a_time_names_its_method() -> None:
    found = shown(datetime(2026, 1, 2, tzinfo=UTC))
    assert isinstance(found, Built)
    assert (found.name, found.parts) == ("datetime.datetime.fromisoformat", "2026-01-02T00:00:00+00:00")


@pytest.mark.parametrize(
    "message",
    [HumanMessage("a", id="1"), AIMessage("b"), SystemMessage("c"), ToolMessage("d", tool_call_id="2")],
)
def test_messages_have_the_fields_that_the_fast_path_stores(message: Any) -> None:
    (found,) = shown([message])
    assert found.name == f"{MODULE}.{type(message).__name__}"
    assert found.parts == {name: getattr(message, name) for name in found.parts}
    assert any(form.fields == tuple(found.parts) for form in FORMS.values())


@given(st.recursive(st.none() | st.integers(0, 9) | st.text() | st.binary(), st.lists, max_leaves=9))
def test_plain_data_of_either_api_is_itself(value: Any) -> None:
    for codec in (STRICT, JSONPLUS):
        made = cut(value, codec, "c")
        assert assemble(made.kind, made.blobs, GENERIC) == value


def test_a_foreign_serializers_value_is_sealed() -> None:
    found = GENERIC.decode(bytes([40]) + b"abc")
    assert found == Sealed("m.Serializer", "msgpack+aes", 3, found.digest)
    assert found == GENERIC.decode(bytes([40]) + b"abc") != GENERIC.decode(bytes([40]) + b"abd")
    odd = GENERIC.decode(bytes([41]) + b"abc")
    assert odd == Sealed("odd", "", 3, odd.digest)


@given(st.integers(1, 31), st.binary(max_size=40))
def test_any_bytes_decode_or_raise_a_checksum_error(tag: int, data: bytes) -> None:
    blob = bytes([tag]) + data
    for read in (GENERIC.decode, lambda blob: GENERIC.decode_list([blob]), lambda blob: GENERIC.decode_dict([blob])):
        with contextlib.suppress(ChecksumError):
            read(blob)


@pytest.mark.parametrize("code", range(-128, 128))
def test_extensions_of_any_number_are_named(code: int) -> None:
    found = GENERIC.decode(bytes([bl.JSONPLUS_MSGPACK, 0xD4, code & 0xFF]) + ormsgpack.packb(7))
    assert isinstance(found, Built)


def test_objects_may_be_keys() -> None:
    assert {Built("m.C", [1]): 1}[Built("m.C", [1])] == 1
