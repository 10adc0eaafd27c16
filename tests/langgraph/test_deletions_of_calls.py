"""Deletions of threads with sub-graphs: a call goes with the root checkpoint it started from, what lasts stays."""

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from deltastore import InvalidInputError, Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import config, difference
from tests.langgraph.deleting import hidden, history, joined, where, without
from tests.raw import rows_of

OpenStore = Callable[..., Store]
STORES = pytest.mark.parametrize(
    ("open_store", "frequency"), [("memory", 1), ("lmdb", 3), ("memory", 50)], indirect=["open_store"]
)


def same(expected: Any, actual: Any) -> None:
    found = difference(expected, actual)
    assert found is None, found


def calling(saver: BaseCheckpointSaver, *, asks: bool = False, leaf_name: str = "leaf") -> Any:
    """Give a graph that calls a sub-graph, which calls another, and one whose state outlives its calls."""

    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=1000)]

    def node(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda state: {"log": [f"{name} {len(state['log'])}"]}

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"log": [f"answer {interrupt(len(state['log']))}" if asks else "no question"]}

    leaf = StateGraph(State)
    leaf.add_node("one", node("one"))
    leaf.add_node("ask", ask)
    leaf.add_edge(START, "one")
    leaf.add_edge("one", "ask")
    inner = StateGraph(State)
    inner.add_node("before", node("before"))
    inner.add_node(leaf_name, leaf.compile())
    inner.add_edge(START, "before")
    inner.add_edge("before", leaf_name)
    lasting = StateGraph(State)
    lasting.add_node("note", node("note"))
    lasting.add_edge(START, "note")
    outer = StateGraph(State)
    outer.add_node("call", inner.compile())
    outer.add_node("kept", lasting.compile(checkpointer=True))
    outer.add_edge(START, "call")
    outer.add_edge("call", "kept")
    return outer.compile(checkpointer=saver)


def spaces(saver: DeltaSaver, thread: str = "t") -> dict[str, list[str]]:
    """Return a thread's checkpoints by namespace, the latest first."""
    out: dict[str, list[str]] = {}
    for found in saver.list({"configurable": {"thread_id": thread}}):
        here = found.config["configurable"]
        out.setdefault(here["checkpoint_ns"], []).append(here["checkpoint_id"])
    return out


def roots_of(saver: DeltaSaver, space: str) -> set[str]:
    """Return the root checkpoints that a namespace's checkpoints name."""
    return {found.metadata["parents"][""] for found in saver.list(config("t", ns=space))}


def calls(found: dict[str, list[str]]) -> list[str]:
    return sorted(space for space in found if ":" in space)


def read_all(graph: Any, found: dict[str, list[str]]) -> dict[str, Any]:
    return {space: history(graph, "t", each=False, checkpoint_ns=space) for space in found}


@STORES
def test_calls_go_with_their_root_and_what_lasts_keeps_its_latest(open_store: OpenStore, frequency: int) -> None:
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = calling(saver)
    for turn in range(2):
        graph.invoke({"log": [f"in {turn}"]}, where("t", f"r{turn}"))
    before = spaces(saver)
    states = {space: history(graph, "t", checkpoint_ns=space) for space in ("", "kept")}
    assert len(calls(before)) == 4
    assert before.keys() - calls(before) == {"", "kept"}

    saver.delete_for_runs(["r0"])
    found = spaces(saver)
    assert len(calls(found)) == 2
    for space in found:
        assert space == "" or roots_of(saver, space) <= set(found[""])
    for space in ("", "kept"):
        states[space] = {id_: one for id_, one in states[space].items() if one[2]["run_id"] == "r1"}
        assert states[space]
        same(states[space], history(graph, "t", checkpoint_ns=space))

    saver.prune(["t"])
    assert spaces(saver) == {"": before[""][:1], "kept": before["kept"][:1]}
    for one in (graph, calling(DeltaSaver(open_store()))):
        for space in ("", "kept"):
            same({max(states[space]): states[space][max(states[space])]}, history(one, "t", checkpoint_ns=space))
    rows = {key for key in rows_of(saver.store.log.storage) if key[:6] != bytes(6) and key[6:7] == b"n"}
    assert len(rows) == 2
    twin = calling(DeltaSaver(Store(_memory())))
    for turn in range(2):
        twin.invoke({"log": [f"in {turn}"]}, where("t"))
    same(twin.invoke({"log": ["more"]}, where("t")), graph.invoke({"log": ["more"]}, where("t")))


def _memory() -> Any:
    from deltastore.storage.memory import MemoryStorage

    return MemoryStorage()


@STORES
@pytest.mark.parametrize("erase", [False, True])
def test_an_interrupted_call_survives_and_goes_on(open_store: OpenStore, frequency: int, erase: bool) -> None:
    """What is under way at the latest root checkpoint is no old call, however deep, in any process."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = calling(saver, asks=True)
    graph.invoke({"log": ["in"]}, where())
    done = graph.invoke(Command(resume="first"), where())["log"]
    twin = calling(DeltaSaver(Store(_memory())), asks=True)
    twin.invoke({"log": ["in"]}, where())
    assert twin.invoke(Command(resume="first"), where())["log"] == done
    for one in (graph, twin):
        one.invoke({"log": ["again"]}, where())
    deep = graph.get_state(where(), subgraphs=True).tasks[0].state.tasks[0].state
    assert deep.next == ("ask",)
    saver.prune(["t"], erase=erase, graph=graph if erase else None)
    found = spaces(saver)
    assert len(calls(found)) == 2
    assert {space: len(ids) for space, ids in found.items()} == dict.fromkeys(found, 1)
    assert hidden(saver.store) == 0 or not erase
    reopened = calling(DeltaSaver(open_store()), asks=True)
    again = reopened.get_state(where(), subgraphs=True).tasks[0].state.tasks[0].state
    assert (again.values, again.next, again.interrupts) == (deep.values, deep.next, deep.interrupts)
    same(twin.invoke(Command(resume="second"), where()), reopened.invoke(Command(resume="second"), where()))
    saver.prune(["t"], erase=erase, graph=graph if erase else None)
    assert spaces(saver).keys() == {"", "kept"}


@STORES
@pytest.mark.parametrize("tagged", ["root", "call", "nested"])
def test_a_tag_keeps_a_call(open_store: OpenStore, frequency: int, tagged: str) -> None:
    """On the root checkpoint it keeps the calls started from it, in a call's namespace that call."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = calling(saver)
    for turn in range(2):
        graph.invoke({"log": [f"in {turn}"]}, where("t", f"r{turn}"))
    before = spaces(saver)
    states = read_all(graph, before)
    call, nested = (
        min([space for space in calls(before) if "|" not in space], key=lambda space: max(before[space])),
        min([space for space in calls(before) if "|" in space], key=lambda space: max(before[space])),
    )
    (root,) = roots_of(saver, call)
    match tagged:
        case "root":
            saver.tag(config("t", root), "keep")
            expected = {"": [before[""][0], root], call: before[call][:1], nested: before[nested][:1]}
        case "call":
            saver.tag(config("t", before[call][1], call), "keep")
            expected = {"": before[""][:1], call: before[call][:2]}
        case _:
            saver.tag(config("t", before[nested][1], nested), "keep")
            expected = {"": before[""][:1], nested: before[nested][:2]}
    saver.prune(["t"])
    expected["kept"] = before["kept"][:1]
    assert spaces(saver) == expected
    for space, ids in expected.items():
        kept = {id_: states[space][id_] for id_ in ids}
        same(kept, history(calling(DeltaSaver(open_store())), "t", checkpoint_ns=space))
    space = {"root": "", "call": call}.get(tagged, nested)
    assert saver.untag(config("t", ns=space), "keep")
    saver.prune(["t"])
    assert spaces(saver) == {"": before[""][:1], "kept": before["kept"][:1]}


@STORES
def test_erasing_takes_the_graph_that_wrote_the_calls(open_store: OpenStore, frequency: int) -> None:
    """A graph without the sub-graph that has to fold is refused, and nothing changes."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = calling(saver, asks=True)
    graph.invoke({"log": ["in"]}, where())
    before = {space: history(graph, "t", checkpoint_ns=space) for space in spaces(saver)}
    rows = rows_of(saver.store.log.storage)
    with pytest.raises(InvalidInputError, match=r"'t'.*no sub-graph 'call\|leaf'"):
        saver.prune(["t"], erase=True, graph=calling(saver, leaf_name="other"))
    with pytest.raises(InvalidInputError, match=r"'t'.*\['log'\].*graph=…"):
        saver.prune(["t"], erase=True)
    assert rows_of(saver.store.log.storage) == rows
    saver.prune(["t"], erase=True, graph=graph)
    assert hidden(saver.store) == 0
    assert check(saver.store).checkpoints == 3
    for space, found in before.items():
        latest = max(found)
        expected = without(found, found.keys() - {latest})
        same(expected[latest][:2], history(graph, "t", checkpoint_ns=space)[latest][:2])
    assert "answer yes" in graph.invoke(Command(resume="yes"), where())["log"]
