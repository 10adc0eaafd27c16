"""Values that LangGraph's serializer treats as wholes and the store doesn't: snapshots, and messages on their own."""

import warnings
from collections import OrderedDict, deque
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from deltastore.codec import blobs as bl
from deltastore.codec.blobs import assemble, cut
from deltastore.codec.records import DICT, LIST, OPAQUE, SNAPSHOT_DICT, SNAPSHOT_LIST
from deltastore.codec.strict import STRICT
from deltastore.errors import CodecMismatchError, EncodeError
from deltastore.langgraph.serializer import codec_for
from tests.codec.test_strict import ALIKE
from tests.langgraph.comparing import difference
from tests.langgraph.test_messages import CODEC, SERDE, any_message, anything, mutated, plain

KEYS = st.one_of(
    st.text(max_size=4),
    st.integers(-3, 3),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),  # no look-up finds one
    st.binary(max_size=2),
)
PARTS = st.one_of(anything, any_message, mutated())
HELD = st.one_of(
    st.lists(PARTS, max_size=4),
    st.lists(plain, max_size=4),
    st.lists(st.integers() | st.text(max_size=100), max_size=30),
    st.dictionaries(KEYS, PARTS, max_size=4),
    PARTS,
    st.builds(_DeltaSnapshot, st.lists(PARTS, max_size=2)),
)


class Named(_DeltaSnapshot):
    """A snapshot that isn't exactly one."""

    __slots__ = ()


class Items(list[Any]):
    """A list that isn't exactly one."""


def round_trip(value: Any) -> Any:
    return SERDE.loads_typed(SERDE.dumps_typed(value))


@given(HELD)
@example([])
@example({})
@example({1: "a", "1": "b", 1.5: "c"})
@example(list(range(3000)))
@example(["x" * 64, "y" * 65])
@example(None)
def test_a_snapshot_comes_back_as_the_serializers_round_trip_gives_it(held: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pydantic's word on fields that were set to something odd
        for value in (_DeltaSnapshot(held), [_DeltaSnapshot(held)], held):
            try:
                expected = round_trip(value)
            except Exception:  # noqa: BLE001 - whatever it raises, LangGraph can't store it either
                return
            made = cut(value, CODEC, "channel")
            assert difference(expected, assemble(made.kind, made.blobs, CODEC)) is None


@given(HELD)
def test_a_snapshot_has_the_chunks_of_what_it_holds(held: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            bare = cut(held, CODEC, "channel")
        except EncodeError:
            return
        made = cut(_DeltaSnapshot(held), CODEC, "channel")
    if bare.kind in (LIST, DICT):
        assert made.kind == {LIST: SNAPSHOT_LIST, DICT: SNAPSHOT_DICT}[bare.kind]
        assert (made.blobs, made.keys) == (bare.blobs, bare.keys)
    else:
        assert made.kind == OPAQUE


@pytest.mark.parametrize(
    "value",
    [
        _DeltaSnapshot(None),
        _DeltaSnapshot("text"),
        _DeltaSnapshot({"a"}),
        _DeltaSnapshot((1, 2)),
        _DeltaSnapshot(deque([1])),
        _DeltaSnapshot(Items([1])),
        _DeltaSnapshot(OrderedDict(a=1)),
        _DeltaSnapshot(HumanMessage("hi", id="1")),
        _DeltaSnapshot(_DeltaSnapshot([1])),
        Named([1]),
    ],
    ids=repr,
)
def test_any_other_snapshot_is_one_chunk(value: Any) -> None:
    made = cut(value, CODEC, "channel")
    assert (made.kind, len(made.blobs)) == (OPAQUE, 1)
    assert difference(round_trip(value), assemble(made.kind, made.blobs, CODEC)) is None


def test_a_snapshot_that_is_read_twice_is_two_objects() -> None:
    made = cut(_DeltaSnapshot([[1]]), CODEC, "channel")
    first, second = (assemble(made.kind, made.blobs, CODEC) for _ in range(2))
    assert first == second
    assert first.value is not second.value
    assert first.value[0] is not second.value[0]


def test_what_a_snapshot_cannot_hold_is_named_by_its_path() -> None:
    with pytest.raises(EncodeError) as caught:
        cut(_DeltaSnapshot({"a": [1, object()]}), CODEC, "files")
    assert (caught.value.channel, caught.value.path) == ("files", "[0]['a'][1]")


@pytest.mark.parametrize("held", [[1], [HumanMessage("hi")], {"a": 1}, [], {}], ids=repr)
def test_other_serializers_refuse_snapshots(held: Any) -> None:
    class Other(JsonPlusSerializer):
        """Not exactly LangGraph's, so values are stored whole."""

    other = codec_for(Other(), lambda name: 32, lambda tag: "")
    made = cut(_DeltaSnapshot(held), CODEC, "channel")
    for codec in (STRICT, other):
        with pytest.raises(CodecMismatchError, match="JsonPlus"):
            assemble(made.kind, made.blobs, codec)
    whole = cut(_DeltaSnapshot(held), other, "channel")
    assert whole.kind == OPAQUE


def test_a_serializer_with_its_own_reader_sees_every_snapshot_and_message() -> None:
    serde = JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: f"extension {code}")
    codec = codec_for(serde, lambda name: 32, lambda tag: "")
    for value, expected in ((_DeltaSnapshot([1]), "extension 7"), (HumanMessage("hi"), "extension 5")):
        made = cut(value, codec, "channel")
        assert assemble(made.kind, made.blobs, codec) == expected


def test_pickle_fallback_stores_a_snapshot_whole() -> None:
    interned: dict[str, int] = {}
    codec = codec_for(
        JsonPlusSerializer(pickle_fallback=True),
        lambda name: interned.setdefault(name, 32 + len(interned)),
        lambda tag: list(interned)[tag - 32],
    )
    value = _DeltaSnapshot([HumanMessage("hi"), {"z": 1 + 2j}])
    made = cut(value, codec, "channel")
    assert made.kind == OPAQUE
    assert difference(value, assemble(made.kind, made.blobs, codec)) is None


@pytest.mark.parametrize("message", [HumanMessage("hi", id="1"), AIMessage("ok", id="2")], ids=repr)
def test_a_message_on_its_own_is_the_chunk_that_it_is_in_a_list(message: Any) -> None:
    alone, listed = cut(message, CODEC, "messages"), cut([message], CODEC, "messages")
    assert (alone.kind, listed.kind) == (OPAQUE, LIST)
    assert alone.blobs == listed.blobs
    assert alone.blobs[0][0] == bl.JSONPLUS_MESSAGE
    assert difference(round_trip(message), assemble(alone.kind, alone.blobs, CODEC)) is None


def chunks(value: Any, before: bl.Cut | None = None) -> tuple[int, list[bytes]] | str:
    try:
        made = cut(value, CODEC, "c", before)
    except EncodeError as error:
        return str(error)
    return made.kind, made.blobs


@given(st.lists(st.one_of(plain, PARTS), max_size=12), st.data())
def test_what_a_list_was_changes_nothing_but_the_time_that_it_takes(values: list[Any], data: st.DataObject) -> None:
    if type(chunks(values)) is str:
        return
    before = cut(values, CODEC, "c")
    edited = data.draw(
        st.one_of(
            st.just(values),
            PARTS.map(lambda new: [*values, new]),
            st.integers(0, 12).map(lambda end: values[:end]),
            st.permutations(values),
            st.lists(PARTS, max_size=4),
        )
    )
    assert chunks(edited, before) == chunks(edited)


@pytest.mark.parametrize("nest", [lambda value: value, lambda value: [value], lambda value: {"k": [1, value]}])
@pytest.mark.parametrize(("value", "alike"), ALIKE.values(), ids=ALIKE)
@pytest.mark.parametrize("length", [1, 15, 16, 200])
def test_plain_data_that_only_seems_to_be_there_is_noticed(value: Any, alike: Any, nest: Any, length: int) -> None:
    held = [{"role": "user", "n": place} for place in range(length)]
    for place in {0, length // 2, length - 1}:
        was, new = [*held], [*held]
        was[place], new[place] = nest(value), nest(alike)
        before = cut(was, CODEC, "c")
        assert chunks(new, before) == chunks(new)
        assert chunks(was, before) == chunks(was)


def test_plain_data_that_was_changed_in_place_is_noticed() -> None:
    values = [{"role": "user", "parts": [{"text": f"part {number}"}]} for number in range(300)]
    before = cut(values, CODEC, "c")
    values[130]["parts"][0]["text"] = "another"
    assert chunks(values, before) == chunks(values)
    assert chunks(values) != (before.kind, before.blobs)
