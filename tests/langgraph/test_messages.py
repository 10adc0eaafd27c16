"""The messages fast path: nobody can tell its reload from the serializer's own."""

import datetime
import enum
import uuid
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from deltastore.codec.blobs import JSONPLUS_ELEMENT, JSONPLUS_MESSAGE, Cut, assemble, cut
from deltastore.langgraph import messages
from deltastore.langgraph.serializer import codec_for
from tests.langgraph.comparing import difference

SERDE = JsonPlusSerializer(allowed_msgpack_modules=None)
CODEC = codec_for(SERDE, lambda name: 32, lambda tag: "")


class Colour(enum.Enum):
    RED = "red"


class Inner(BaseModel):
    x: int = 1


@dataclass
class Point:
    x: int = 1


class Mine(HumanMessage):
    """A subclass of the user's."""


class Text(str):
    """A str that isn't exactly one."""

    __slots__ = ()


odd = st.sampled_from(
    [
        (1, 2),
        {1, 2},
        Colour.RED,
        Point(),
        Inner(),
        Text("x"),
        uuid.UUID(int=7),
        datetime.date(2026, 1, 2),
        b"\x00\xff",
        bytearray(b"x"),
        2**63,
        float("nan"),
        -0.0,
        True,
        "\ud800",
        {1: 2},
        {"tool_calls": 1},
        HumanMessage("in", id="0"),
    ]
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
anything = plain | odd
kwargs = st.dictionaries(st.sampled_from(["refusal", "tool_calls", "parsed", "x"]), anything, max_size=2)
blocks = st.lists(
    st.text(max_size=5)
    | st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}, optional={"x": anything}),
    max_size=3,
)
texts = st.text(max_size=20)
names = st.none() | st.text(max_size=5)
calls = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=5), "args": st.dictionaries(st.text(max_size=3), anything, max_size=2), "id": names},
        optional={"type": st.just("tool_call"), "extras": st.just({"a": 1}), "index": st.just(0)},
    ),
    max_size=2,
)
raw_calls = st.just([{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}, "type": "function"}])
invalid = st.lists(st.just({"name": "f", "args": "{", "id": "1", "error": "bad"}), max_size=1)
details = st.dictionaries(
    st.sampled_from(["audio", "cache_read", "cache_creation", "reasoning", "more"]), st.integers(0, 9), max_size=3
)
usage = st.none() | st.fixed_dictionaries(
    {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9), "total_tokens": st.integers(0, 9)},
    optional={"input_token_details": details, "output_token_details": details, "more": st.just(1)},
)
base = {
    "additional_kwargs": kwargs,
    "response_metadata": st.dictionaries(texts, anything, max_size=2),
    "name": names,
    "id": names | st.just("1"),
}
extra = st.dictionaries(st.sampled_from(["extra_field", "other"]), plain, max_size=1)


def _made(cls: type[BaseMessage], fields: dict[str, Any], more: dict[str, Any]) -> BaseMessage:
    try:
        return cls(**fields, **more)
    except (TypeError, ValueError):  # nobody can make such a message either
        reject()


def made(cls: type[BaseMessage], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[BaseMessage]:
    given_fields = st.fixed_dictionaries({"content": texts | blocks}, optional=base | fields)
    return st.builds(_made, st.just(cls), given_fields, st.just({}) | extra)


ai = {
    "tool_calls": calls,
    "invalid_tool_calls": invalid,
    "usage_metadata": usage,
    "additional_kwargs": kwargs | st.fixed_dictionaries({"tool_calls": raw_calls}),
}
any_message = st.one_of(
    made(HumanMessage),
    made(SystemMessage),
    made(Mine),
    made(HumanMessageChunk),
    made(AIMessage, **ai),
    made(AIMessageChunk, **ai),
    st.builds(
        _made,
        st.just(ToolMessage),
        st.fixed_dictionaries(
            {"content": texts | blocks, "tool_call_id": texts},
            optional=base | {"artifact": anything, "status": st.sampled_from(["success", "error"])},
        ),
        st.just({}) | extra,
    ),
    texts.map(lambda text: ChatMessage(content=text, role="x")),
    texts.map(lambda text: FunctionMessage(content=text, name="f")),
    texts.map(lambda text: RemoveMessage(id=text)),
)


@st.composite
def mutated(draw: st.DrawFn) -> BaseMessage:
    """A message whose fields were set, or removed, after it was made: nothing validates that."""
    message = draw(any_message)
    name = draw(st.sampled_from(sorted(message.__dict__)))
    if draw(st.booleans()):
        message.__dict__[name] = draw(anything)
    else:
        message.__dict__["foreign"] = draw(plain)
    return message


@settings(max_examples=settings().max_examples * 3)
@given(st.lists(any_message | mutated() | plain, min_size=1, max_size=4))
def test_a_reload_is_indistinguishable_from_the_serializers_own(values: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pydantic's word on fields that were set to something odd
        try:
            expected = SERDE.loads_typed(SERDE.dumps_typed(values))
        except Exception:  # noqa: BLE001 - whatever it raises, LangGraph can't store it either
            return
        parts = cut(values, CODEC, "messages")
        assert difference(expected, assemble(parts.kind, parts.blobs, CODEC)) is None


def tag_of(message: BaseMessage) -> int:
    return cut([message], CODEC, "messages").blobs[0][0]


def test_what_agents_mostly_hold_takes_the_fast_path() -> None:
    fast = [
        HumanMessage("hi", id="1"),
        HumanMessage([{"type": "text", "text": "hi"}, "there"]),
        SystemMessage("be brief"),
        AIMessage("ok", id="2", response_metadata={"model": "m"}, additional_kwargs={"refusal": None}),
        AIMessage("", tool_calls=[{"name": "f", "args": {"a": [1]}, "id": "c"}]),
        AIMessage("", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
        ToolMessage("42", tool_call_id="c", artifact={"rows": [1, 2]}, status="error"),
    ]
    assert [tag_of(message) for message in fast] == [JSONPLUS_MESSAGE] * len(fast)


@pytest.mark.parametrize(
    "message",
    [
        Mine("hi"),
        HumanMessageChunk("hi"),
        HumanMessage("hi", extra_field=1),
        HumanMessage("hi", additional_kwargs={"when": datetime.date(2026, 1, 2)}),
        HumanMessage("hi", additional_kwargs={"pair": (1, 2)}),
        HumanMessage("\ud800"),
        AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": "bad"}]),
        AIMessage("", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "more": 4}),
        ToolMessage([{"type": "text", "text": "x"}], tool_call_id="c"),
        RemoveMessage(id="1"),
    ],
    ids=lambda message: f"{type(message).__name__}-{str(message.content)[:9]!a}",
)
def test_whatever_a_reload_might_change_steps_aside(message: BaseMessage) -> None:
    assert tag_of(message) == JSONPLUS_ELEMENT


def test_a_serializer_with_its_own_reader_sees_every_message() -> None:
    serde = JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: "read by the hook")
    codec = codec_for(serde, lambda name: 32, lambda tag: "")
    parts = cut([HumanMessage("hi")], codec, "messages")
    assert assemble(parts.kind, parts.blobs, codec) == ["read by the hook"]


def test_messages_of_a_class_with_other_fields_are_validated_on_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store outlives the langchain-core that wrote it."""
    parts = cut([HumanMessage("hi", id="1")], CODEC, "messages")
    known = messages._BY_NUMBER[1]
    monkeypatch.setitem(messages._BY_NUMBER, 1, known._replace(current=False))
    (found,) = assemble(parts.kind, parts.blobs, CODEC)
    assert difference(SERDE.loads_typed(SERDE.dumps_typed(HumanMessage("hi", id="1"))), found) is None


def test_pickle_fallback_stores_the_whole_value_as_the_serializer_does() -> None:
    serde = JsonPlusSerializer(pickle_fallback=True)
    interned: dict[str, int] = {}
    codec = codec_for(
        serde, lambda name: interned.setdefault(name, 32 + len(interned)), lambda tag: list(interned)[tag - 32]
    )
    value = [1, {"z": 1 + 2j}]
    parts: Cut = cut(value, codec, "n")
    assert assemble(parts.kind, parts.blobs, codec) == value
    assert len(parts.blobs) == 1
