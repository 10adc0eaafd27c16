"""What tests of deletions share: an agent with delta channels and ordinary twins of them, and how a thread reads."""

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from deltastore import Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config
from tests.raw import rows_of

NAMESPACE_KINDS = b"nriwt"
"""The rows of a thread that stand for checkpoints: all but its header and chunks."""


def joined(value: list[Any] | None, writes: Sequence[list[Any]]) -> list[Any]:
    return [*(value or ()), *itertools.chain.from_iterable(writes)]


def merged(value: dict[str, Any] | None, writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return reduce(lambda one, other: {**one, **other}, writes, value or {})


def where(thread: Any = "t", run: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a config of a graph: of a thread, within a run whose id goes into the metadata."""
    found: dict[str, Any] = {"configurable": {"thread_id": thread} | more, "recursion_limit": 100}
    return found if run is None else found | {"metadata": {"run_id": run}}


def agent(saver: BaseCheckpointSaver | None, *, steps: int, frequency: int = 10) -> Any:
    """Give a graph of `steps` supersteps a turn whose three DeltaChannels have an ordinary twin, `plain`."""

    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=frequency)]
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)]
        facts: Annotated[dict[str, int], DeltaChannel(merged, snapshot_frequency=frequency)]
        plain: Annotated[list[str], add]

    def work(state: dict[str, Any]) -> dict[str, Any]:
        number = len(state["plain"])
        said: dict[str, Any] = {"log": [f"step {number}"], "plain": [f"step {number}"]}
        if number % 3:  # some steps don't touch a channel
            said["facts"] = {f"k{number % 5}": number}
            said["messages"] = [AIMessage(f"answer {number}", id=f"m{number % 7}")]
        return said

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    # a turn is its input and `steps` entries more
    graph.add_conditional_edges("work", lambda state: "work" if len(state["plain"]) % (steps + 1) else END)
    return graph.compile(checkpointer=saver)


def said(turn: int) -> dict[str, Any]:
    message = HumanMessage(f"question {turn}", id=f"q{turn}")
    return {"log": [f"in {turn}"], "messages": [message], "facts": {"turn": turn}, "plain": [f"in {turn}"]}


def runs(graph: Any, thread: str, turns: Sequence[int], durability: Any = "sync") -> list[Any]:
    """Invoke a graph once a turn, each in a run of its own; return what it gave."""
    return [graph.invoke(said(turn), where(thread, f"{thread}-{turn}"), durability=durability) for turn in turns]


def told(snapshot: Any) -> tuple[Any, ...]:
    """Return what a StateSnapshot says, without the thread's name."""
    parent = snapshot.parent_config
    metadata = {key: value for key, value in snapshot.metadata.items() if key != "thread_id"}
    return (
        snapshot.values,
        snapshot.next,
        metadata,
        snapshot.created_at,
        parent and parent["configurable"]["checkpoint_id"],
        [(task.id, task.name, task.path, task.error, task.interrupts, task.result) for task in snapshot.tasks],
        snapshot.interrupts,
    )


def history(graph: Any, thread: Any, *, each: bool = True, **more: Any) -> dict[str, tuple[Any, ...]]:
    """Return all that a thread's history says; with `each`, see that every checkpoint says it of itself too."""
    listed = {
        found.config["configurable"]["checkpoint_id"]: told(found)
        for found in graph.get_state_history(where(thread, **more))
    }
    for id_, found in listed.items() if each else ():
        assert told(graph.get_state(where(thread, checkpoint_id=id_, **more))) == found
    if listed:
        assert told(graph.get_state(where(thread, **more)))[0] == listed[max(listed)][0]
    return listed


def of_runs(found: dict[str, tuple[Any, ...]], *names: str) -> set[str]:
    return {id_ for id_, one in found.items() if one[2].get("run_id") in names}


def without(found: dict[str, tuple[Any, ...]], gone: set[str]) -> dict[str, tuple[Any, ...]]:
    return {id_: one for id_, one in found.items() if id_ not in gone}


def hidden(store: Store) -> int:
    """Return how many records are hidden, of a store that is as it should be."""
    report = check(store)
    assert report.ok, report.problems
    return report.hidden


def sizes(store: Store) -> tuple[int, int, int]:
    """Return a store's checkpoints, its hidden records, and the rows that stand for either."""
    report = check(store)
    assert report.ok, report.problems
    rows = sum(1 for key in rows_of(store.log.storage) if key[:6] != bytes(6) and key[6] in NAMESPACE_KINDS)
    return report.checkpoints, report.hidden, rows


# --- single checkpoints, put by hand ----------------------------------------------------------


def put(
    saver: DeltaSaver,
    id_: str,
    parent: str | None = None,
    *,
    run: Any = "r",
    thread: str = "t",
    ns: str = "",
    root: str | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Put a checkpoint with these values whose delta channel, `log`, has a version; of a call, that of a root."""
    versions = dict.fromkeys(["log", *values], id_)
    described: Any = {"source": "loop", "step": 0, "parents": {} if root is None else {"": root}, "run_id": run}
    stored: dict[str, Any] = saver.put(config(thread, parent, ns), checkpoint(id_, versions, values), described, {})
    return stored


def say(saver: DeltaSaver, id_: str, text: str, thread: str = "t", ns: str = "") -> None:
    saver.put_writes(config(thread, id_, ns), [("log", [text])], f"task {text}")


def log_at(saver: DeltaSaver, id_: str | None, thread: str = "t", ns: str = "") -> tuple[Any, list[Any]]:
    """Return the seed that a checkpoint's delta channel is rebuilt from, and the writes since."""
    found = saver.get_delta_channel_history(config=config(thread, id_, ns), channels=["log"])["log"]
    return found.get("seed"), [value for _, _, value in found["writes"]]


def listed(saver: DeltaSaver, thread: str = "t", ns: str = "") -> list[str]:
    """Return the ids of a namespace's checkpoints, the greatest first."""
    return [found.checkpoint["id"] for found in saver.list(config(thread, ns=ns))]


def folding(reducer: Any = joined) -> Any:
    """Give a graph that folds the channel `log`."""

    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(reducer, snapshot_frequency=1000)]

    graph = StateGraph(State)
    graph.add_node("work", lambda _: {})
    graph.add_edge(START, "work")
    return graph.compile()
