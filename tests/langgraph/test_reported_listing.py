"""Faults that users of other savers reported of order, history, lists, namespaces and set-up.

Each test takes the whole kind of a report, not its one input. What a list costs is counted in rows read, not in time.
"""

import asyncio
import inspect
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import deltastore
from deltastore import Store, StorePathError, check, ulid
from deltastore.errors import InvalidIdError
from deltastore.langgraph import DeltaSaver
from deltastore.storage.memory import MemoryStorage
from tests.counting import CHUNKS, WRITES, Counting
from tests.langgraph.comparing import Pair, assert_same, checkpoint, config, difference, key_of

OpenStore = Callable[..., Store]
META: dict[str, Any] = {"source": "loop", "step": 1, "parents": {}}
TIMEOUT = 60
"""Seconds that a process may take; far more than it needs, on a busy machine too."""


def fill(saver: DeltaSaver, thread: str, count: int, *, writes: int = 0, ns: str = "") -> None:
    """Put a row of checkpoints with a growing list, a large value that stays, and pending writes."""
    parent = None
    for number in range(count):
        id_, versions = f"{number:08}", {"log": number + 1, "large": 1}
        values = {"log": [f"message {place}" for place in range(number)], "large": "x" * 5000}
        saver.put(config(thread, parent, ns), checkpoint(id_, versions, values), {"step": number}, versions)
        for task in range(writes):
            saver.put_writes(config(thread, id_, ns), [("log", [task])], f"task {task}")
        parent = id_


# --- which is the latest ----------------------------------------------------------------------


def test_one_rule_says_which_is_the_latest(open_store: OpenStore) -> None:
    """langgraph#6869, langgraph#7179: ids of one's own in any order, equal times, other handles, packs, reopening."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pair = Pair(DeltaSaver(open_store(snapshot_frequency=3)))
    other = DeltaSaver(open_store())
    names = ["z-older", "a-newer", "", "Z", "é", "10", "9", "1f0", "1F0", "a", "aa", "~", "🎈"]
    ids = [*names[:2], *(f"{chance.choice(names)}{number}" for number in range(60))]
    put: list[str] = []
    for number, id_ in enumerate(ids):
        parent = chance.choice([*put, None])
        pair.put(config("t", parent), checkpoint(id_, {"n": number + 1}, {"n": number}), META)  # all have one time
        put.append(id_)
        for saver in (pair.saver, other):
            found = saver.get_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["id"] == max(put, key=str.encode)
    reopened = DeltaSaver(open_store())
    for saver in (pair.saver, other, reopened):
        pair.compare(config("t"), saver)
        pair.compare_list(config("t"), saver)
        for before in chance.sample(put, 6):
            pair.compare_list(config("t"), saver, before=config("t", before))
            pair.compare_list(config("t"), saver, before=config("t", before), limit=2)


def test_ids_of_the_store_grow_when_many_threads_put_and_the_clock_goes_back(open_store: OpenStore) -> None:
    """python-ulid#45: order doesn't rest on the clock, nor on how many are made in a millisecond."""
    store = open_store()
    times = itertools.cycle([1_000_000.0, 1_000_000.0, 999_999.9, 5.0, 1_000_000.001, 0.0])
    lock = threading.Lock()

    def clock() -> float:
        with lock:
            return next(times)

    store.log._clock = clock
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        for _ in range(12):
            store.thread("t").append({"n": [1]})

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = list(open_store().thread("t").history())
    ids = [found.id for found in history]
    assert len(set(ids)) == 72
    assert ids == sorted(ids, reverse=True)
    assert [found.parent_id for found in history] == [*ids[1:], None]  # the order of ids is that of puts


def test_a_tight_loop_of_ids_only_grows(request: pytest.FixtureRequest) -> None:
    """python-ulid#45: the first drop there came at the 17th."""
    last: bytes | None = None
    now = 1_780_000_000_000
    for number in range(2_000_000 if request.config.getoption("--profile") == "deep" else 70_000):
        minted = ulid.mint(last, now - number % 3)
        assert last is None or minted > last
        last = minted


# --- what a list costs ------------------------------------------------------------------------


@pytest.fixture
def counting() -> Counting:
    return Counting(MemoryStorage())


def test_a_list_reads_a_bounded_number_of_rows_for_each_checkpoint(counting: Counting) -> None:
    """langgraph#7263: no query for each write, no chain folded twice, whatever the length of the thread."""
    costs = []
    for count in (100, 300):
        fill(DeltaSaver(Store(counting)), f"t{count}", count, writes=5)
        reader = DeltaSaver(Store(counting))
        counting.clear()
        found = list(reader.list(config(f"t{count}")))
        assert [one.checkpoint["id"] for one in found] == [f"{number:08}" for number in range(count)][::-1]
        assert all(
            one.pending_writes == [(f"task {task}", "log", [task]) for task in range(5)]
            and len(one.checkpoint["channel_values"]["log"]) == int(one.checkpoint["id"])
            for one in found
        )
        costs.append(counting.total / count)
        assert counting.rows[WRITES] <= (5 + 1) * count
        assert counting.rows[CHUNKS] <= count + 10
        assert counting.reads <= count // 8 + 6
    assert max(costs) <= 20


@pytest.mark.parametrize("limit", [1, 3, 20])
@pytest.mark.parametrize("how", ["limit", "next", "before", "state history"])
def test_a_list_stops_early(counting: Counting, limit: int, how: str) -> None:
    """langgraph#7263: what is asked for is paid for, whatever stands before it."""
    costs = []
    for count in (80, 200):
        thread = f"t{count}"
        fill(DeltaSaver(Store(counting)), thread, count, writes=2)
        reader = DeltaSaver(Store(counting))
        counting.clear()
        found: list[Any]
        match how:
            case "limit":
                found = list(reader.list(config(thread), limit=limit))
            case "next":
                found = list(itertools.islice(reader.list(config(thread)), limit))
            case "before":
                found = list(reader.list(config(thread), before=config(thread, f"{count - 20:08}"), limit=limit))
            case _:
                graph = StateGraph(TypedDict("State", {"log": list[str]}))  # type: ignore[operator]
                graph.add_node("node", lambda _: {})
                graph.add_edge(START, "node")
                compiled = graph.compile(checkpointer=reader)
                found = list(compiled.get_state_history({"configurable": {"thread_id": thread}}, limit=limit))
        assert len(found) == limit
        costs.append(counting.total)
    assert max(costs) <= 150 + 40 * limit
    assert costs[1] <= 2 * costs[0]


def test_a_list_reads_values_of_what_it_returns_only(counting: Counting) -> None:
    """dbos-transact-py#779: what a filter leaves out costs no payload."""
    fill(DeltaSaver(Store(counting)), "t", 200, writes=2)
    reader = DeltaSaver(Store(counting))
    counting.clear()
    assert list(reader.list(config("t"), filter={"step": "none"})) == []
    assert counting.rows[CHUNKS] == counting.rows[WRITES] == 0
    assert [found.checkpoint["id"] for found in reader.list(config("t"), filter={"step": 7})] == ["00000007"]
    assert 0 < counting.rows[CHUNKS] <= 10


def test_a_native_history_reads_no_payload(counting: Counting) -> None:
    """dbos-transact-py#779: ids, parents, times and metadata of large states cost what small ones do."""
    store = Store(counting)
    costs = []
    for name, size in (("small", 1), ("large", 100_000)):
        thread = store.thread(name)
        for number in range(120):
            made = thread.append(
                {"text": "".join(map(str, range(size // 10))), "log": [number]}, metadata={"n": number}
            )
            thread.put_writes(made, {"text": "x" * size}, task="task")
        counting.clear()
        history = list(Store(counting).thread(name).history())
        assert [found.metadata["n"] for found in history] == list(range(120))[::-1]
        assert counting.rows[CHUNKS] == counting.rows[WRITES] == 0
        costs.append(counting.total)
        counting.clear()
        assert thread.latest() == history[0]
        assert list(thread.history(limit=3)) == history[:3]
        assert counting.total <= 60
    assert costs[1] == costs[0] <= 5 * 120


def test_a_list_over_many_threads_is_lazy(counting: Counting, request: pytest.FixtureRequest) -> None:
    """langchain-ai/docs#5545: which threads are there, and which checkpoints has a run, without reading all of them."""
    count = 10_000 if request.config.getoption("--profile") == "deep" else 1000
    saver = DeltaSaver(Store(counting))
    for number in range(count):
        metadata = {"run_id": f"run {number % 100}"}
        saver.put(config(f"t{number}"), checkpoint("1", {"a": 1}, {"a": [number]}), metadata, {"a": 1})
    reader = DeltaSaver(Store(counting))
    for ask in (
        lambda: [next(reader.list(None)).config["configurable"]["thread_id"]],
        lambda: [found.config["configurable"]["thread_id"] for found in reader.list(None, limit=1)],
        lambda: [next(reader.store.threads()).name],
    ):
        counting.clear()
        assert ask() == [f"t{count - 1}"]
        assert counting.total <= 350  # a page of threads with their small rows, and one checkpoint
    counting.clear()
    assert [found.name for found in reader.store.threads()] == [f"t{number}" for number in range(count)][::-1]
    assert counting.rows[CHUNKS] == 0
    assert counting.total <= 4 * count
    counting.clear()
    found = list(reader.list(None, filter={"run_id": "run 7"}))
    assert [one.config["configurable"]["thread_id"] for one in found] == [
        f"t{number}" for number in range(7, count, 100)
    ][::-1]
    assert counting.rows[CHUNKS] <= 3 * len(found)


# --- what a list holds ------------------------------------------------------------------------

HOLDER = """
import asyncio, sys
from deltastore.langgraph import DeltaSaver

saver = DeltaSaver.from_path(sys.argv[1])
thread = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


async def main():
    held = [
        saver.list(thread),
        saver.list(None),
        saver.list({"configurable": {"thread_id": "t"}}, filter={"step": 5}),
        saver.store.threads(),
        saver.store.thread("native").history(),
    ]
    listed = saver.alist(thread)
    first = [next(one) for one in held] + [await anext(listed)]
    print("held", flush=True)
    sys.stdin.readline()
    # ids that were put again since, and the rest of the thread before, or nothing: no error
    rest = [len(list(one)) for one in held] + [len([found async for found in listed])]
    print(*rest, flush=True)


asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_lists_that_are_held_hold_nothing(tmp_path: Path) -> None:
    """dbos-transact-py#779: lists half-way in a stopped process: no reader slot, no lock, no page of the file."""
    path = tmp_path / "store.ds"
    with DeltaSaver.from_path(path, sync="none") as saver:
        fill(saver, "t", 90, writes=1)
        fill(saver, "t", 10, ns="sub:1")
        for number in range(90):
            saver.store.thread("native").append({"log": [number]})
        for number in range(150):
            fill(saver, f"other {number}", 1)
        command = [sys.executable, "-c", HOLDER, os.fspath(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            try:
                assert holder.stdin is not None
                assert holder.stdout is not None
                assert holder.stdout.readline() == "held\n"
                os.kill(holder.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
                assert saver.store.info().readers == 0
                saver.delete_thread("t")
                saver.store.delete("native")
                sizes = []
                for _ in range(6):
                    fill(saver, "t", 40)
                    saver.delete_thread("t")
                    sizes.append(saver.store.info().file_bytes)
                assert sizes[-1] == sizes[1]  # pages of what was deleted are used again
                fill(saver, "t", 3)
                assert saver.store.info().readers == 0
                assert check(saver.store).ok
                os.kill(holder.pid, signal.SIGCONT)
                out, _ = holder.communicate("go on\n", timeout=TIMEOUT)
            finally:
                holder.kill()
        assert holder.returncode == 0
        rest = list(map(int, out.split()))
        assert len(rest) == 6
        assert all(0 <= count <= 240 for count in rest)
        assert saver.store.info().readers == 0


def test_lists_go_on_while_what_they_list_changes(open_store: OpenStore) -> None:
    """dbos-transact-py#779: deleted, put again, added to: a list half-way returns what is there, each once."""
    saver = DeltaSaver(open_store(snapshot_frequency=4))
    fill(saver, "t", 60)
    for change in ("nothing", "added", "deleted", "deleted and put again"):
        lists: list[Iterator[CheckpointTuple]] = [saver.list(config("t")), saver.list(None), saver.list(config("t"))]
        seen = [[found.checkpoint["id"] for found in itertools.islice(one, 20)] for one in lists[:2]]
        match change:
            case "added":
                saver.put(config("t"), checkpoint("99999999", {"a": 1}, {"a": 1}), META, {"a": 1})
                saver.put(config("t"), checkpoint("00000000-5", {"a": 1}, {"a": 1}), META, {"a": 1})
            case "deleted" | "deleted and put again":
                saver.delete_thread("t")
        if change == "deleted and put again":
            fill(saver, "t", 20)
        for ids, one in zip([*seen, []], lists, strict=True):
            ids += [found.checkpoint["id"] for found in one]
            assert ids == sorted(set(ids), reverse=True)
        expected = [found.checkpoint["id"] for found in saver.list(config("t"))]
        assert seen[0] == seen[1]
        assert set(expected[-20:]) <= set(seen[0])
        if change.startswith("deleted"):
            fill(saver, "t", 60)


# --- namespaces and time travel ---------------------------------------------------------------


def told(found: Any) -> Any:
    """Return what a snapshot says, without ids and times."""
    tasks = [
        (task.name, task.error, [one.value for one in task.interrupts], told(task.state) if _is_state(task) else None)
        for task in found.tasks
    ]
    return found.values, found.next, found.metadata and (found.metadata["source"], found.metadata["step"]), tasks


def _is_state(task: Any) -> bool:
    return hasattr(task.state, "tasks")


class Recording(DeltaSaver):
    """Keeps which writes were put for which checkpoint."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.put_for: dict[tuple[str, str], set[tuple[str, str]]] = {}

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        configurable = config["configurable"]
        place = configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"]
        self.put_for.setdefault(place, set()).update((task_id, channel) for channel, _ in writes)
        super().put_writes(config, writes, task_id, task_path)


class Story:
    """A run of a graph with sub-graphs, and what is seen on the way."""

    def __init__(self, saver: BaseCheckpointSaver, log: Any, stateful: bool) -> None:
        self.saver = saver
        self.where: Any = {"configurable": {"thread_id": "t"}}
        self.out: list[Any] = []
        self.seen: dict[tuple[str, str, str], CheckpointTuple] = {}
        schema: Any = TypedDict("State", {"log": log})  # type: ignore[operator]

        def ask(state: Any) -> Any:
            first = interrupt(f"first of {len(state['log'])}?")
            second = interrupt("second?")
            return {"log": [f"{first} {second}"]}

        deepest = StateGraph(schema)
        deepest.add_sequence([("deep", lambda state: {"log": [f"deep {len(state['log'])}"]}), ("ask", ask)])
        deepest.add_edge(START, "deep")
        inner = StateGraph(schema)
        inner.add_sequence([("x", lambda state: {"log": [f"x {len(state['log'])}"]}), ("deeper", deepest.compile())])
        inner.add_edge(START, "x")
        outer = StateGraph(schema)
        outer.add_sequence(
            [
                ("a", lambda state: {"log": [f"a {len(state['log'])}"]}),
                ("sub", inner.compile(checkpointer=stateful or None)),
                ("b", lambda state: {"log": [f"b {len(state['log'])}"]}),
            ]
        )
        outer.add_edge(START, "a")
        self.graph = outer.compile(checkpointer=saver)

    def invoke(self, given: Any, where: Any = None) -> None:
        result = self.graph.invoke(given, where or self.where)
        self.out.append([result["log"], [one.value for one in result.get("__interrupt__", ())]])
        self.out.append(told(self.graph.get_state(self.where, subgraphs=True)))
        for found in self.saver.list({"configurable": {"thread_id": "t"}}):
            self.seen.setdefault(key_of(found), found)

    def latest(self) -> str:
        id_: str = self.graph.get_state(self.where).config["configurable"]["checkpoint_id"]
        return id_

    def tell(self) -> list[Any]:
        self.invoke({"log": ["in"]})
        self.invoke(Command(resume="one"))
        self.invoke(None)  # no answer: the second question stays
        self.invoke(Command(resume="two"))
        latest = self.latest()
        for step in ("sub", "b", "a"):  # back to before each, and through it again
            back = next(one for one in self.graph.get_state_history(self.where) if one.next == (step,))
            self.invoke(None, back.config)
            if step != "b":
                self.invoke(Command(resume=f"again {step}"))
                inside = self.graph.get_state(self.where, subgraphs=True).tasks
                if inside and _is_state(inside[0]):  # a fork inside the sub-graph
                    edited = self.graph.update_state(inside[0].state.config, {"log": ["edit"]})
                    self.invoke(Command(resume=f"more {step}"), edited)
                self.invoke(Command(resume=f"last {step}"))
            assert self.latest() > latest  # a fork is a new latest
            latest = self.latest()
        self.invoke({"log": ["next turn"]})
        self.out.append([told(one) for one in self.graph.get_state_history(self.where)])
        return self.out


@pytest.mark.parametrize("open_store", ["lmdb"], indirect=True)
@pytest.mark.parametrize(("stateful", "delta"), [(False, None), (True, 2), (False, 1000)])
def test_sub_graphs_with_interrupts_go_back_and_on(open_store: OpenStore, stateful: bool, delta: int | None) -> None:
    """langgraph#8038, langgraph#8458, langgraph#4987, langgraph#8837: exact namespaces, ids, writes and `before`."""

    def joined(value: list[str], writes: list[list[str]]) -> list[str]:
        return [*value, *itertools.chain.from_iterable(writes)]

    log: Any = Annotated[list[str], add if delta is None else DeltaChannel(joined, snapshot_frequency=delta)]
    saver = Recording(open_store(snapshot_frequency=3))
    story = Story(saver, log, stateful)
    actual = story.tell()
    expected = Story(InMemorySaver(), log, stateful).tell()
    found = difference(expected, actual)
    assert found is None, found

    reopened = DeltaSaver(open_store())
    assert {ns.split(":")[0] for _, ns, _ in story.seen} >= {"", "sub"}
    for (thread, ns, id_), one in story.seen.items():
        again = reopened.get_tuple(config(thread, id_, ns))
        assert again is not None
        assert_same(one._replace(pending_writes=None), again._replace(pending_writes=None))
        assert {(task, channel) for task, channel, _ in again.pending_writes or ()} == saver.put_for.get(
            (ns, id_), set()
        )
        assert reopened.get_tuple(config(thread, id_, ns + "other")) is None
    for ns in {ns for _, ns, _ in story.seen}:
        ids = [one.checkpoint["id"] for one in reopened.list(config("t", ns=ns))]
        assert ids == sorted(ids, reverse=True)
        for place, id_ in enumerate(ids):
            below = [one.checkpoint["id"] for one in reopened.list(config("t", ns=ns), before=config("t", id_, ns))]
            assert below == ids[place + 1 :]
    saver.delete_thread("t")
    assert list(reopened.list(None)) == list(reopened.list({"configurable": {"thread_id": "t"}})) == []
    assert all(reopened.get_tuple(config(*key[::2], key[1])) is None for key in story.seen)


# --- ids of threads ---------------------------------------------------------------------------


def test_a_thread_id_means_one_thread_to_every_call(saver: DeltaSaver) -> None:
    """langgraph#6890: an int and its text are one thread, also through a graph; what has no one text is refused."""

    class State(TypedDict):
        n: Annotated[int, add]

    graph = StateGraph(State)
    graph.add_node("node", lambda _: {"n": 1})
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=saver)
    same = uuid.UUID(int=1)
    for forms in ([1, "1"], [same, str(same)]):
        for number, form in enumerate(forms * 2):
            result = compiled.invoke({"n": 0}, {"configurable": {"thread_id": form}})
            assert result == {"n": number + 1}
    counts = {found.name: found.checkpoints for found in saver.store.threads()}
    assert counts == {"1": 12, str(same): 12}

    async def refuse(thread: Any) -> None:
        where = config(thread, "1")
        calls = [
            saver.aput(where, checkpoint("1", {}, {}), META, {}),
            saver.aput_writes(where, [("a", 1)], "task"),
            saver.aget_tuple(where),
            saver.aget_delta_channel_history(config=where, channels=["a"]),
            saver.adelete_thread(thread),
            anext(saver.alist(where)),
        ]
        for call in calls:
            with pytest.raises(InvalidIdError):
                await call

    for thread in (True, None, 1.0, b"1", [1], ""):
        asyncio.run(refuse(thread))
    assert {found.name: found.checkpoints for found in saver.store.threads()} == counts


# --- the interface ----------------------------------------------------------------------------


def test_both_forms_of_every_method_are_the_savers_own() -> None:
    """langgraph#8722: tools that detect what a saver can do look for methods that it overrides, sync and async."""
    base = {name for name, found in vars(BaseCheckpointSaver).items() if inspect.isfunction(found)}
    own = {name for name in base if getattr(DeltaSaver, name) is not getattr(BaseCheckpointSaver, name)}
    overridden = {
        *("put", "put_writes", "get_tuple", "list", "delete_thread", "get_delta_channel_history", "get_next_version"),
        *("delete_for_runs", "copy_thread", "prune", "adelete_for_runs", "acopy_thread", "aprune"),
        *("aput", "aput_writes", "aget_tuple", "alist", "adelete_thread", "aget_delta_channel_history"),
    }
    assert overridden <= own & base
    for name in own & base:
        assert inspect.signature(getattr(DeltaSaver, name)).parameters.keys() >= (
            inspect.signature(getattr(BaseCheckpointSaver, name)).parameters.keys() - {"kwargs"}
        )
        if f"a{name}" in base:  # whichever has an asynchronous twin has its own
            assert f"a{name}" in own
            twin = getattr(DeltaSaver, f"a{name}")
            assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"source": "loop"},
        {"nested": {"a": {"b": [1, {"c": None}]}, "empty": {}, "list": []}},
        {"parents": {}, "writes": None, "step": -2},
        {"": "", "ключ": "значение 🎈", "deep": [[[[{}]]]]},
        {"writes": {"node": {"messages": [{"type": "human", "content": ["x", {"y": 1.5}]}]}}},
    ],
)
def test_metadata_comes_back_by_every_way_of_reading(pair: Pair, metadata: dict[str, Any]) -> None:
    """langgraph#8701: nested and empty, sync and async, in tuples, lists and filters."""
    for number in range(3):
        pair.put(config("t", str(number - 1) if number else None), checkpoint(str(number), {}, {}), metadata)
    asyncio.run(pair.saver.aput(config("u"), checkpoint("1", {}, {}), metadata, {}))  # type: ignore[arg-type]

    async def listed() -> list[CheckpointTuple]:
        return [found async for found in pair.saver.alist(None, filter=metadata)]

    every = [*pair.saver.list(None), *pair.saver.list(None, filter=metadata), *asyncio.run(listed())]
    assert len(every) == 12
    for found in [*every, pair.saver.get_tuple(config("t")), pair.saver.get_tuple(config("u", "1"))]:
        assert found is not None
        assert difference(metadata, found.metadata) is None
    for key, value in metadata.items():
        assert len(list(pair.saver.list(config("t"), filter={key: value}))) == 3
        assert list(pair.saver.list(config("t"), filter={key: [value, "other"]})) == []


# --- set-up -----------------------------------------------------------------------------------


def test_the_first_puts_of_an_asynchronous_graph_need_no_set_up(tmp_path: Path) -> None:
    """langgraph#5327, langgraph#7630: a path that isn't there yet, and many runs at once as its first use."""

    class State(TypedDict):
        n: Annotated[int, add]

    async def work() -> None:
        saver = DeltaSaver.from_path(tmp_path / "store.ds")
        graph = StateGraph(State)
        graph.add_node("node", lambda _: {"n": 1})
        graph.add_edge(START, "node")
        compiled = graph.compile(checkpointer=saver)
        where = [{"configurable": {"thread_id": str(number)}} for number in range(8)]
        results = await asyncio.gather(*(compiled.ainvoke({"n": 1}, one) for one in where))
        assert results == [{"n": 2}] * 8
        async with saver:
            assert [(await compiled.aget_state(one)).values for one in where] == results

    asyncio.run(work())
    with DeltaSaver.from_path(tmp_path / "store.ds") as saver:
        assert len(list(saver.store.threads())) == 8
        assert check(saver.store).ok


def test_a_missing_parent_is_one_clear_error(tmp_path: Path) -> None:
    """langgraph#5675: found when the saver is made, not at the first put, and nothing is made."""
    path = tmp_path / "missing" / "store.ds"
    with pytest.raises(StorePathError, match=f"{path}.*parent"):
        DeltaSaver.from_path(path)
    assert list(tmp_path.iterdir()) == []


READ_ONLY = """
import os, sys
import deltastore
from deltastore.langgraph import DeltaSaver
import deltastore.storage.lmdb  # modules may not be readable later

if os.getuid() == 0:  # who may write anywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for name in ("parent/new.ds", "empty.ds", "store.ds"):
    try:
        DeltaSaver.from_path(os.path.join(sys.argv[1], name))
    except deltastore.DeltastoreError as error:
        print(type(error).__name__, name in str(error), "ermission" in str(error), "\\n" in str(error), sep="|")
"""


def test_a_read_only_directory_is_one_clear_error() -> None:
    """langgraph#5675: no store can be made there, none can be opened there, and the error names path and reason."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to other users
        root = Path(name)
        root.chmod(0o755)
        (root / "parent").mkdir()
        (root / "empty.ds").mkdir()
        with DeltaSaver.from_path(root / "store.ds") as saver:
            fill(saver, "t", 2)
        before = sorted(root.rglob("*"))
        for path in before:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            done = subprocess.run(
                [sys.executable, "-c", READ_ONLY, name], timeout=TIMEOUT, capture_output=True, text=True, check=False
            )
        finally:
            for path in before:
                path.chmod(0o755 if path.is_dir() else 0o644)
        assert done.returncode == 0, done.stderr
        lines = [line.split("|") for line in done.stdout.splitlines()]
        assert len(lines) == 3, done.stdout
        assert all(line[0] in {"StorePathError", "StorageError"} for line in lines)
        assert all(line[1:] == ["True", "True", "False"] for line in lines)
        assert sorted(root.rglob("*")) == before
        with deltastore.open(root / "store.ds") as store:
            assert check(store).checkpoints == 2
