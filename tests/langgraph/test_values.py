"""Values that users really put: each comes back as LangGraph's serializer gives it, is warned of, or is refused.

The right answer is the installed serializer's own round trip, in type and value. What it loses, `validate` names; what
it doesn't take is refused with channel and path, and nothing is written.
"""

import importlib.util
import socket
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from deltastore import DegradedValueWarning, EncodeError, Store
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import Pair, checkpoint, config, difference
from tests.langgraph.test_saver import Xor
from tests.raw import rows_of

OpenStore = Callable[..., Store]
REFERENCE = JsonPlusSerializer()
NEW_YORK = ZoneInfo("America/New_York")


class Keyed(BaseModel):
    """A model that holds dicts of other keys than text."""

    counts: dict[int, int] = {}
    pairs: dict[tuple[int, int], int] = {}


NESTED: list[tuple[str, Callable[[Any], Any]]] = [
    ("alone", lambda value: value),
    ("in a list", lambda value: [1, value]),
    ("in a dict", lambda value: {"k": value}),
    ("deep", lambda value: {"k": [{"deep": [value]}, value]}),
    ("beside messages", lambda value: [HumanMessage("hi", id="1"), value]),
]

KEPT: list[Any] = [
    [1, True, 1.0],
    2**64 - 1,
    -(2**63),
    {1: 1},
    {(1, 2): 0},
    {1: "a", "1": "b"},
    deque([1, 2, 3]),
    {frozenset({1}), "x"},
    [Send("n", {"x": [1]}), [Interrupt(value={"q": [1]}, id="i")]],
    Keyed(counts={1: 1}),
    "a\0b",
    "中文 😀 \u200d",
    HumanMessage("a\0b 中文 😀", id="\0"),
    {"a\0": "\0", "中": "😀"},
]
"""What comes back as it was."""

LOST: list[Any] = [
    (1, 2),
    {(1, 2), (3, 4)},
    frozenset({(1, 2), (3, 4)}),
    deque([1, 2, 3], maxlen=3),
    defaultdict(list, {"a": [1]}),
    Counter("aab"),
    OrderedDict(b=1, a=2),
    datetime(2026, 3, 7, 9, tzinfo=NEW_YORK),
    [[Send("n", (1,))], [Interrupt(value=(1,), id="i")]],
    ValueError("x"),
    "\ud800",
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "\ud800"}},
]
"""What LangGraph's serializer gives back as something else."""

REFUSED: list[tuple[Any, str]] = [
    (2**64, ""),
    (-(2**63) - 1, ""),
    (Fraction(1, 3), ""),
    (1j, ""),
    (range(3), ""),
    (PurePosixPath("a/b"), ""),
    (lambda: 0, ""),
    ({"tools": [{"run": print}]}, "['tools'][0]['run']"),
    ([1, [2**64]], "[1][0]"),
    ({"\ud800": 1}, ""),
    (object, ""),
]
"""What it doesn't take, and where that is."""


@pytest.fixture(params=["plain", "encrypted"])
def make(request: pytest.FixtureRequest, open_store: OpenStore) -> Callable[..., DeltaSaver]:
    """Open the test's store, again at each call."""

    def saver(**options: Any) -> DeltaSaver:
        serde = EncryptedSerializer(Xor()) if request.param == "encrypted" else None
        return DeltaSaver(open_store(), serde=serde, **options)

    return saver


def put(saver: DeltaSaver, value: Any) -> list[DegradedValueWarning]:
    """Put a value as a channel, a write and metadata; return what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DegradedValueWarning)
        saver.put(config("t"), checkpoint("1", {"c": "1"}, {"c": value}), {"m": value}, {"c": "1"})  # type: ignore[typeddict-unknown-key]
        saver.put_writes(config("t", "1"), [("w", value)], "task")
    return [one.message for one in caught if isinstance(one.message, DegradedValueWarning)]


def assert_stored(saver: DeltaSaver, value: Any) -> None:
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.pending_writes is not None
    expected = REFERENCE.loads_typed(REFERENCE.dumps_typed(value))
    for where, actual in (
        ("channel", found.checkpoint["channel_values"]["c"]),
        ("write", found.pending_writes[0][2]),
    ):
        assert difference(expected, actual, where) is None, difference(expected, actual, where)
    described = {"m": value.replace("\0", "") if isinstance(value, str) else value}
    expected = REFERENCE.loads_typed(REFERENCE.dumps_typed(described))
    assert difference(expected, dict(found.metadata), "metadata") is None


def name_of(value: Any) -> str:
    """Name a test by its value, the same in every process: without addresses, or the order of a set."""
    if isinstance(value, (set, frozenset)):
        return type(value).__name__
    return repr(value).partition(" at 0x")[0][:40].encode("ascii", "replace").decode()


@pytest.mark.parametrize("nest", [nest for _, nest in NESTED], ids=[name for name, _ in NESTED])
@pytest.mark.parametrize("value", [*KEPT, *LOST], ids=name_of)
def test_a_value_comes_back_as_the_serializer_gives_it(
    make: Callable[..., DeltaSaver], value: Any, nest: Callable[[Any], Any]
) -> None:
    """langgraph#8388, #8157, #8184, #8673, #6789, #2733, #8826."""
    nested = nest(value)
    put(make(), nested)
    assert_stored(make(), nested)


@pytest.mark.parametrize("nest", [nest for _, nest in NESTED], ids=[name for name, _ in NESTED])
def test_losses_are_warned_of_and_nothing_else(make: Callable[..., DeltaSaver], nest: Callable[[Any], Any]) -> None:
    saver = make(validate=True)
    for value in KEPT:
        assert put(saver, nest(value)) == []
        saver.delete_thread("t")
    for value in LOST:
        warned = put(saver, nest(value))
        assert {one.channel for one in warned} == {"c", "w", "metadata"}, value
        assert_stored(saver, nest(value))
        saver.delete_thread("t")


@pytest.mark.parametrize(
    ("value", "path"),
    REFUSED,
    ids=name_of,
)
def test_what_cannot_be_stored_is_refused_and_nothing_written(
    make: Callable[..., DeltaSaver], value: Any, path: str
) -> None:
    """langgraph#8673, #8185, #8326; llama_index#18069."""
    saver = make()
    put(saver, [1])
    before = rows_of(saver.store.log.storage)
    for nest, outer in ((lambda value: value, ""), (lambda value: [0, {"k": value}], "[1]['k']")):
        made = checkpoint("2", {"good": 1, "bad": 1}, {"good": 1, "bad": nest(value)})
        with pytest.raises(EncodeError, match="'bad'") as caught:
            saver.put(config("t", "1"), made, {}, {"good": 1, "bad": 1})
        assert (caught.value.channel, caught.value.path) == ("bad", outer + path)
        with pytest.raises(EncodeError, match="'bad'") as caught:
            saver.put_writes(config("t", "1"), [("good", 1), ("bad", nest(value))], "task 2")
        assert (caught.value.channel, caught.value.path) == ("bad", outer + path)
        with pytest.raises(EncodeError, match="metadata") as caught:
            saver.put(config("t", "1"), checkpoint("2", {}, {}), {"bad": nest(value)}, {})  # type: ignore[typeddict-unknown-key]
        assert (caught.value.channel, caught.value.path) == ("metadata", f"['bad']{outer}{path}")
    assert rows_of(saver.store.log.storage) == before


def test_an_open_socket_is_refused(make: Callable[..., DeltaSaver]) -> None:
    saver = make()
    with socket.socket() as open_socket, pytest.raises(EncodeError, match="socket at client"):
        saver.put(config("t"), checkpoint("1", {"client": 1}, {"client": open_socket}), {}, {"client": 1})
    assert saver.get_tuple(config("t")) is None


def test_a_day_after_a_time_in_new_york(make: Callable[..., DeltaSaver]) -> None:
    """langgraph#8826: the moment is kept, the zone isn't, so a day later may be another hour. `validate` says so."""
    given = datetime(2026, 3, 7, 9, tzinfo=NEW_YORK)
    warned = put(make(validate=True), given)
    assert ("c", ".tzinfo") in [(one.channel, one.path) for one in warned]
    found = make().get_tuple(config("t"))
    assert found is not None
    value = found.checkpoint["channel_values"]["c"]
    assert value == given
    assert value.utcoffset() == timedelta(hours=-5)
    assert value + timedelta(days=1) != given + timedelta(days=1)


@pytest.mark.parametrize("value", [Keyed(counts={1: 1}, pairs={(1, 2): 3}), [Keyed(pairs={(1, 2): 3})]])
def test_keys_within_a_model(make: Callable[..., DeltaSaver], value: Any) -> None:
    """langgraph#2733."""
    assert put(make(validate=True), value) == []
    assert_stored(make(), value)
    found = make().get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"]["c"] == value


ODD_TEXTS = ["a\0b", "\0", "中文 😀", "e\u0301\u200d\u202e", "\ufeff"]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
def test_nul_chinese_and_emoji_everywhere(pair: Pair, text: str) -> None:
    """langgraph#1878, langgraphjs#665: ids, namespaces, keys, contents and filters are any text."""
    metadata = {"source": "loop", text: [text], "text": text, "deep": {text: text}}
    value = {text: text, "m": [HumanMessage(text, id=text, name=text), AIMessage(text, additional_kwargs={text: text})]}
    pair.put(config(text, ns=text), checkpoint("1", {text: text, "c": "1"}, {text: text, "c": value}), metadata)
    pair.put_writes(config(text, "1", text), [(text, value)], text, text)
    pair.put(config(text, "1", text), checkpoint("2", {text: text, "c": "2"}, {text: text, "c": value}), {"text": "x"})
    assert pair.compare_all() == 2
    assert [row.name for row in pair.saver.store.threads()] == [text]
    for wanted in ({text: [text]}, {"text": text}, {"deep": {text: text}}, {"text": text, "source": "loop"}):
        found = [one.checkpoint["id"] for one in pair.saver.list(config(text, ns=text), filter=wanted)]
        assert found == ["1"], wanted
    assert list(pair.saver.list(None, filter={"text": f"{text}!"})) == []


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas isn't installed")
def test_a_data_frame_is_refused(make: Callable[..., DeltaSaver]) -> None:
    """langgraph#4322."""
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]

    saver, frame = make(), pandas.DataFrame({"a": [1, 2]})
    with pytest.raises(EncodeError, match="DataFrame at c"):
        put(saver, frame)
    assert saver.get_tuple(config("t")) is None
