"""Faults that users of other savers reported of DeltaChannel and of delta-encoded state, on real graphs.

Each test takes the whole kind of a report, not its one input. `delta` is the DeltaChannel's snapshot_frequency, `store`
the store's: neither may change what is read.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt

import deltastore
from deltastore import BrokenChainError, Reducer, Store, check
from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.codec.primitives import seal, unseal
from deltastore.langgraph import DeltaSaver
from tests.counting import CHUNKS, RECORDS, Counting
from tests.langgraph.comparing import Pair, checkpoint, config, difference
from tests.raw import put_raw, rows_of

OpenStore = Callable[..., Store]
DURABILITIES = ("sync", "async", "exit")
FREQUENCIES = pytest.mark.parametrize("frequency", [1, 3, 50])
ON_DISK = pytest.mark.parametrize("open_store", ["lmdb"], indirect=True)
"""For what differs by graphs: the storages give the same bytes."""


def joined(value: list[Any] | None, writes: list[list[Any]]) -> list[Any]:
    return [*(value or ()), *itertools.chain.from_iterable(writes)]


def merged(value: dict[str, Any], writes: list[dict[str, Any]]) -> dict[str, Any]:
    return reduce(lambda one, other: {**one, **other}, writes, value)


def horner(value: int, writes: list[int]) -> int:
    """Tell any two orders of the same writes apart."""
    return reduce(lambda one, other: (one * 31 + other) % (2**61 - 1), writes, value)


def where(thread: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def log_of(frequency: int) -> Any:
    return Annotated[list[str], DeltaChannel(joined, snapshot_frequency=frequency)]


# --- branches ---------------------------------------------------------------------------------


def twin_graph(saver: BaseCheckpointSaver, frequency: int) -> Any:
    """Give a graph with parallel nodes whose ordinary channel takes the same writes as its DeltaChannel."""
    schema: Any = TypedDict(
        "Twins",
        {
            "log": log_of(frequency),
            "plain": Annotated[list[str], add],
            "order": Annotated[int, DeltaChannel(horner, snapshot_frequency=frequency)],
        },
    )

    def node(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def run(state: dict[str, Any]) -> dict[str, Any]:
            said = [f"{name} {len(state['plain'])}"]
            return {"log": said, "plain": said, "order": ord(name[0])}

        return run

    graph = StateGraph(schema)
    for name in ("right", "left"):
        graph.add_node(name, node(name))
        graph.add_edge(START, name)
    graph.add_node("join", node("join"))
    graph.add_edge(["right", "left"], "join")
    return graph.compile(checkpointer=saver)


def step(graph: Any, chance: random.Random, at: dict[str, Any], number: int) -> None:
    """Run, rerun, edit, overwrite or copy, and see that what it leaves is what it was seen to do."""
    said = [f"said {number}"]
    durability = chance.choice(DURABILITIES)
    match chance.randrange(6) if number else 0:
        case 0 | 1:
            given = {"log": said, "plain": said, "order": number}
            assert graph.invoke(given, at, durability=durability) == graph.get_state(where()).values
        case 2:
            with suppress(EmptyInputError):  # some checkpoints have nothing to run, on every saver
                graph.invoke(None, at, durability=durability)
        case 3:
            base = graph.get_state(at).values
            edited = graph.update_state(at, {"log": said, "plain": said, "order": 7}, as_node="join")
            assert graph.get_state(edited).values["log"] == [*base.get("log", []), *said]
        case 4:
            writes = {"log": Overwrite(said), "plain": Overwrite(said), "order": Overwrite(number)}
            edited = graph.update_state(at, writes, as_node="join")
            assert graph.get_state(edited).values == {"log": said, "plain": said, "order": number}
        case 5:
            graph.update_state(at, None, as_node="__copy__")


@pytest.mark.parametrize(("delta", "store"), [(1, 3), (3, 1), (50, 3), (50, 50)])
def test_any_tree_of_runs_edits_and_forks_reads_as_it_ran(open_store: OpenStore, delta: int, store: int) -> None:
    """langgraph#8443, langgraph#8551: no branch ever has a write of another, whichever was stored first."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    graph = twin_graph(DeltaSaver(open_store(snapshot_frequency=store)), delta)
    known: dict[str, Any] = {}
    for number in range(18):
        at = chance.choice(list(known.values())).config if known and chance.random() < 0.6 else where()
        step(graph, chance, at, number)
        for found in graph.get_state_history(where()):  # the greatest ids are the new ones
            id_ = found.config["configurable"]["checkpoint_id"]
            if id_ in known:
                break
            assert found.values.get("log", []) == found.values.get("plain", [])
            known[id_] = found
        if chance.random() < 0.3:
            graph = twin_graph(DeltaSaver(open_store()), delta)
    assert len(known) >= 12
    for reader in (graph, twin_graph(DeltaSaver(open_store()), delta)):
        for found in known.values():
            assert reader.get_state(found.config).values == found.values


@FREQUENCIES
def test_a_branch_from_a_half_done_step_has_what_its_own_tasks_wrote(open_store: OpenStore, frequency: int) -> None:
    """langgraph#8443 where the shared base has writes of tasks that were done while another was interrupted."""

    def script(saver: BaseCheckpointSaver) -> Any:
        schema: Any = TypedDict("State", {"log": log_of(frequency)})

        def ask(_state: Any) -> Any:
            return {"log": [f"answer {interrupt('?')}"]}

        graph = StateGraph(schema)
        graph.add_node("quick", lambda _: {"log": ["quick"]})
        graph.add_node("ask", ask)
        graph.add_node("end", lambda state: {"log": [f"end {len(state['log'])}"]})
        graph.add_edge(START, "quick")
        graph.add_edge(START, "ask")
        graph.add_edge(["quick", "ask"], "end")
        compiled = graph.compile(checkpointer=saver)
        compiled.invoke({"log": ["in"]}, where())
        base = compiled.get_state(where()).config
        out = [compiled.invoke(Command(resume="one"), where())]
        first = compiled.get_state(where()).config
        out.append(compiled.invoke(Command(resume="two"), base))
        edited = compiled.update_state(base, {"log": ["edit"]}, as_node="quick")
        out.append(compiled.get_state(edited).values)
        out.append({"log": compiled.invoke({"log": ["again"]}, base)["log"]})
        out.append(compiled.get_state(first).values)
        return [out, [(found.values, found.next) for found in compiled.get_state_history(where())]]

    expected = script(InMemorySaver())
    actual = script(DeltaSaver(open_store(snapshot_frequency=frequency)))
    assert difference(expected, actual) is None
    assert actual[0][0] == actual[0][-1] == {"log": ["in", "answer one", "quick", "end 3"]}


@ON_DISK
@pytest.mark.parametrize("store", [1, 3, 50])
def test_one_thread_may_change_between_ordinary_and_delta_channels(open_store: OpenStore, store: int) -> None:
    """bytedance/deer-flow#4292: what one mode wrote never reads as empty in the other."""

    def graph_of(annotation: Any) -> Any:
        schema: Any = TypedDict("State", {"log": annotation})
        graph = StateGraph(schema)
        graph.add_node("answer", lambda state: {"log": [f"out {len(state['log'])}"]})
        graph.add_edge(START, "answer")
        return graph.compile(checkpointer=DeltaSaver(open_store(snapshot_frequency=store)))

    expected: list[str] = []
    heads: list[tuple[Any, list[str]]] = []
    modes = [Annotated[list[str], add], log_of(3), log_of(1000), log_of(1)]
    for number, mode in enumerate([modes[0], modes[1], modes[0], modes[2], modes[3], modes[0], modes[2]]):
        graph = graph_of(mode)
        for turn in range(3):
            said = f"in {number}.{turn}"
            expected = [*expected, said, f"out {len(expected) + 1}"]
            assert graph.invoke({"log": [said]}, where()) == {"log": expected}
            heads.append((graph.get_state(where()).config, expected))
    for mode in modes:
        graph = graph_of(mode)
        for head, values in heads:
            assert graph.get_state(head).values == {"log": values}


# --- order ------------------------------------------------------------------------------------


@ON_DISK
@pytest.mark.parametrize("frequency", [3, 50])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_writes_of_many_tasks_replay_in_the_order_they_ran(
    open_store: OpenStore, frequency: int, durability: str
) -> None:
    """langgraph#8382: nodes, over ten sends, tasks with several writes, into reducers that tell orders apart."""
    channels = {
        "log": log_of(frequency),
        "order": Annotated[int, DeltaChannel(horner, snapshot_frequency=frequency)],
        "last": Annotated[dict[str, str], DeltaChannel(merged, snapshot_frequency=frequency)],
        "plain": Annotated[list[str], add],
    }
    schema: Any = TypedDict("State", channels)

    def said(name: str, number: int) -> dict[str, Any]:
        return {"log": [name, name], "order": number, "last": {"by": name, name: name}, "plain": [name, name]}

    graph = StateGraph(schema)
    for number, name in enumerate("dacb"):
        graph.add_node(name, lambda _, name=name, number=number: said(name, number))
        graph.add_edge(START, name)
    graph.add_node("work", lambda task: Command(update=said(f"work {task}", task)))
    graph.add_conditional_edges("c", lambda _: [Send("work", number) for number in range(12, 0, -1)], ["work"])
    live = graph.compile(checkpointer=DeltaSaver(open_store(snapshot_frequency=frequency)))
    reopened = graph.compile(checkpointer=DeltaSaver(open_store()))
    for thread in map(str, range(2)):
        for turn in range(2):
            returned = live.invoke(said(f"in {turn}", 5), where(thread), durability=durability)
            assert returned["log"] == returned["plain"]
            assert difference(returned, reopened.get_state(where(thread)).values) is None
        for found in reopened.get_state_history(where(thread)):
            assert found.values.get("log", []) == found.values.get("plain", [])


@ON_DISK
@FREQUENCIES
def test_an_overwrite_among_plain_writes_reads_as_it_ran(open_store: OpenStore, frequency: int) -> None:
    """langgraph#8821, in each of the six orders, and in the steps after it."""
    writes = [["x"], Overwrite(["y"]), ["z"]]
    for number, order in enumerate(itertools.permutations(range(3))):
        schema: Any = TypedDict("State", {"log": log_of(frequency), "plain": Annotated[list[str], add]})
        graph = StateGraph(schema)
        for place, which in enumerate(order):
            graph.add_node(f"n{place}", lambda _, which=which: {"log": writes[which], "plain": writes[which]})
            graph.add_edge(START, f"n{place}")
        graph.add_node("end", lambda _: {"log": ["end"], "plain": ["end"]})
        graph.add_edge(["n0", "n1", "n2"], "end")
        live = graph.compile(checkpointer=DeltaSaver(open_store(snapshot_frequency=frequency)))
        reopened = graph.compile(checkpointer=DeltaSaver(open_store()))
        for turn in range(2):
            returned = live.invoke({"log": [f"in {turn}"], "plain": [f"in {turn}"]}, where(str(number)))
            assert reopened.get_state(where(str(number))).values == returned
        steps: dict[Any, list[str]] = {}
        for found in reopened.get_state_history(where(str(number))):
            steps.setdefault(found.metadata["step"], found.values.get("log", []))
        # after the step with the Overwrite, what it set, and no plain write of before
        assert {steps[step][0] for step in (1, 2, 4, 5)} == {"y"}


# --- beginnings -------------------------------------------------------------------------------


def edit(graph: Any, how: str, text: str) -> None:
    match how:
        case "update":
            graph.update_state(where(), {"log": [text]}, as_node="answer")
        case "bulk":
            graph.bulk_update_state(where(), [[StateUpdate({"log": [text]}, "answer")]])
        case "bulk of two":
            updates = [StateUpdate({"log": [text]}, "answer"), StateUpdate({"log": [text]}, "answer")]
            graph.bulk_update_state(where(), [updates[:1], updates[1:]])
        case "overwrite":
            graph.update_state(where(), {"log": Overwrite([text])}, as_node="answer")
        case "input":
            graph.update_state(where(), {"log": [text]}, as_node="__input__")


@ON_DISK
@FREQUENCIES
@pytest.mark.parametrize("how", ["update", "bulk", "bulk of two", "overwrite", "input"])
def test_a_new_thread_keeps_whatever_edit_comes_first(open_store: OpenStore, frequency: int, how: str) -> None:
    """langgraph#8011: the first write of a thread that no run began is there, and so is the second."""

    def script(saver: BaseCheckpointSaver) -> Any:
        schema: Any = TypedDict("State", {"log": log_of(frequency), "other": int})
        graph = StateGraph(schema)
        graph.add_node("answer", lambda state: {"log": [f"out {len(state['log'])}"]})
        graph.add_edge(START, "answer")
        compiled = graph.compile(checkpointer=saver)
        out = []
        for text in ("m1", "m2", "m3", "m4"):
            edit(compiled, how, text)
            out.append(compiled.get_state(where()).values["log"])
        out.append(compiled.invoke({"log": ["in"]}, where())["log"])
        history = [found.values.get("log") for found in compiled.get_state_history(where())]
        return [out, history]

    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    states, history = script(saver)
    assert [states, history] == script(InMemorySaver())
    if how != "input":  # which the run takes up later
        assert states[0] == (["m1", "m1"] if how == "bulk of two" else ["m1"])
    if how == "update":
        assert states[:-1] == [["m1"], ["m1", "m2"], ["m1", "m2", "m3"], ["m1", "m2", "m3", "m4"]]


def test_writes_are_kept_on_a_stub_that_holds_nothing(pair: Pair) -> None:
    """langgraph#8014: put_writes on the empty checkpoint that the runtime makes for a new thread."""
    pair.put(config("t"), checkpoint("0", {}, {}), {})
    for number in range(6):
        pair.put_writes(config("t", str(number)), [("log", [f"m{number}"])], f"task {number}")
        pair.put(config("t", str(number)), checkpoint(str(number + 1), {"log": number + 1}, {}))
    pair.compare_all()
    for number in range(7):
        pair.compare_history(config("t", str(number)), ["log"])
    history = pair.saver.get_delta_channel_history(config=config("t"), channels=["log"])["log"]
    assert [value for _, _, value in history["writes"]] == [[f"m{number}"] for number in range(6)]
    assert "seed" not in history


@ON_DISK
@pytest.mark.parametrize("kind", [list, dict, set, int])
@FREQUENCIES
def test_a_reducer_is_never_called_without_a_value(open_store: OpenStore, kind: type, frequency: int) -> None:
    """deepagents#3636: no seed means the channel's own empty value, never None, whatever the type."""
    given: list[Any] = []
    one: Any = {list: ["a"], dict: {"a": 1}, set: {"a"}, int: 3}[kind]

    def fold(value: Any, writes: list[Any]) -> Any:
        given.append(value)
        for write in writes:
            value = {**value, **write} if kind is dict else value | write if kind is set else value + write
        return value

    schema: Any = TypedDict(
        "State", {"delta": Annotated[kind, DeltaChannel(fold, snapshot_frequency=frequency)], "other": int}
    )
    graph = StateGraph(schema)
    graph.add_node("first", lambda _: {"other": 1})
    graph.add_node("second", lambda _: {"delta": one})
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    returned = graph.compile(checkpointer=saver).invoke({"other": 0}, where())
    reopened = graph.compile(checkpointer=DeltaSaver(open_store()))
    states = [found.values.get("delta", kind()) for found in reopened.get_state_history(where())]
    assert states[0] == returned["delta"] == one
    assert all(state == kind() for state in states[1:])
    assert given
    assert {type(value) for value in given} == {kind}


def test_a_native_reducer_begins_with_its_own_initial_value(open_store: OpenStore) -> None:
    """deepagents#3636, for the reducers that users give to a store."""
    given: list[Any] = []

    def fold(value: Any, write: Any) -> Any:
        given.append(value)
        return [*value, *write]

    reducer = Reducer("collect", 1, fold, initial=list)
    thread = open_store(reducers=[reducer], channels={"log": "collect"}, snapshot_frequency=3).thread("t")
    for number in range(3):
        thread.append({"other": number})
    for number in range(8):
        thread.append({"log": [number]})
        fresh = open_store(reducers=[reducer], channels={"log": "collect"}, cache_bytes=0)
        assert fresh.thread("t").state()["log"] == list(range(number + 1))
    assert all(type(value) is list for value in given)


# --- ids of messages --------------------------------------------------------------------------


@ON_DISK
@FREQUENCIES
@pytest.mark.parametrize("durability", DURABILITIES)
def test_ids_given_to_messages_stay_from_read_to_read(open_store: OpenStore, frequency: int, durability: str) -> None:
    """langgraph#7913: messages without id from inputs, nodes and edits; then one is removed by its id."""
    schema: Any = TypedDict(
        "State",
        {"messages": Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)]},
    )
    graph = StateGraph(schema)
    graph.add_node("model", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    graph.add_edge(START, "model")

    def compiled() -> Any:
        return graph.compile(checkpointer=DeltaSaver(open_store(snapshot_frequency=frequency)))

    def read() -> list[list[str]]:
        """Return the ids of every checkpoint's messages, as a store opened anew reads them."""
        return [
            [message.id for message in found.values.get("messages", [])]
            for found in compiled().get_state_history(where())
        ]

    for turn in range(3):
        live = compiled().invoke({"messages": [HumanMessage(f"turn {turn}")]}, where(), durability=durability)
        assert [message.id for message in live["messages"]] == read()[0]
    compiled().update_state(where(), {"messages": [HumanMessage("edit"), HumanMessage("another")]}, as_node="model")
    first = read()
    assert all(map(all, first))
    assert len(first[0]) == len(set(first[0])) == 8
    assert read() == read() == first
    for gone in (first[0][0], first[0][-1]):
        compiled().update_state(where(), {"messages": [RemoveMessage(id=gone)]}, as_node="model")
    assert read()[0] == first[0][1:-1]


# --- long threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [3, 50])
def test_a_read_of_any_checkpoint_of_a_long_thread_is_whole(frequency: int) -> None:
    """langgraph#8447: the number of checkpoints above the one asked for doesn't matter."""
    storage = Counting(deltastore.open(":memory:").log.storage)
    saver = DeltaSaver(Store(storage, snapshot_frequency=frequency))
    parent = None
    count = 1100
    for number in range(count):
        id_ = f"{number:04}"
        versions = {"log": number + 1, "words": number // 100 + 1}
        values = {"words": [f"word {place}" for place in range(number // 100 + 1)]}
        saver.put(config("t", parent), checkpoint(id_, versions, values), {"step": number}, versions)
        saver.put_writes(config("t", id_), [("log", [number])], "task")
        parent = id_
    reader = DeltaSaver(Store(storage))
    for number in (0, 9, 75, 76, 77, 500, 1023, 1024, 1025, count - 1):
        found = reader.get_tuple(config("t", f"{number:04}"))
        assert found is not None
        assert found.checkpoint["channel_values"]["words"] == [f"word {place}" for place in range(number // 100 + 1)]
        assert found.pending_writes == [("task", "log", [number])]
        history = reader.get_delta_channel_history(config=config("t", f"{number:04}"), channels=["log", "words"])
        assert [value for _, _, value in history["log"]["writes"]] == [[before] for before in range(number)]
        if number:
            assert history["words"]["seed"] == [f"word {place}" for place in range((number - 1) // 100 + 1)]
    storage.clear()
    reader.get_tuple(config("t", "0009"))
    assert storage.rows[RECORDS] <= frequency + 10


def forge(storage: Any, place: int, **changes: Any) -> None:
    """Replace fields of the nth record of the first thread, under a right checksum."""
    key = sorted(key for key in rows_of(storage) if key[:7] == b"\0\0\0\0\0\1r")[place]
    row = recordrow.decode_row(unseal(key, rows_of(storage)[key]), key[-16:], None)
    body = rec.encode_record(row.records[0]._replace(**changes))
    put_raw(storage, key, seal(key, recordrow.encode_row(body, (0, 0))))


def ulid_of(storage: Any, place: int) -> bytes:
    return sorted(key for key in rows_of(storage) if key[:7] == b"\0\0\0\0\0\1r")[place][-16:]


@pytest.fixture
def walked() -> DeltaSaver:
    """A thread of twelve checkpoints whose log has writes only: each of them needs all before."""
    saver = DeltaSaver(Store(deltastore.open(":memory:").log.storage, snapshot_frequency=4))
    parent = None
    for number in range(12):
        id_ = f"{number:02}"
        versions = {"log": number + 1, "n": number + 1}
        saver.put(config("t", parent), checkpoint(id_, versions, {"n": number}), {}, versions)
        saver.put_writes(config("t", id_), [("log", [number])], "task")
        parent = id_
    return saver


def within(seconds: float, work: Callable[[], None]) -> None:
    """Run work that might never end; whatever it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    assert not worker.is_alive(), f"still running after {seconds} s"
    if raised:
        raise raised[0]


def test_a_lost_ancestor_is_an_error_and_a_root_is_none(walked: DeltaSaver) -> None:
    """langgraph#8447: an unknown parent is never taken for no parent."""
    storage = walked.store.log.storage
    keys = sorted(key for key in rows_of(storage) if key[:7] == b"\0\0\0\0\0\1r")
    for place, key in enumerate(keys[:-1]):
        row = rows_of(storage)[key]
        put_raw(storage, key, None)
        fresh = DeltaSaver(Store(storage))
        for number in range(12):
            at = config("t", f"{number:02}")
            if number > place:
                with pytest.raises(BrokenChainError, match="'t'"):
                    fresh.get_delta_channel_history(config=at, channels=["log"])
            elif number < place:
                history = fresh.get_delta_channel_history(config=at, channels=["log"])["log"]
                assert [value for _, _, value in history["writes"]] == [[before] for before in range(number)]
        assert not check(fresh.store).ok
        put_raw(storage, key, row)
    assert walked.get_delta_channel_history(config=config("t", "00"), channels=["log"])["log"]["writes"] == []


@pytest.mark.parametrize(("place", "above"), [(5, 5), (5, 8), (0, 11), (0, 0), (4, 6), (3, 7)])
def test_a_circle_of_parents_ends_every_call(walked: DeltaSaver, place: int, above: int) -> None:
    """go-git#2340: reads, walks, lists and check are bounded, and what they return is right or refused."""
    storage = walked.store.log.storage
    expected = {number: walked.get_tuple(config("t", f"{number:02}")) for number in range(12)}
    forge(storage, place, parent=ulid_of(storage, above), parent_id=f"{above:02}")

    def use() -> None:
        fresh = DeltaSaver(Store(storage))
        assert not check(fresh.store).ok
        for number in range(12):
            with suppress(BrokenChainError):
                found = fresh.get_tuple(config("t", f"{number:02}"))
                assert found is not None
                assert expected[number] is not None
                assert found.checkpoint == expected[number].checkpoint
            with suppress(BrokenChainError):
                walk = fresh.get_delta_channel_history(config=config("t", f"{number:02}"), channels=["log"])["log"]
                assert len(walk["writes"]) <= 12
        with suppress(BrokenChainError):
            assert len(list(fresh.list(config("t")))) <= 12

    within(60, use)


@FREQUENCIES
def test_two_hundred_edits_without_a_run_are_read_in_bounded_time(frequency: int) -> None:
    """LangAlpha#283: anchors come by count whatever the caller does, so the last edit reads as fast as the first."""
    inner = deltastore.open(":memory:").log.storage
    storage = Counting(inner)
    schema: Any = TypedDict("State", {"log": log_of(frequency), "plain": Annotated[list[str], add], "note": str})
    graph = StateGraph(schema)
    graph.add_node("answer", lambda _: {"log": ["out"]})
    graph.add_edge(START, "answer")
    compiled = graph.compile(checkpointer=DeltaSaver(Store(storage, snapshot_frequency=frequency)))
    costs = []
    for number in range(200):
        compiled.update_state(where(), {"log": [f"{number}"], "plain": [f"{number}"], "note": "n"}, as_node="answer")
        if number % 50 in {48, 49}:
            storage.clear()
            reader = graph.compile(checkpointer=DeltaSaver(Store(storage)))
            values = reader.get_state(where()).values
            assert values["log"] == values["plain"] == [f"{before}" for before in range(number + 1)]
            costs.append(storage.rows[RECORDS])
    with Store(inner) as store:
        assert check(store).max_depth < frequency
    # the walk for the DeltaChannel looks at each ancestor since its snapshot, and the read at its own chain
    assert max(costs) <= 3 * frequency + 20
    assert max(costs[-2:]) <= 2 * max(costs[:2]) + 10


@pytest.mark.parametrize("frequency", [1, 2, 3, 5])
def test_reads_around_an_anchor_have_each_write_once(open_store: OpenStore, frequency: int) -> None:
    """eventhorizon#414: read at the anchor, one before and one after it, values, versions and walks."""
    pair = Pair(DeltaSaver(open_store(snapshot_frequency=frequency)))
    parent = None
    count = 3 * frequency + 2
    for number in range(count):
        id_ = f"{number:02}"
        seed = {"log": ["seed", number]} if number % frequency == 0 else {}
        versions = {"log": number + 1, "n": number + 1, "list": number // 2 + 1}
        values = {"n": number, "list": list(range(number // 2)), **seed}
        pair.put(config("t", parent), checkpoint(id_, versions, values))
        pair.put_writes(config("t", id_), [("log", [number]), ("n", number)], "task")
        parent = id_
    for saver in (pair.saver, DeltaSaver(open_store())):
        assert pair.compare_all(saver) == count
        for number in range(count):
            pair.compare_history(config("t", f"{number:02}"), ["log", "n", "list"], saver)


RUNNER = """
import os, signal, sys
from typing import Annotated, TypedDict
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from deltastore.langgraph import DeltaSaver

path, start, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
done = 0


class Killed(DeltaSaver):
    def put(self, *args):
        global done
        stored = super().put(*args)
        done += 1
        if done == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return stored


def joined(value, writes):
    return [*value, *(item for write in writes for item in write)]


class State(TypedDict):
    log: Annotated[list, DeltaChannel(joined, snapshot_frequency=5)]
    plain: Annotated[list, lambda one, other: one + other]


saver = Killed.from_path(path, snapshot_frequency=5)
builder = StateGraph(State)
builder.add_node("answer", lambda state: {"log": [len(state["plain"])], "plain": [len(state["plain"])]})
builder.add_edge(START, "answer")
graph = builder.compile(checkpointer=saver)
for turn in range(1000):
    said = {"log": [f"in {start}.{turn}"], "plain": [f"in {start}.{turn}"]}
    graph.invoke(said, {"configurable": {"thread_id": "t"}}, durability="sync")
"""


def test_replay_stays_bounded_through_crashes(tmp_path: Path) -> None:
    """raiden#2632: a run killed again and again before its next anchor replays no more than one that wasn't."""
    path = tmp_path / "store.ds"
    kills = (4, 7)
    for number, count in enumerate(kills):
        command = [sys.executable, "-c", RUNNER, os.fspath(path), str(number), str(count)]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with deltastore.open(path) as store:
        report = check(store)
        assert report.ok, report.problems
        assert report.checkpoints == sum(kills)
        assert report.max_depth < 5
        storage = Counting(store.log.storage)
        saver = DeltaSaver(Store(storage))
        schema: Any = TypedDict("State", {"log": log_of(5), "plain": Annotated[list[Any], add]})
        graph = StateGraph(schema)
        graph.add_node("answer", lambda _: {})
        graph.add_edge(START, "answer")
        graph.add_edge("answer", END)
        compiled = graph.compile(checkpointer=saver)
        for found in compiled.get_state_history(where()):
            assert found.values.get("log", []) == found.values.get("plain", [])
            storage.clear()
            saver.get_tuple(found.config)
            assert storage.rows[RECORDS] <= 5 + 5
            assert storage.rows[CHUNKS] <= 40
