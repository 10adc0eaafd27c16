"""The contract of DeltaSaver, call by call; where InMemorySaver takes the same call, its answer is the expected one."""

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send

import deltastore
from deltastore import Store
from deltastore.errors import (
    ClosedError,
    CodecMismatchError,
    EncodeError,
    FrontMismatchError,
    InvalidIdError,
    InvalidInputError,
)
from deltastore.langgraph import DeltaSaver
from deltastore.log import rows
from tests.langgraph.comparing import Pair, assert_same, checkpoint, config, expected_metadata

OpenStore = Callable[..., Store]
META: dict[str, Any] = {"source": "loop", "step": 1, "parents": {}}
SPECIAL = ("__error__", "__scheduled__", "__interrupt__", "__resume__")


def put_one(saver: DeltaSaver, thread: Any = "t", id_: str = "1", ns: str = "", **values: Any) -> dict[str, Any]:
    versions = dict.fromkeys(values, f"v{id_}")
    return saver.put(config(thread, ns=ns), checkpoint(id_, versions, values), META, versions)


def grow(pair: Pair, thread: str, ns: str = "", *, count: int, first: int = 0, parent: str | None = None) -> str:
    """Put a row of checkpoints, each with a message more; return the id of the last."""
    texts = [f"message {number} " + "x" * 40 for number in range(first + count)]
    for number in range(first, first + count):
        id_ = f"{number:04}"
        versions = {"messages": f"{number:04}.{ns}", "step": f"{number:04}.{ns}", "still": "0"}
        values = {"messages": texts[: number + 1], "step": number, "still": {"k": "v"}}
        pair.put(config(thread, parent, ns), checkpoint(id_, versions, values), {**META, "step": number})
        parent = id_
    assert parent is not None
    return parent


def packed_ids(saver: DeltaSaver, thread: str) -> list[str]:
    """Return the ids that stand in record packs."""
    from deltastore.log import keys, names
    from deltastore.log.reading import View

    with saver.store.log.storage.read() as tx:
        number = names.find(tx, keys.THREAD, thread.encode())
        assert number is not None
        view = View(tx, number, thread)
        return [
            record.id
            for namespace in rows.load_namespaces(tx, number)
            for found in view.record_rows(namespace.number)
            if found.row.packed
            for record in found.row.records
            if not record.is_hidden
        ]


def threads_of(saver: DeltaSaver) -> set[str]:
    return {row.name for row in saver.store.log.all_threads()}


class TestPutAndGet:
    def test_what_is_read_is_what_the_reference_reads(self, pair: Pair) -> None:
        values = {
            "messages": [
                HumanMessage("hi", id="m1"),
                AIMessage("", id="m2", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}]),
            ],
            "mixed": [1, True, 1.0, None, "text", b"bytes", (1, 2), {"k": [1]}, -0.0, float("inf")],
            "numbers": list(range(3000)),
            "files": {"a.py": "x" * 9000, 7: "seven", "empty": {}},
            "none": None,
            "bytes": b"\0\1",
            "when": datetime.fromisoformat("2026-03-07T09:00:00+01:00"),
            "other": {"set": {1, 2}, "frozen": frozenset({"a"}), "decimal": Decimal("1.10"), "uuid": uuid.UUID(int=5)},
            "error": ValueError("boom", 1),
            "sends": [Send("node", {"x": [1]}), Interrupt(value="?", id="i")],
            "long": "é" * 20_000,
            "empty list": [],
        }
        pair.put(config("t"), checkpoint("1", dict.fromkeys(values, "1.0"), values))
        changed = {**values, "numbers": list(range(3001)), "files": {**values["files"], "a.py": "x" * 8999 + "y"}}
        versions = dict.fromkeys(values, "1.0") | {"numbers": "2.0", "files": "2.0"}
        pair.put(config("t", "1"), checkpoint("2", versions, changed))
        assert pair.compare_all() == 2

    def test_every_bump_may_change_the_type_of_a_value(self, pair: Pair) -> None:
        kinds: list[Any] = [[], {}, None, "", [[]], (), [0], [False], [0.0], {0: 0}, {False: 0}]
        parent = None
        for number, value in enumerate(one for both in permutations(kinds, 2) for one in both):
            id_ = f"{number:04}"
            pair.put(config("t", parent), checkpoint(id_, {"a": number + 1}, {"a": value}))
            parent = id_
        assert pair.compare_all() == 220

    def test_unknown_threads_namespaces_and_ids_read_as_none(self, saver: DeltaSaver) -> None:
        put_one(saver, a=1)
        for where in (
            config("other"),
            config("t", ns="other"),
            config("t", "2"),
            config("t", "0"),
            config("t", "1", "other"),
        ):
            assert saver.get_tuple(where) is None
            assert list(saver.list(where)) == []

    def test_versions_may_be_ints_floats_and_text(self, pair: Pair) -> None:
        versions: dict[str, Any] = {"a": 1, "b": 1.5, "c": "00001.0.5", "d": 2**63 - 1}
        pair.put(config("t"), checkpoint("1", versions, {name: [1] for name in versions}))
        pair.put(
            config("t", "1"), checkpoint("2", versions | {"a": 2}, {name: [1] for name in versions} | {"a": [1, 2]})
        )
        pair.compare_all()

    def test_keys_of_the_frame_are_kept(self, pair: Pair) -> None:
        made = checkpoint("1", {"a": 1}, {"a": 1}, pending_sends=[Send("n", 1)], later={"deep": (1, {2})}, none=None)
        pair.put(config("t"), made)
        pair.compare_all()
        found = pair.saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["pending_sends"] == [Send("n", 1)]  # type: ignore[typeddict-item]

    def test_metadata_is_what_get_checkpoint_metadata_makes_of_it(self, pair: Pair) -> None:
        where = config("t", user="u1", thread_copy=3, flag=True, __hidden="no", obj=object())
        where["metadata"] = {"run_id": "r1", "tenant": "a\0b", "step": 99}
        given = {"source": "input", "step": -1, "parents": {"": "p"}, "nested": {"a": [1, {"b": None}]}, "text": "x\0y"}
        pair.put(where, checkpoint("1", {}, {}), given)
        pair.put(config("t", "1"), checkpoint("2", {}, {}), {})
        pair.compare_all()
        found = pair.saver.get_tuple(config("t", "1"))
        assert found is not None
        assert found.metadata == expected_metadata(where, given)
        assert found.metadata["tenant"] == "ab"  # type: ignore[typeddict-item]

    def test_reads_give_fresh_objects(self, saver: DeltaSaver) -> None:
        """langgraph#8748."""
        put_one(saver, a=[[1]], d={"k": [1]}, b=bytearray(b"1"))
        saver.put_writes(config("t", "1"), [("a", [1])], "task")
        for _ in range(2):
            found = saver.get_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"a": [[1]], "d": {"k": [1]}, "b": bytearray(b"1")}
            assert found.pending_writes == [("task", "a", [1])]
            found.checkpoint["channel_values"]["a"][0].append(2)
            found.checkpoint["channel_values"]["d"]["k"].clear()
            found.checkpoint["channel_values"]["b"].extend(b"2")
            found.checkpoint["channel_versions"]["a"] = "other"
            found.checkpoint["versions_seen"]["node"].clear()
            found.metadata.clear()
            found.pending_writes[0][2].append(2)

    def test_changing_what_was_put_changes_nothing_stored(self, saver: DeltaSaver) -> None:
        value = [[1]]
        put_one(saver, a=value)
        saver.put_writes(config("t", "1"), [("a", value)], "task")
        value[0].append(2)
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["a"] == [[1]]
        assert found.pending_writes == [("task", "a", [[1]])]

    def test_get_returns_the_checkpoint_alone(self, saver: DeltaSaver) -> None:
        put_one(saver, a=1)
        found = saver.get(config("t"))
        assert found is not None
        assert found["channel_values"] == {"a": 1}
        assert saver.get(config("none")) is None

    def test_a_message_put_many_times_is_read_as_the_serializer_gives_it(self, pair: Pair) -> None:
        message = AIMessage(
            "text",
            id="m",
            additional_kwargs={"refusal": None, "tool_calls": []},
            response_metadata={"tuple": (1, 2)},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        )
        pair.put(config("t"), checkpoint("1", {"m": 1}, {"m": [message]}))
        pair.put(config("t", "1"), checkpoint("2", {"m": 2}, {"m": [message, HumanMessage("a", id="n")]}))
        pair.compare_all()


class TestConfigs:
    @pytest.mark.parametrize("form", [{}, {"checkpoint_ns": ""}, {"checkpoint_ns": None}])
    @pytest.mark.parametrize("id_", [{}, {"checkpoint_id": None}, {"checkpoint_id": ""}])
    def test_no_namespace_and_no_id_have_many_forms(
        self, saver: DeltaSaver, form: dict[str, Any], id_: dict[str, Any]
    ) -> None:
        where: Any = {"configurable": {"thread_id": "t"} | form | id_}
        stored = saver.put(where, checkpoint("1", {"a": 1}, {"a": 1}), META, {"a": 1})
        assert stored == config("t", "1")
        found = saver.get_tuple(where)
        assert found is not None
        assert found.config == config("t", "1")
        assert found.parent_config is None
        assert [one.config for one in saver.list(where)] == [config("t", "1")]
        saver.put_writes({"configurable": {"thread_id": "t", "checkpoint_id": "1"} | form}, [("a", 1)], "task")
        found = saver.get_tuple(where)
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]

    @pytest.mark.parametrize("id_", [None, ""])
    def test_an_empty_before_is_none(self, pair: Pair, id_: str | None) -> None:
        grow(pair, "t", count=3)
        pair.compare_list(config("t"), before={"configurable": {"thread_id": "t", "checkpoint_id": id_}})
        assert len(list(pair.saver.list(config("t"), before={"configurable": {"checkpoint_id": id_}}))) == 3

    def test_a_given_config_comes_back_as_it_is(self, pair: Pair) -> None:
        grow(pair, "t", count=1)
        where = config("t", "0000", extra=object())
        found = pair.saver.get_tuple(where)
        assert found is not None
        assert found.config is where
        pair.compare(where)

    @pytest.mark.parametrize("where", [{}, {"configurable": {}}, {"configurable": {"checkpoint_id": "1"}}])
    def test_a_config_without_thread_is_refused(self, saver: DeltaSaver, where: Any) -> None:
        for call in (
            lambda: saver.get_tuple(where),
            lambda: saver.put(where, checkpoint("1", {}, {}), META, {}),
            lambda: saver.put_writes(where, [("a", 1)], "task"),
            lambda: list(saver.list(where or {"configurable": {}})),
        ):
            with pytest.raises(InvalidIdError, match="thread"):
                call()

    @pytest.mark.parametrize("where", [None, "t", 5, {"configurable": None}, {"configurable": "thread_id"}])
    def test_what_is_no_config_is_refused(self, saver: DeltaSaver, where: Any) -> None:
        for call in (
            lambda: saver.get_tuple(where),
            lambda: saver.put(where, checkpoint("1", {}, {}), META, {}),
            lambda: saver.put_writes(where, [("a", 1)], "task"),
            lambda: list(saver.list(where or "t")),
            lambda: list(saver.list(config("t"), before=where or "t")),
            lambda: saver.history(where),
            lambda: saver.history(config("t"), before=where or "t"),
            lambda: saver.forks(where),
            lambda: saver.tags(where),
            lambda: saver.tag(where, "name"),
            lambda: saver.get_delta_channel_history(config=where, channels=["a"]),
        ):
            with pytest.raises(InvalidIdError, match=r"expected \{'configurable'|expected \{\"configurable\""):
                call()

    @pytest.mark.parametrize("ids", [None, 5])
    def test_what_are_no_ids_is_refused(self, saver: DeltaSaver, ids: Any) -> None:
        for call in (lambda: saver.prune(ids), lambda: saver.delete_for_runs(ids)):
            with pytest.raises(InvalidInputError, match="expected a sequence of ids"):
                call()
        with pytest.raises(InvalidIdError, match="expected a str or a UUID"):
            saver.delete_for_runs([ids])

    @pytest.mark.parametrize("store", ["graph.ds", Path("graph.ds"), None])
    def test_what_is_no_store_is_refused(self, store: Any) -> None:
        with pytest.raises(InvalidInputError, match=r"DeltaSaver\.from_path"):
            DeltaSaver(store)

    @pytest.mark.parametrize("url", [None, 5, "graph.ds"])
    def test_what_is_no_url_is_refused(self, url: Any) -> None:
        with pytest.raises(InvalidInputError):
            DeltaSaver.from_url(url)

    @pytest.mark.parametrize("serde", [5, "json", JsonPlusSerializer])
    def test_what_is_no_serializer_is_refused(self, store: Store, serde: Any) -> None:
        with pytest.raises(InvalidInputError, match="dumps_typed"):
            DeltaSaver(store, serde=serde)

    @pytest.mark.parametrize(
        ("thread_id", "text"),
        [
            ("1", "1"),
            (1, "1"),
            (-5, "-5"),
            (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
            ("user \0 中文 🎈 " + "x" * 5000, "user \0 中文 🎈 " + "x" * 5000),
            ("\ud800", "\ud800"),
        ],
    )
    def test_thread_ids_are_text_and_what_has_one_text(self, saver: DeltaSaver, thread_id: Any, text: str) -> None:
        """langgraph#6891, langgraph#1878, langgraphjs#665: an int or UUID is the same thread as its text."""
        put_one(saver, thread_id, a=1)
        saver.put_writes(config(thread_id, "1"), [("a", 1)], "task")
        for form in (thread_id, text):
            found = saver.get_tuple(config(form))
            assert found is not None
            assert found.config["configurable"]["thread_id"] is form
            assert len(list(saver.list(config(form)))) == 1
        assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == [text]
        saver.delete_thread(thread_id)
        assert saver.get_tuple(config(text)) is None

    def test_the_refusal_says_what_is_taken(self, saver: DeltaSaver) -> None:
        with pytest.raises(InvalidIdError, match=r"type float \(1\.5\); expected a str, or an int or UUID"):
            saver.get_tuple(config(1.5))

    @pytest.mark.parametrize("thread_id", [True, False, None, 1.0, "", b"1", ("a",), object()])
    def test_other_thread_ids_are_refused(self, saver: DeltaSaver, thread_id: Any) -> None:
        for call in (
            lambda: put_one(saver, thread_id, a=1),
            lambda: saver.put_writes(config(thread_id, "1"), [("a", 1)], "task"),
            lambda: saver.get_tuple(config(thread_id)),
            lambda: list(saver.list(config(thread_id))),
            lambda: saver.delete_thread(thread_id),
        ):
            with pytest.raises(InvalidIdError):
                call()
        assert threads_of(saver) == set()

    @pytest.mark.parametrize("ns", ["sub:1", "a:1|b:2|c", "|", ":", "a\0b", "中|文:🎈", "x" * 4000, " "])
    def test_namespaces_are_any_text(self, pair: Pair, ns: str) -> None:
        grow(pair, "t", ns, count=3)
        grow(pair, "t", count=2)
        pair.compare_all()
        pair.compare_list({"configurable": {"thread_id": "t"}})

    @pytest.mark.parametrize("ns", [1, b"x", ["a"]])
    def test_other_namespaces_are_refused(self, saver: DeltaSaver, ns: Any) -> None:
        for call in (
            lambda: put_one(saver, ns=ns, a=1),
            lambda: saver.get_tuple(config("t", ns=ns)),
            lambda: list(saver.list(config("t", ns=ns))),
        ):
            with pytest.raises(InvalidIdError):
                call()


class TestIds:
    def test_the_latest_is_the_greatest_id(self, pair: Pair) -> None:
        """langgraph#6869: not the last put."""
        pair.put(config("t"), checkpoint("z-older", {"a": 1}, {"a": "older"}))
        pair.put(config("t", "z-older"), checkpoint("a-newer", {"a": 2}, {"a": "newer"}))
        pair.compare_all()
        found = pair.saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["id"] == "z-older"
        pair.compare_list(config("t"), before=config("t", "b"))

    def test_ids_are_ordered_as_text(self, pair: Pair) -> None:
        ids = ["Z", "a", "é", "中", "\uffff", "🎈", "0", " ", "a\0", "a\0b", "aa", "z" * 255]
        for number, id_ in enumerate(ids):
            pair.put(config("t"), checkpoint(id_, {"a": number}, {"a": number}))
        pair.compare_all()
        for id_ in [*ids, "b", "\ud800", "zz"]:
            pair.compare_list(config("t"), before=config("t", id_))

    @pytest.mark.parametrize("id_", ["x" * 256, "é" * 128, "\ud800", 5, None, ""])
    def test_ids_outside_the_rule_are_refused(self, saver: DeltaSaver, id_: Any) -> None:
        with pytest.raises(InvalidIdError):
            put_one(saver, id_=id_, a=1)
        if id_:
            for call in (
                lambda: saver.put(config("t", id_), checkpoint("1", {}, {}), META, {}),
                lambda: saver.put_writes(config("t", id_), [("a", 1)], "task"),
                *([lambda: saver.get_tuple(config("t", id_))] if id_ == 5 else []),
            ):
                with pytest.raises(InvalidIdError):
                    call()
        assert threads_of(saver) == set()

    def test_writes_need_an_id(self, saver: DeltaSaver) -> None:
        with pytest.raises(InvalidInputError, match="checkpoint_id"):
            saver.put_writes(config("t"), [("a", 1)], "task")


class TestPutRule:
    def test_channels_that_the_last_step_did_not_write_survive(self, pair: Pair) -> None:
        """langgraphjs#2334."""
        pair.put(config("t"), checkpoint("1", {"a": 1, "b": 1, "c": 1}, {"a": [1], "b": {"x": 1}, "c": "c"}))
        pair.put(config("t", "1"), checkpoint("2", {"a": 1, "b": 2, "c": 1}, {"b": {"x": 2}}), new_versions={"b": 2})
        pair.compare_all()
        found = pair.saver.get_tuple(config("t", "2"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": [1], "b": {"x": 2}, "c": "c"}

    def test_an_equal_version_is_inherited_whatever_the_value_says(self, pair: Pair) -> None:
        pair.put(config("t"), checkpoint("1", {"a": 1}, {"a": [1]}))
        pair.put(config("t", "1"), checkpoint("2", {"a": 1}, {"a": ["another"]}), new_versions={})
        pair.compare_all()

    def test_a_version_without_value_is_absent_until_the_next(self, pair: Pair) -> None:
        pair.put(config("t"), checkpoint("1", {"a": 1, "b": 1}, {"a": [1], "b": 1}))
        pair.put(config("t", "1"), checkpoint("2", {"a": 2, "b": 1}, {"b": 1}))
        pair.put(config("t", "2"), checkpoint("3", {"a": 2, "b": 2}, {"b": 2}))
        pair.put(config("t", "3"), checkpoint("4", {"a": 3, "b": 2}, {"a": [1], "b": 2}))
        pair.compare_all()

    def test_a_channel_without_version_is_absent(self, pair: Pair) -> None:
        pair.put(config("t"), checkpoint("1", {"a": 1}, {"a": [1], "untracked": 2}), new_versions={"a": 1})
        pair.put(config("t", "1"), checkpoint("2", {}, {"a": [1]}), new_versions={})
        pair.put(config("t", "2"), checkpoint("3", {"a": 1}, {"a": [1]}))
        pair.compare_all()

    @pytest.mark.parametrize("length", [2, 3, 50])
    def test_a_copy_goes_under_the_grandparent_with_no_new_versions(self, pair: Pair, length: int) -> None:
        """update_state(as_node="__copy__")."""
        last = grow(pair, "t", count=length)
        source = pair.reference.get_tuple(config("t", last))
        assert source is not None
        copied = {**source.checkpoint, "id": "9999"}
        pair.put(config("t", f"{length - 2:04}"), copied, {**META, "source": "fork"}, new_versions={})
        pair.compare_all()

    def test_a_parent_that_is_not_stored(self, pair: Pair) -> None:
        pair.put(config("t", "nowhere"), checkpoint("1", {"a": 1}, {"a": [1]}))
        pair.put(config("t", "1"), checkpoint("2", {"a": 2}, {"a": [1, 2]}))
        pair.put(config("t", "later"), checkpoint("3", {"a": 3}, {"a": [3]}))
        pair.put(config("t"), checkpoint("later", {"a": 4}, {"a": [4]}))
        pair.compare_all()
        found = pair.saver.get_tuple(config("t", "1"))
        assert found is not None
        assert found.parent_config == config("t", "nowhere")

    def test_a_late_put_begins_the_thread_anew(self, pair: Pair) -> None:
        """langgraph#7206: as InMemorySaver does; nothing of the old thread returns."""
        last = grow(pair, "t", count=40)
        pair.put_writes(config("t", last), [("a", "old")], "task")
        for _ in range(2):
            pair.delete_thread("t")
        assert pair.saver.get_tuple(config("t")) is None
        pair.put_writes(config("t", last), [("a", "late")], "task")
        assert pair.saver.get_tuple(config("t", last)) is None
        pair.put(config("t", last), checkpoint("0040", {"step": "0040."}, {"step": 40}))
        assert pair.compare_all() == 1
        grow(pair, "t", count=45)
        pair.compare_all()

    @pytest.mark.parametrize(
        ("place", "parent"), [(0, None), (0, "same"), (20, "same"), (9, "before"), (8, "nowhere"), (9, "same")]
    )
    def test_an_id_may_be_put_again(self, pair: Pair, place: int, parent: str | None) -> None:
        grow(pair, "t", count=10)
        id_ = f"{place:04}"
        pair.put_writes(config("t", id_), [("a", 1)], "task", "~1")
        above = {"same": id_, "before": f"{max(place - 1, 0):04}", "nowhere": "nowhere", None: None}[parent]
        versions = {"messages": "9000.", "still": "0"}
        again = checkpoint(id_, versions, {"messages": ["another"], "still": {"k": "v"}})
        pair.put(config("t", above), again, {**META, "again": True})
        count = pair.compare_all()
        values = {"messages": ["another", 2], "still": {"k": "v"}}
        pair.put(config("t", id_), checkpoint("0050", {"messages": "9001.", "still": "0"}, values))
        assert pair.compare_all() == count + 1

    def test_an_id_inside_a_pack_may_be_put_again(self, pair: Pair) -> None:
        grow(pair, "t", count=80)
        packed = packed_ids(pair.saver, "t")
        assert len(packed) >= 32
        for id_ in (packed[0], packed[-1], packed[len(packed) // 2]):
            pair.put(config("t", id_), checkpoint(id_, {"messages": "90."}, {"messages": ["another"]}))
            pair.put(config("t"), checkpoint(id_, {"messages": "90."}, {"messages": ["another"]}))
            pair.compare_all()
        grow(pair, "t", count=60, first=80, parent="0079")
        pair.compare_all()

    def test_long_threads_read_old_checkpoints_in_full(self, pair: Pair) -> None:
        """langgraph#8447."""
        grow(pair, "t", count=150)
        assert pair.compare_all() == 150

    def test_threads_and_namespaces_do_not_mix(self, pair: Pair) -> None:
        for thread in ("a", "b", "a|b"):
            for ns in ("", "b", "|b"):
                grow(pair, thread, ns, count=3)
        pair.delete_thread("a")
        assert pair.compare_all() == 18


class TestWrites:
    def test_writes_before_their_checkpoint_wait_for_it(self, pair: Pair) -> None:
        pair.put_writes(config("t", "1"), [("a", [1]), ("b", {"x": 1})], "task")
        assert pair.saver.get_tuple(config("t", "1")) is None
        assert pair.saver.get_tuple(config("t")) is None
        assert list(pair.saver.list(None)) == list(pair.saver.list(config("t"))) == []
        pair.put(config("t"), checkpoint("1", {"a": 1}, {"a": []}))
        pair.compare_all()

    def test_writes_of_a_packed_checkpoint(self, pair: Pair) -> None:
        ids = [f"{number:04}" for number in range(80)]
        for id_ in ids:
            pair.put_writes(config("t", id_), [("a", id_), ("__error__", "first")], "task", "path")
        grow(pair, "t", count=80)
        packed = packed_ids(pair.saver, "t")
        assert len(packed) >= 32
        pair.compare_all()
        for id_ in packed[::5]:
            pair.put_writes(config("t", id_), [("a", "not taken"), ("b", "new"), ("__error__", "second")], "task", "~2")
            pair.put_writes(config("t", id_), [("a", "another task")], "task 2", "~0")
        pair.compare_all()
        grow(pair, "t", count=40, first=80, parent="0079")
        pair.compare_all()

    @pytest.mark.parametrize(
        "calls",
        [
            [[("__error__", "old")], [("__error__", "new"), ("ch", 1)]],
            [[("foo", 1)], [("__interrupt__", "x")]],
            [[("foo", 1), ("bar", 2)], [("bar", 3), ("foo", 4), ("more", 5)]],
            [[("foo", 1)], [("foo", 1)], [("foo", 2), ("__resume__", 1)], [("__resume__", 2)]],
            [[("__error__", 1), ("__interrupt__", 2), ("__resume__", 3), ("__scheduled__", 4)]] * 2,
            [[("__interrupt__", 1), ("__interrupt__", 2)], [("a", 1), ("__interrupt__", 3), ("a", 2)]],
            [[], [("a", 1)], []],
        ],
    )
    def test_special_writes_replace_and_ordinary_ones_stay(
        self, pair: Pair, calls: list[list[tuple[str, Any]]]
    ) -> None:
        """langgraph#8833: decided for each write."""
        pair.put(config("t"), checkpoint("1", {}, {}))
        for number, writes in enumerate(calls):
            pair.put_writes(config("t", "1"), writes, "task", f"path {number}")
            pair.put_writes(config("t", "1"), writes, f"task {number}", "")
            pair.compare(config("t", "1"))

    def test_writes_are_ordered_by_path_task_and_place(self, pair: Pair) -> None:
        """langgraph#8382: writes without a path come first."""
        pair.put(config("t"), checkpoint("1", {}, {}))
        paths = [
            "",
            "~__pregel_pull, b",
            "~__pregel_pull, a",
            "~__pregel_push, 0000000010",
            "~__pregel_push, 0000000009",
            "é",
        ]
        for number, path in enumerate(paths):
            task = f"{(number * 7) % 5}-task-{number}"
            pair.put_writes(
                config("t", "1"), [(f"c{place}", place) for place in range(12)] + [("__error__", 1)], task, path
            )
        pair.compare(config("t", "1"))
        found = pair.saver.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes
        assert found.pending_writes[0][1] == "__error__"

    def test_values_of_writes_keep_their_types(self, pair: Pair) -> None:
        """langgraph#6789."""
        pair.put(config("t"), checkpoint("1", {}, {}))
        message = HumanMessage("hi", id="m")
        writes = [
            ("__pregel_tasks", Send("n", {"m": [message]})),
            ("messages", [message]),
            ("one", message),
            ("none", None),
            ("tuple", (1, [2])),
            ("numbers", [1, 2.0, True]),
            ("__interrupt__", (Interrupt(value={"q": [1]}, id="i"),)),
            ("__error__", RuntimeError("x")),
        ]
        pair.put_writes(config("t", "1"), writes, "task")
        pair.put_writes(config("t", "1"), writes, "task 2")
        pair.put(config("t", "1"), checkpoint("2", {"messages": 1}, {"messages": [message, message]}))
        pair.compare_all()

    def test_writes_stay_with_an_id_that_is_put_again(self, pair: Pair) -> None:
        pair.put(config("t"), checkpoint("1", {}, {}))
        pair.put_writes(config("t", "1"), [("a", 1)], "task")
        pair.put(config("t"), checkpoint("1", {"a": 1}, {"a": 1}))
        pair.compare_all()

    def test_all_of_thirty_tasks_are_stored(self, saver: DeltaSaver) -> None:
        """langgraph#8115."""
        put_one(saver, a=1)
        barrier = threading.Barrier(30)
        errors: list[BaseException] = []

        def work(number: int) -> None:
            barrier.wait()
            try:
                saver.put_writes(config("t", "1"), [("a", [number]), ("b", number)], f"task {number:02}", "")
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == [
            (f"task {number:02}", *write) for number in range(30) for write in (("a", [number]), ("b", number))
        ]

    def test_the_first_write_wins_across_processes(self, tmp_path: Path) -> None:
        program = """
import sys
from deltastore.langgraph import DeltaSaver
with DeltaSaver.from_path(sys.argv[1]) as saver:
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    sys.stdin.readline()
    for round in range(20):
        saver.put_writes(where, [(f"c{round}", sys.argv[2]), ("__error__", sys.argv[2])], f"task {round:02}")
    print("done", flush=True)
    sys.stdin.readline()
"""
        path = tmp_path / "store.ds"
        with DeltaSaver.from_path(path) as saver:
            put_one(saver, a=1)
            saver.put_writes(config("t", "1"), [("c0", "first"), ("__error__", "first")], "task 00")
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(path), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("one", "two")
        ]
        for worker in workers:
            assert worker.stdin
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            assert worker.stdout
            assert worker.stdout.readline() == "done\n"
        with DeltaSaver.from_path(path) as saver:
            found = saver.get_tuple(config("t"))
            assert found is not None
            before = found.pending_writes
            saver.put_writes(config("t", "1"), [("c1", "third")], "task 01")
            found = saver.get_tuple(config("t"))
            assert found is not None
            assert found.pending_writes == before
            assert before is not None
            assert len(before) == 40
            assert ("task 00", "c0", "first") in before
            assert ("task 00", "__error__", "first") not in before
            assert deltastore.check(saver.store).ok
        for worker in workers:
            worker.communicate("end\n")
            assert worker.returncode == 0


class TestList:
    @pytest.fixture
    def filled(self, pair: Pair) -> Pair:
        for thread, ns, count in (("t", "", 75), ("t", "sub:1", 7), ("t", "a|b:1", 3), ("u", "", 2)):
            grow(pair, thread, ns, count=count)
        pair.put(
            config("t", "0010"), checkpoint("0999", {"messages": "x"}, {"messages": []}), {"source": "fork", "step": 5}
        )
        pair.put_writes(config("t", "0003"), [("a", 1)], "task")
        return pair

    def test_a_namespace(self, filled: Pair) -> None:
        for ns in ("", "sub:1", "a|b:1", "unknown"):
            filled.compare_list(config("t", ns=ns))

    def test_all_namespaces_and_all_threads(self, filled: Pair) -> None:
        filled.compare_list({"configurable": {"thread_id": "t"}})
        filled.compare_list({"configurable": {"thread_id": "t", "checkpoint_ns": None}})
        filled.compare_list(None)
        assert len(list(filled.saver.list({}))) == 88  # type: ignore[typeddict-item]

    def test_order_over_namespaces_and_threads(self, filled: Pair) -> None:
        """The greatest id first, and the newest thread first."""
        ids = [
            found.config["configurable"]["checkpoint_id"]
            for found in filled.saver.list({"configurable": {"thread_id": "t"}})
        ]
        assert ids == sorted(ids, reverse=True)
        names = [found.config["configurable"]["thread_id"] for found in filled.saver.list(None)]
        assert list(dict.fromkeys(names)) == ["u", "t"]

    def test_by_id(self, filled: Pair) -> None:
        for where in (config("t", "0003"), config("t", "0003", "sub:1"), config("t", "0074"), config("t", "nowhere")):
            filled.compare_list(where)
        filled.compare_list({"configurable": {"thread_id": "t", "checkpoint_id": "0003"}})
        filled.compare_list(config("t", "0003"), before=config("t", "0003"))
        filled.compare_list(config("t", "0003"), before=config("t", "0004"), limit=1, filter={"step": 3})

    def test_limit_and_before(self, filled: Pair) -> None:
        for limit in (0, 1, 2, 31, 32, 33, 1000, True, False, None):
            filled.compare_list(config("t"), limit=limit)
            for before in ("0000", "0001", "0040", "00405", "0074", "9", " "):
                filled.compare_list(config("t"), limit=3 if limit is None else limit, before=config("t", before))

    @pytest.mark.parametrize("limit", [-1, "x", 1.5])
    def test_other_limits_are_refused(self, saver: DeltaSaver, limit: Any) -> None:
        """For InMemorySaver -1 is none, for SqliteSaver it is all."""
        with pytest.raises(InvalidInputError, match=r"limit .*expected None or an int from 0 on"):
            list(saver.list(config("t"), limit=limit))

    def test_filter(self, filled: Pair) -> None:
        for filter_ in (
            {},
            {"step": 5},
            {"source": "loop"},
            {"source": "fork", "step": 5},
            {"step": "5"},
            {"none": None},
            {"parents": {}},
            {"x": 1},
        ):
            filled.compare_list(config("t"), filter=filter_, limit=8)
            filled.compare_list(config("t"), filter=filter_, limit=1, before=config("t", "0060"))
        filled.compare_list(None, filter={"step": 1})

    def test_the_iterator_is_lazy_and_holds_no_reader(self, filled: Pair) -> None:
        saver = filled.saver
        found = saver.list({"configurable": {"thread_id": "t"}})
        first = next(found)
        assert saver.store.info().readers == 0
        assert first.checkpoint["id"] == "0999"
        last = next(found)
        saver.put(config("t"), checkpoint("5000", {"a": 1}, {"a": 1}), META, {"a": 1})
        filled.reference.delete_thread("u")
        saver.delete_thread("u")
        rest = [one.config["configurable"]["checkpoint_id"] for one in found]
        assert last.checkpoint["id"] == "0074"
        assert len(rest) == 84
        assert "5000" not in rest

    def test_deleting_the_thread_ends_the_list(self, filled: Pair) -> None:
        found = filled.saver.list(config("t"))
        next(found)
        filled.saver.delete_thread("t")
        assert list(found) == []

    def test_a_list_that_is_dropped_holds_nothing(self, filled: Pair) -> None:
        for _ in range(3):
            next(filled.saver.list(None))
        assert filled.saver.store.info().readers == 0


class TestHistory:
    """What DeltaChannels are rebuilt from."""

    @pytest.fixture
    def deltas(self, pair: Pair) -> Pair:
        """Give a thread with a value at every tenth checkpoint, writes at each, and a fork."""
        parent = None
        for number in range(60):
            id_ = f"{number:04}"
            values: dict[str, Any] = {"log": [f"sum of {number}"]} if number % 10 == 3 else {}
            versions = {"log": f"{number:04}.", "never": f"{number:04}."}
            pair.put_writes(config("t", id_), [("log", [f"b {number}"]), ("other", 1), ("log", ["b again"])], "b", "~2")
            pair.put(config("t", parent), checkpoint(id_, versions, values))
            pair.put_writes(config("t", id_), [("log", [f"a {number}"])], "a", "~1")
            pair.put_writes(config("t", id_), [("never", number)], "c", "")
            parent = id_
        pair.put(config("t", "0025"), checkpoint("0025 fork", {"log": "0026.fork"}, {}))
        return pair

    def test_seed_and_writes_of_every_checkpoint(self, deltas: Pair) -> None:
        for _, _, id_ in deltas.stored():
            deltas.compare_history(config("t", id_), ["log", "never", "unknown"])
        deltas.compare_history(config("t"), ["log"])
        deltas.compare_history(config("t", "nowhere"), ["log"])
        deltas.compare_history(config("nowhere"), ["log"])
        assert deltas.saver.get_delta_channel_history(config=config("t"), channels=[]) == {}

    def test_an_ancestor_that_was_put_again(self, deltas: Pair) -> None:
        deltas.put(config("t", "0001"), checkpoint("0052", {"log": "9000."}, {"log": ["another sum"]}))
        for id_ in ("0052", "0053", "0059"):
            deltas.compare_history(config("t", id_), ["log", "never"])

    def test_ancestors_that_are_not_stored(self, deltas: Pair) -> None:
        deltas.put(config("t", "late"), checkpoint("0070", {"log": "0070."}, {}))
        deltas.put_writes(config("t", "late"), [("log", ["early write"])], "a")
        deltas.compare_history(config("t", "0070"), ["log"])
        deltas.put(config("t", "0059"), checkpoint("late", {"log": "0069."}, {}))
        deltas.compare_history(config("t", "0070"), ["log"])

    def test_the_async_twin(self, deltas: Pair) -> None:
        where = config("t", "0040")
        expected = deltas.saver.get_delta_channel_history(config=where, channels=["log"])
        assert asyncio.run(deltas.saver.aget_delta_channel_history(config=where, channels=["log"])) == expected


class TestReadingCreatesNothing:
    def test_unknown_things(self, saver: DeltaSaver) -> None:
        """langgraph#8748."""
        put_one(saver, a=1)
        before = _rows(saver)
        saver.get_tuple(config("ghost"))
        saver.get_tuple(config("ghost", "1", "ns"))
        saver.get_tuple(config("t", ns="ghost"))
        list(saver.list(config("ghost")))
        list(saver.list(None))
        saver.get_delta_channel_history(config=config("ghost"), channels=["ghost"])
        saver.delete_thread("ghost")
        assert _rows(saver) == before
        assert threads_of(saver) == {"t"}


def _rows(saver: DeltaSaver) -> dict[bytes, bytes]:
    with saver.store.log.storage.read() as tx:
        return dict(tx.scan(b"", b"\xff" * 8))


class TestAsync:
    def test_the_twins_give_the_same(self, saver: DeltaSaver) -> None:
        async def run() -> None:
            reference = InMemorySaver()
            for one in (reference, saver):
                await one.aput(config("t"), checkpoint("1", {"a": "1"}, {"a": [1]}), META, {"a": "1"})
                await one.aput_writes(config("t", "1"), [("a", 2)], "task", "path")
                await one.aput(config("t", "1"), checkpoint("2", {"a": "2"}, {"a": [1, 2]}), META, {"a": "2"})
                await one.aput(config("u"), checkpoint("1", {}, {}), META, {})
                await one.adelete_thread("u")
            for where in (config("t"), config("t", "1"), config("u"), config("none")):
                assert_same(await reference.aget_tuple(where), await saver.aget_tuple(where))
            for query in ({}, {"limit": 1}, {"before": config("t", "2")}, {"filter": {"step": 9}}):
                expected = [found async for found in reference.alist(config("t"), **query)]
                actual = [found async for found in saver.alist(config("t"), **query)]
                assert len(expected) == len(actual)
                for one, other in zip(expected, actual, strict=True):
                    assert_same(one, other)
            assert (await saver.aget(config("t")) or {})["channel_values"] == {"a": [1, 2]}

        asyncio.run(run())

    def test_sync_methods_work_inside_a_running_loop(self, saver: DeltaSaver) -> None:
        """langgraph#7857."""

        async def run() -> None:
            put_one(saver, a=1)
            saver.put_writes(config("t", "1"), [("a", 2)], "task")
            assert saver.get_tuple(config("t")) is not None
            assert len(list(saver.list(None))) == 1
            saver.delete_thread("t")
            assert saver.get_tuple(config("t")) is None

        asyncio.run(asyncio.wait_for(run(), 60))

    def test_values_are_encoded_before_the_first_await(self, saver: DeltaSaver) -> None:
        async def run() -> None:
            value, write = [1], [1]
            puts = saver.aput(config("t"), checkpoint("1", {"a": 1}, {"a": value}), META, {"a": 1})
            writes = saver.aput_writes(config("t", "1"), [("a", write)], "task")
            for waiting, changed in ((puts, value), (writes, write)):
                task = asyncio.ensure_future(waiting)
                await asyncio.sleep(0)  # runs it up to its first await
                changed.append(2)
                await task
            found = await saver.aget_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"a": [1]}
            assert found.pending_writes == [("task", "a", [1])]

        asyncio.run(run())

    def test_many_at_once(self, saver: DeltaSaver) -> None:
        async def run() -> None:
            versions = {"a": 1}
            await asyncio.gather(
                *(
                    saver.aput(
                        config(f"t{number % 5}"), checkpoint(f"{number:03}", versions, {"a": [number]}), META, versions
                    )
                    for number in range(60)
                ),
                *(saver.aput_writes(config("t0", "000"), [("a", number)], f"task {number:02}") for number in range(20)),
            )
            assert len([found async for found in saver.alist(None)]) == 60
            found = await saver.aget_tuple(config("t0", "000"))
            assert found is not None
            assert [write[2] for write in found.pending_writes or ()] == list(range(20))

        asyncio.run(run())

    def test_an_async_context_closes_what_from_path_opened(self, tmp_path: Path) -> None:
        async def run() -> None:
            async with DeltaSaver.from_path(tmp_path / "s") as saver:
                await saver.aput(config("t"), checkpoint("1", {}, {}), META, {})
            with pytest.raises(ClosedError):
                await saver.aget_tuple(config("t"))

        asyncio.run(run())


class Reversing:
    """A serializer of one's own: JsonPlus backwards."""

    def __init__(self) -> None:
        self.inner = JsonPlusSerializer()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = self.inner.dumps_typed(obj)
        return f"reversed-{kind}", data[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0].startswith("reversed-")
        return self.inner.loads_typed((data[0].removeprefix("reversed-"), data[1][::-1]))


class Xor(CipherProtocol):
    """Stands in for a cipher where pycryptodome isn't installed."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "xor"
        return bytes(byte ^ 0x5A for byte in ciphertext)


class MyJsonPlus(JsonPlusSerializer):
    pass


def aes() -> EncryptedSerializer:
    pytest.importorskip("Crypto")
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


class TestSerializers:
    @pytest.mark.parametrize("make", [Reversing, lambda: EncryptedSerializer(Xor()), MyJsonPlus, aes])
    def test_any_serializer_gives_what_it_gives(self, open_store: OpenStore, make: Callable[[], Any]) -> None:
        pair = Pair(DeltaSaver(open_store(snapshot_frequency=3), serde=make()))
        grow(pair, "t", count=45)
        pair.put_writes(config("t", "0044"), [("a", [HumanMessage("hi", id="1")]), ("b", None), ("c", b"1")], "task")
        pair.put(config("t", "0044"), checkpoint("0045", {"n": 1, "b": 1}, {"n": None, "b": bytearray(b"x")}))
        pair.compare_all()

    def test_encrypted_values_are_not_stored_in_the_clear(self, open_store: OpenStore) -> None:
        saver = DeltaSaver(open_store(), serde=EncryptedSerializer(Xor()))
        saver.put(
            config("t"),
            checkpoint("1", {"a": 1}, {"a": ["SECRET one"]}, note="SECRET two"),
            {"x": "SECRET three"},
            {"a": 1},
        )
        saver.put_writes(config("t", "1"), [("a", "SECRET four")], "task")
        assert not [key for key, row in _rows(saver).items() if b"SECRET" in row]

    def test_another_serializer_is_a_typed_error(self, open_store: OpenStore) -> None:
        """deer-flow#4292, langgraph#8938: never a quietly different value, nor plain text for an encrypted one."""
        serializers = [JsonPlusSerializer(), Reversing(), EncryptedSerializer(Xor()), MyJsonPlus()]
        for number, writer in enumerate(serializers):
            put_one(DeltaSaver(open_store(), serde=writer), number, a=[1], b={"x": 1}, c=None)
        for number, writer in enumerate(serializers):
            for reader in serializers:
                saver = DeltaSaver(open_store(), serde=reader)
                if reader is writer:
                    found = saver.get_tuple(config(number))
                    assert found is not None
                    assert found.checkpoint["channel_values"] == {"a": [1], "b": {"x": 1}, "c": None}
                    continue
                with pytest.raises(CodecMismatchError, match=type(writer).__name__):
                    saver.get_tuple(config(number))

    def test_a_clone_shares_the_store_and_leaves_closing(self, tmp_path: Path) -> None:
        from langgraph.checkpoint.serde import _msgpack

        with DeltaSaver.from_path(tmp_path / "s", serde=JsonPlusSerializer(allowed_msgpack_modules=None)) as saver:
            put_one(saver, a=[1])
            clone = saver.with_allowlist([("some.module", "Type")])
            assert clone is not saver
            assert clone.store is saver.store
            assert clone.serde is not saver.serde
            put_one(clone, id_="2", a=[2])
            with clone:
                pass
            clone.close()
            assert len(list(saver.list(config("t")))) == len(list(clone.list(config("t")))) == 2
            assert _msgpack
        with pytest.raises(ClosedError):
            clone.get_tuple(config("t"))

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (object(), ""),
            ([1, object()], "[1]"),
            ({"k": [{"deep": object()}]}, "['k'][0]['deep']"),
            ([2**70], "[0]"),
            ({"a": 1, "\ud800": 1}, ""),
            ({"x": lambda: 0}, "['x']"),
        ],
    )
    def test_what_cannot_be_stored_is_refused_before_anything_is_written(
        self, saver: DeltaSaver, value: Any, path: str
    ) -> None:
        """openai-agents-python#4163, langgraph#8673, langgraph#8185, llama_index#18069, langchain-mongodb#260."""
        put_one(saver, a=1)
        before = _rows(saver)
        made = checkpoint("2", {"a": 2, "bad one": 2}, {"a": 2, "bad one": value})
        with pytest.raises(EncodeError, match=r"'bad one'") as caught:
            saver.put(config("t", "1"), made, META, {"bad one": 2})
        assert (caught.value.channel, caught.value.path) == ("bad one", path)
        with pytest.raises(EncodeError, match=r"'worse one'") as caught:
            saver.put_writes(config("new", "1"), [("b", 1), ("worse one", value)], "task")
        assert (caught.value.channel, caught.value.path) == ("worse one", path)
        with pytest.raises(EncodeError, match="metadata"):
            saver.put(config("new"), checkpoint("1", {}, {}), {"x": value}, {})  # type: ignore[typeddict-unknown-key]
        with pytest.raises(EncodeError, match="checkpoint"):
            saver.put(config("new"), checkpoint("1", {}, {}, odd=value), META, {})
        assert _rows(saver) == before

    def test_pickle_is_off(self, saver: DeltaSaver) -> None:
        """langgraph#7533."""
        with pytest.raises(EncodeError):
            put_one(saver, a=threading.Lock())
        assert not getattr(saver.serde, "pickle_fallback", True)

    def test_surrogates_never_change_the_format(self, pair: Pair) -> None:
        """langchain-mongodb#260: the serializer replaces them; what looks like a constructor stays data."""
        record = {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}}
        values = {
            "a": ["\ud800", record],
            "d": {"text": "a\ud83d\ude00b", "record": record},
            "s": "\udfff",
            "l": ["x" * 100 + "\ud800"],
            "m": [HumanMessage("\ud800", id="m"), AIMessage([{"type": "text", "text": "\ud800"}], id="n")],
        }
        pair.put(config("t"), checkpoint("1", dict.fromkeys(values, 1), values))
        assert pair.compare_all() == 1
        found = pair.saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["a"] == ["?", record]


class TestStores:
    def test_a_native_thread_and_a_langgraph_thread_live_in_one_store(self, open_store: OpenStore) -> None:
        store = open_store()
        native = store.thread("native")
        native.append({"messages": [{"role": "user"}]})
        saver = DeltaSaver(store)
        put_one(saver, "graph", messages=[1])
        assert native.state() == {"messages": [{"role": "user"}]}
        found = saver.get_tuple(config("graph"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"messages": [1]}

    def test_a_namespace_belongs_to_one_front(self, open_store: OpenStore) -> None:
        store = open_store()
        saver = DeltaSaver(store)
        store.thread("native").append({"a": [1]})
        put_one(saver, "graph", a=[1])
        before = _rows(saver)
        for call in (
            lambda: put_one(saver, "native", a=[1]),
            lambda: saver.put_writes(config("native", "1"), [("a", 1)], "task"),
            lambda: store.thread("graph").append({"a": [1]}),
            lambda: store.thread("graph").put_state({"a": [1]}),
        ):
            with pytest.raises(FrontMismatchError):
                call()
        assert _rows(saver) == before

    def test_what_a_deleted_thread_was_refuses_nothing(self, open_store: OpenStore) -> None:
        """Another handle deletes it, or this one: what is remembered of it may be long ago."""
        store = open_store()
        saver = DeltaSaver(store)
        put_one(saver, "t", a=[1])
        saver.delete_thread("t")
        store.thread("t").append({"a": [2]})
        assert store.thread("t").state() == {"a": [2]}
        store.delete("t")
        saver.put_writes(config("t", "1"), [("a", 1)], "task")
        put_one(saver, "t", a=[3])
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": [3]}

    def test_a_saver_lists_and_reads_no_native_checkpoints(self, open_store: OpenStore) -> None:
        store = open_store()
        made = store.thread("native").append({"a": [1]})
        saver = DeltaSaver(store)
        put_one(saver, "graph", a=[1])
        assert [found.config["configurable"]["thread_id"] for found in saver.list(None)] == ["graph"]
        assert list(saver.list({"configurable": {"thread_id": "native"}})) == []
        for call in (
            lambda: list(saver.list(config("native"))),
            lambda: saver.get_tuple(config("native")),
            lambda: saver.get_tuple(config("native", made.id)),
            lambda: saver.get_delta_channel_history(config=config("native"), channels=["a"]),
            lambda: list(saver.history(config("native"))),
            lambda: saver.tag(config("native"), "name"),
        ):
            with pytest.raises(FrontMismatchError, match="native API"):
                call()
        saver.prune(["native"])
        saver.delete_for_runs(["a run"])
        for read in (lambda: store.thread("graph").state(), lambda: list(store.thread("graph").history())):
            with pytest.raises(CodecMismatchError, match="read it with DeltaSaver"):
                read()
        saver.copy_thread("native", "copy")
        saver.delete_thread("native")
        assert store.thread("copy").state() == {"a": [1]}
        assert store.thread("native").latest() is None

    def test_a_saver_over_an_open_store_leaves_it_open(self, open_store: OpenStore) -> None:
        store = open_store()
        with DeltaSaver(store) as saver:
            put_one(saver, a=1)
        assert [found.name for found in store.threads()] == ["t"]
        saver.close()
        assert saver.get_tuple(config("t")) is not None

    def test_from_path_makes_opens_and_closes(self, tmp_path: Path) -> None:
        """langgraph#5327: no set-up call."""
        path = tmp_path / "s"
        with DeltaSaver.from_path(path, snapshot_frequency=7) as saver:
            put_one(saver, a=1)
        saver.close()
        for call in (lambda: saver.get_tuple(config("t")), lambda: put_one(saver, a=1), lambda: list(saver.list(None))):
            with pytest.raises(ClosedError):
                call()
        with DeltaSaver.from_path(path) as saver:
            assert saver.store.log.snapshot_frequency == 7
            assert saver.get_tuple(config("t")) is not None
            assert deltastore.check(saver.store).ok
        with pytest.raises(InvalidInputError):
            DeltaSaver.from_path(tmp_path / "t", snapshot_frequency=0)

    def test_two_savers_see_each_other(self, open_store: OpenStore) -> None:
        pair = Pair(DeltaSaver(open_store(snapshot_frequency=4)))
        one, two = pair.saver, DeltaSaver(open_store())
        parent = None
        for number in range(40):
            pair.saver = one if number % 3 else two
            id_ = f"{number:02}"
            pair.put(config("t", parent), checkpoint(id_, {"a": number + 1}, {"a": list(map(str, range(number)))}))
            pair.compare(config("t"), one)
            pair.compare(config("t"), two)
            parent = id_
        pair.compare_all(one)
        pair.compare_all(two)

    def test_an_unclosed_saver_does_not_keep_the_process(self, tmp_path: Path) -> None:
        """langgraph#789."""
        program = """
import asyncio, sys
from deltastore.langgraph import DeltaSaver
saver = DeltaSaver.from_path(sys.argv[1])
made = {"v": 4, "id": "1", "ts": "", "channel_values": {"a": 1}, "channel_versions": {"a": 1}, "versions_seen": {}}
where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
saver.put(where, made, {}, {"a": 1})
async def main():
    await saver.aput(where, made | {"id": "2"}, {}, {"a": 1})
    return [found async for found in saver.alist(where)]
assert len(asyncio.run(main())) == 2
"""
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "s")],
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        with DeltaSaver.from_path(tmp_path / "s") as saver:
            assert len(list(saver.list(None))) == 2

    def test_next_versions_grow_and_differ_between_branches(self, saver: DeltaSaver) -> None:
        version = None
        for number in range(1, 12):
            made = saver.get_next_version(version, None)
            assert made != saver.get_next_version(version, None)
            assert version is None or made > version
            assert int(made.split(".")[0]) == number
            version = made
        assert saver.get_next_version(3, None).startswith(f"{4:032}.")
        assert saver.get_next_version(3.7, None).startswith(f"{4:032}.")

    def test_writers_of_one_thread_lose_nothing(self, open_store: OpenStore) -> None:
        """langgraph#8136: four threads put on one thread and one namespace."""
        saver = DeltaSaver(open_store(snapshot_frequency=5))
        errors: list[BaseException] = []

        def work(worker: int) -> None:
            parent = None
            try:
                for number in range(15):
                    id_ = f"{number:02}-{worker}"
                    made = checkpoint(
                        id_, {"a": f"{number}.{worker}"}, {"a": [f"{worker} {item}" for item in range(number)]}
                    )
                    saver.put(config("t", parent), made, META, {"a": f"{number}.{worker}"})
                    parent = id_
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        found = {one.checkpoint["id"]: one for one in saver.list(config("t"))}
        assert len(found) == 60
        for id_, one in found.items():
            number, worker = id_.split("-")
            assert one.checkpoint["channel_values"]["a"] == [f"{worker} {item}" for item in range(int(number))]
