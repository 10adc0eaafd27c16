"""Faults that users of other savers reported of locks, event loops, shutdown and crashes.

Each test takes the whole kind of a report, not its one input. Whatever might hang runs in a process with a timeout.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import deltastore
from deltastore import EncodeError, Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.storage import ReadTransaction, Storage, WriteTransaction
from deltastore.storage.info import StorageInfo
from deltastore.storage.lmdb import LmdbStorage
from tests import fleet
from tests.langgraph.comparing import Pair, assert_same, checkpoint, config
from tests.raw import rows_of

OpenStore = Callable[..., Store]
META: dict[str, Any] = {"source": "loop", "step": 1, "parents": {}}
TIMEOUT = 60
"""Seconds that a process may take; far more than it needs, on a busy machine too."""


def run(script: str, *arguments: Any) -> str:
    """Run a script in a process of its own; it must end, and end well."""
    command = [sys.executable, "-c", script, *map(os.fspath, map(str, arguments))]
    done = subprocess.run(command, timeout=TIMEOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def put_one(saver: DeltaSaver, thread: str = "t", id_: str = "1", parent: str | None = None, **values: Any) -> None:
    versions = dict.fromkeys(values, f"v{id_}")
    saver.put(config(thread, parent), checkpoint(id_, versions, values), META, versions)


def values_of(saver: DeltaSaver, thread: str = "t", id_: str | None = None) -> dict[str, Any]:
    found = saver.get_tuple(config(thread, id_))
    assert found is not None
    return found.checkpoint["channel_values"]


# --- many savers on one path ------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("front", ["saver", "async"])
def test_many_savers_in_many_processes_wait_and_lose_nothing(
    tmp_path: Path, front: str, shared: bool, request: pytest.FixtureRequest
) -> None:
    """langgraph#8136: four processes of four OS threads, each with a saver of its own, or of four tasks."""
    puts = 200 if request.config.getoption("--profile") == "deep" else 5
    path = tmp_path / "store.ds"
    done = fleet.run_all(*fleet.crews(path, front, processes=4, writers=4, puts=puts, shared=shared))
    assert fleet.judge(path, front, done) == len(done.acknowledged) == 4 * 4 * puts


# --- event loops ------------------------------------------------------------------------------

IN_A_LOOP = """
import asyncio, sys
from typing import TypedDict
from langgraph.graph import START, StateGraph
from deltastore.langgraph import DeltaSaver


def where(thread, id_=None):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""} | ({"checkpoint_id": id_} if id_ else {})}


def made(id_):
    return {"v": 4, "id": id_, "ts": "", "channel_values": {"a": [id_]}, "channel_versions": {"a": id_},
            "versions_seen": {}}


def call_all(saver, thread):
    saver.put(where(thread), made("1"), {}, {"a": "1"})
    saver.put_writes(where(thread, "1"), [("a", 2)], "task")
    assert saver.get_tuple(where(thread)).pending_writes == [("task", "a", 2)]
    assert saver.get(where(thread))["channel_values"] == {"a": ["1"]}
    saver.put(where(thread, "1"), made("2"), {}, {"a": "2"})
    assert len(list(saver.list(where(thread)))) == 2
    assert saver.get_delta_channel_history(config=where(thread), channels=["a"])["a"]["seed"] == ["1"]
    saver.delete_thread(thread)
    assert saver.get_tuple(where(thread)) is None


class State(TypedDict):
    n: int


async def main():
    saver = DeltaSaver.from_path(sys.argv[1])
    call_all(saver, "alone")
    # while asynchronous calls are under way, which hold whatever there is to hold
    tasks = [asyncio.create_task(saver.aput(where(f"t{n}"), made("1"), {}, {"a": "1"})) for n in range(20)]
    tasks += [asyncio.create_task(saver.aput_writes(where("w", "1"), [("a", n)], f"task {n}")) for n in range(20)]
    for round in range(5):
        call_all(saver, f"beside {round}")
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    listed = saver.alist(None)
    await anext(listed)
    call_all(saver, "in a list")
    assert len([found async for found in listed]) == 19

    async def node(state):
        call_all(saver, "in a node")
        inner.invoke({"n": state["n"]}, where("inner"))  # a synchronous graph inside an asynchronous one
        return {"n": state["n"] + 1}

    def graph_of(work):
        graph = StateGraph(State)
        graph.add_node("node", work)
        graph.add_edge(START, "node")
        return graph.compile(checkpointer=saver)

    inner = graph_of(lambda state: {"n": state["n"] + 10})
    outer = graph_of(node)
    assert await outer.ainvoke({"n": 1}, where("outer")) == {"n": 2}
    assert inner.get_state(where("inner")).values == {"n": 11}
    with saver:
        pass
    saver.close()


asyncio.run(asyncio.wait_for(main(), 50))
print("ended")
"""


def test_synchronous_calls_inside_a_running_loop_never_hang(tmp_path: Path) -> None:
    """langgraph#7857: each method, alone, beside asynchronous calls, and within an asynchronous graph."""
    assert run(IN_A_LOOP, tmp_path / "store.ds") == "ended\n"


def test_one_saver_serves_many_event_loops(saver: DeltaSaver) -> None:
    """langgraph#7857: no lock belongs to the loop that used the saver first."""

    async def work(name: str) -> int:
        for number in range(3):
            versions = {"a": number + 1}
            made = checkpoint(str(number), versions, {"a": [name] * number})
            await saver.aput(config(name, str(number - 1) if number else None), made, META, versions)
            await saver.aput_writes(config(name, str(number)), [("a", name)], "task")
        await saver.aget_tuple(config(name))
        return len([found async for found in saver.alist(config(name))])

    counts = [asyncio.run(work("first")), asyncio.run(work("second"))]
    barrier = threading.Barrier(4)

    def thread(name: str) -> None:
        barrier.wait()
        counts.append(asyncio.run(work(name)))

    threads = [threading.Thread(target=thread, args=(f"t{number}",)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert counts == [3] * 6


# --- the end of a process ---------------------------------------------------------------------

ENDING = """
import asyncio, atexit, os, sys, threading
from deltastore.langgraph import DeltaSaver

saver = DeltaSaver.from_path(sys.argv[1])
where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def made(id_):
    return {"v": 4, "id": id_, "ts": "", "channel_values": {"a": [id_]}, "channel_versions": {"a": id_},
            "versions_seen": {}}


def put(id_):
    saver.put(where, made(id_), {}, {"a": id_})


async def aput(id_):
    await saver.aput(where, made(id_), {}, {"a": id_})


async def late(id_):
    try:
        await asyncio.Event().wait()
    finally:
        await aput(id_)


async def main():
    await aput("1")
    match sys.argv[2]:
        case "error":
            raise RuntimeError("on purpose")
        case "exit":
            sys.exit(0)
        case "held lists":
            held = saver.alist(None)
            await anext(held)
            other = saver.list(None)
            next(other)
            globals().update(held=held, other=other)
        case "cancelled":
            # what is cancelled as the loop ends may still put
            globals().update(late=asyncio.create_task(late("2")))
            await asyncio.sleep(0)
        case "in flight":
            globals().update(flying=asyncio.create_task(aput("2")))
            await asyncio.sleep(0)
        case "atexit":
            atexit.register(put, "2")
        case "asynchronous atexit":
            atexit.register(lambda: asyncio.run(aput("2")))
        case "threads":
            threading.Thread(target=put, args=("2",)).start()


asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("ending", "code", "stored"),
    [
        ("error", 1, {"1"}),
        ("exit", 0, {"1"}),
        ("held lists", 0, {"1"}),
        ("cancelled", 0, {"1", "2"}),
        ("in flight", 0, {"1"}),  # and perhaps the other: cancelled before it began, or stored whole
        ("atexit", 0, {"1", "2"}),
        ("threads", 0, {"1", "2"}),
        ("asynchronous atexit", 0, {"1", "2"}),
    ],
)
def test_an_unclosed_saver_ends_with_its_process(tmp_path: Path, ending: str, code: int, stored: set[str]) -> None:
    """langgraph#789 and langgraph#5672: however a process ends, it ends, and what is put until then is stored."""
    path = tmp_path / "store.ds"
    done = subprocess.run(
        [sys.executable, "-c", ENDING, os.fspath(path), ending],
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("on purpose" in done.stderr) if code else done.stderr == ""
    with DeltaSaver.from_path(path) as saver:
        found = {found.checkpoint["id"]: found.checkpoint["channel_values"] for found in saver.list(None)}
        assert found.keys() - ({"2"} if ending == "in flight" else set()) == stored
        assert all(values == {"a": [id_]} for id_, values in found.items())
        assert check(saver.store).ok


# --- crashes between writes and checkpoint ----------------------------------------------------

TORN = """
import operator, os, sys, threading
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from deltastore.langgraph import DeltaSaver

path, ran, order = sys.argv[1:4]
wrote, put = threading.Event(), threading.Event()


class Torn(DeltaSaver):
    "Dies between the writes of the first node and the checkpoint after it, in one order or in the other."

    def put_writes(self, config, writes, task_id, task_path=""):
        mine = any(channel == "log" and value == ["first"] for channel, value in writes)
        if mine and order == "checkpoint first":
            put.wait()
            os._exit(9)
        super().put_writes(config, writes, task_id, task_path)
        if mine:
            wrote.set()

    def put(self, config, checkpoint, metadata, new_versions):
        after = checkpoint["channel_values"].get("log") == ["in", "first"]
        if after and order == "writes first":
            wrote.wait()
            os._exit(9)
        stored = super().put(config, checkpoint, metadata, new_versions)
        if after:
            put.set()
            threading.Event().wait()  # nothing may come after it, however long the end takes
        return stored


class State(TypedDict):
    log: Annotated[list, operator.add]


def node(name):
    def run(state):
        with open(ran, "a") as file:
            file.write(name + "\\n")
        return {"log": [name]}

    return run


resuming = order == "resume"
with (DeltaSaver if resuming else Torn).from_path(path) as saver:
    graph = StateGraph(State)
    graph.add_sequence([("first", node("first")), ("second", node("second"))])
    graph.add_edge(START, "first")
    compiled = graph.compile(checkpointer=saver)
    where = {"configurable": {"thread_id": "t"}}
    result = compiled.invoke(None if resuming else {"log": ["in"]}, where, durability="async")
    print(*result["log"])
"""


@pytest.mark.parametrize("order", ["writes first", "checkpoint first"])
def test_a_death_between_writes_and_checkpoint_runs_no_node_again(tmp_path: Path, order: str) -> None:
    """langgraph#8039: whichever of the two was durable, it is read, and its node counts as done."""
    path, ran = tmp_path / "store.ds", tmp_path / "ran"
    command = [sys.executable, "-c", TORN, os.fspath(path), os.fspath(ran)]
    died = subprocess.run([*command, order], timeout=TIMEOUT, capture_output=True, text=True, check=False)
    assert died.returncode == 9, died.stderr
    with DeltaSaver.from_path(path) as saver:
        found = saver.get_tuple(config("t"))
        assert found is not None
        if order == "writes first":
            assert found.checkpoint["channel_values"]["log"] == ["in"]
            assert "log" in {channel for _, channel, _ in found.pending_writes or ()}
        else:
            assert found.checkpoint["channel_values"]["log"] == ["in", "first"]
        assert check(saver.store).ok
    assert run(TORN, path, ran, "resume") == "in first second\n"
    ran_again = ran.read_text().split()
    assert ran_again.count("first") == 1
    assert ran_again[-1] == "second"


# --- cancelled and failed writes --------------------------------------------------------------


@dataclass
class Gated:
    """A storage whose next write transaction waits at a gate, or whose nth row written fails."""

    remote = False
    inner: Storage
    gate: threading.Event | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    fail_at: int | None = None
    error: type[BaseException] = RuntimeError
    written: int = 0

    @property
    def location(self) -> str:
        return self.inner.location

    def read(self) -> Any:
        return self.inner.read()

    @contextmanager
    def write(self, threads: Any = ()) -> Iterator[WriteTransaction]:
        gate, self.gate = self.gate, None
        if gate is not None:
            self.reached.set()
            gate.wait()
        with self.inner.write(threads) as tx:
            yield _Failing(tx, self)  # type: ignore[misc]
            self._count()  # the commit itself

    def _count(self) -> None:
        if self.fail_at is not None:
            self.written += 1
            if self.written > self.fail_at:
                self.fail_at = None
                raise self.error("on purpose")

    def info(self) -> StorageInfo:
        return self.inner.info()

    def close(self) -> None:
        self.inner.close()


class _Failing:
    def __init__(self, tx: ReadTransaction, storage: Gated) -> None:
        self._tx = tx
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        if name in {"put", "delete", "delete_range", "mint"}:
            self._storage._count()
        return getattr(self._tx, name)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_write_that_fails_anywhere_leaves_nothing_and_holds_nobody_up(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """openai-agents-python#4163: a transaction is always given up, wherever the error came."""
    path = tmp_path / "store.ds"
    with DeltaSaver.from_path(path, sync="none") as other:
        storage = Gated(other.store.log.storage, error=error)
        saver = DeltaSaver(Store(storage))
        put_one(saver, a=["first"])
        saver.put_writes(config("t", "1"), [("a", "first")], "task")
        put_one(saver, "gone", a=[1])
        calls: dict[str, Callable[[], Any]] = {
            "put": lambda: put_one(saver, id_="2", parent="1", a=["first", "second"], b={"k": 1}),
            "writes": lambda: saver.put_writes(config("t", "1"), [("a", "second"), ("__error__", "e")], "task 2"),
            "delete": lambda: saver.delete_thread("gone"),
        }
        expected = other.get_tuple(config("t", "1"))
        for name, call in calls.items():
            for fail_at in range(100):
                before = rows_of(other.store.log.storage)
                storage.fail_at, storage.written = fail_at, 0
                try:
                    call()
                except error:
                    pass
                else:
                    assert storage.fail_at is not None
                    break
                if name != "delete":  # whose second transaction only collects
                    after = rows_of(other.store.log.storage)
                    assert {key: row for key, row in after.items() if any(key[:6])} == {
                        key: row for key, row in before.items() if any(key[:6])
                    }
                worker = threading.Thread(target=put_one, args=(other, f"good {name} {fail_at}"), kwargs={"a": [1]})
                worker.start()
                worker.join(TIMEOUT)
                assert not worker.is_alive()
                assert_same(expected, other.get_tuple(config("t", "1")))
            assert fail_at >= 2
            storage.fail_at = None
            expected = other.get_tuple(config("t", "1"))
        assert values_of(saver) == {"a": ["first", "second"], "b": {"k": 1}}
        assert saver.get_tuple(config("gone")) is None
        other.store.collect()
        assert check(other.store).ok


GOOD_PUT = """
import sys
from deltastore.langgraph import DeltaSaver
with DeltaSaver.from_path(sys.argv[1]) as saver:
    made = {"v": 4, "id": "9", "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}
    saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, made, {}, {})
"""


def test_a_refused_value_holds_up_no_thread_and_no_process(tmp_path: Path) -> None:
    """openai-agents-python#4163: what can't be stored is refused before a transaction begins, by every way in."""
    path = tmp_path / "store.ds"
    with DeltaSaver.from_path(path) as saver:
        put_one(saver, a=1)
        bad = object()
        made = checkpoint("2", {"a": 2}, {"a": bad})
        good = checkpoint("2", {"a": 2}, {"a": 2})
        where = config("t", "1")

        async def asynchronous() -> None:
            with pytest.raises(EncodeError):
                await saver.aput(where, made, META, {"a": 2})
            with pytest.raises(EncodeError):
                await saver.aput_writes(where, [("a", bad)], "task")

        for call in (
            lambda: saver.put(where, made, META, {"a": 2}),
            lambda: saver.put(where, good, {"x": bad}, {"a": 2}),  # type: ignore[typeddict-unknown-key]
            lambda: saver.put(where, {**good, "odd": bad}, META, {"a": 2}),
            lambda: saver.put_writes(where, [("b", 1), ("a", bad)], "task"),
        ):
            with pytest.raises(EncodeError):
                call()
        asyncio.run(asynchronous())
        worker = threading.Thread(target=put_one, args=(saver,), kwargs={"id_": "3", "a": 3})
        worker.start()
        worker.join(TIMEOUT)
        assert not worker.is_alive()
        run(GOOD_PUT, path)
        assert [found.checkpoint["id"] for found in saver.list(config("t"))] == ["9", "3", "1"]
        assert check(saver.store).ok


@pytest.mark.parametrize("kind", ["checkpoint", "writes"])
def test_a_call_that_is_cancelled_under_way_is_stored_whole(kind: str, tmp_path: Path) -> None:
    """langgraph#5672: cancelling who waits for a write tears nothing; the store goes on."""
    storage = Gated(LmdbStorage(tmp_path / "store.ds"))
    store = Store(storage)
    saver = DeltaSaver(store)
    put_one(saver, a=[1])
    put_one(saver, "names", a=1, b=1)  # so that the call has one transaction
    gate = storage.gate = threading.Event()

    async def work() -> None:
        if kind == "checkpoint":
            made = checkpoint("2", {"a": 2, "b": 2}, {"a": [1, 2], "b": {"k": 1}})
            call = saver.aput(config("t", "1"), made, META, {"a": 2, "b": 2})
        else:
            call = saver.aput_writes(config("t", "1"), [("a", 1), ("b", 2)], "task")
        task: asyncio.Future[Any] = asyncio.ensure_future(call)
        await asyncio.to_thread(storage.reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    asyncio.run(work())
    store.close()  # ends when what is under way has
    store = deltastore.open(tmp_path / "store.ds")
    saver = DeltaSaver(store)
    if kind == "checkpoint":
        assert values_of(saver) == {"a": [1, 2], "b": {"k": 1}}
    else:
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == [("task", "a", 1), ("task", "b", 2)]
    put_one(saver, id_="3", parent="1", a=[3])
    assert values_of(saver) == {"a": [3]}
    assert check(saver.store).ok
    store.close()


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_that_is_cancelled_leaves_what_the_runtime_put(open_store: OpenStore, durability: str) -> None:
    """langgraph#5672: a run cancelled in its second step, then gone on with; the reference is InMemorySaver's."""

    class State(TypedDict):
        log: list[str]

    async def work(saver: BaseCheckpointSaver) -> Any:
        reached = asyncio.Event()
        wait = True

        async def second(state: State) -> Any:
            if wait:
                reached.set()
                await asyncio.Event().wait()
            return {"log": [*state["log"], "second"]}

        graph = StateGraph(State)
        graph.add_node("first", lambda state: {"log": [*state["log"], "first"]})
        graph.add_node("second", second)
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        compiled = graph.compile(checkpointer=saver)
        task = asyncio.ensure_future(compiled.ainvoke({"log": ["in"]}, config("t"), durability=durability))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = [(one.values, one.next) async for one in compiled.aget_state_history(config("t"))]
        wait = False
        if not found:
            return [found]
        return [found, await compiled.ainvoke(None, config("t"), durability=durability)]

    expected = asyncio.run(work(InMemorySaver()))
    assert asyncio.run(work(DeltaSaver(open_store()))) == expected
    if durability != "exit":
        assert expected[1] == {"log": ["in", "first", "second"]}


# --- aliases ----------------------------------------------------------------------------------


def spoil(value: Any) -> None:
    """Change every list, dict and message in a value, however deep."""
    if isinstance(value, dict):
        for one in list(value.values()):
            spoil(one)
        value["spoilt"] = True
    elif isinstance(value, (list, tuple)):
        for one in value:
            spoil(one)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, HumanMessage):
        value.content = "spoilt"


async def collect(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


def test_nothing_handed_out_or_in_is_the_stores(pair: Pair) -> None:
    """langgraph#8748: what any call returned or was given may change, and no later read or put is touched by it."""
    saver, parent = pair.saver, None
    for number in range(9):
        id_, versions = str(number), {"list": number + 1, "dict": 1, "messages": number + 1}
        values = {"list": [[number]], "dict": {"k": [1]}, "messages": [HumanMessage(str(number), id=id_)]}
        made, meta = checkpoint(id_, versions, values), {"nested": {"a": [1]}}
        pair.put(config("t", parent), made, meta)
        writes = [("list", [[number]]), ("dict", {"k": [number]})]
        pair.put_writes(config("t", id_), writes, "task")
        for given in (made, meta, writes):
            spoil(given)
        for _ in range(2):
            found = saver.get_tuple(config("t"))
            assert found is not None
            handed_out: list[Any] = [
                *(part for one in [found, *saver.list(config("t"), limit=3)] for part in one[1:]),
                *(part for one in asyncio.run(collect(saver.alist(None, limit=2))) for part in one[1:]),
                saver.get(config("t", id_)),
                saver.get_delta_channel_history(config=config("t"), channels=["list", "dict"]),
            ]
            for one in handed_out:
                spoil(one)
        parent = id_
    assert pair.compare_all() == 9
    for number in range(9):
        pair.compare_history(config("t", str(number)), ["list", "dict", "messages"])


def test_two_readers_share_no_object(saver: DeltaSaver) -> None:
    """langgraph#8748, for the cached head, which all readers of a handle are served from."""
    put_one(saver, list=[[1]], message=HumanMessage("hi", id="m"))
    one, other = values_of(saver), values_of(saver)
    assert one == other
    assert one["list"] is not other["list"]
    assert one["list"][0] is not other["list"][0]
    assert one["message"] is not other["message"]
    spoil(one)
    assert values_of(saver) == other


def test_reads_of_unknown_things_create_nothing_by_any_call(tmp_path: Path) -> None:
    """langgraph#8748: no ghost of a thread, namespace, checkpoint or channel that was only asked for."""
    with DeltaSaver.from_path(tmp_path / "store.ds") as saver:
        put_one(saver, a=1)
        before = rows_of(saver.store.log.storage)

        async def ask() -> None:
            for where in (config("ghost"), config("ghost", "1"), config("t", "ghost"), config("t", "1", "ghost")):
                assert await saver.aget_tuple(where) is None
                assert await saver.aget(where) is None
                assert await collect(saver.alist(where, filter={"ghost": 1}, before=config("ghost", "2"))) == []
                await saver.aget_delta_channel_history(config=where, channels=["ghost"])
            await saver.adelete_thread("ghost")

        asyncio.run(ask())
        assert [found.name for found in saver.store.threads()] == ["t"]
        assert rows_of(saver.store.log.storage) == before
        with deltastore.open(tmp_path / "store.ds") as store:
            assert rows_of(store.log.storage) == before
