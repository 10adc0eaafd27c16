"""Faults that users of other savers reported of growth: unchanged values, long lists, pruning, runs that were killed.

Each test takes the whole kind of a report, not its one input. What is stored is counted in bytes of rows.
"""

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import deltastore
from deltastore import Retention, Store, apply_retention, check, compact, shrink
from deltastore.cli import main
from deltastore.langgraph import DeltaSaver
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.statistics import ThreadStatistics, measure
from tests.conftest import OpenStore
from tests.counting import RECORDS, Counting
from tests.langgraph.comparing import checkpoint, config
from tests.langgraph.deleting import agent, history, runs, said, where, without
from tests.raw import Interrupted, chunk_sizes

ROOT = Path(__file__).parents[2]
STEP_BYTES = 700
"""What a step of a small graph may take, its record, ids, versions and writes: two to four times what it does."""


def text(seed: int, size: int) -> str:
    """Return text that doesn't compress below half."""
    return random.Random(seed).randbytes(size // 2).hex()


def measured(store: Store, thread: str = "t") -> ThreadStatistics:
    return next(found for found in measure(store).threads if found.name == thread)


# --- values that don't change -----------------------------------------------------------------


@dataclass
class Document:
    """An object: one piece, as nobody but its class knows what is in it."""

    title: str
    body: str


CONSTANT: dict[str, Callable[[], Any]] = {
    "text": lambda: text(1, 200_000),
    "bytes": lambda: random.Random(1).randbytes(100_000),
    "list": lambda: [text(place, 2_000) for place in range(100)],
    "dict": lambda: {f"key {place}": [text(place, 2_000)] for place in range(100)},
    "object": lambda: Document("a title", text(1, 200_000)),
    "messages": lambda: [HumanMessage(text(place, 2_000), id=str(place)) for place in range(100)],
    "tuple": lambda: (text(1, 200_000), 1),
}


def stepping(saver: BaseCheckpointSaver, steps: int, made: Callable[[], Any] | None = None) -> Any:
    """Give a graph of `steps` steps a run, each of which counts, and returns a large value anew where one is made."""

    class State(TypedDict):
        large: Any
        count: Annotated[int, add]

    def work(state: dict[str, Any]) -> dict[str, Any]:
        return {"count": 1} if made is None else {"count": 1, "large": made()}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["count"] % steps else END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("kind", CONSTANT)
@pytest.mark.parametrize("sent", ["once", "at every step"])
def test_a_large_channel_that_stays_is_stored_once(tmp_path: Path, kind: str, sent: str) -> None:
    """langgraph#7843, pizza-bot#58: neither a step that leaves it alone nor one that sends it again costs its size.

    LangGraph gives a channel that was written to a new version, and stores what was written before the state it makes.
    """
    steps = 60
    made = CONSTANT[kind]
    with DeltaSaver.from_path(tmp_path / "store.ds", sync="none") as saver:
        graph = stepping(saver, steps, made if sent == "at every step" else None)
        sizes = []
        for _ in range(2):
            given = {"count": 0} if sizes else {"count": 0, "large": made()}
            graph.invoke(given, where() | {"recursion_limit": 1000}, durability="sync")
            sizes.append(measured(saver.store).bytes)
        # at first it is stored as the graph's input too, and then as what it makes of the channel
        assert sizes[0] < 2 * 2 * 100_000 + steps * STEP_BYTES
        assert sizes[1] - sizes[0] < steps * STEP_BYTES
        values = {id_: found[0] for id_, found in history(graph, "t", each=False).items()}
        assert len(values) == 2 * (steps + 2)
        wanted = saver.serde.loads_typed(saver.serde.dumps_typed(made()))
        assert all(value["large"] == wanted for value in list(values.values())[: steps + 2])
        assert check(saver.store).ok


@pytest.mark.parametrize("beside", ["another handle put the checkpoint", "a put is under way"])
def test_a_write_of_what_is_there_costs_nothing_whoever_put_it(beside: str) -> None:
    """pizza-bot#58: the state in memory may be one step behind the store's, or ahead of what a write looks at."""
    storage = Interrupted(MemoryStorage())
    store = Store(storage)
    saver, other = DeltaSaver(store), DeltaSaver(Store(storage.inner))
    document = {f"key {place}": text(place, 600) for place in range(100)}
    saver.put(config("t"), checkpoint("1", {"doc": "1", "n": "1"}, {"doc": document, "n": 1}), {}, {})
    before = chunk_sizes(store)

    def put(through: DeltaSaver) -> None:
        through.put(config("t", "1"), checkpoint("2", {"doc": "2", "n": "2"}, {"doc": document, "n": 2}), {}, {})

    if beside.startswith("another"):
        put(other)
    else:
        storage.after_snapshot.append(lambda: put(saver))
    saver.put_writes(config("t", "1"), [("doc", document), ("n", 2)], "task")
    assert sum(chunk_sizes(store).values()) - sum(before.values()) < 100
    for reader in (saver, other):
        found = reader.get_tuple(config("t", "1"))
        assert found is not None
        assert found.pending_writes == [("task", "doc", document), ("task", "n", 2)]
    assert check(store).ok


def test_a_write_takes_no_number_that_its_snapshot_lacks() -> None:
    """pizza-bot#58, the other side: of a state that is ahead, only what the snapshot has too may be named."""
    storage = Interrupted(MemoryStorage())
    store = Store(storage)
    saver = DeltaSaver(store)
    saver.put(config("t"), checkpoint("1", {"doc": "1"}, {"doc": ["a"]}), {}, {})
    new = checkpoint("2", {"doc": "2", "more": "2"}, {"doc": ["a", "b", "c"], "more": ["d"]})
    storage.after_snapshot.append(lambda: saver.put(config("t", "1"), new, {}, {}))
    saver.put_writes(config("t", "1"), [("doc", ["a", "b", "c"]), ("more", ["d", "e"])], "task")
    found = DeltaSaver(Store(storage.inner)).get_tuple(config("t", "1"))
    assert found is not None
    assert found.pending_writes == [("task", "doc", ["a", "b", "c"]), ("task", "more", ["d", "e"])]
    assert check(store).ok


@pytest.mark.parametrize("channel", ["add_messages", "DeltaChannel"])
def test_a_conversation_grows_by_what_is_said(channel: str) -> None:
    """langgraph#7586: each turn takes what it says, not what was said before; and reads stay bounded for it."""
    turns, size = 80, 1_000
    counting = Counting(MemoryStorage())
    saver = DeltaSaver(Store(counting))
    if channel == "add_messages":

        class State(TypedDict):
            messages: Annotated[list[AnyMessage], add_messages]

        builder = StateGraph(State)
        builder.add_node("answer", lambda state: {"messages": [AIMessage(text(len(state["messages"]), size))]})
        builder.add_edge(START, "answer")
        graph = builder.compile(checkpointer=saver)
        say: Callable[[int], Any] = lambda turn: {"messages": [HumanMessage("question")]}  # noqa: E731
    else:
        graph = agent(saver, steps=1, frequency=20)
        say = lambda turn: said(turn) | {"messages": [HumanMessage(text(turn, size), id=f"q{turn}")]}  # noqa: E731
    sizes = [0]
    for turn in range(turns):
        graph.invoke(say(turn), where())
        if turn % 20 == 19:
            sizes.append(measured(saver.store).bytes)
    grown = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(grown[1:]) < 1.3 * grown[0]
    assert sizes[-1] < turns * (size + 4 * STEP_BYTES)
    counting.clear()
    reader = DeltaSaver(Store(counting))
    assert reader.get_tuple(where()) is not None
    assert counting.rows[RECORDS] <= 50 + 10
    assert check(saver.store).max_depth < 50


# --- what pruning leaves and takes ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "delta", "forked"])
def test_pruning_is_the_same_in_sync_and_async(open_store: OpenStore, kind: str) -> None:
    """langgraph#8531, langgraph#6883, langgraph#8625: not refused where delta channels are, nor where branches are."""
    saver = DeltaSaver(open_store(snapshot_frequency=3))
    graph = agent(saver, steps=3, frequency=1000 if kind == "delta" else 2)
    runs(graph, "t", range(3))
    if kind == "forked":
        base = sorted(history(graph, "t", each=False))[4]
        graph.invoke(said(7), where("t", "fork", checkpoint_id=base))
    saver.copy_thread("t", "twin")
    before = history(graph, "t", each=False)
    wanted = without(before, before.keys() - {max(before)})
    saver.prune(["t"])
    asyncio.run(saver.aprune(["twin"]))
    assert history(graph, "t", each=False) == wanted
    assert history(graph, "twin", each=False) == wanted
    for thread in ("t", "twin"):  # and what goes on is one conversation
        plain = runs(graph, thread, [9])[0]
        assert plain["log"] == plain["plain"]
        assert plain["plain"][: len(wanted[max(wanted)][0]["plain"])] == wanted[max(wanted)][0]["plain"]
    asyncio.run(saver.aprune(["twin"], strategy="delete"))
    assert history(graph, "twin") == {}
    assert [found.name for found in saver.threads()] == ["t"]


@pytest.mark.parametrize("frequency", [4, 1000])
def test_a_turn_that_is_named_stays_a_place_to_branch_from(open_store: OpenStore, frequency: int) -> None:
    """deer-flow#4189, deer-flow#5255, deer-flow#5308: rules by number spare what is named.

    A tag, or pending writes, is how a caller names what must stay; and nothing of it is lost with what lies between.
    """
    saver = DeltaSaver(open_store(snapshot_frequency=3))
    graph = agent(saver, steps=2, frequency=frequency)
    ends = []
    for turn in range(6):
        runs(graph, "t", [turn])
        ends.append(graph.get_state(where()).config["configurable"]["checkpoint_id"])
    expected = history(graph, "t", each=False)
    saver.tag(config("t", ends[1]), "turn 1")
    apply_retention(saver.store, Retention(keep_last=2))
    left = history(graph, "t")
    assert left == {id_: expected[id_] for id_ in left}
    assert left.keys() >= {ends[1], ends[5]}
    assert len(left) == 3
    twin = agent(InMemorySaver(), steps=2, frequency=frequency)
    runs(twin, "t", [0, 1])
    twin.invoke(said(8), where("t", "branch"))
    graph.invoke(said(8), where("t", "branch", checkpoint_id=ends[1]))
    assert graph.get_state(where()).values == twin.get_state(where()).values
    branch = graph.get_state(where()).config["configurable"]["checkpoint_id"]
    apply_retention(saver.store, Retention(keep_last=1))
    assert history(graph, "t").keys() == {ends[1], ends[5], branch}  # the end of each branch stays too


def test_what_a_checkpoint_was_given_goes_with_it(tmp_path: Path) -> None:
    """pizza-bot#58: writes that a later checkpoint took in are kept for the history of theirs, and no longer."""
    with DeltaSaver.from_path(tmp_path / "store.ds", sync="none") as saver:
        number = itertools.count()
        graph = stepping(saver, 40, lambda: text(next(number), 20_000))
        graph.invoke({"count": 0, "large": ""}, where() | {"recursion_limit": 1000}, durability="sync")
        before, file_before = measured(saver.store), saver.store.info().file_bytes
        assert before.bytes > 40 * 10_000
        apply_retention(saver.store, Retention(keep_last=1))
        found = measured(saver.store)
        assert (found.checkpoints, found.kinds["writes"].rows) == (1, 0)
        assert found.garbage_bytes > 0.9 * before.bytes
        compact(saver.store)
        shrink(saver.store)
        after = measured(saver.store)
        assert after.garbage_bytes == 0
        assert after.bytes < before.bytes / 20
        assert saver.store.info().file_bytes < file_before / 5
        assert graph.get_state(where()).values["count"] == 40


@pytest.mark.parametrize("native", [True, False])
def test_a_thread_that_expires_leaves_no_row_of_any_kind(tmp_path: Path, native: bool) -> None:
    """langgraph-redis#137: records, ids, versions, writes, tags, rules, calls; of runs that were cancelled as well."""
    with deltastore.open(tmp_path / "store.ds", sync="none") as store:
        saver = DeltaSaver(store)
        if native:
            thread = store.thread("t")
            for number in range(40):
                made = thread.append({"log": [f"{number}"]})
                thread.put_writes(made, {"log": ["waits"]})
            thread.append({"log": ["branch"]}, at=list(thread.history())[9])
        else:
            graph = agent(saver, steps=6)
            runs(graph, "t", range(4))
            saver.delete_for_runs(["t-1"])
            saver.put(config("t", ns="sub:1"), checkpoint("1", {"a": "1"}, {"a": 1}), {}, {})
            saver.put_writes(config("t", "cancelled"), [("a", 1), ("__error__", "cancelled")], "task")
            saver.put_writes(config("t", "cancelled", ns="sub:2"), [("a", 1)], "task")
        store.thread("t").tag("tagged")
        store.thread("t").retention = Retention(drop_idle=timedelta(days=30))
        store.copy("t", "twin")
        saver.put(config("other"), checkpoint("1", {"a": "1"}, {"a": 1}), {}, {})
        kinds = measured(store).kinds
        assert {kind for kind, held in kinds.items() if held.rows} >= {"chunks", "records", "writes", "tags", "heads"}
        report = apply_retention(store, threads=["t", "twin"], now=later(store, days=31))
        assert report.dropped == 2
        found = measure(store)
        assert [thread.name for thread in found.threads] == ["other"]
        assert found.orphans.rows == 0
        assert check(store).ok


def later(store: Store, days: float) -> datetime:
    return datetime.fromtimestamp(store.log.now_ms() / 1000, UTC) + timedelta(days=days)


# --- runs that were killed --------------------------------------------------------------------

KILLED_RUNS = """
import os, signal, sys
from contextlib import contextmanager
from operator import add
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

import deltastore
from deltastore.langgraph import DeltaSaver

path, count = sys.argv[1], int(sys.argv[2])
WAYS = ("in a node", "before a commit", "after writes", "after a put", "in a deletion")


class State(TypedDict):
    text: str
    steps: Annotated[list[str], add]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def run(number):
    way = WAYS[number % len(WAYS)]
    store = deltastore.open(path, sync="none")
    storage, done = store.log.storage, [0]

    class Saver(DeltaSaver):
        def put_writes(self, *args):
            super().put_writes(*args)
            if way == "after writes" and done[0] > 3:
                super().put_writes({"configurable": {**args[0]["configurable"], "checkpoint_id": "never"}}, *args[1:])
                die()

        def put(self, *args):
            done[0] += 1
            stored = super().put(*args)
            if way == "after a put" and done[0] == 5:
                die()
            return stored

    write = storage.write

    @contextmanager
    def stopped(threads=()):
        with write(threads) as tx:
            yield tx
            if way == "before a commit" and done[0] > 4:
                die()
            if way == "in a deletion" and deleting:
                deleting.pop()
                if not deleting:
                    die()

    deleting = []
    storage.write = stopped

    def work(state):
        if way == "in a node" and len(state["steps"]) == 4:
            die()
        return {"text": os.urandom(20_000).hex(), "steps": [f"{number}"]}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if len(state["steps"]) % 8 else END)
    compiled = graph.compile(checkpointer=Saver(store))
    config = {"configurable": {"thread_id": f"run {number}"}, "recursion_limit": 100}
    compiled.invoke({"text": "", "steps": []}, config, durability="async" if number % 2 else "sync")
    deleting += [1, 2]
    store.delete(f"run {number}")


for number in range(count):
    child = os.fork()
    if not child:
        try:
            run(number)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, number
"""


def cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """Run a command of the command line, and return its document."""
    capsys.readouterr()
    ended = main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert ended == 0, err
    return json.loads(out)


def test_runs_that_were_killed_leave_what_is_seen_and_can_be_reclaimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """openwiki#257: twenty runs ended by SIGKILL: in nodes, transactions, between writes and puts, in deletions."""
    path, count = tmp_path / "store.ds", 20
    with DeltaSaver.from_path(path) as saver:
        graph = agent(saver, steps=2)
        runs(graph, "kept", [0])
        kept = history(graph, "kept")
    command = [sys.executable, "-c", KILLED_RUNS, os.fspath(path), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

    assert cli(capsys, "check", path)["ok"] is True
    before = cli(capsys, "stats", path, "--names", "--top", count + 1)
    names = {each["thread"] for each in before["largest"]}
    assert names == {"kept"} | {f"run {number}" for number in range(count) if number % 5 != 4}
    assert before["orphan_bytes"] > 4 * 20_000  # of the deletions
    assert before["stray_writes"] >= 4
    # what was deleted, and what a killed transaction never named, goes at once; the runs once they are idle
    compacted = cli(capsys, "compact", path)
    assert compacted["threads"] == len(names)
    found = cli(capsys, "stats", path)
    assert (found["orphan_bytes"], found["garbage_bytes"]) == (0, 0)
    assert found["threads"] == len(names)
    with DeltaSaver.from_path(path) as saver:
        saver.store.thread("kept").retention = Retention()
        idle = Retention(drop_idle=timedelta(days=1))
        report = apply_retention(saver.store, idle, now=later(saver.store, days=2))
        assert report.dropped == len(names) - 1
    shrunk = cli(capsys, "compact", path, "--shrink")["shrink"]
    assert shrunk["bytes_after"] < shrunk["bytes_before"] / 5
    after = cli(capsys, "stats", path, "--names")
    assert [each["thread"] for each in after["largest"]] == ["kept"]
    assert (after["orphan_bytes"], after["stray_writes"], after["garbage_bytes"]) == (0, 0, 0)
    with DeltaSaver.from_path(path) as saver:
        assert history(agent(saver, steps=2), "kept") == kept
