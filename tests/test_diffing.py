"""A diff names what changed, by position and key, and decodes no more than that."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltastore
from deltastore import Change, CheckpointNotFoundError, Reducer, Remove, Store, ThreadNotFoundError, diffing
from deltastore.codec.generic import Built, Sealed
from deltastore.codec.strict import STRICT
from deltastore.diffing import ALL_DEPTHS, diff_values
from deltastore.store import Thread
from deltastore.upkeep.inspecting import Unfolded, inspect
from tests.cli.test_rendering import VALUES
from tests.vocabulary import dicts, lists, shown, values


def of(kind: Any, *path: Any, old: Any = None, new: Any = None) -> Change:
    return Change(kind, path, old, new)


@pytest.fixture
def thread(store: Store) -> Thread:
    return store.thread("t")


def between(thread: Thread, old: dict[str, Any], new: dict[str, Any], **options: Any) -> tuple[Change, ...]:
    """Compare two states as stored, and as values."""
    first, second = thread.put_state(old), thread.put_state(new)
    found = thread.diff(first, second, **options)
    assert shown(found) == shown(diff_values(thread.state(first), thread.state(second), **options))
    return found


EXAMPLES = [
    ({}, {}, []),
    ({"a": 1, "b": 2}, {"b": 2, "c": 3}, [of("removed", "a", old=1), of("added", "c", new=3)]),
    ({"a": 1}, {"a": 2}, [of("changed", "a", old=1, new=2)]),
    ({"a": 1}, {"a": True}, [of("changed", "a", old=1, new=True)]),
    ({"a": 0.0}, {"a": -0.0}, [of("changed", "a", old=0.0, new=-0.0)]),
    ({"a": float("nan")}, {"a": float("nan")}, []),
    ({"a": None}, {}, [of("removed", "a")]),
    ({"m": [{"t": "x"}]}, {"m": [{"t": "x"}, {"t": "y"}]}, [of("added", "m", 1, new={"t": "y"})]),
    ({"m": [1, 2, 3, 4]}, {"m": [1, 4]}, [of("removed", "m", 1, old=2), of("removed", "m", 2, old=3)]),
    ({"m": [1, 2]}, {"m": [0, 1, 2]}, [of("added", "m", 0, new=0)]),
    ({"m": ["a", "b", "c"]}, {"m": ["a", "x", "c"]}, [of("changed", "m", 1, old="b", new="x")]),
    ({"m": [{"t": "x", "n": 1}]}, {"m": [{"t": "x", "n": 2}]}, [of("changed", "m", 0, "n", old=1, new=2)]),
    ({"m": [1]}, {"m": {"k": 1}}, [of("changed", "m", old=[1], new={"k": 1})]),
    ({"d": {"k": 1, "l": {"x": [1]}}}, {"d": {"l": {"x": [1, 2]}, "n": 0}},
     [of("removed", "d", "k", old=1), of("added", "d", "l", "x", 1, new=2), of("added", "d", "n", new=0)]),
    ({"d": {1: "int"}}, {"d": {True: "bool"}}, [of("removed", "d", 1, old="int"), of("added", "d", True, new="bool")]),
    ({"d": {"k": 1, "l": 2}}, {"d": {"l": 2, "k": 1}}, []),
]  # fmt: skip


ALIGNED = [
    ({"m": [1, 2, 3]}, {"m": [2, 3, 4]}, [of("removed", "m", 0, old=1), of("added", "m", 2, new=4)]),
    ({"m": ["a", "b", "c", "d"]}, {"m": ["a", "x", "b", "c", "y", "d"]},
     [of("added", "m", 1, new="x"), of("added", "m", 4, new="y")]),
    ({"m": [{"t": "hi", "n": 1}, 0]}, {"m": [{"t": "hi", "n": 2}, "new", 0]},
     [of("changed", "m", 0, "n", old=1, new=2), of("added", "m", 1, new="new")]),
    ({"m": ["a", "b", "c"]}, {"m": ["x", "c", "d"]},
     [of("changed", "m", 0, old="a", new="x"), of("removed", "m", 1, old="b"), of("added", "m", 2, new="d")]),
    ({"m": [1, True, 1.0, [1], {"k": 1}, 5]}, {"m": [True, 1.0, [True], {"k": 1.0}, 5]},
     [of("removed", "m", 0, old=1), of("changed", "m", 2, 0, old=1, new=True),
      of("changed", "m", 3, "k", old=1, new=1.0)]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), EXAMPLES + ALIGNED)
def test_what_differs(thread: Thread, old: Any, new: Any, expected: list[Change]) -> None:
    assert shown(between(thread, old, new)) == shown(tuple(expected))


@pytest.mark.parametrize(
    ("depth", "path"),
    [(1, ("d",)), (2, ("d", "k")), (3, ("d", "k", 0)), (4, ("d", "k", 0, "x")), (9, ("d", "k", 0, "x"))],
)
def test_depth_bounds_the_path(thread: Thread, depth: int, path: tuple[Any, ...]) -> None:
    old, new = {"d": {"k": [{"x": 1}]}}, {"d": {"k": [{"x": 2}]}}
    (change,) = between(thread, old, new, depth=depth)
    assert change.path == path


def applied(state: dict[str, Any], changes: tuple[Change, ...]) -> dict[str, Any]:
    """Return the state after changes, given a depth of 2."""
    out = {name: value.copy() if isinstance(value, (list, dict)) else value for name, value in state.items()}
    for change in sorted(changes, key=lambda change: (change.kind != "removed", shown(change.path[:1]))):
        place: Any = out
        for step in change.path[:-1]:
            place = place[step]
        last = change.path[-1]
        if isinstance(place, list) and change.kind == "added":
            place.insert(last, change.new)
        elif isinstance(place, list) and change.kind == "removed":
            place[last] = applied  # marks what goes: places are those of the old list
        elif change.kind == "removed":
            del place[last]
        else:
            place[last] = change.new
        for name, value in out.items():
            following = [other for other in changes if other.kind == "removed" and other.path[0] == name]
            if isinstance(value, list) and following and change == following[-1]:
                out[name] = [element for element in value if element is not applied]
    return out


@pytest.mark.parametrize("why", ["too many", "can't be hashed"])
def test_what_cannot_be_aligned_is_paired_place_by_place(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old: list[Any] = [0, 1, 2, 3, 9]
    new: list[Any] = [1, 2, 3, 4, 5, 9]
    if why == "too many":
        monkeypatch.setattr(diffing, "MAX_ALIGNED_PAIRS", 19)
    else:
        old[0] = {0}
    found = diff_values({"m": old}, {"m": new})
    assert [(change.kind, change.path[1]) for change in found] == [*(("changed", n) for n in range(4)), ("added", 4)]
    assert (found[0].old, found[0].new) == (old[0], 1)


def test_long_lists_that_have_little_in_common_end() -> None:
    old, new = [n % 7 for n in range(20_000)], [n % 5 for n in range(30_000)]
    found = diff_values({"m": old}, {"m": new})
    assert sum(change.kind == "added" for change in found) == 10_000


INSPECTED = [
    ({"a": Built("m.C", {"x": 1, "y": 2})}, {"a": Built("m.C", {"x": 2, "y": 2})},
     [of("changed", "a", "x", old=1, new=2)]),
    ({"a": Built("m.C", {"x": 1})}, {"a": Built("m.D", {"x": 1})},
     [of("changed", "a", old=Built("m.C", {"x": 1}), new=Built("m.D", {"x": 1}))]),
    ({"a": Built("m.C", {"x": 1})}, {"a": {"x": 1}}, [of("changed", "a", old=Built("m.C", {"x": 1}), new={"x": 1})]),
    ({"a": Built("m.C", (1,))}, {"a": Built("m.C", (True,))},
     [of("changed", "a", old=Built("m.C", (1,)), new=Built("m.C", (True,)))]),
    ({"a": Built("set", [1, 2])}, {"a": Built("set", [1, 2, 3])}, [of("added", "a", 2, new=3)]),
    ({"a": [Built("m.M", {"text": "x"}), 1]}, {"a": [0, Built("m.M", {"text": "x"}), 1]}, [of("added", "a", 0, new=0)]),
    ({"a": Unfolded(None, True, [1], ([2],))}, {"a": Unfolded(None, True, [1], ([True],))},
     [of("changed", "a", old=Unfolded(None, True, [1], ([2],)), new=Unfolded(None, True, [1], ([True],)))]),
    ({"a": Unfolded(None, True, 1, ())}, {"a": Unfolded(None, True, 1, ())}, []),
    ({"a": Sealed("m.S", "aes", 3, b"1")}, {"a": Sealed("m.S", "aes", 3, b"2")},
     [of("changed", "a", old=Sealed("m.S", "aes", 3, b"1"), new=Sealed("m.S", "aes", 3, b"2"))]),
    ({"a": Remove(1)}, {"a": Remove(True)}, [of("changed", "a", old=Remove(1), new=Remove(True))]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), INSPECTED)
def test_what_differs_in_inspected_values(old: Any, new: Any, expected: list[Change]) -> None:
    assert shown(diff_values(old, new, depth=ALL_DEPTHS)) == shown(tuple(expected))


@given(VALUES, VALUES)
def test_no_difference_means_the_same_inspected_value(value: Any, other: Any) -> None:
    again = copy.deepcopy(value)
    assert diff_values({"c": value}, {"c": again}, depth=ALL_DEPTHS) == ()
    assert (diff_values({"c": [value]}, {"c": [other]}) == ()) == (diff_values({"c": value}, {"c": other}) == ())


@given(st.data())
def test_a_stored_state_differs_alike_when_it_is_inspected(data: st.DataObject) -> None:
    old, new = data.draw(states), data.draw(states)
    with deltastore.open(":memory:") as store:
        thread = store.thread("t")
        first, second = thread.put_state(old), thread.put_state(new)
        sides = [inspect(store.log, "t", "", made.id).channels for made in (first, second)]
        assert shown(diff_values(*sides)) == shown(diff_values(thread.state(first), thread.state(second)))


states = st.dictionaries(st.sampled_from(["a", "b", "c"]), lists | dicts | values, max_size=3)


@given(states, states)
def test_applying_a_diff_gives_the_new_state(old: dict[str, Any], new: dict[str, Any]) -> None:
    with deltastore.open(":memory:") as store:
        thread = store.thread("t")
        first, second = thread.put_state(old), thread.put_state(new)
        for changes in (thread.diff(first, second, depth=2), diff_values(old, new, depth=2)):
            made = applied(thread.state(first), changes)
            assert diff_values(made, new) == ()
    assert diff_values(old, old) == ()


def test_only_what_differs_is_decoded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = store.thread("t")
    first = thread.put_state({"m": [{"n": number} for number in range(1000)], "d": {str(n): [n] for n in range(500)}})
    second = thread.append({"m": [{"n": 1000}], "d": {"500": [500], "7": ["seven"]}})
    decoded: list[int] = []
    for name in ("decode_list", "decode_dict"):
        real = getattr(type(STRICT), name)
        monkeypatch.setattr(
            type(STRICT), name, lambda self, blobs, real=real: decoded.append(len(blobs)) or real(self, blobs)
        )
    assert [change.path for change in thread.diff(first, second)] == [("m", 1000), ("d", "7", 0), ("d", "500")]
    assert sum(decoded) == 4


def test_places_count_the_elements_of_runs(thread: Thread) -> None:
    long = list(range(3000))
    (change,) = between(thread, {"m": long}, {"m": [*long, "new"]})
    assert change == of("added", "m", 3000, new="new")
    (change,) = between(thread, {"m": long}, {"m": [*long[:2500], -1, *long[2501:]]})
    assert change == of("changed", "m", 2500, old=2500, new=-1)


def test_a_users_reducer_is_run(store: Store) -> None:
    with deltastore.open(
        ":memory:", reducers=[Reducer("total", 1, lambda value, write: value + write, int)], channels={"n": "total"}
    ) as store:
        thread = store.thread("t")
        first = thread.append({"n": 1, "m": ["x"]})
        second = thread.append({"n": 2})
        assert thread.diff(first, second) == (of("changed", "n", old=1, new=3),)
        assert thread.diff(second, first) == (of("changed", "n", old=3, new=1),)


def test_branches_and_missing_checkpoints(thread: Thread) -> None:
    root = thread.append({"m": ["a"]})
    one, other = thread.append({"m": ["b"]}), thread.append({"m": ["c"]}, at=root)
    assert thread.diff(one, other) == (of("changed", "m", 1, old="b", new="c"),)
    assert thread.diff(one.id, one) == ()
    with pytest.raises(CheckpointNotFoundError):
        thread.diff(one, "0" * 26)
    with pytest.raises(ThreadNotFoundError):
        thread._store.thread("never").diff("0" * 26, "0" * 26)
