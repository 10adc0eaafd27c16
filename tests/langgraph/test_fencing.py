"""Fenced savers: a worker that was overtaken is stopped at its next put (langgraph#8796)."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Command, Send, interrupt

import deltastore
from deltastore import ConflictError, Fork, Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config
from tests.raw import rows_of

OpenStore = Callable[..., Store]
DURABILITIES = ("sync", "async", "exit")


@pytest.fixture
def fenced(store: Store) -> DeltaSaver:
    return DeltaSaver(store, fenced=True)


def put(saver: DeltaSaver, id_: str, parent: str | None, value: Any = 0, ns: str = "") -> None:
    saver.put(config("t", parent, ns), checkpoint(id_, {"a": id_}, {"a": value}), {"source": "loop"}, {"a": id_})


def ids(saver: DeltaSaver) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(config("t"))]


class TestPuts:
    def test_a_line_is_stored(self, fenced: DeltaSaver) -> None:
        for id_, parent in (("1", None), ("2", "1"), ("3", "2")):
            put(fenced, id_, parent)
        assert ids(fenced) == ["3", "2", "1"]

    def test_a_stale_put_names_both_and_writes_nothing(self, fenced: DeltaSaver) -> None:
        put(fenced, "1", None)
        put(fenced, "2", "1")
        before = rows_of(fenced.store.log.storage)
        with pytest.raises(
            ConflictError, match=r"'t'.*expected checkpoint '1', found checkpoint '2'.*nothing was written"
        ):
            put(fenced, "3", "1")
        with pytest.raises(ConflictError, match=r"expected none to be there yet, found checkpoint '2'"):
            put(fenced, "3", None)
        with pytest.raises(ConflictError, match=r"expected checkpoint 'gone', found checkpoint '2'"):
            put(fenced, "3", "gone")
        assert rows_of(fenced.store.log.storage) == before

    def test_a_parent_that_is_nowhere(self, fenced: DeltaSaver) -> None:
        with pytest.raises(ConflictError, match="expected checkpoint 'gone', found no checkpoint"):
            put(fenced, "3", "gone")
        assert list(fenced.store.threads()) == []

    def test_the_last_put_repeated_is_a_retry(self, fenced: DeltaSaver) -> None:
        put(fenced, "1", None)
        put(fenced, "1", None, "again")
        put(fenced, "2", "1")
        put(fenced, "2", "1", "again")
        put(fenced, "2", "1", "and again")
        assert ids(fenced) == ["2", "1"]
        for id_, parent in (("2", None), ("2", "0"), ("1", None)):  # another parent, or not the last
            with pytest.raises(ConflictError):
                put(fenced, id_, parent)
        put(fenced, "3", "2")
        with pytest.raises(ConflictError):
            put(fenced, "2", "1")
        assert [found.checkpoint["channel_values"]["a"] for found in fenced.list(config("t"))] == [
            0,
            "and again",
            "again",
        ]

    def test_the_last_put_counts_not_the_greatest_id(self, fenced: DeltaSaver) -> None:
        put(fenced, "5", None)
        put(fenced, "3", "5")  # by a clock behind the first one's
        with pytest.raises(ConflictError, match="found checkpoint '3'"):
            put(fenced, "7", "5")
        put(fenced, "4", "3")

    def test_namespaces_are_fenced_each_for_itself(self, fenced: DeltaSaver) -> None:
        put(fenced, "1", None)
        put(fenced, "1", None, ns="sub:1")
        put(fenced, "2", "1")
        put(fenced, "2", "1", ns="sub:1")
        with pytest.raises(ConflictError, match="namespace 'sub:1'"):
            put(fenced, "3", "1", ns="sub:1")

    def test_an_unfenced_saver_on_the_same_store_forks(self, fenced: DeltaSaver) -> None:
        free = DeltaSaver(fenced.store)
        put(fenced, "1", None)
        put(fenced, "2", "1")
        put(free, "3", "1")
        assert free.forks(config("t")) == [Fork("1", ("2", "3"))]
        with pytest.raises(ConflictError, match="found checkpoint '3'"):
            put(fenced, "4", "2")
        put(fenced, "4", "3")

    def test_a_thread_deleted_meanwhile(self, fenced: DeltaSaver) -> None:
        put(fenced, "1", None)
        fenced.delete_thread("t")
        with pytest.raises(ConflictError, match="found no checkpoint"):
            put(fenced, "2", "1")
        put(fenced, "2", None)

    def test_late_writes_are_taken(self, fenced: DeltaSaver) -> None:
        put(fenced, "1", None)
        put(fenced, "2", "1")
        fenced.put_writes(config("t", "1"), [("a", 1)], "late")
        found = fenced.get_tuple(config("t", "1"))
        assert found is not None
        assert found.pending_writes == [("late", "a", 1)]

    def test_async_and_copies_of_the_saver(self, fenced: DeltaSaver) -> None:
        put(fenced, "1", None)
        made = checkpoint("2", {"a": "2"}, {"a": 2})
        with pytest.raises(ConflictError):
            asyncio.run(fenced.aput(config("t"), made, {"source": "loop"}, {"a": "2"}))
        strict = DeltaSaver(fenced.store, serde=JsonPlusSerializer(allowed_msgpack_modules=None), fenced=True)
        clone = strict.with_allowlist([("decimal", "Decimal")])
        with pytest.raises(ConflictError):
            put(clone, "2", None)


# --- graphs -------------------------------------------------------------------------------


class State(TypedDict):
    log: Annotated[list[str], add]
    messages: Annotated[list[AnyMessage], add_messages]
    deltas: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


def graph_of(saver: DeltaSaver) -> Any:
    """Return a graph with a sub-graph that asks twice, parallel tasks, and a node that fails at first."""
    failures = iter([True, False])

    def fail(_state: State) -> dict[str, Any]:
        if next(failures, False):
            raise ValueError("not yet")
        return {"log": ["at last"]}

    inner = StateGraph(State)
    inner.add_node("before", lambda _: {"log": ["before"]})
    inner.add_node("ask", lambda _: {"log": [interrupt("one?"), interrupt("two?")]})
    inner.add_edge(START, "before")
    inner.add_edge("before", "ask")
    outer = StateGraph(State)
    outer.add_node("first", lambda _: {"log": ["first"], "deltas": [HumanMessage("d", id="d")]})
    outer.add_node("fail", fail)
    outer.add_node("many", lambda _: {"messages": [HumanMessage("m")]})
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "first")
    outer.add_edge("first", "fail")
    outer.add_conditional_edges("fail", lambda _: [Send("many", {}) for _ in range(3)], ["many"])
    outer.add_edge("many", "sub")
    return outer.compile(checkpointer=saver)


class TestGraphs:
    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_one_worker_is_never_refused(self, open_store: OpenStore, durability: str) -> None:
        saver = DeltaSaver(open_store(snapshot_frequency=3), fenced=True)
        graph = graph_of(saver)
        here = config("t")
        for _ in range(2):
            given: Any = {"log": ["in"]}
            for answer in (None, Command(resume="yes"), Command(resume="no")):
                try:
                    graph.invoke(answer or given, here, durability=durability)
                except ValueError:
                    graph.invoke(None, here, durability=durability)
            graph.update_state(here, {"log": ["edited"]}, as_node="sub")
        assert {"at last", "yes", "no", "edited"} <= set(graph.get_state(here).values["log"])
        assert saver.forks(here) == []

    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_async(self, open_store: OpenStore, durability: str) -> None:
        saver = DeltaSaver(open_store(snapshot_frequency=3), fenced=True)

        async def run() -> None:
            graph = graph_of(saver)
            with pytest.raises(ValueError, match="not yet"):
                await graph.ainvoke({"log": ["in"]}, config("t"), durability=durability)
            await graph.ainvoke(None, config("t"), durability=durability)
            for answer in ("yes", "no"):
                await graph.ainvoke(Command(resume=answer), config("t"), durability=durability)
            await graph.aupdate_state(config("t"), {"log": ["edited"]}, as_node="sub")

        asyncio.run(run())
        assert saver.forks(config("t")) == []

    def test_going_back_takes_an_unfenced_saver(self, store: Store) -> None:
        fenced, free = graph_of(DeltaSaver(store, fenced=True)), graph_of(DeltaSaver(store))
        with pytest.raises(ValueError, match="not yet"):
            fenced.invoke({"log": ["in"]}, config("t"))
        fenced.invoke(None, config("t"))
        old = list(fenced.get_state_history(config("t")))[2].config
        with pytest.raises(ConflictError, match="to go back to an earlier checkpoint, put without a fence"):
            fenced.update_state(old, {"log": ["edit"]}, as_node="first")
        with pytest.raises(ConflictError, match="to go back to an earlier checkpoint, put without a fence"):
            asyncio.run(fenced.aupdate_state(old, {"log": ["edit"]}, as_node="first"))
        free.update_state(old, {"log": ["edit"]}, as_node="first")
        assert len(DeltaSaver(store).forks(config("t"))) == 1
        fenced.invoke(None, config("t"))  # goes on where the fork left off


WORKER = """
import signal, sys
from operator import add
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
import deltastore
from deltastore import ConflictError
from deltastore.langgraph import DeltaSaver
from tests.langgraph.test_fencing import overtaken

path, frequency, fenced = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"

config = {"configurable": {"thread_id": "t"}}

def pause():
    # the input's writes are put by another thread meanwhile
    while not saver.get_tuple(saver.get_tuple(config).parent_config).pending_writes:
        pass
    # they can be read a moment before their transaction ends, whose turn this one waits for
    store.thread("beside").append({"log": ["in the node"]})
    print("in the node", flush=True)
    sys.stdin.readline()

with deltastore.open(path, snapshot_frequency=frequency) as store:
    saver = DeltaSaver(store, fenced=fenced)
    graph = overtaken(saver, "A", pause)
    try:
        graph.invoke({"log": ["in"]}, config, durability="sync")
    except ConflictError as error:
        print("ConflictError", error, flush=True)
    else:
        print("finished", flush=True)
"""


class Log(TypedDict):
    log: Annotated[list[str], add]


def overtaken(saver: DeltaSaver, worker: str, pause: Callable[[], None]) -> Any:
    """Return a graph of two nodes; the worker pauses in the first."""

    def work(_state: Log) -> dict[str, Any]:
        pause()
        return {"log": [f"work of {worker}"]}

    graph = StateGraph(Log)
    graph.add_node("work", work)
    graph.add_node("end", lambda _: {"log": [f"end of {worker}"]})
    graph.add_edge(START, "work")
    graph.add_edge("work", "end")
    return graph.compile(checkpointer=saver)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
class TestAStoppedWorker:
    """Worker A is stopped in the middle of a run, worker B takes the thread over and ends it, A wakes up.

    With sync durability, and once the input's writes are there, so that A isn't stopped inside a transaction, where
    nobody could take over from it.
    """

    def run(self, path: Path, frequency: int, *, fenced: bool) -> str:
        """Return what A says at its end."""
        command = [sys.executable, "-c", WORKER, str(path), str(frequency), str(fenced)]
        root = Path(__file__).parents[2]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, **pipes) as worker:
            try:
                assert worker.stdin is not None
                assert worker.stdout is not None
                assert worker.stdout.readline() == "in the node\n"
                worker.send_signal(signal.SIGSTOP)
                _, status = os.waitpid(worker.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                with deltastore.open(path, snapshot_frequency=frequency) as store:
                    graph = overtaken(DeltaSaver(store, fenced=fenced), "B", lambda: None)
                    graph.invoke(None, config("t"), durability="sync")
                    assert graph.get_state(config("t")).next == ()
                worker.send_signal(signal.SIGCONT)
                worker.stdin.write("go on\n")
                worker.stdin.flush()
                return worker.stdout.readline()
            finally:
                worker.kill()

    @pytest.mark.parametrize("frequency", [1, 50])
    def test_fenced_it_is_refused_and_leaves_no_fork(self, tmp_path: Path, frequency: int) -> None:
        path = tmp_path / "store.ds"
        answer = self.run(path, frequency, fenced=True)
        assert answer.startswith("ConflictError thread 't', namespace '': expected checkpoint")
        with deltastore.open(path) as store:
            saver = DeltaSaver(store)
            assert saver.forks(config("t")) == []
            found = saver.get_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["channel_values"]["log"] == ["in", "work of B", "end of B"]
            assert check(store).ok

    @pytest.mark.parametrize("frequency", [1, 50])
    def test_unfenced_both_finish_and_the_fork_is_told(self, tmp_path: Path, frequency: int) -> None:
        path = tmp_path / "store.ds"
        assert self.run(path, frequency, fenced=False) == "finished\n"
        with deltastore.open(path) as store:
            saver = DeltaSaver(store)
            (fork,) = saver.forks(config("t"))
            assert fork.parent_id is not None
            assert len(fork.child_ids) == 2
            for child, worker in zip(fork.child_ids, "BA", strict=True):
                found = saver.get_tuple(config("t", child))
                assert found is not None
                assert found.checkpoint["channel_values"]["log"] == ["in", f"work of {worker}"]
            assert check(store).ok
