"""What a put wants of each channel, given its parent."""

from collections.abc import Iterable
from typing import Any

import pytest

from deltastore.codec.blobs import Cut, cut
from deltastore.codec.records import LIST, SEEN_CHANNEL, VERSIONS_CHANNEL, Value
from deltastore.codec.strict import STRICT
from deltastore.log.heads import Head
from deltastore.log.intents import FoldWrite, Versioned, WholeState, Writes
from deltastore.log.state import Channel

A, B, C = 16, 17, 18
NUMBERS = {"a": A, "b": B, "c": C}
ONE = cut([1], STRICT, "channel")


def head(*channels: int, versions: dict[str, Any] | None = None, seeds: dict[int, int] | None = None) -> Head:
    held = {number: Channel(Value(LIST, ((number, 1),)), 0) for number in channels}
    return Head(b"\0" * 16, "parent", 0, 0, held, seeds=seeds or {}, versions=versions)


class TestWholeState:
    def test_every_channel_given_is_assigned_and_the_others_go(self) -> None:
        wanted = WholeState({B: ONE, C: ONE}, {C: 2}).resolve(head(A, B))
        assert wanted.assign == {B: ONE, C: ONE}
        assert wanted.configured == {C: 2}
        assert wanted.drop == {A}
        assert wanted.order == (B, C)
        assert wanted.folds == []

    def test_without_a_parent_nothing_goes(self) -> None:
        assert WholeState({A: ONE}, {}).resolve(None).drop == set()


class TestWrites:
    def test_writes_are_folded_and_the_rest_is_inherited(self) -> None:
        write = FoldWrite(A, None, 2, ONE)
        wanted = Writes((write, write)).resolve(head(A, B))
        assert wanted.folds == [write, write]
        assert (wanted.assign, wanted.drop, wanted.order) == ({}, set(), None)


class Encoder:
    """Encodes on demand, and tells what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str) -> Cut:
        self.asked.append(name)
        return ONE


def versioned(versions: dict[str, Any], present: set[str], cutter: Encoder | None = None) -> Versioned:
    hidden = {VERSIONS_CHANNEL: ONE, SEEN_CHANNEL: ONE}

    def number(names: Iterable[str]) -> list[int]:
        return [NUMBERS[name] for name in names]

    return Versioned(
        versions, frozenset(present), cutter or Encoder(), number, lambda name: not name.startswith("own:"), hidden
    )


class TestVersioned:
    def test_the_parents_version_is_inherited_whatever_value_is_given(self) -> None:
        cutter = Encoder()
        wanted = versioned({"a": 1, "b": 2}, {"a", "b"}, cutter).resolve(head(A, B, versions={"a": 1, "b": 1}))
        assert set(wanted.assign) == {B, VERSIONS_CHANNEL, SEEN_CHANNEL}
        assert cutter.asked == ["b"]
        assert wanted.drop == set()

    def test_a_new_version_without_a_value_is_absent(self) -> None:
        wanted = versioned({"a": 2}, set()).resolve(head(A, versions={"a": 1}))
        assert wanted.drop == {A}
        assert wanted.seeds == {A: 1}

    def test_a_channel_without_a_version_is_absent(self) -> None:
        wanted = versioned({"a": 1}, {"a", "b"}).resolve(head(A, B, versions={"a": 1, "b": 1}))
        assert wanted.drop == {B}
        assert B not in wanted.assign
        assert wanted.seeds == {}

    def test_hidden_channels_are_assigned_and_stay(self) -> None:
        wanted = versioned({}, set()).resolve(head(VERSIONS_CHANNEL, SEEN_CHANNEL, A, versions={"a": 1}))
        assert set(wanted.assign) == {VERSIONS_CHANNEL, SEEN_CHANNEL}
        assert wanted.drop == {A}

    def test_without_a_parent_all_present_ones_are_assigned(self) -> None:
        wanted = versioned({"a": 1, "b": 1}, {"a", "c"}).resolve(None)
        assert set(wanted.assign) == {A, VERSIONS_CHANNEL, SEEN_CHANNEL}
        assert wanted.seeds == {B: 0}

    def test_the_parents_version_of_a_value_that_it_lacks_stays_absent(self) -> None:
        wanted = versioned({"a": 1}, {"a"}).resolve(head(versions={"a": 1}, seeds={A: 3}))
        assert A not in wanted.assign
        assert wanted.seeds == {A: 4}

    @pytest.mark.parametrize(("before", "after"), [(None, 0), (0, 0), (1, 2), (7, 8)])
    def test_the_distance_to_the_last_value_grows_and_never_had_one_stays(self, before: int | None, after: int) -> None:
        seeds = {} if before is None else {A: before}
        assert versioned({"a": 2}, set()).resolve(head(versions={"a": 1}, seeds=seeds)).seeds == {A: after}

    def test_versions_of_another_type_with_equal_value_are_the_same(self) -> None:
        wanted = versioned({"a": 1.0}, {"a"}).resolve(head(A, versions={"a": 1}))
        assert A not in wanted.assign

    def test_the_names_of_all_channels_with_a_version_are_asked_for(self) -> None:
        assert list(versioned({"b": 1, "a": 2}, {"a", "c"}).names()) == ["b", "a"]
        assert list(WholeState({A: ONE}, {}).names()) == list(Writes(()).names()) == []

    def test_the_same_head_gives_the_same_answer(self) -> None:
        intent, parent = versioned({"a": 1, "b": 2}, {"a", "b"}), head(A, versions={"a": 1})
        assert intent.resolve(parent) == intent.resolve(parent)
        assert list(parent.state) == [A]
