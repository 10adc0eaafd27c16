"""What the native API promises, on each storage."""

import copy
import math
import os
import random
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import (
    REMOVE_ALL,
    Checkpoint,
    CheckpointNotFoundError,
    ConflictError,
    EncodeError,
    InvalidInputError,
    PendingWrite,
    Reducer,
    ReducerMismatchError,
    Remove,
    Store,
    SyncModeError,
    ThreadExistsError,
    ThreadNotFoundError,
    check,
)
from deltastore.log import copying, deleting, names, reading
from deltastore.log.policy import DEFAULT_SNAPSHOT_FREQUENCY
from deltastore.storage.memory import MemoryStorage
from tests.conftest import OpenStore
from tests.raw import everything, rows_of, states


def say(text: str, id_: str | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text} | ({} if id_ is None else {"id": id_})


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


def same(left: Any, right: Any) -> bool:
    """Equality that tells True from 1, 1 from 1.0, 0.0 from -0.0, and holds for NaN; the order of keys counts."""
    if type(left) is not type(right):
        return False
    if type(left) is float:
        return struct.pack("d", left) == struct.pack("d", right)
    if type(left) is list:
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is dict:
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    return bool(left == right)


class TestAppend:
    def test_the_first_checkpoint_of_a_thread(self, store: Store) -> None:
        before = datetime.now(UTC)
        made = store.thread("t").append({"messages": [say("hi")], "step": 1}, metadata={"source": "input"})
        assert (made.thread, made.namespace, made.parent_id, made.metadata) == ("t", "", None, {"source": "input"})
        assert len(made.id) == 26
        assert abs((made.created_at - before).total_seconds()) < 60
        assert made.created_at.tzinfo is UTC
        assert store.thread("t").state() == {"messages": [say("hi")], "step": 1}

    def test_writes_are_folded_onto_the_latest_checkpoint(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.append({"messages": [say("a")], "facts": {"x": 1}, "step": 1})
        second = thread.append({"messages": [say("b"), say("c")], "facts": {"y": 2}, "step": 2})
        assert second.parent_id == first.id
        assert thread.state() == {"messages": [say("a"), say("b"), say("c")], "facts": {"x": 1, "y": 2}, "step": 2}
        assert thread.state(at=first) == {"messages": [say("a")], "facts": {"x": 1}, "step": 1}

    def test_channels_that_a_step_does_not_write_stay(self, open_store: OpenStore) -> None:  # langgraphjs#2334
        store = open_store(snapshot_frequency=4)
        thread = store.thread("t")
        thread.append({"a": {"k": "a"}, "b": 0, "c": ["c"]})
        for number in range(1, 10):
            made = thread.append({"b": number})
            assert thread.state(at=made) == {"a": {"k": "a"}, "b": number, "c": ["c"]}
        assert open_store().thread("t").state() == {"a": {"k": "a"}, "b": 9, "c": ["c"]}

    def test_nothing_written_is_a_checkpoint_too(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.append({})
        assert thread.state() == {}
        assert thread.append({}).parent_id == first.id
        assert thread.append({"a": []}).metadata == {}
        assert thread.state() == {"a": []}

    def test_a_channel_takes_its_reducer_by_its_first_write(self, store: Store) -> None:
        thread = store.thread("t")
        thread.append({"list": [1], "dict": {"a": 1}, "text": "a", "number": 1, "none": None, "bytes": b"a"})
        thread.append(
            {"list": [2], "dict": {"b": 2}, "text": "b", "number": {"now": "a dict"}, "none": [1], "bytes": b"b"}
        )
        expected = {
            "list": [1, 2],
            "dict": {"a": 1, "b": 2},
            "text": "b",
            "number": {"now": "a dict"},
            "none": [1],
            "bytes": b"b",
        }
        assert thread.state() == expected
        thread.append({"number": {"other": 1}, "none": [2]})
        assert thread.state() == expected | {"number": {"other": 1}, "none": [2]}

    def test_merge_keeps_the_place_of_a_key(self, store: Store) -> None:
        thread = store.thread("t")
        thread.append({"d": {"a": 1, "b": 2, "c": 3}})
        thread.append({"d": {"d": 4, "b": 20}})
        thread.append({"d": {}})
        assert list(thread.state()["d"].items()) == [("a", 1), ("b", 20), ("c", 3), ("d", 4)]

    def test_at_a_checkpoint_or_its_id(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.append({"m": ["a"]})
        assert thread.append({"m": ["b"]}, at=first.id).parent_id == first.id
        assert thread.append({"m": ["c"]}, at=first).parent_id == first.id
        assert thread.state() == {"m": ["a", "c"]}

    def test_an_anchor_falls_due_without_being_noticed(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=3)
        thread = store.thread("t")
        expected = {}
        for number in range(11):
            made = thread.append({"m": [say(str(number))], "d": {str(number % 4): number}, "n": number})
            expected[made.id] = {
                "m": [say(str(before)) for before in range(number + 1)],
                "d": {str(k): max(n for n in range(number + 1) if n % 4 == k) for k in range(min(4, number + 1))},
                "n": number,
            }
        assert states(thread) == expected
        assert states(open_store().thread("t")) == expected
        assert check(store).max_depth == 2

    def test_read_at_the_anchor_and_one_after_it(self, open_store: OpenStore) -> None:  # eventhorizon#414
        store = open_store(snapshot_frequency=2)
        thread = store.thread("t")
        made = [thread.append({"m": [number], "sum": number}) for number in range(6)]
        for fresh in (store, open_store()):
            for number, checkpoint in enumerate(made):
                assert fresh.thread("t").state(at=checkpoint) == {"m": list(range(number + 1)), "sum": number}
                assert fresh.thread("t").checkpoint(checkpoint.id).parent_id == (
                    made[number - 1].id if number else None
                )

    def test_reads_never_fold_more_than_the_frequency(self, open_store: OpenStore) -> None:  # raiden#2632
        store = open_store(snapshot_frequency=10)
        for number in range(64):
            store.thread("t").append({"m": [number], "d": {str(number % 7): number}})
        reopened = open_store()
        assert reopened.log.snapshot_frequency == 10
        assert check(reopened).max_depth == 9
        for number in range(12):
            open_store(cache_bytes=0).thread("t").append({"m": [64 + number]})
        assert check(reopened).max_depth == 9
        assert reopened.thread("t").state()["m"] == list(range(76))


class TestPutState:
    def test_the_state_is_exactly_what_was_put(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.put_state({"a": [1, 2], "b": {"x": {"y": [None]}}, "c": "text"})
        second = thread.put_state({"b": {"x": {"y": [None, 1]}}, "d": b"new"})
        third = thread.put_state({})
        assert thread.state(at=first) == {"a": [1, 2], "b": {"x": {"y": [None]}}, "c": "text"}
        assert thread.state(at=second) == {"b": {"x": {"y": [None, 1]}}, "d": b"new"}
        assert thread.state(at=third) == {}
        assert third.parent_id == second.id

    @pytest.mark.parametrize("frequency", [1, 2, 50])
    def test_edits_of_every_kind(self, open_store: OpenStore, frequency: int) -> None:
        store = open_store(snapshot_frequency=frequency)
        thread = store.thread("t")
        messages = [say(f"m{number}") for number in range(6)]
        edits: list[Any] = [
            messages,
            [*messages, say("end")],
            [say("front"), *messages],
            [*messages[:3], say("middle"), *messages[3:]],
            messages[1:],
            messages[:-2],
            [messages[0], say("changed"), *messages[2:]],
            messages[::-1],
            [messages[0]] * 3,
            [],
            [messages[5], messages[0]],
            {"now": "a dict", "with": messages},
            {"with": messages, "now": "another"},
            "text",
            None,
            [1, 2, 3],
            [1, 2, 3, "s" * 100],
            list(range(3000)),
            list(range(3001)),
            messages,
        ]
        put = [thread.put_state({"v": value, "same": {"k": "v"}}) for value in edits]
        for fresh in (store, open_store()):
            for checkpoint, value in zip(put, edits, strict=True):
                assert same(fresh.thread("t").state(at=checkpoint), {"v": value, "same": {"k": "v"}})

    def test_the_order_of_channels_is_kept(self, open_store: OpenStore) -> None:
        chance = random.Random(7)
        store = open_store(snapshot_frequency=4)
        thread = store.thread("t")
        put: dict[str, list[str]] = {}
        for _ in range(14):
            channels = chance.sample("abcdef", chance.randint(0, 6))
            put[thread.put_state({name: chance.randint(0, 1) for name in channels}).id] = channels
            if chance.random() < 0.3:
                extra = thread.append({"z": 1, "a": 2})
                put[extra.id] = [*channels, *(name for name in "za" if name not in channels)]
        for fresh in (store, open_store()):
            for id_, channels in put.items():
                assert list(fresh.thread("t").state(at=id_)) == channels

    def test_the_order_of_keys_is_kept(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.put_state({"d": {"a": 1, "b": {"x": 1, "y": 2}}})
        second = thread.put_state({"d": {"b": {"y": 2, "x": 1}, "a": 1}})
        assert same(thread.state(at=first), {"d": {"a": 1, "b": {"x": 1, "y": 2}}})
        assert same(thread.state(at=second), {"d": {"b": {"y": 2, "x": 1}, "a": 1}})

    def test_values_that_python_calls_equal_stay_apart(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=5)
        thread = store.thread("t")
        alike: list[Any] = [True, 1, 1.0, False, 0, 0.0, -0.0, math.nan, -math.nan, "1", b"1", None, "", b"", math.inf]
        shapes: list[Any] = []
        for value in alike:
            shapes += [value, [value], {"k": value}, {"k": [value, {"l": value}]}, [[value], "x" * 100]]
        chance = random.Random(3)
        chance.shuffle(shapes)
        put = [(thread.put_state({"v": shape, "w": [shape, say("x")]}), shape) for shape in shapes]
        for fresh in (store, open_store()):
            for checkpoint, shape in put:
                assert same(fresh.thread("t").state(at=checkpoint), {"v": shape, "w": [shape, say("x")]})

    def test_keys_that_python_calls_equal_stay_apart(self, store: Store) -> None:
        thread = store.thread("t")
        put = [
            (thread.put_state({"d": {key: "v"}}), key)
            for key in (True, 1, 1.0, False, 0, 0.0, None, b"1", "1", -1, 2**64 - 1)
        ]
        for checkpoint, key in put:
            assert same(thread.state(at=checkpoint), {"d": {key: "v"}})

    def test_nan_does_not_break_sharing(self, store: Store) -> None:
        thread = store.thread("t")
        thread.put_state({"v": [math.nan, {"a": math.nan}, "x"]})
        chunks = check(store).chunks
        thread.put_state({"v": [math.nan, {"a": math.nan}, "x"]})
        assert check(store).chunks == chunks

    def test_what_did_not_change_costs_no_bytes(self, open_store: OpenStore) -> None:  # pizza-bot#58
        store = open_store(snapshot_frequency=20)
        static = {f"key {number}": "x" * 600 for number in range(100)}
        for number in range(100):
            store.thread("t").put_state({"static": copy.deepcopy(static), "n": number})
        report = check(store)
        assert report.chunk_bytes < 70_000
        assert report.checkpoints == 100
        assert store.thread("t").state() == {"static": static, "n": 99}

    def test_after_append_and_before_it(self, store: Store) -> None:
        thread = store.thread("t")
        thread.append({"m": [say("a")], "d": {"a": 1}})
        thread.put_state({"m": [say("a"), say("b")], "d": {"b": 2}})
        thread.append({"m": [say("c")], "d": {"c": 3}})
        assert thread.state() == {"m": [say("a"), say("b"), say("c")], "d": {"b": 2, "c": 3}}

    def test_a_channel_that_was_dropped_begins_anew(self, store: Store) -> None:
        thread = store.thread("t")
        thread.append({"m": [1], "n": 1})
        thread.put_state({"n": 1})
        thread.append({"m": {"a": 1}})
        assert thread.state() == {"n": 1, "m": {"a": 1}}
        thread.append({"m": {"b": 1}})
        assert thread.state() == {"n": 1, "m": {"a": 1, "b": 1}}

    def test_large_values_that_are_edited(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=6)
        thread = store.thread("t")
        lines = [f"line {number}: {number * 7919 % 10007}\n" for number in range(2000)]
        expected = {}
        chance = random.Random(11)
        for number in range(24):
            lines[chance.randrange(len(lines))] = f"edit {number}\n"
            value = {"files": {"a.py": "".join(lines), "b.py": "".join(lines[:900])}, "doc": "".join(lines)}
            expected[thread.put_state(value).id] = value
        for fresh in (store, open_store()):
            assert states(fresh.thread("t")) == expected
        assert check(store).chunk_bytes < sum(len(str(value)) for value in expected.values()) / 8


class TestFreshObjects:
    def test_changing_what_was_put_changes_nothing(self, store: Store) -> None:
        thread = store.thread("t")
        value = {"m": [{"a": [1]}], "d": {"k": {"l": 1}}}
        metadata = {"tags": ["x"]}
        expected = copy.deepcopy(value)
        made = thread.append(value, metadata=metadata)
        value["m"][0]["a"].append(2)
        value["d"]["k"]["l"] = 2
        metadata["tags"].append("y")
        assert thread.state(at=made) == expected
        assert made.metadata == thread.checkpoint(made.id).metadata == {"tags": ["x"]}

    def test_changing_what_was_read_changes_nothing(self, store: Store) -> None:
        thread = store.thread("t")
        thread.put_state({"m": [{"a": [1]}], "d": {"k": {"l": 1}}})
        checkpoint = thread.latest()
        assert checkpoint is not None
        thread.put_writes(checkpoint, {"w": {"a": [1]}})
        for _ in range(2):
            state = thread.state()
            state["m"][0]["a"].append(2)
            state["d"]["k"]["l"] = 2
            state["d"]["new"] = 1
            thread.writes(checkpoint)[0].value["a"].append(2)
        assert thread.state() == {"m": [{"a": [1]}], "d": {"k": {"l": 1}}}
        assert thread.writes(checkpoint) == [PendingWrite("", "w", {"a": [1]})]
        assert thread.put_state(thread.state()).parent_id == checkpoint.id
        assert thread.state() == {"m": [{"a": [1]}], "d": {"k": {"l": 1}}}


class TestWrites:
    def test_writes_are_kept_beside_the_state(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"m": ["a"]})
        thread.put_writes(made, [("m", ["b"]), ("other", None), ("m", ["c"])], task="two")
        thread.put_writes(made.id, {"m": ["d"]}, task="one")
        assert thread.writes(made) == [
            PendingWrite("one", "m", ["d"]),
            PendingWrite("two", "m", ["b"]),
            PendingWrite("two", "other", None),
            PendingWrite("two", "m", ["c"]),
        ]
        assert thread.writes(made, task="one") == [PendingWrite("one", "m", ["d"])]
        assert thread.writes(made, task="three") == []
        assert thread.state() == {"m": ["a"]}

    def test_of_one_task_the_first_write_in_a_place_stays(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"m": ["a"]})
        thread.put_writes(made, [("m", 1), ("m", 2)], task="x")
        thread.put_writes(made, [("m", 10), ("n", 20), ("o", 30)], task="x")
        assert [(w.channel, w.value) for w in thread.writes(made)] == [("m", 1), ("m", 2), ("o", 30)]

    def test_a_checkpoint_without_writes_has_none(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"m": ["a"]})
        assert thread.writes(made) == []
        thread.put_writes(made, [])
        assert thread.writes(made) == []

    def test_writes_that_a_checkpoint_takes_up_are_stored_once(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"m": [say("a" * 500)]})
        thread.put_writes(made, {"m": [say("b" * 500)], "d": {"k": "c" * 500}})
        chunks = check(store).chunks
        thread.append({"m": [say("b" * 500)], "d": {"k": "c" * 500}})
        assert check(store).chunks == chunks
        assert thread.state() == {"m": [say("a" * 500), say("b" * 500)], "d": {"k": "c" * 500}}

    def test_writes_go_with_their_checkpoint(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"m": ["a"]})
        after = thread.append({"m": ["b"]})
        thread.put_writes(made, {"m": ["w"]})
        thread.put_writes(after, {"m": ["v"]})
        thread.delete(made)
        assert thread.writes(after) == [PendingWrite("", "m", ["v"])]
        assert check(store).writes_without_checkpoint == 0

    def test_writes_survive_packing(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=3)
        thread = store.thread("t")
        made = []
        for number in range(80):
            made.append(thread.append({"m": [say(str(number))]}))
            thread.put_writes(made[-1], {"w": [number]}, task="early")
        for number in range(0, 80, 9):
            thread.put_writes(made[number], [("w", "again"), ("w", "late")], task="early")
            thread.put_writes(made[number], {"w": "late"}, task="another")
        for fresh in (store, open_store()):
            for number, checkpoint in enumerate(made):
                expected = [PendingWrite("early", "w", [number])]
                if number % 9 == 0:
                    expected = [PendingWrite("another", "w", "late"), *expected, PendingWrite("early", "w", "late")]
                assert fresh.thread("t").writes(checkpoint) == expected


class TestReading:
    def test_only_the_channels_asked_for(self, store: Store) -> None:
        thread = store.thread("t")
        made = thread.append({"a": 1, "b": [2], "c": {"d": 3}})
        assert thread.state(channels=["c", "a"]) == {"a": 1, "c": {"d": 3}}
        assert thread.state(at=made, channels={"b"}) == {"b": [2]}
        assert thread.state(channels=["unknown"]) == {}
        assert thread.state(channels=[]) == {}
        assert thread.state(channels=("a", "unknown")) == {"a": 1}

    def test_latest_is_the_newest_or_none(self, store: Store) -> None:
        thread = store.thread("t")
        assert thread.latest() is None
        first = thread.append({"a": 1}, metadata={"n": 1})
        assert thread.latest() == first
        second = thread.append({"a": 2}, metadata={"n": 2})
        assert thread.latest() == second
        fork = thread.append({"a": 3}, at=first)
        assert thread.latest() == fork

    def test_a_checkpoint_by_id(self, store: Store) -> None:
        thread = store.thread("t")
        made = [thread.append({"a": n}, metadata={"n": n, "nested": {"k": [None, 1.5]}}) for n in range(3)]
        for checkpoint in made:
            assert thread.checkpoint(checkpoint.id) == checkpoint
        assert all(isinstance(c, Checkpoint) for c in made)
        with pytest.raises(AttributeError):
            made[0].id = "x"  # type: ignore[misc]

    def test_reading_creates_nothing(self, store: Store) -> None:
        store.thread("t").append({"a": 1})
        before = rows_of(store.log.storage)
        unknown = store.thread("unknown")
        for read in (
            unknown.state,
            lambda: unknown.state(channels=["new"]),
            lambda: store.thread("t", namespace="n").state(),
        ):
            with pytest.raises(ThreadNotFoundError):
                read()
        assert unknown.latest() is None
        assert list(unknown.history()) == []
        for id_ in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "nonsense"):
            with pytest.raises(ThreadNotFoundError):
                unknown.checkpoint(id_)
            with pytest.raises(ThreadNotFoundError):
                unknown.writes(id_)
            with pytest.raises(CheckpointNotFoundError):
                store.thread("t").state(at=id_)
        assert [info.name for info in store.threads()] == ["t"]
        assert store.delete("unknown") is False
        store.info()
        repr(store), repr(unknown)
        assert check(store).ok
        assert rows_of(store.log.storage) == before

    def test_reading_an_empty_store_leaves_it_empty(self, store: Store) -> None:
        before = rows_of(store.log.storage)
        assert list(store.threads()) == []
        assert store.thread("t").latest() is None
        assert (store.collect().threads, store.collect().rows) == (0, 0)
        assert rows_of(store.log.storage) == before
        assert len(before) == 1


class TestHistory:
    @pytest.fixture
    def made(self, open_store: OpenStore) -> tuple[Store, list[Checkpoint]]:
        store = open_store(snapshot_frequency=5)
        thread = store.thread("t")
        return store, [thread.append({"m": [say(str(n))]}, metadata={"n": n}) for n in range(150)]

    def test_newest_first_with_limit_and_before(self, made: tuple[Store, list[Checkpoint]]) -> None:
        store, checkpoints = made
        thread = store.thread("t")
        newest = checkpoints[::-1]
        assert list(thread.history()) == newest
        for limit in (0, 1, 2, 63, 64, 65, 149, 150, 151, 10**9):
            assert list(thread.history(limit=limit)) == newest[:limit]
        for place in (0, 1, 7, 64, 140, 148, 149):
            assert list(thread.history(before=newest[place])) == newest[place + 1 :]
            assert list(thread.history(before=newest[place].id, limit=3)) == newest[place + 1 : place + 4]

    def test_before_an_id_that_is_not_there(self, made: tuple[Store, list[Checkpoint]]) -> None:
        store, checkpoints = made
        store.thread("t").delete(checkpoints[75])
        assert list(store.thread("t").history(before=checkpoints[75])) == checkpoints[74::-1]
        assert list(store.thread("t").history(before="7" + "Z" * 25, limit=1)) == [checkpoints[-1]]
        assert list(store.thread("t").history(before="0" * 26)) == []

    def test_lazy_and_without_a_transaction(self, made: tuple[Store, list[Checkpoint]]) -> None:
        store, checkpoints = made
        thread = store.thread("t")
        history = thread.history()
        seen = [next(history) for _ in range(70)]
        assert store.info().readers <= 1  # the one that asks
        thread.append({"m": [say("while listing")]})
        thread.delete(checkpoints[10])
        rest = list(history)
        assert [*seen, *rest][:70] == checkpoints[:79:-1]
        assert checkpoints[10] not in rest
        assert len(seen) + len(rest) == 149

    def test_no_value_is_read_for_it(
        self, made: tuple[Store, list[Checkpoint]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, checkpoints = made

        def refuse(*_: Any) -> bytes:
            raise AssertionError("a chunk was read")

        monkeypatch.setattr("deltastore.log.reading.View.blob", refuse)
        assert list(store.thread("t").history()) == checkpoints[::-1]
        assert len(list(store.threads())) == 1

    def test_branches_are_listed_together(self, store: Store) -> None:
        thread = store.thread("t")
        a = thread.append({"m": ["a"]})
        b = thread.append({"m": ["b"]})
        c = thread.append({"m": ["c"]}, at=a)
        d = thread.append({"m": ["d"]}, at=b)
        assert [(x.id, x.parent_id) for x in thread.history()] == [
            (d.id, b.id),
            (c.id, a.id),
            (b.id, a.id),
            (a.id, None),
        ]


class TestForks:
    def test_a_fork_has_nothing_of_the_abandoned_branch(self, open_store: OpenStore) -> None:  # langgraph#8443
        store = open_store(snapshot_frequency=1000)
        thread = store.thread("t")
        for text in ("in-1", "first-out"):
            base = thread.append({"m": [text]})
        for text in ("in-2", "second-out"):
            thread.append({"m": [text]})
        thread.append({"m": ["in-3"]}, at=base)
        thread.append({"m": ["third-out"]})
        assert thread.state()["m"] == ["in-1", "first-out", "in-3", "third-out"]
        assert open_store().thread("t").state()["m"] == ["in-1", "first-out", "in-3", "third-out"]

    def test_an_edit_at_an_old_checkpoint_leaves_the_old_branch_alone(
        self, open_store: OpenStore
    ) -> None:  # langgraph#8551
        store = open_store(snapshot_frequency=1000)
        thread = store.thread("t")
        first = thread.append({"m": ["run 1"]})
        second = thread.append({"m": ["run 2"]})
        before = states(thread)
        edit = thread.append({"m": ["edit"]}, at=first)
        for fresh in (store, open_store()):
            assert fresh.thread("t").state(at=second) == {"m": ["run 1", "run 2"]}
            assert fresh.thread("t").state(at=edit) == {"m": ["run 1", "edit"]}
            assert states(fresh.thread("t")) == before | {edit.id: {"m": ["run 1", "edit"]}}

    def test_forks_of_forks(self, open_store: OpenStore) -> None:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        store = open_store(snapshot_frequency=3)
        expected: dict[str, dict[str, Any]] = {}
        parents: dict[str, str | None] = {}
        latest = None
        for number in range(60):
            at = chance.choice([None, *expected])
            parent = at or latest
            state = copy.deepcopy(expected[parent]) if parent else {"m": [], "d": {}}
            state["m"] = [*state["m"], say(str(number))]
            if chance.random() < 0.5:
                state["d"][chance.choice("abc")] = number
                made = store.thread("t").put_state(state, at=at)
            else:
                made = store.thread("t").append({"m": [say(str(number))], "d": {}}, at=at)
            expected[made.id], parents[made.id], latest = state, parent, made.id
            if number % 20 == 7:
                store = open_store()
        assert states(store.thread("t")) == expected
        assert {c.id: c.parent_id for c in store.thread("t").history()} == parents

    def test_put_state_at_an_older_checkpoint(self, store: Store) -> None:
        thread = store.thread("t")
        first = thread.put_state({"m": [say("a")], "n": 1})
        second = thread.put_state({"m": [say("a"), say("b")], "n": 2})
        fork = thread.put_state({"m": [say("c")], "o": 3}, at=first)
        assert fork.parent_id == first.id
        assert states(thread) == {
            first.id: {"m": [say("a")], "n": 1},
            second.id: {"m": [say("a"), say("b")], "n": 2},
            fork.id: {"m": [say("c")], "o": 3},
        }

    def test_one_branch_may_go_and_the_other_stays(self, open_store: OpenStore) -> None:  # surge#271
        store = open_store(snapshot_frequency=4)
        thread = store.thread("t")
        base = [thread.append({"m": [f"base {n}"], "d": {str(n): n}}) for n in range(6)]
        left = [thread.append({"m": [f"left {n}"]}, at=None if n else base[-1]) for n in range(6)]
        right = [thread.append({"m": [f"right {n}"]}, at=None if n else base[-1]) for n in range(6)]
        expected = states(thread)
        for checkpoint in [*left, *base]:
            thread.delete(checkpoint)
            del expected[checkpoint.id]
            assert states(open_store().thread("t")) == expected
        assert list(expected) == [c.id for c in reversed(right)]
        assert thread.state()["m"] == [*(f"base {n}" for n in range(6)), *(f"right {n}" for n in range(6))]


class TestNamespaces:
    def test_namespaces_of_a_thread_are_apart(self, store: Store) -> None:
        names = ["", "sub", "sub:1", "sub|1", "a/b", "\0", "é"]
        made = {name: store.thread("t", namespace=name).append({"m": [name or "root"]}) for name in names}
        for name in names:
            thread = store.thread("t", namespace=name)
            assert thread.state() == {"m": [name or "root"]}
            assert [(c.id, c.namespace, c.parent_id) for c in thread.history()] == [(made[name].id, name, None)]
        assert [(info.name, info.checkpoints) for info in store.threads()] == [("t", len(names))]

    def test_deleting_in_one_leaves_the_others(self, store: Store) -> None:
        root = store.thread("t").append({"m": ["root"]})
        sub = store.thread("t", namespace="sub").append({"m": ["sub"]})
        store.thread("t", namespace="sub").put_writes(sub, {"w": 1})
        store.thread("t").delete(root)
        assert store.thread("t").latest() is None
        assert store.thread("t", namespace="sub").state() == {"m": ["sub"]}
        assert store.thread("t", namespace="sub").writes(sub) == [PendingWrite("", "w", 1)]

    def test_a_checkpoint_is_not_found_in_another_namespace(self, store: Store) -> None:
        root = store.thread("t").append({"m": ["root"]})
        store.thread("t", namespace="sub").append({"m": ["sub"]})
        with pytest.raises(CheckpointNotFoundError):
            store.thread("t", namespace="sub").state(at=root.id)
        with pytest.raises(InvalidInputError, match=r"namespace ''.*namespace 'sub'"):
            store.thread("t", namespace="sub").state(at=root)


class TestThreads:
    def test_the_newest_created_first_with_counts_and_times(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            store.thread(name).append({"x": 1})
        store.thread("a").append({"x": 2})
        found = list(store.threads())
        assert [(info.name, info.checkpoints) for info in found] == [("c", 1), ("b", 1), ("a", 2)]
        assert all(info.created_at <= info.updated_at for info in found)

    def test_many_threads_page_by_page_while_some_go(self, store: Store) -> None:
        for number in range(205):
            store.thread(f"t{number}").append({"n": number})
        names = []
        for info in store.threads():
            names.append(info.name)
            if len(names) == 50:
                store.delete("t0")
                store.thread("new").append({"x": 1})
        assert names == [f"t{number}" for number in range(204, 0, -1)]

    def test_a_thread_without_checkpoints_is_not_listed(self, store: Store) -> None:
        made = store.thread("t").append({"x": 1})
        store.thread("t").delete(made)
        assert list(store.threads()) == []
        assert store.thread("t").latest() is None
        with pytest.raises(ThreadNotFoundError):
            store.thread("t").state()


class TestDelete:
    def test_children_read_as_before(self, open_store: OpenStore) -> None:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        store = open_store(snapshot_frequency=8, channels={"u": "upsert"})
        thread = store.thread("t")
        for number in range(40):
            thread.append(
                {
                    "m": [say(str(number))],
                    "d": {str(number % 5): number},
                    "u": [say("u", str(number % 3)), Remove(str(number % 4))],
                    "n": number,
                }
            )
        expected = states(thread)
        parents = {c.id: c.parent_id for c in thread.history()}
        for id_ in chance.sample(sorted(expected), 32):
            chance.choice([store, open_store()]).thread("t").delete(id_)
            del expected[id_]
            with pytest.raises((CheckpointNotFoundError, ThreadNotFoundError)):
                thread.state(at=id_)
            assert states(chance.choice([store, open_store()]).thread("t")) == expected
        assert {c.id: c.parent_id for c in thread.history()} == {
            id_: parents[id_] for id_ in sorted(expected, reverse=True)
        }
        assert check(store).hidden == 0

    def test_a_child_of_a_deleted_checkpoint_is_an_anchor(self, store: Store) -> None:
        thread = store.thread("t")
        made = [thread.append({"m": [n]}) for n in range(6)]
        assert check(store).max_depth == 3
        thread.delete(made[2])
        assert check(store).max_depth == 1
        assert thread.checkpoint(made[3].id).parent_id == made[2].id

    def test_the_tip_then_go_on(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=4)
        thread = store.thread("t")
        made = [thread.append({"m": [n]}) for n in range(6)]
        thread.delete(made[5])
        assert thread.latest() == made[4]
        assert thread.state() == {"m": [0, 1, 2, 3, 4]}
        after = thread.append({"m": ["after"]})
        assert after.parent_id == made[4].id
        assert after.id > made[5].id
        assert thread.state() == {"m": [0, 1, 2, 3, 4, "after"]}

    def test_all_then_begin_again(self, store: Store) -> None:
        thread = store.thread("t")
        made = [thread.append({"m": [n]}) for n in range(4)]
        for checkpoint in made:
            thread.delete(checkpoint)
        assert list(thread.history()) == []
        again = thread.append({"m": ["again"]})
        assert (again.parent_id, thread.state()) == (None, {"m": ["again"]})
        assert again.id > made[-1].id

    def test_out_of_a_pack(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=5)
        thread = store.thread("t")
        for number in range(100):
            thread.append({"m": [say(str(number))]})
        expected = states(thread)
        ids = sorted(expected)
        for place in (0, 4, 5, 6, 17, 31, 32, 33, 59, 60, 99):
            thread.delete(ids[place])
            del expected[ids[place]]
        for number in range(50):
            made = thread.append({"m": [say(f"later {number}")]})
            expected[made.id] = thread.state()
        for fresh in (store, open_store()):
            assert states(fresh.thread("t")) == expected
        assert texts(thread.state()["m"]) == [*map(str, range(99)), *(f"later {n}" for n in range(50))]

    def test_a_thread_goes_with_everything(self, store: Store) -> None:
        for name in ("a", "b"):
            for number in range(3):
                made = store.thread(name).append({"m": [number]})
                store.thread(name, namespace="sub").append({"m": [number]})
            store.thread(name).put_writes(made, {"w": 1})
        assert store.delete("a") is True
        assert store.delete("a") is False
        assert [info.name for info in store.threads()] == ["b"]
        with pytest.raises(ThreadNotFoundError):
            store.thread("a").state()
        assert store.thread("b", namespace="sub").state() == {"m": [0, 1, 2]}
        report = check(store)
        assert (report.threads, report.queued_threads, report.checkpoints) == (1, 0, 6)

    def test_nothing_of_a_deleted_thread_returns(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        thread = store.thread("t")
        old = [thread.append({"old": [n], "both": {"old": n}}) for n in range(5)]
        thread.put_writes(old[-1], {"w": "old"})
        store.thread("t", namespace="sub").append({"old": 1})
        assert other.thread("t").state()["old"] == [0, 1, 2, 3, 4]
        store.delete("t")
        for fresh in (store, other):
            assert fresh.thread("t").latest() is None
        new = other.thread("t").append({"both": {"new": 1}})
        assert new.parent_id is None
        for fresh in (store, other, open_store()):
            assert fresh.thread("t").state() == {"both": {"new": 1}}
            assert list(fresh.thread("t").history()) == [new]
            assert fresh.thread("t", namespace="sub").latest() is None
            for checkpoint in old:
                with pytest.raises(CheckpointNotFoundError):
                    fresh.thread("t").state(at=checkpoint)
                with pytest.raises(CheckpointNotFoundError):
                    fresh.thread("t").append({"x": 1}, at=checkpoint)

    def test_a_large_thread_goes_in_several_transactions(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deleting, "MAX_COLLECTED_ROWS", 50)
        thread = store.thread("big")
        for number in range(120):
            if number % 10 == 0:
                made = thread.append({"m": [number]})
            thread.put_writes(made, {"w": number}, task=str(number))
        store.thread("small").append({"m": ["y"]})
        assert store.delete("big") is True
        report = check(store)
        assert (report.threads, report.queued_threads) == (1, 0)
        assert not [key for key in rows_of(store.log.storage) if key[:6] == (1).to_bytes(6, "big")]
        assert store.thread("small").state() == {"m": ["y"]}


class TestCopy:
    def test_a_copy_is_equal_and_goes_its_own_way(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=3)
        thread = store.thread("a")
        for number in range(40):
            made = thread.append({"m": [say(str(number))], "d": {str(number % 3): number}}, metadata={"n": number})
        thread.put_writes(made, {"w": [1]}, task="x")
        fork = thread.append({"m": [say("fork")]}, at=list(thread.history())[20])
        store.thread("a", namespace="sub").append({"s": 1})
        before = everything(store)["a"]
        target = store.copy("a", "b")
        assert (target.name, target.namespace) == ("b", "")
        assert everything(store) == {"b": before, "a": before}
        assert store.thread("b", namespace="sub").state() == {"s": 1}
        made = target.append({"m": [say("only b")]})
        assert made.parent_id == fork.id
        thread.delete(fork)
        store.thread("a").append({"m": [say("only a")]})
        assert everything(open_store())["b"] == before | {made.id: (target.state(), {}, fork.id, [])}
        store.delete("a")
        assert texts(target.state()["m"])[-2:] == ["fork", "only b"]

    def test_a_name_in_use_is_refused(self, store: Store) -> None:
        store.thread("a").append({"x": 1})
        store.thread("b").append({"x": 2})
        before = everything(store)
        with pytest.raises(ThreadExistsError, match=r"'b'.*delete it first"):
            store.copy("a", "b")
        with pytest.raises(InvalidInputError, match=r"onto itself"):
            store.copy("a", "a")
        with pytest.raises(ThreadNotFoundError, match=r"'c'"):
            store.copy("c", "d")
        assert everything(store) == before
        assert store.collect().threads == 0

    def test_a_copy_is_listed_as_the_newest(self, store: Store) -> None:
        store.thread("a").append({"x": 1})
        store.thread("b").append({"x": 2})
        store.copy("a", "c")
        assert [info.name for info in store.threads()] == ["c", "b", "a"]

    def test_a_copy_of_many_rows(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copying, "MAX_COPIED_ROWS", 20)
        thread = store.thread("a")
        made = thread.append({"m": ["x"]})
        for number in range(70):
            thread.put_writes(made, {"w": number}, task=f"{number:04}")
        store.copy("a", "b")
        assert [w.value for w in store.thread("b").writes(made.id)] == list(range(70))


SUM = Reducer("sum", 1, lambda value, write: value + write, int)


class TestConfiguredReducers:
    @pytest.mark.parametrize("frequency", [1, 3, 50])
    def test_upsert_by_id(self, open_store: OpenStore, frequency: int) -> None:
        store = open_store(snapshot_frequency=frequency, channels={"messages": "upsert"})
        thread = store.thread("t")
        steps: list[tuple[list[Any], list[str]]] = [
            ([say("a", "1"), say("b", "2"), say("no id")], ["a", "b", "no id"]),
            ([say("A", "1")], ["A", "b", "no id"]),
            ([say("c", "3"), Remove("2")], ["A", "no id", "c"]),
            ([Remove("unknown")], ["A", "no id", "c"]),
            ([say("no id")], ["A", "no id", "c", "no id"]),
            ([say("lost", "9"), REMOVE_ALL, say("d", "4")], ["d"]),
            ([Remove("4"), say("D", "4")], ["D"]),
            ([say("E", "5"), Remove("5")], ["D"]),
            ([REMOVE_ALL], []),
            ([], []),
            ([say("f", "1")], ["f"]),
        ]
        made = [thread.append({"messages": write}) for write, _ in steps]
        for fresh in (store, open_store()):
            for checkpoint, (_, expected) in zip(made, steps, strict=True):
                assert texts(fresh.thread("t").state(at=checkpoint)["messages"]) == expected

    def test_the_reducer_stays_with_the_channel(self, open_store: OpenStore) -> None:
        open_store(channels={"messages": "upsert"}).thread("t").append({"messages": [say("a", "1")]})
        store = open_store()
        store.thread("t").append({"messages": [say("A", "1")]})
        assert texts(store.thread("t").state()["messages"]) == ["A"]
        store.thread("u").append({"messages": [say("a", "1")]})
        store.thread("u").append({"messages": [say("A", "1")]})
        assert texts(store.thread("u").state()["messages"]) == ["a", "A"]

    def test_another_reducer_than_the_stored_one_is_refused(self, open_store: OpenStore) -> None:
        open_store(channels={"m": "upsert"}).thread("t").append({"m": [say("a", "1")]})
        store = open_store(channels={"m": "append"})
        before = rows_of(store.log.storage)
        for put in (store.thread("t").append, store.thread("t").put_state):
            with pytest.raises(ReducerMismatchError, match=r"'m'.*'upsert'.*'append'.*(Register|another channel)"):
                put({"m": [say("b", "1")]})
        assert rows_of(store.log.storage) == before
        assert store.thread("t").state() == {"m": [say("a", "1")]}

    def test_what_a_deleted_thread_held_refuses_nothing(self, open_store: OpenStore) -> None:
        store, other = open_store(channels={"m": "append"}), open_store(channels={"m": "merge"})
        for _ in range(3):
            other.thread("t").append({"m": {"a": 1}})
        store.delete("t")
        store.thread("t").append({"m": ["b"]})
        store.delete("t")
        other.thread("t").append({"m": {"c": 1}})
        assert store.thread("t").state() == {"m": {"c": 1}}
        other.delete("t")
        store.thread("t").append({"m": ["d"]})
        assert other.thread("t").state() == {"m": ["d"]}

    def test_replace_and_merge_and_append_by_name(self, open_store: OpenStore) -> None:
        store = open_store(channels={"r": "replace", "m": "merge", "a": "append"})
        thread = store.thread("t")
        for number in range(3):
            thread.append({"r": [number], "m": {str(number): [number]}, "a": [number]})
        assert thread.state() == {"r": [2], "m": {"0": [0], "1": [1], "2": [2]}, "a": [0, 1, 2]}

    def test_put_state_gives_the_channel_its_reducer(self, open_store: OpenStore) -> None:
        store = open_store(channels={"m": "upsert"})
        store.thread("t").put_state({"m": [say("a", "1")]})
        open_store().thread("t").append({"m": [say("A", "1")]})
        assert store.thread("t").state() == {"m": [say("A", "1")]}


class TestUserReducers:
    @pytest.mark.parametrize("frequency", [1, 2, 3, 50])
    def test_folded_across_anchors(self, open_store: OpenStore, frequency: int) -> None:
        store = open_store(snapshot_frequency=frequency, reducers=[SUM], channels={"n": "sum"})
        thread = store.thread("t")
        made = [thread.append({"n": number, "m": [number]}) for number in range(1, 12)]
        for fresh in (store, open_store(reducers=[SUM])):
            for number, checkpoint in enumerate(made, 1):
                expected = {"n": number * (number + 1) // 2, "m": list(range(1, number + 1))}
                assert fresh.thread("t").state(at=checkpoint) == expected

    def test_the_result_may_be_a_list_or_a_dict(self, open_store: OpenStore) -> None:
        last = Reducer("last three", 2, lambda value, write: [*value, *write][-3:], list)
        count = Reducer("count", 1, lambda value, write: value | {write: value.get(write, 0) + 1}, dict)
        store = open_store(snapshot_frequency=3, reducers=[last, count], channels={"l": "last three", "c": "count"})
        thread = store.thread("t")
        for number in range(8):
            made = thread.append({"l": [say(str(number))], "c": "ab"[number % 2]})
        for fresh in (store, open_store(reducers=[last, count])):
            state = fresh.thread("t").state(at=made)
            assert texts(state["l"]) == ["5", "6", "7"]
            assert state["c"] == {"a": 4, "b": 4}

    def test_the_fold_gets_objects_of_its_own(self, open_store: OpenStore) -> None:
        def fold(value: list[Any], write: list[Any]) -> list[Any]:
            value.extend(write)
            write.clear()
            return value

        careless = Reducer("careless", 1, fold, list)
        store = open_store(snapshot_frequency=3, reducers=[careless], channels={"l": "careless"})
        for number in range(8):
            store.thread("t").append({"l": [number]})
            assert store.thread("t").state() == store.thread("t").state() == {"l": list(range(number + 1))}

    def test_a_put_of_a_small_state_runs_none(self, open_store: OpenStore) -> None:
        """It might have an anchor more, for which reducers would run: then it has none."""

        def refuse(value: int, write: int) -> int:
            raise RuntimeError("not now")

        store = open_store(reducers=[Reducer("refusing", 1, refuse, int)], channels={"n": "refusing"})
        thread = store.thread("t")
        thread.put_state({"n": 1, "step": 0})
        for number in range(3):
            thread.append({"step": number})
        made = thread.append({"n": 5})
        assert thread.checkpoint(made.id).parent_id is not None
        with pytest.raises(RuntimeError, match="not now"):
            thread.state()

    def test_unregistered_or_of_another_version(self, open_store: OpenStore) -> None:
        first = open_store(reducers=[SUM], channels={"n": "sum"})
        for number in range(3):
            first.thread("t").append({"n": number, "m": [number]})
        newer = Reducer("sum", 2, lambda value, write: value + write, int)
        for store, found in (
            (open_store(), "isn't registered"),
            (open_store(reducers=[newer]), "version 2 is registered"),
        ):
            thread = store.thread("t")
            for call in (thread.state, lambda thread=thread: thread.append({"n": 1})):
                with pytest.raises(ReducerMismatchError, match=rf"'n'.*'sum' version 1.*{found}"):
                    call()
            assert thread.state(channels=["m"]) == {"m": [0, 1, 2]}
            assert len(list(thread.history())) == 3
            assert check(store).ok
        assert first.thread("t").state() == {"n": 3, "m": [0, 1, 2]}

    def test_an_anchor_due_without_the_reducer_is_refused(self, open_store: OpenStore) -> None:
        for number in range(2):  # the first one, an anchor, is folded at once
            open_store(snapshot_frequency=4, reducers=[SUM], channels={"n": "sum"}).thread("t").append({"n": number})
        store = open_store()
        for text in ("a", "b"):
            store.thread("t").append({"m": [text]})
        with pytest.raises(ReducerMismatchError, match=r"'n'.*'sum' version 1"):
            store.thread("t").append({"m": ["c"]})
        assert store.thread("t").state(channels=["m"]) == {"m": ["a", "b"]}

    def test_putting_the_state_anew_needs_no_reducer(self, open_store: OpenStore) -> None:
        open_store(reducers=[SUM], channels={"n": "sum"}).thread("t").append({"n": 1})
        store = open_store()
        store.thread("t").put_state({"n": 5, "m": [1]})
        assert store.thread("t").state() == {"n": 5, "m": [1]}

    def test_a_second_configured_reducer_is_refused(self, open_store: OpenStore) -> None:
        product = Reducer("product", 1, lambda value, write: value * write, lambda: 1)
        open_store(reducers=[SUM], channels={"n": "sum"}).thread("t").append({"n": 1})
        store = open_store(reducers=[SUM, product], channels={"n": "product"})
        with pytest.raises(ReducerMismatchError, match=r"'sum' version 1.*'product' version 1"):
            store.thread("t").append({"n": 1})

    def test_what_the_reducer_raises_reaches_the_caller(self, open_store: OpenStore) -> None:
        def refuse(value: int, write: int) -> int:
            if write == 13:
                raise LookupError("thirteen")
            return value + write

        picky = Reducer("picky", 1, refuse, int)
        store = open_store(reducers=[picky], channels={"n": "picky"})
        made = store.thread("t").append({"n": 1})
        store.thread("t").append({"n": 13})
        with pytest.raises(LookupError, match=r"thirteen"):
            store.thread("t").state()
        assert store.thread("t").state(at=made) == {"n": 1}

    def test_deleting_hides_what_the_fold_still_needs(self, open_store: OpenStore) -> None:
        store = open_store(reducers=[SUM], channels={"n": "sum"})
        thread = store.thread("t")
        made = [thread.append({"n": 1 << number, "m": [number]}) for number in range(5)]
        expected = states(thread)
        for place in (1, 0, 3):
            thread.delete(made[place])
            del expected[made[place].id]
            for fresh in (store, open_store(reducers=[SUM])):
                assert states(fresh.thread("t")) == expected
                with pytest.raises(CheckpointNotFoundError):
                    fresh.thread("t").state(at=made[place])
                with pytest.raises(CheckpointNotFoundError):
                    fresh.thread("t").append({"n": 1}, at=made[place])
        report = check(store)
        assert (report.hidden, report.checkpoints, report.garbage_records) == (3, 2, 0)
        assert next(info.checkpoints for info in store.threads()) == 2
        thread.delete(made[4])
        report = check(store)  # the fourth went with the fifth, which alone stood on it
        assert (report.hidden, report.checkpoints) == (2, 1)
        assert thread.state() == {"n": 7, "m": [0, 1, 2]}
        thread.delete(made[2])
        report = check(store)
        assert (report.hidden, report.checkpoints, report.garbage_records) == (0, 0, 0)
        assert thread.append({"n": 1}).parent_id is None
        assert thread.state() == {"n": 1}

    def test_deleting_between_anchors(self, open_store: OpenStore) -> None:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        store = open_store(snapshot_frequency=4, reducers=[SUM], channels={"n": "sum"})
        thread = store.thread("t")
        for number in range(40):
            thread.append(
                {"n": number} if number % 3 else {"m": [number]}, at=chance.choice([None, None, thread.latest()])
            )
        expected = states(thread)
        for id_ in chance.sample(sorted(expected), 40):
            thread.delete(id_)
            del expected[id_]
            assert states(open_store(reducers=[SUM]).thread("t")) == expected
            assert check(store).garbage_records == 0
        assert check(store).hidden == 0

    def test_a_reducer_that_is_no_good_name(self) -> None:
        for name in ("", "a\0b", "append", "patch"):
            with pytest.raises(InvalidInputError, match=r"can't be named"):
                Reducer(name, 1, max, int)
        for version in (0, -1, True, "1", 1.0):
            with pytest.raises(InvalidInputError, match=r"expected an int from 1 on"):
                Reducer("x", version, max, int)  # type: ignore[arg-type]


class TestSnapshotFrequency:
    def test_kept_with_the_store_when_it_is_made(self, open_store: OpenStore) -> None:
        assert open_store(snapshot_frequency=7).log.snapshot_frequency == 7
        assert open_store().log.snapshot_frequency == 7
        assert open_store(snapshot_frequency=3).log.snapshot_frequency == 3
        assert open_store().log.snapshot_frequency == 7

    def test_the_default(self, open_store: OpenStore) -> None:
        assert open_store().log.snapshot_frequency == DEFAULT_SNAPSHOT_FREQUENCY == 50
        assert open_store(snapshot_frequency=3).log.snapshot_frequency == 3
        assert open_store().log.snapshot_frequency == 50

    def test_each_handle_keeps_to_its_own(self, open_store: OpenStore) -> None:
        slow, quick = open_store(snapshot_frequency=20), open_store(snapshot_frequency=2)
        many = {f"channel {number}": number for number in range(200)}  # else there are more anchors in any case
        for _ in range(10):
            slow.thread("slow").append(many)
            quick.thread("quick").append(many)
        assert check(slow).max_depth == 9
        slow.delete("slow")
        assert check(slow).max_depth == 1


class TestHandles:
    def test_each_sees_what_the_others_put(self, open_store: OpenStore) -> None:
        one, two = open_store(), open_store()
        expected = []
        for number in range(20):
            store = (one, two)[number % 3 % 2]
            made = store.thread("t").append({"m": [say(str(number))]})
            expected.append(say(str(number)))
            for fresh in (one, two):
                assert fresh.thread("t").latest() == made
                assert fresh.thread("t").state() == {"m": expected}

    def test_the_cached_head_is_not_trusted_beyond_its_checkpoint(self, open_store: OpenStore) -> None:
        one, two = open_store(), open_store()
        one.thread("t").put_state({"m": [say("a"), say("b")], "n": 1})
        two.thread("t").put_state({"m": [say("b"), say("c")], "o": 2})
        one.thread("t").put_state({"m": [say("c"), say("a")], "n": 1})
        two.thread("t").append({"m": [say("d")]})
        for fresh in (one, two, open_store()):
            assert fresh.thread("t").state() == {"m": [say("c"), say("a"), say("d")], "n": 1}

    def test_a_deletion_by_another_handle_is_noticed(self, open_store: OpenStore) -> None:
        one, two = open_store(), open_store()
        made = [one.thread("t").put_state({"m": [say(str(n)) for n in range(k + 1)]}) for k in range(4)]
        assert two.thread("t").state() == one.thread("t").state()
        two.thread("t").delete(made[3])
        assert one.thread("t").latest() == made[2]
        one.thread("t").append({"m": [say("next")]})
        two.thread("t").delete(made[2])
        for fresh in (one, two, open_store()):
            assert texts(fresh.thread("t").state()["m"]) == ["0", "1", "2", "next"]

    @pytest.mark.parametrize("cache_bytes", [0, 1, 3000, 20_000])
    def test_a_small_cache_gives_the_same_answers(self, open_store: OpenStore, cache_bytes: int) -> None:
        store = open_store(snapshot_frequency=5, cache_bytes=cache_bytes)
        thread = store.thread("t")
        expected = {}
        messages: list[Any] = []
        for number in range(30):
            messages = [*messages[-6:], say(f"{number} " * 50)]
            if number % 3:
                made = thread.put_state({"m": messages, "d": {"k": number}})
                expected[made.id] = {"m": messages, "d": {"k": number}}
                thread.put_writes(made, {"m": [say(f"w{number}")]})
            else:
                made = thread.append({"m": [say("x")], "d": {"l": number}})
                messages = [*messages[:-1], say("x")] if number else [say("x")]
                expected[made.id] = thread.state()
                messages = thread.state()["m"]
            assert store.log.heads.held_bytes <= cache_bytes
        assert states(thread) == states(open_store().thread("t"))
        for id_, state in expected.items():
            assert thread.state(at=id_) == state


class TestClock:
    """Ids only grow, whatever the clock does."""

    def test_a_clock_that_goes_back(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = open_store(), open_store()
        times = [1_000_000.0, 1_000_000.0, 999_999.5, 5.0, 0.0, 2_000_000.0, 1_500_000.0, 0.001]
        ids: list[str] = []
        for number, now in enumerate(times * 3):
            store = (one, two)[number % 2]
            monkeypatch.setattr(store.log, "_clock", lambda now=now: now)
            made = store.thread("t").append({"n": number})
            assert made.created_at == datetime.fromtimestamp(int(now * 1000) / 1000, UTC)
            ids.append(made.id)
        assert ids == sorted(set(ids))
        assert [c.id for c in one.thread("t").history()] == ids[::-1]
        assert one.thread("t").state() == {"n": len(ids) - 1}

    def test_a_clock_that_stands_still(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_store()
        monkeypatch.setattr(store.log, "_clock", lambda: 1_000_000.0)
        ids = [
            store.thread(name, namespace=space).append({"n": 1}).id
            for _ in range(30)
            for name in "ab"
            for space in ("", "s")
        ]
        assert len(set(ids)) == len(ids)
        for name in "ab":
            of_thread = ids[0::4] + ids[1::4] if name == "a" else ids[2::4] + ids[3::4]
            assert len(set(of_thread)) == 60
        assert ids[0::4] == sorted(ids[0::4])

    def test_a_clock_that_went_back_between_processes(self, tmp_path: Path) -> None:
        script = (
            "import sys, deltastore\n"
            "store = deltastore.open(sys.argv[1])\n"
            "store.log._clock = lambda: float(sys.argv[2])\n"
            "print(*(store.thread('t').append({'n': n}).id for n in range(3)))\n"
            "store.close()\n"
        )
        ids: list[str] = []
        for now in (2_000_000_000.0, 1_000.0, 1_999_999_999.0):
            command = [sys.executable, "-c", script, os.fspath(tmp_path / "store.ds"), str(now)]
            ids += subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
        assert len(ids) == 9
        assert ids == sorted(set(ids))

    def test_puts_of_another_process_are_seen(self, tmp_path: Path) -> None:
        script = (
            "import sys, deltastore\n"
            "with deltastore.open(sys.argv[1]) as store:\n"
            "    thread = store.thread('t')\n"
            "    thread.put_state({'m': [*thread.state()['m'], 'other'], 'p': 1})\n"
            "    print(thread.latest().id)\n"
        )
        with deltastore.open(tmp_path / "store.ds") as store:
            thread = store.thread("t")
            for number in range(2):
                thread.put_state({"m": [*(thread.state()["m"] if number else []), "own"]})
                command = [sys.executable, "-c", script, os.fspath(tmp_path / "store.ds")]
                id_ = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
                assert thread.state() == {"m": ["own", "other"] * (number + 1), "p": 1}
                assert thread.append({"q": 1}).parent_id == id_
            assert thread.state() == {"m": ["own", "other"] * 2, "p": 1, "q": 1}
            assert check(store).ok


class TestOpen:
    @pytest.mark.parametrize("sync", ["full", "meta", "none"])
    def test_each_sync_mode_stores(self, tmp_path: Path, sync: Any) -> None:
        with deltastore.open(tmp_path / "store.ds", sync=sync) as store:
            store.thread("t").append({"m": [1]})
        with deltastore.open(tmp_path / "store.ds") as store:
            assert store.thread("t").state() == {"m": [1]}

    def test_a_stronger_mode_than_the_process_has_is_refused(self, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds", sync="none") as weak:
            with pytest.raises(SyncModeError):
                deltastore.open(tmp_path / "store.ds", sync="full")
            weak.thread("t").append({"m": [1]})

    def test_memory_is_gone_with_the_store(self) -> None:
        with deltastore.open(":memory:") as store:
            store.thread("t").append({"m": [1]})
            assert store.info().kind == "memory"
        with deltastore.open(":memory:") as store:
            assert list(store.threads()) == []

    def test_a_path_like_and_what_the_store_says_of_itself(self, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds") as store:
            assert repr(store) == f"<deltastore.Store {tmp_path / 'store.ds'}>"
            assert repr(store.thread("a")) == f"<deltastore.Thread 'a' of {tmp_path / 'store.ds'}>"
            store.thread("t").append({"m": ["x" * 10_000]})
            info = store.info()
            assert info.kind == "lmdb"
            assert 0 < info.used_bytes <= info.file_bytes
        with deltastore.open(os.fspath(tmp_path / "store.ds")) as store:
            assert store.thread("t").latest() is not None

    def test_a_store_over_any_storage(self) -> None:
        storage = MemoryStorage()
        Store(storage).thread("t").append({"m": [1]})
        assert Store(storage).thread("t").state() == {"m": [1]}


@pytest.fixture
def documents() -> list[str]:
    chance = random.Random(5)
    return ["".join(chance.choice("abcdefgh \n") for _ in range(400)) for _ in range(40)]


def test_packs_change_nothing(open_store: OpenStore, documents: list[str]) -> None:
    """Enough puts that chunks and records are packed several times, read back by a handle without cache."""
    store = open_store(snapshot_frequency=6)
    expected = {}
    messages: list[Any] = []
    for number in range(130):
        messages = [*messages, say(documents[number % 40] + str(number))]
        made = store.thread("t").append({"m": messages[-1:], "doc": documents[number % 7]})
        expected[made.id] = {"m": messages, "doc": documents[number % 7]}
    assert states(open_store(cache_bytes=0).thread("t")) == expected
    kept = [key for key in rows_of(store.log.storage) if key[:6] == (1).to_bytes(6, "big")]
    assert len(kept) < 130


def test_puts_after_deletions_look_at_few_records(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion leaves the count of records to be packed too high: puts mustn't look for them again and again."""
    thread = store.thread("t")
    for checkpoint in [thread.append({"m": [number]}) for number in range(51)][:45]:
        thread.delete(checkpoint)
    decoded = 0
    real = reading.open_row

    def count(*arguments: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return real(*arguments)

    monkeypatch.setattr(reading, "open_row", count)
    for number in range(49):
        thread.append({"m": [number]})
    assert decoded < 49 * 4


def test_a_store_is_made_without_the_uuid_module(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites that make uuid4 predictable count its calls: a store mustn't take one."""

    def refuse() -> None:
        raise AssertionError("uuid4 was called")

    monkeypatch.setattr("uuid.uuid4", refuse)
    open_store().thread("t").append({"m": ["a"]})


class TestPutStateOnWhatWasFolded:
    """What a chain holds as writes may be read as a value; a patch can't stand on it."""

    CASES = (
        ({"d": {"a": 1, "b": 2}}, {"d": {"c": 3}}, {"d": {"a": 1, "b": 2, "c": 4}}),
        ({"u": [{"id": "1"}]}, {"u": [{"id": "2"}]}, {"u": [{"id": "1"}, {"id": "2"}, {"id": "3"}]}),
    )

    @pytest.mark.parametrize(("first", "second", "state"), CASES, ids=["merge", "upsert"])
    def test_after_a_cold_read(self, open_store: OpenStore, first: Any, second: Any, state: Any) -> None:
        options = {"channels": {"u": "upsert"}}
        thread = open_store(**options).thread("t")
        thread.append(first)
        thread.append(second)
        cold = open_store(**options).thread("t")
        cold.state()
        cold.put_state(state)
        assert cold.state() == state
        assert open_store(**options).thread("t").state() == state

    @pytest.mark.parametrize(("first", "second", "state"), CASES, ids=["merge", "upsert"])
    def test_after_a_put_that_was_refused(self, open_store: OpenStore, first: Any, second: Any, state: Any) -> None:
        options = {"channels": {"u": "upsert"}}
        thread = open_store(**options).thread("t")
        thread.append(first)
        thread.append(second)
        with pytest.raises(EncodeError):
            thread.put_state(state | {"m": [Remove("x")]})
        thread.put_state(state)
        assert open_store(**options).thread("t").state() == state


def test_a_record_pack_stays_small_whatever_the_metadata(open_store: OpenStore) -> None:
    store = open_store()
    thread = store.thread("t")
    chance = random.Random(9)
    for number in range(110):
        thread.append({"n": number}, metadata={"trace": chance.randbytes(20_000)})
    records = [row for key, row in rows_of(store.log.storage).items() if key[6:7] == b"r"]
    assert len(records) < 110
    assert max(map(len, records)) < 600_000


def test_a_copy_that_a_collection_has_begun_to_remove_is_refused(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine slept for hours within a copy; meanwhile another process collects, and is killed half-way."""
    store = open_store()
    for number in range(40):
        store.thread("source").append({"m": [number]})
    monkeypatch.setattr(deleting, "MAX_COLLECTED_ROWS", 10)
    real = names.in_write
    calls: list[int] = []

    class KilledError(Exception):
        pass

    def in_write(storage: Any, threads: Any, work: Any) -> Any:
        result = real(storage, threads, work)
        calls.append(1)
        if len(calls) == 2:  # after the first transaction of the collection
            raise KilledError
        return result

    def finishing(storage: Any, threads: Any, work: Any) -> Any:
        if work.__name__ == "finish":
            monkeypatch.setattr(names, "in_write", in_write)
            calls.append(1)
            with pytest.raises(KilledError):
                deleting.collect(storage, store.log.now_ms() + 3 * 3_600_000)
            monkeypatch.setattr(names, "in_write", real)
        return real(storage, threads, work)

    monkeypatch.setattr(names, "in_write", finishing)
    with pytest.raises(ConflictError, match="collected as abandoned"):
        store.copy("source", "target")
    monkeypatch.setattr(names, "in_write", real)
    assert [info.name for info in store.threads()] == ["source"]
    store.collect()
    assert len(store.thread("source").state()["m"]) == 40
