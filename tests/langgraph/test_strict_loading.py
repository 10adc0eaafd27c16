"""Strict loading: a class that isn't on the allowlist is an error naming it and the setting, never a dict."""

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deltastore import Store, TypeRefusedError
from deltastore.langgraph import DeltaSaver
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config


@dataclass
class Mine:
    """A class of the user's."""

    x: int = 1


@pytest.fixture
def store() -> Store:
    return Store(MemoryStorage())


def put(saver: DeltaSaver, value: Any) -> None:
    saver.put(config("t"), checkpoint("1", {"c": "1"}, {"c": value}), {}, {"c": "1"})


@pytest.mark.parametrize(
    "value", [Mine(), [Mine()], {"k": Mine()}, [HumanMessage("hi", additional_kwargs={"m": [1]}), Mine()]]
)
def test_a_refused_type_is_an_error_naming_type_and_setting(store: Store, value: Any) -> None:
    saver = DeltaSaver(store, strict=True)
    put(saver, value)
    with pytest.raises(TypeRefusedError, match=r"test_strict_loading\.Mine.*allowed_msgpack_modules"):
        saver.get_tuple(config("t"))


def test_what_the_allowlist_names_comes_back(store: Store) -> None:
    put(DeltaSaver(store, strict=True), [Mine(2)])
    serde = JsonPlusSerializer(allowed_msgpack_modules=[(Mine.__module__, "Mine")])
    found = DeltaSaver(store, serde=serde, strict=True).get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"c": [Mine(2)]}


def test_an_extended_allowlist_stays_strict(store: Store) -> None:
    saver = DeltaSaver(store, strict=True)
    put(saver, [Mine(2)])
    clone = saver.with_allowlist([(Mine.__module__, "Mine")])
    found = clone.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"c": [Mine(2)]}
    with pytest.raises(TypeRefusedError):
        saver.get_tuple(config("t"))


def test_messages_and_plain_data_load_strictly(store: Store) -> None:
    saver = DeltaSaver(store, strict=True)
    put(saver, [HumanMessage("hi", id="1"), {"a": (1, 2)}, {1, 2}])
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"c": [HumanMessage("hi", id="1"), {"a": [1, 2]}, {1, 2}]}


def test_a_serializer_given_later_is_used(store: Store) -> None:
    saver = DeltaSaver(store)
    put(saver, [Mine(2)])
    saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"c": [{"x": 2}]}  # as LangGraph degrades it without strict
