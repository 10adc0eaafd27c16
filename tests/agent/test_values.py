"""What agents hold comes back equal and of its class, and nothing else is taken."""

import enum
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.agent.kinds import TAG
from deltastore.agent.values import Values
from deltastore.codec.strict import strict_pack, strict_unpack
from deltastore.errors import EncodeError, TypeLostError

pydantic = pytest.importorskip("pydantic")


class Colour(enum.Enum):
    RED = "red"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any


@dataclass
class Plan:
    goal: str
    steps: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any


class Reply(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    role: str = "assistant"
    content: Any = None
    _seen: int = pydantic.PrivateAttr(default=0)


TYPES = (Colour, Right, Point, Plan, Frozen, Reply)


def round_trip(value: Any) -> Any:
    values = Values(TYPES)
    return values.decode(strict_unpack(strict_pack(values.encode(value))))


def same(left: Any, right: Any) -> bool:
    """Equal in value and in class, at every level; NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(*keys) and same(left[keys[0]], right[keys[1]]) for keys in zip(left, right, strict=True)
        )
    if isinstance(left, (Plan, Frozen)):
        return all(same(getattr(left, name), getattr(right, name)) for name in type(left).__dataclass_fields__)
    return bool(left == right) or (left != left and right != right)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXT,
    st.binary(max_size=8),
    st.just(TAG),
    st.dates(),
    st.times(),
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-3)), ZoneInfo("Europe/Berlin")])),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.sampled_from([Colour.RED, Right.READ | Right.WRITE, Path("/tmp/x"), bytearray(b"x"), 1 + 2j]),
    st.frozensets(st.integers(), max_size=3),
    st.sets(TEXT, max_size=3),
)
KEYS = st.one_of(TEXT, st.just(TAG), st.integers(), st.booleans(), st.tuples(st.integers(), TEXT))


def grow(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(values, max_size=3),
        st.dictionaries(KEYS, values, max_size=3),
        st.tuples(values, values),
        st.builds(Point, st.integers(), values),
        st.builds(Plan, TEXT, st.lists(values, max_size=2)),
        st.builds(Frozen, values),
        st.lists(values, max_size=3).map(lambda items: deque(items, maxlen=5)),
        st.dictionaries(TEXT, values, max_size=2).map(OrderedDict),
    )


VALUES = st.recursive(SCALARS, grow, max_leaves=12)


@given(st.lists(VALUES, max_size=6), st.lists(VALUES, max_size=2), st.integers(0, 6))
def test_what_was_there_before_changes_nothing(held: list[Any], more: list[Any], at: int) -> None:
    values = Values(TYPES)
    before = values.cut(held, "messages", None)
    forged = values.encode(held)  # plain data that looks like what stands for an object
    for now in (held, [*held, *more], [*held[:at], *more, *held[at:]], forged):
        assert values.cut(now, "messages", before) == values.cut(now, "messages", None)


@given(VALUES)
def test_what_is_taken_comes_back_equal_in_value_and_class(value: Any) -> None:
    assert same(round_trip(value), value)


def test_a_dict_that_looks_like_a_tag_is_a_dict() -> None:
    for value in ({TAG: "tuple", "of": [1]}, {TAG: {TAG: 1}}, {"x": {TAG: "pydantic", "class": "a:b", "of": {}}}):
        assert round_trip(value) == value


def test_a_model_keeps_fields_set_extras_and_private_attributes() -> None:
    reply = Reply(content=[{"type": "text", "text": "hi"}], refusal=("no",))
    reply._seen = 7
    back = round_trip(reply)
    assert back == reply
    assert type(back) is Reply
    assert back.model_fields_set == reply.model_fields_set
    assert back.refusal == ("no",)
    assert back._seen == 7
    assert back.model_copy(update={"content": "x"}).content == "x"


def test_fold_and_zone_of_a_time_are_kept() -> None:
    when = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    back = round_trip([when, time(2, 30, fold=1), date(2026, 1, 1)])[0]
    assert (back.fold, back.tzinfo.key, back.utcoffset()) == (1, "Europe/Berlin", when.utcoffset())


class Client:
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, Client()]}, "['a'][1]"),
        (Plan("x", [lambda: 1]), ".steps[0]"),
        ((1, {"k": Client}), "[1]['k']"),
        ({"k": "x".encode, "j": 1}, "['k']"),
    ],
)
def test_what_cant_be_stored_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as raised:
        Values(TYPES).encode(value, "state")
    assert raised.value.path == path
    assert str(raised.value).startswith(f"state{path}: ")


def test_a_value_in_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="in itself"):
        Values().encode(loop)


def local_class() -> type:
    @dataclass
    class Local:
        x: int

    return Local


def test_a_class_that_has_no_name_of_its_own_must_be_registered() -> None:
    local = local_class()
    with pytest.raises(EncodeError, match="register it"):
        Values().encode(local(1))
    values = Values([local])
    assert values.decode(values.encode(local(1))) == local(1)


@pytest.mark.parametrize("tag", ["dataclass", "pydantic", "enum", "namedtuple"])
def test_only_a_class_of_the_stored_kind_is_built(tag: str) -> None:
    for name in ("os:system", "subprocess:Popen", "nowhere:Class", "builtins:dict", "pathlib:Path"):
        with pytest.raises(TypeLostError, match=name):
            Values().decode({TAG: tag, "of": {}, "class": name, "set": []})


def test_reading_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_imported_here.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypeLostError):
        Values().decode({TAG: "dataclass", "of": {}, "class": "never_imported_here:Anything"})


def test_equal_sets_are_equal_bytes() -> None:
    words = [str(uuid.UUID(int=number)) for number in range(40)]
    encode: Callable[[Any], bytes] = lambda value: strict_pack(Values().encode(value))  # noqa: E731
    backwards = words[::-1]
    assert encode(set(words)) == encode(set(backwards))
    assert round_trip(Decimal("1.10")).as_tuple() == Decimal("1.10").as_tuple()
