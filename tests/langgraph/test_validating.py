"""`validate=True`: what comes back otherwise is warned of by channel, path and types, and stored all the same."""

import asyncio
import enum
import math
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt
from pydantic import BaseModel, Field, PrivateAttr

from deltastore import DegradedValueWarning, EncodeError, Store
from deltastore.langgraph import DeltaSaver
from deltastore.langgraph.differing import differences
from deltastore.langgraph.validating import MAX_WARNINGS
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config, difference
from tests.langgraph.test_messages import any_message
from tests.langgraph.test_saver import Xor
from tests.langgraph.test_strict_loading import Mine
from tests.raw import rows_of

Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - as users write them
NEW_YORK = ZoneInfo("America/New_York")
CET = timezone(timedelta(hours=1), "CET")
NAIVE = datetime.fromisoformat("2026-11-01T01:30")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Model(BaseModel):
    x: Any = None
    hidden: int = Field(default=0, exclude=True)
    _private: int = PrivateAttr(default=0)


@dataclass
class Point:
    x: Any = 1
    rest: list[Any] = field(default_factory=list)


def saver_of(**options: Any) -> DeltaSaver:
    return DeltaSaver(Store(MemoryStorage()), validate=True, **options)


def put(saver: DeltaSaver, value: Any, metadata: Any = None) -> list[tuple[str, str, str]]:
    """Put a value and return the warnings: channel, path, and the message from the first type on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saver.put(config("t"), checkpoint("1", {"c": "1"}, {"c": value}), metadata or {}, {"c": "1"})
    return texts(caught)


def texts(caught: list[warnings.WarningMessage]) -> list[tuple[str, str, str]]:
    found = [one.message for one in caught if isinstance(one.message, DegradedValueWarning)]
    return [(one.channel, one.path, str(one).split(": ", 1)[1]) for one in found]


@pytest.mark.parametrize(
    ("value", "path", "was", "becomes"),
    [
        ((1, 2), "", "tuple", "list"),
        ([0, {"k": [(1,)]}], "[1]['k'][0]", "tuple", "list"),
        ({(1, 2), (3, 4)}, "", "set", "list"),
        ({"k": frozenset({(1, 2)})}, "['k']", "frozenset", "list"),
        (ValueError("x"), "", "ValueError", "str"),
        (defaultdict(int), "", "defaultdict", "dict"),
        (Counter("a"), "", "Counter", "dict"),
        ([OrderedDict(a=1)], "[0]", "OrderedDict", "dict"),
        (Text("x"), "", "Text", "str"),
        ({"k": bytearray(b"x")}, "['k']", "bytearray", "bytes"),
        (deque([1], maxlen=3), ".maxlen", "int", "NoneType"),
        (deque([(1,)]), "[0]", "tuple", "list"),
        (datetime(2026, 3, 7, 9, tzinfo=NEW_YORK), ".tzinfo", "ZoneInfo", "timezone"),
        (datetime(2026, 3, 7, tzinfo=CET), ".tzinfo", "timezone", "another timezone"),
        (NAIVE.replace(fold=1), ".fold", "int 1", "int 0"),
        ({NAIVE: 1}, ".keys()[0]", "datetime", "str"),
        ({UUID(int=1): (1,)}, ".keys()[0]", "UUID", "str"),
        ({Colour.RED: 1}, ".keys()[0]", "Colour", "str"),
        ({Level.LOW: 1}, ".keys()[0]", "Level", "int"),
        ({Colour.RED: 1, "red": 2}, "[<Colour.RED: 'red'>]", "int", "nothing"),
        ("\ud800", "", "str", "another str"),
        ({"text": "\ud83d", "type": "constructor", "lc": 2, "id": ["os", "system"]}, "['text']", "str", "another str"),
        (Pair(1, (2,)), "[1]", "tuple", "list"),
        (Point((1,)), ".x", "tuple", "list"),
        ([Point(rest=[Point({1: (1,)})])], "[0].rest[0].x[1]", "tuple", "list"),
        (Model(x=(1,)), ".x", "tuple", "list"),
        (Model(x=Point()), ".x", "Point", "dict"),
        (Model(hidden=5), ".hidden", "int 5", "int 0"),
        (Send("n", {"x": (1,)}), ".arg['x']", "tuple", "list"),
        ([[Interrupt(value=(1,), id="i")]], "[0][0].value", "tuple", "list"),
        ([HumanMessage("x", additional_kwargs={"a": (1,)})], "[0].additional_kwargs['a']", "tuple", "list"),
    ],
    ids=lambda value: repr(value)[:60],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_is_lost_is_named(value: Any, path: str, was: str, becomes: str) -> None:
    found = put(saver_of(), value)
    assert found[0] == ("c", path, f"{was} at c{path} comes back as {becomes}")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, True, 1.0, None, "x", b"x", -0.0, math.nan, {"k": [math.inf, {math.nan}]}],
        {1: 1, True + 1: 2, None: 3, 1.5: 4, (1, 2): 0, "1": [], "": {}},
        {frozenset({1}), "x"},
        deque([1, 2]),
        [datetime(2026, 3, 7, tzinfo=UTC), NAIVE, time(1, tzinfo=NEW_YORK, fold=1), NEW_YORK],
        [Decimal("1.10"), Decimal("NaN"), UUID(int=1), Path("a/b"), Colour.RED, Level.LOW, timedelta(1)],
        Pair(1, [2]),
        Point([1], [Point({1: {2}})]),
        Model(x=[1, {"k": 2}]),
        [Send("n", {"x": [1]}), Interrupt(value={"q": 1}, id="i")],
        list(range(5000)),
        [
            HumanMessage("hi"),
            AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "1"}]),
            ToolMessage("x", tool_call_id="1", artifact={"a": [1]}),
            SystemMessage(["a", {"type": "text", "text": "b"}]),
            AIMessageChunk("x", id="1"),
        ],
        HumanMessage("alone", id="1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_comes_back_is_not_warned_of(value: Any) -> None:
    metadata = {"source": "loop", "step": 1, "parents": {}, "value": value}
    assert put(saver_of(), value, metadata) == []
    assert put(saver_of(serde=EncryptedSerializer(Xor())), value, metadata) == []


@given(any_message)
def test_messages_that_reload_equal_are_not_warned_of(message: Any) -> None:
    """Which fields count as set isn't part of it: a reload sets them all."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        reloaded = serde.loads_typed(serde.dumps_typed(message))
        same = type(reloaded) is type(message) and difference(message.__dict__, reloaded.__dict__) is None
    assert same == (list(differences(message, reloaded)) == [])


def test_bytearrays_that_stand_alone_come_back() -> None:
    assert put(saver_of(), bytearray(b"x")) == []


def test_metadata_and_writes_are_looked_at_too() -> None:
    saver = saver_of()
    found = put(saver, [1], {"source": "loop", "m": {"k": (1,)}})
    assert found == [("metadata", "['m']['k']", "tuple at metadata['m']['k'] comes back as list")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saver.put_writes(config("t", "1"), [("a", 1), ("b", [(1,)])], "task")
        asyncio.run(saver.aput_writes(config("t", "1"), [("d", {1, (2,)})], "task 2"))
    assert [(channel, path) for channel, path, _ in texts(caught)] == [("b", "[0]"), ("d", "")]
    assert {one.filename for one in caught} >= {__file__}


class Asked(TypedDict):
    answer: Any


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_langgraph_wraps_itself_is_not_warned_of(durability: Any) -> None:
    """Interrupts in a tuple, and errors, which become text; a warning would be an error here."""

    def ask(state: Asked) -> Asked:
        answer = {"answer": interrupt({"question": [1]})}
        if durability != "exit":
            raise ValueError(answer)
        return Asked(**answer)

    builder = StateGraph(Asked)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver_of())
    graph.invoke({"answer": None}, config("t"), durability=durability)
    with nullcontext() if durability == "exit" else pytest.raises(ValueError, match="yes"):
        graph.invoke(Command(resume="yes"), config("t"), durability=durability)


def test_what_an_interrupt_and_its_answer_hold_is_looked_at() -> None:
    saver = saver_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saver.put_writes(config("t", "1"), [(INTERRUPT, (Interrupt(value={"q": (1,)}, id="i"),))], "task")
        saver.put_writes(config("t", "1"), [(RESUME, [(1,)])], "task")
    assert [(channel, path) for channel, path, _ in texts(caught)] == [(INTERRUPT, "[0].value['q']"), (RESUME, "[0]")]


def test_the_value_is_stored_all_the_same() -> None:
    checked, plain = saver_of(), DeltaSaver(Store(MemoryStorage()))
    for saver in (checked, plain):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegradedValueWarning)
            saver.put(config("t"), checkpoint("1", {"c": 1}, {"c": [(1, 2)]}), {"x": (1,)}, {"c": 1})  # type: ignore[typeddict-unknown-key]
            saver.put_writes(config("t", "1"), [("c", (1, 2))], "task")
    assert checked.get_tuple(config("t")) == plain.get_tuple(config("t"))


def test_it_is_off_unless_asked_for() -> None:
    saver = DeltaSaver(Store(MemoryStorage()))
    saver.put(config("t"), checkpoint("1", {"c": 1}, {"c": (1, 2)}), {}, {"c": 1})  # a warning would be an error here
    assert not saver.validate


def test_a_user_may_make_it_an_error(tmp_path: Path) -> None:
    with DeltaSaver.from_path(tmp_path / "s", validate=True) as saver:
        before = rows_of(saver.store.log.storage).keys()
        with warnings.catch_warnings():
            warnings.simplefilter("error", DegradedValueWarning)
            with pytest.raises(DegradedValueWarning, match="tuple at c comes back as list"):
                saver.put(config("t"), checkpoint("1", {"c": 1}, {"c": (1, 2)}), {}, {"c": 1})
        assert saver.get_tuple(config("t")) is None
        assert rows_of(saver.store.log.storage).keys() == before


def test_what_the_parent_holds_is_not_looked_at_again() -> None:
    saver = saver_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saver.put(config("t"), checkpoint("1", {"c": 1}, {"c": [(1,)]}), {}, {"c": 1})
        saver.put(config("t", "1"), checkpoint("2", {"c": 1, "d": 1}, {"c": [(1,)], "d": (2,)}), {}, {"d": 1})
    assert [channel for channel, _, _ in texts(caught)] == ["c", "d"]


def test_warnings_of_one_value_are_few() -> None:
    assert len(put(saver_of(), [(number,) for number in range(1000)])) == MAX_WARNINGS


def test_what_strict_loading_will_refuse_is_warned_of() -> None:
    ((channel, path, text),) = put(saver_of(strict=True), [Mine()])
    assert (channel, path) == ("c", "")
    assert text.startswith("the list can't be read back (TypeRefusedError: ")


def test_values_that_cannot_be_stored_are_refused_as_ever() -> None:
    with pytest.raises(EncodeError):
        put(saver_of(), [Fraction(1, 3)])


def test_a_clone_validates_too() -> None:
    saver = saver_of(strict=True).with_allowlist([(Point.__module__, "Point")])
    assert [path for _, path, _ in put(saver, Point((1,)))] == [".x"]


class Strange:
    """Its methods raise or lie."""

    def __init__(self, answer: Any, x: Any = 1) -> None:
        self.answer, self.x = answer, x

    def __eq__(self, other: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class TestDifferences:
    """What no serializer gives, but the walk must bear."""

    @pytest.mark.parametrize("answer", [False, None, "yes", [], RuntimeError("no")], ids=repr)
    def test_a_strange_equality_is_not_believed(self, answer: Any) -> None:
        assert list(differences([Strange(answer)], [Strange(answer)])) == []
        (found,) = differences([Strange(answer)], [Strange(answer, 2)])
        assert (found.path, found.one, found.other) == ("[0].x", "int 1", "int 2")
        both = {Strange(answer): 1, "k": 2}, {Strange(answer): 1, "k": 3}
        assert [found.path for found in differences(*both)] == ["['k']"]
        assert [found.one for found in differences({"k": Strange(answer)}, {"k": 1})] == ["Strange"]
        (found,) = differences({Strange(answer): (1,)}, {Strange(answer): [1]})
        assert found.path.startswith("[<Strange instance at")

    def test_cycles_end(self) -> None:
        one: list[Any] = [1]
        other: list[Any] = [1]
        one.append(one)
        other.append([1, other])
        assert list(differences(one, other)) == []
        other[1][0] = True
        assert [found.path for found in differences(one, other)] == ["[1][0]"]

    def test_depth_is_no_limit(self) -> None:
        one: Any = (1,)
        other: Any = [1]
        for _ in range(20_000):
            one, other = [one], [other]
        (found,) = differences(one, other)
        assert found.path == "[0]" * 20_000

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ([1], [1, 2], [("[1]", "nothing", "int")]),
            ({"a": 1}, {}, [("['a']", "int", "nothing")]),
            ({}, {"a": 1}, [("['a']", "nothing", "int")]),
            ({1}, {True}, [("{…}", "int", "bool")]),
            ({(1, "a")}, {(True, "a")}, [("{…}[0]", "int", "bool")]),
            ({1: "a"}, {True: "a"}, [(".keys()[0]", "int", "bool")]),
            (1.0, 1, [("", "float", "int")]),
            (-0.0, 0.0, [("", "float -0.0", "float 0.0")]),
            (Decimal("1.1"), Decimal("1.10"), [("", "Decimal", "another Decimal")]),
            (Colour.RED, Colour.RED, []),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
            ({math.nan: math.nan}, {float("nan"): float("nan")}, []),
            ({"a" * 500: 1}, {"a" * 500: 2}, [(f"[{'a' * 500!r}]", "int 1", "int 2")]),
        ],
    )
    def test_differences_are_these(self, one: Any, other: Any, expected: list[tuple[str, str, str]]) -> None:
        assert [(found.path, found.one, found.other) for found in differences(one, other)] == expected
