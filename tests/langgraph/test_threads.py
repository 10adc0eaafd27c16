"""Threads as LangGraph users list them: found by metadata, without reading a value."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from deltastore import BrokenChainError, ChecksumError, InvalidIdError, InvalidInputError, Store, ThreadNotFoundError
from deltastore.errors import TypeRefusedError
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config
from tests.raw import put_raw, rows_of

OpenStore = Callable[..., Store]


class State(TypedDict):
    log: Annotated[list[str], add]


@dataclass
class Own:
    """A class that no allowlist names."""

    name: str


def graph_of(saver: DeltaSaver) -> Any:
    inner = StateGraph(State)
    inner.add_node("ask", lambda _: {"log": [interrupt("?")]})
    inner.add_edge(START, "ask")
    graph = StateGraph(State)
    graph.add_node("first", lambda _: {"log": ["first"]})
    graph.add_node("sub", inner.compile())
    graph.add_edge(START, "first")
    graph.add_edge("first", "sub")
    return graph.compile(checkpointer=saver)


def put(saver: DeltaSaver, thread: Any, id_: str, parent: str | None = None, ns: str = "", **metadata: Any) -> None:
    made = checkpoint(id_, {"a": id_}, {"a": "value " * 30})
    described: Any = {"source": "loop", "step": 1, "parents": {}, **metadata}
    saver.put(config(thread, parent, ns), made, described, {"a": id_})


def names(found: Any) -> list[str]:
    return [info.name for info in found]


class TestGraphs:
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    @pytest.mark.parametrize("frequency", [1, 50])
    def test_a_user_s_threads_among_others(self, open_store: OpenStore, frequency: int, durability: str) -> None:
        saver = DeltaSaver(open_store(snapshot_frequency=frequency))
        graph = graph_of(saver)
        for thread, user in (("a", "u1"), ("b", "u2"), ("c", "u1"), ("d", None)):
            own = {} if user is None else {"user_id": user}
            run: Any = {
                "configurable": {"thread_id": thread, **own},
                "metadata": {"tenant": "acme", "langgraph_step": 7, "run_attempt": 2},
                "run_id": uuid.uuid4(),
            }
            graph.invoke({"log": [thread]}, run, durability=durability)
            graph.invoke(Command(resume="yes"), run, durability=durability)
        assert names(saver.threads(filter={"user_id": "u1"})) == ["c", "a"]
        assert names(saver.threads(filter={"user_id": "u1", "tenant": "acme"}, limit=1)) == ["c"]
        assert names(saver.threads(filter={"user_id": "u1"}, before="c")) == ["a"]
        assert names(saver.threads(filter={"user_id": "u3"})) == []
        assert names(saver.threads()) == ["d", "c", "b", "a"]
        assert [info.metadata for info in saver.threads()] == [
            {"tenant": "acme"},
            *({"tenant": "acme", "user_id": user} for user in ("u1", "u2", "u1")),
        ]

    def test_what_belongs_to_a_step_is_not_the_thread_s(self, store: Store) -> None:
        saver = DeltaSaver(store)
        steps = {"writes": {}, "run_id": "r", "run_attempt": 1, "counters_since_delta_snapshot": {}}
        internal = {"langgraph_node": "n", "langgraph_path": [], "__pregel_task_id": "t"}
        put(saver, "t", "1", **steps, **internal, user_id="u1", nested={"a": [1]})
        (info,) = saver.threads()
        assert info.metadata == {"user_id": "u1", "nested": {"a": [1]}}
        assert names(saver.threads(filter={"source": "loop"})) == []


class TestThreads:
    def test_counts_times_and_bytes(self, store: Store) -> None:
        saver = DeltaSaver(store)
        put(saver, "t", "1")
        put(saver, "t", "2", "1")
        put(saver, "t", "1", ns="sub:1")
        (info,) = saver.threads()
        own = {key: row for key, row in rows_of(store.log.storage).items() if key.startswith(keys.thread(1))}
        assert (info.name, info.checkpoints) == ("t", 3)
        assert info.bytes == sum(len(key) + len(row) for key, row in own.items())
        assert info.created_at <= info.updated_at
        assert list(store.threads()) == [info]  # the same thread, and nothing in the metadata that the native API has

    def test_metadata_are_of_the_latest_checkpoint_not_the_last_put(self, store: Store) -> None:
        saver = DeltaSaver(store)
        put(saver, "t", "5", user="late")
        put(saver, "t", "3", user="early")
        assert [info.metadata for info in saver.threads()] == [{"user": "late"}]
        put(saver, "t", "5", user="again")
        assert [info.metadata for info in saver.threads()] == [{"user": "again"}]

    @pytest.mark.parametrize("frequency", [1, 3])
    def test_the_latest_checkpoint_in_a_pack(self, open_store: OpenStore, frequency: int) -> None:
        saver = DeltaSaver(open_store(snapshot_frequency=frequency))
        put(saver, "t", "9999", user="latest")
        for number in range(100):
            put(saver, "t", f"{number:04}", f"{number - 1:04}" if number else None, user="others")
        assert [info.metadata for info in saver.threads()] == [{"user": "latest"}]

    def test_a_thread_without_a_root_namespace_is_described_by_its_first(self, store: Store) -> None:
        saver = DeltaSaver(store)
        put(saver, "t", "1", ns="z", user="first")
        put(saver, "t", "1", ns="a", user="second")
        assert [info.metadata for info in saver.threads()] == [{"user": "first"}]
        put(saver, "t", "1", user="root")
        assert [info.metadata for info in saver.threads()] == [{"user": "root"}]

    def test_native_threads_are_left_out_and_shared_ones_are_not(self, store: Store) -> None:
        saver = DeltaSaver(store)
        store.thread("native").append({"a": 1}, metadata={"user": "native"})
        store.thread("both").append({"a": 1}, metadata={"user": "native"})
        put(saver, "both", "1", ns="sub", user="u1")
        assert [(info.name, info.metadata) for info in saver.threads()] == [("both", {"user": "u1"})]
        assert [(info.name, info.metadata) for info in store.threads()] == [
            ("both", {"user": "native"}),
            ("native", {"user": "native"}),
        ]

    def test_ids_limits_and_pages(self, store: Store) -> None:
        saver = DeltaSaver(store)
        for number in range(120):
            put(saver, number, "1", even=number % 2 == 0)
        assert names(saver.threads(limit=3)) == ["119", "118", "117"]
        assert names(saver.threads(filter={"even": True}, limit=60)) == [str(number) for number in range(118, -1, -2)]
        assert names(saver.threads(filter={"even": True}, before=5)) == ["4", "2", "0"]
        with pytest.raises(ThreadNotFoundError):
            saver.threads(before="unknown")
        with pytest.raises(InvalidIdError):
            saver.threads(before=True)
        with pytest.raises(InvalidInputError):
            saver.threads(limit=-1)

    def test_async(self, store: Store) -> None:
        saver = DeltaSaver(store)
        for number in range(3):
            put(saver, number, "1", user=number % 2)

        async def run() -> list[str]:
            with pytest.raises(ThreadNotFoundError):
                await anext(saver.athreads(before="unknown"))
            return [info.name async for info in saver.athreads(filter={"user": 0})]

        assert asyncio.run(run()) == ["2", "0"]

    def test_metadata_handed_out_are_fresh(self, store: Store) -> None:
        saver = DeltaSaver(store)
        put(saver, "t", "1", nested={"a": [1]})
        (info,) = saver.threads()
        info.metadata["nested"]["a"].append(2)
        assert [info.metadata for info in saver.threads()] == [{"nested": {"a": [1]}}]


class TestDamage:
    @pytest.fixture
    def saver(self) -> DeltaSaver:
        saver = DeltaSaver(Store(MemoryStorage()))
        for thread in "abc":
            put(saver, thread, "1", user=thread)
        return saver

    @pytest.mark.parametrize("kind", ["h", "n", "r"])
    def test_a_damaged_thread_is_named_and_hides_no_other(self, saver: DeltaSaver, kind: str) -> None:
        storage = saver.store.log.storage
        (key,) = [key for key in rows_of(storage) if key.startswith(keys.thread(2) + kind.encode())]
        put_raw(storage, key, b"damaged")
        found = saver.threads()
        assert next(found).name == "c"
        with pytest.raises(ChecksumError, match="thread 'b': "):
            next(found)
        assert names(saver.threads(before="b")) == ["a"]
        listed = saver.list(None)
        assert next(listed).config["configurable"]["thread_id"] == "c"
        with pytest.raises(ChecksumError):
            next(listed)

    def test_a_lost_checkpoint_is_named(self, saver: DeltaSaver) -> None:
        storage = saver.store.log.storage
        (key,) = [key for key in rows_of(storage) if key.startswith(keys.records(2, 1))]
        put_raw(storage, key, None)
        with pytest.raises(BrokenChainError, match="thread 'b': "):
            list(saver.threads())

    def test_a_class_that_strict_loading_refuses_is_named(self, saver: DeltaSaver) -> None:
        put(saver, "d", "1", own=Own("x"))
        strict = DeltaSaver(saver.store, strict=True)
        with pytest.raises(TypeRefusedError, match="thread 'd': "):
            list(strict.threads())
        assert names(strict.threads(before="d")) == ["c", "b", "a"]

    def test_chunks_are_not_read(self, saver: DeltaSaver) -> None:
        storage = saver.store.log.storage
        for key in rows_of(storage):
            if any(key.startswith(keys.thread(number) + b"c") for number in (1, 2, 3)):
                put_raw(storage, key, b"damaged")
        assert [info.metadata for info in saver.threads()] == [{"user": thread} for thread in "cba"]


class TestHistory:
    """Checkpoints without their values, beside what LangGraph's own listing says of them."""

    def test_it_says_of_checkpoints_what_a_listing_says(self, saver: DeltaSaver) -> None:
        graph = graph_of(saver)
        graph.invoke({"log": []}, config("t"))
        graph.invoke(Command(resume="yes"), config("t"))
        fork = [*graph.get_state_history(config("t"))][-2].config
        graph.update_state(fork, {"log": ["other"]})
        for namespace in {found.config["configurable"]["checkpoint_ns"] for found in saver.list(config("t", ns=None))}:
            listed = list(saver.list(config("t", ns=namespace)))
            history = list(saver.history(config("t", ns=namespace)))
            assert len(listed) > 1
            assert [found.id for found in history] == [each.checkpoint["id"] for each in listed]
            assert [found.metadata for found in history] == [each.metadata for each in listed]
            assert [found.parent_id for found in history] == [
                each.parent_config and each.parent_config["configurable"]["checkpoint_id"] for each in listed
            ]
            assert {found.thread for found in history} == {"t"}
            assert {found.namespace for found in history} == {namespace}

    def test_limit_and_before(self, saver: DeltaSaver) -> None:
        for number in range(1200):  # more than a page
            put(saver, "t", f"{number:04}", f"{number - 1:04}" if number else None)
        everything = list(saver.history(config("t")))
        assert [found.id for found in everything] == [f"{number:04}" for number in reversed(range(1200))]
        assert list(saver.history(config("t"), limit=700)) == everything[:700]
        assert list(saver.history(config("t"), limit=0)) == []
        assert list(saver.history(config("t"), before=config("t", "0600"))) == everything[600:]
        assert list(saver.history(config("t"), limit=2, before=config("t", "0001"))) == everything[1199:]

        async def collected() -> list[Any]:
            return [found async for found in saver.ahistory(config("t"), limit=3)]

        assert asyncio.run(collected()) == everything[:3]

    def test_what_it_refuses(self, saver: DeltaSaver) -> None:
        assert list(saver.history(config("nobody"))) == []
        with pytest.raises(InvalidInputError, match="limit -1"):
            saver.history(config("t"), limit=-1)
