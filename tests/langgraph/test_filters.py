"""Metadata filters: values are compared as they are stored, type by type at every level."""

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deltastore import EncodeError, InvalidInputError, Store, TypeRefusedError
from deltastore.langgraph import DeltaSaver
from deltastore.langgraph.filters import matches
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config
from tests.langgraph.test_saver import Xor
from tests.langgraph.test_strict_loading import Mine
from tests.raw import rows_of

SERDES = [JsonPlusSerializer, lambda: EncryptedSerializer(Xor())]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, -0.0, 1.0, math.nan]), st.sampled_from("01é")
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from("ab"), st.booleans(), st.integers(0, 1)), inner, max_size=3),
    ),
    max_leaves=6,
)
metadatas = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def form(value: Any) -> Any:
    """A model of what a value is to a filter: a text that equal values share, and others don't."""
    if isinstance(value, list):
        return "[" + ",".join(map(form, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{form(key)}:{form(item)}" for key, item in value.items())) + "}"
    return f"{type(value).__name__}({value + 0 if isinstance(value, float) else value!r})"


def model(wanted: dict[str, Any], metadata: dict[str, Any]) -> bool:
    return all(form(metadata.get(key)) == form(value) for key, value in wanted.items())


def put(saver: DeltaSaver, id_: str, metadata: dict[str, Any]) -> None:
    saver.put(config("t"), checkpoint(id_, {}, {}), metadata, {})  # type: ignore[arg-type]


def found(saver: DeltaSaver, wanted: Any) -> list[str]:
    return [one.checkpoint["id"] for one in saver.list(config("t"), filter=wanted)]


def saver_of(*metadatas_: dict[str, Any], serde: Any = None) -> DeltaSaver:
    saver = DeltaSaver(Store(MemoryStorage()), serde=serde)
    for number, metadata in enumerate(metadatas_):
        put(saver, str(number), metadata)
    return saver


@given(metadatas, metadatas)
@example({"a": {True: 0}}, {"a": {1: 0}})
@example({"a": [math.nan]}, {"a": [math.nan]})
def test_matching_is_equality_of_types_and_values(wanted: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert matches(wanted, metadata) == model(wanted, metadata)
    assert matches(wanted, wanted)


@given(st.lists(metadatas, min_size=1, max_size=5), metadatas)
def test_list_gives_what_the_model_says(stored: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    expected = [str(number) for number, metadata in enumerate(stored) if model(wanted, metadata)]
    assert found(saver_of(*stored), wanted) == expected[::-1]


@pytest.mark.parametrize("make", SERDES)
@pytest.mark.parametrize(
    "stored",
    [
        True,
        1,
        1.0,
        "1",
        b"1",
        "5",
        5,
        [1, 2],
        [2, 1],
        [True, 2],
        {"a": 1, "b": [1]},
        {"a": True, "b": [1]},
        {"a": 1, "b": [1], "c": None},
        {"a": {"b": {"c": 1.0}}},
        math.nan,
        datetime(2026, 3, 7, tzinfo=UTC),
        {1, 2},
        {True, 2},
        "中文 😀",
        "",
    ],
    ids=repr,
)
def test_a_value_matches_itself_and_nothing_like_it(make: Any, stored: Any) -> None:
    others = [True, 1, 1.0, "1", b"1", 5, "5", [1, 2], [2, 1], {"a": 1}, {"a": 1, "b": [1]}, {1, 2}, [], {}, "", 0]
    saver = saver_of({"k": stored}, *({"k": other} for other in others), {"other": stored}, serde=make())
    expected = {"0"} | {str(number + 1) for number, other in enumerate(others) if form(other) == form(stored)}
    assert set(found(saver, {"k": stored})) == expected


def test_dicts_have_no_order() -> None:
    saver = saver_of({"k": {"a": 1, "b": {"c": 2, "d": 3}}})
    assert found(saver, {"k": {"b": {"d": 3, "c": 2}, "a": 1}}) == ["0"]


@pytest.mark.parametrize("make", SERDES)
def test_a_filter_is_stored_as_metadata_is(make: Any) -> None:
    """A tuple became a list when it was put, and text lost its NUL characters."""
    saver = saver_of({"k": (1, (2,)), "text": "a\0b", "deep": {"x": "a\0b"}, "error": ValueError("x")}, serde=make())
    for wanted in (
        {"k": (1, (2,))},
        {"k": [1, [2]]},
        {"text": "a\0b"},
        {"text": "ab"},
        {"deep": {"x": "a\0b"}},
        {"error": ValueError("x")},
        {"error": "ValueError('x')"},
    ):
        assert found(saver, wanted) == ["0"], wanted
    assert found(saver, {"deep": {"x": "ab"}}) == []


def test_none_matches_what_is_none_or_missing() -> None:
    saver = saver_of({"k": None}, {}, {"k": 0}, {"k": False}, {"k": ""}, {"k": {"x": None}}, {"k": {}})
    reference = InMemorySaver()
    for number, metadata in enumerate([{"k": None}, {}, {"k": 0}]):
        reference.put(config("t"), checkpoint(str(number), {}, {}), metadata, {})  # type: ignore[arg-type]
    assert found(saver, {"k": None}) == ["1", "0"]
    assert [one.checkpoint["id"] for one in reference.list(config("t"), filter={"k": None})] == ["1", "0"]
    assert found(saver, {"k": {"x": None}}) == ["5"]
    assert found(saver, {"k": {}}) == ["6"]


def test_an_unknown_key_matches_nothing() -> None:
    assert found(saver_of({"k": 1}), {"other": 1}) == []
    assert found(saver_of({"k": 1}), {"k": 1, "other": 1}) == []


def test_no_filter_matches_all() -> None:
    saver = saver_of({"k": 1}, {})
    assert found(saver, None) == found(saver, {}) == ["1", "0"]


@pytest.mark.parametrize("wanted", [[], [("k", 1)], "k", 0, {"k"}, b""])
def test_a_filter_is_a_dict(wanted: Any) -> None:
    saver = saver_of({"k": 1})
    with pytest.raises(InvalidInputError, match="filter is a dict"):
        found(saver, wanted)

    async def first() -> None:
        async for _ in saver.alist(config("t"), filter=wanted):
            pass

    with pytest.raises(InvalidInputError, match="filter is a dict"):
        asyncio.run(first())


@pytest.mark.parametrize("make", SERDES)
@pytest.mark.parametrize("value", [object(), 2**64, {"a": lambda: 0}, {"\ud800": 1}])
def test_what_cannot_be_stored_cannot_be_asked_for(make: Any, value: Any) -> None:
    with pytest.raises(EncodeError, match="'bad one'") as caught:
        found(saver_of({"k": 1}, serde=make()), {"k": 1, "bad one": value})
    assert (caught.value.channel, caught.value.path) == ("filter", "['bad one']")


def test_a_refused_class_cannot_be_asked_for() -> None:
    saver = DeltaSaver(Store(MemoryStorage()), strict=True)
    with pytest.raises(TypeRefusedError, match="Mine"):
        found(saver, {"k": Mine()})


@pytest.mark.parametrize("make", SERDES)
def test_asking_writes_nothing(make: Any) -> None:
    saver = DeltaSaver(Store(MemoryStorage()), serde=make())
    before = rows_of(saver.store.log.storage)
    assert found(saver, {"k": {1, 2}, "b": b"x"}) == []
    assert rows_of(saver.store.log.storage) == before


def test_changing_the_filter_while_listing_changes_nothing() -> None:
    saver, wanted = saver_of({"k": 1}, {"k": 1}), {"k": 1}
    items = saver.list(config("t"), filter=wanted)
    next(items)
    wanted["k"] = 2
    assert [one.checkpoint["id"] for one in items] == ["0"]
