"""Real graphs on both savers: the same run leaves the same history, in values, types, writes and order.

Checkpoint ids and version tails are made the same for both runs, so everything but times can be compared to the letter.
"""

import asyncio
import itertools
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.pregel import _checkpoint
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt

from deltastore import Store
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import assert_same, difference

OpenStore = Callable[..., Store]
Script = Callable[[BaseCheckpointSaver], Any]
DURABILITIES = ("sync", "async", "exit")


@pytest.fixture
def same_ids(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make ids and versions repeat; the result begins anew."""
    counter = itertools.count(1)

    def uuid6(node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
        return uuid.UUID(int=next(counter) << 80 | 6 << 76 | 2 << 62)

    def begin() -> None:
        nonlocal counter
        counter = itertools.count(1)
        random.seed(0)

    monkeypatch.setattr(_checkpoint, "uuid6", uuid6)
    return begin


def snapshots(graph: Any, config: dict[str, Any]) -> list[Any]:
    """Return the history of a thread with times left out, and the state of each sub-graph's namespace."""
    return [plain(found) for found in graph.get_state_history(config)]


def plain(found: Any) -> Any:
    tasks = tuple(
        task._replace(state=plain(task.state) if hasattr(task.state, "tasks") else task.state) for task in found.tasks
    )
    return found._replace(created_at=None, tasks=tasks)


@pytest.fixture
def compare(open_store: OpenStore, same_ids: Callable[[], None]) -> Callable[[Script], Any]:
    """Run a script on both savers; compare what it returns and every checkpoint stored, then again after reopening."""

    def run(script: Script) -> Any:
        same_ids()
        reference = InMemorySaver()
        expected = script(reference)
        same_ids()
        saver = DeltaSaver(open_store(snapshot_frequency=3))
        actual = script(saver)
        found = difference(expected, actual)
        assert found is None, found
        stored = {key_of(one): one for one in reference.list(None)}
        reopened = DeltaSaver(open_store())
        listed = {key_of(one): one for one in saver.list(None)}
        assert listed.keys() == stored.keys()
        for key, one in stored.items():
            for other in (listed[key], reopened.get_tuple(one.config)):
                assert other is not None
                assert_same(one._replace(checkpoint=timeless(one)), other._replace(checkpoint=timeless(other)))
        return actual

    return run


def timeless(found: Any) -> Any:
    return {**found.checkpoint, "ts": None}


def key_of(found: Any) -> tuple[str, ...]:
    configurable = found.config["configurable"]
    return configurable["thread_id"], configurable["checkpoint_ns"], configurable["checkpoint_id"]


def config(thread: str = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, **more}}


# --- graphs ---------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: int


def chat(saver: BaseCheckpointSaver, messages: Any = None) -> Any:
    def model(state: dict[str, Any]) -> dict[str, Any]:
        last = state["messages"][-1]
        answer = AIMessage(
            f"answer to {last.content}",
            id=f"a{len(state['messages'])}",
            tool_calls=[{"name": "look_up", "args": {"what": last.content, "n": [1, None]}, "id": "c1"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            response_metadata={"model": "fake", "pair": (1, 2)},
        )
        return {"messages": [answer], "turns": state.get("turns", 0) + 1}

    def trim(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=state["messages"][0].id)]} if len(state["messages"]) > 6 else {}

    schema: Any = Chat if messages is None else TypedDict("DeltaChat", {"messages": messages, "turns": int})
    graph = StateGraph(schema)
    graph.add_sequence([model, trim])
    graph.add_edge(START, "model")
    return graph.compile(checkpointer=saver)


def say(number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"turn {number}", id=f"h{number}")]}


class TestRuns:
    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_chat(self, compare: Any, durability: str) -> None:
        def script(saver: BaseCheckpointSaver) -> Any:
            graph = chat(saver)
            for number in range(14):
                graph.invoke(say(number), config(), durability=durability)
            return snapshots(graph, config())

        assert len(compare(script)) == (14 if durability == "exit" else 56)

    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_parallel_nodes_and_sends(self, compare: Any, durability: str) -> None:
        class State(TypedDict):
            log: Annotated[list[str], add]
            results: Annotated[list[dict[str, Any]], add]

        def fan_out(state: State) -> list[Send]:
            return [Send("work", {"number": number, "seen": len(state["log"])}) for number in range(5)]

        def node(name: str) -> Callable[[State], dict[str, Any]]:
            return lambda _state: {"log": [name]}

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = StateGraph(State)
            for name in ("c", "a", "b"):
                graph.add_node(name, node(name))
                graph.add_edge(START, name)
            graph.add_node("join", node("join"))
            graph.add_node("work", lambda task: {"results": [task], "log": [f"work {task['number']}"]})
            graph.add_edge(["a", "b", "c"], "join")
            graph.add_conditional_edges("join", fan_out, ["work"])
            compiled = graph.compile(checkpointer=saver)
            for _ in range(3):
                compiled.invoke({"log": ["start"], "results": []}, config(), durability=durability)
            return snapshots(compiled, config())

        found = compare(script)
        assert found[0].values["log"].count("join") == 3
        assert len(found[0].values["results"]) == 15

    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_subgraph_with_interrupt_and_resume(self, compare: Any, durability: str) -> None:
        class State(TypedDict):
            steps: Annotated[list[str], add]

        def ask(state: State) -> dict[str, Any]:
            answer = interrupt({"question": "go on?", "seen": state["steps"]})
            again = interrupt("sure?")
            return {"steps": [f"answered {answer} {again}"]}

        def script(saver: BaseCheckpointSaver) -> Any:
            inner = StateGraph(State)
            inner.add_node("before", lambda _: {"steps": ["before"]})
            inner.add_node("ask", ask)
            inner.add_edge(START, "before")
            inner.add_edge("before", "ask")
            outer = StateGraph(State)
            outer.add_node("first", lambda _: {"steps": ["first"]})
            outer.add_node("sub", inner.compile())
            outer.add_node("last", lambda _: {"steps": ["last"]})
            outer.add_edge(START, "first")
            outer.add_edge("first", "sub")
            outer.add_edge("sub", "last")
            graph = outer.compile(checkpointer=saver)
            out: list[Any] = [graph.invoke({"steps": []}, config(), durability=durability)]
            out.append(plain(graph.get_state(config(), subgraphs=True)))
            out.append(graph.invoke(Command(resume="yes"), config(), durability=durability))
            out.append(plain(graph.get_state(config(), subgraphs=True)))
            out.append(graph.invoke(Command(resume=["of", {"course": 1}]), config(), durability=durability))
            out.append(snapshots(graph, config()))
            out.append(
                sorted({found.config["configurable"]["checkpoint_ns"].split(":")[0] for found in saver.list(config())})
            )
            return out

        found = compare(script)
        assert found[-1] == ["", "sub"]
        assert found[-3]["steps"][-1] == "last"

    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_an_error_then_resume(self, compare: Any, durability: str) -> None:
        class State(TypedDict):
            log: Annotated[list[str], add]

        def script(saver: BaseCheckpointSaver) -> Any:
            failures = iter([True, True, False])

            def fail(_state: State) -> dict[str, Any]:
                if next(failures):
                    raise ValueError("not yet", {"a": 1})
                return {"log": ["at last"]}

            graph = StateGraph(State)
            graph.add_node("good", lambda _: {"log": ["good"]})
            graph.add_node("bad", fail)
            graph.add_edge(START, "good")
            graph.add_edge(START, "bad")
            compiled = graph.compile(checkpointer=saver)
            out: list[Any] = []
            one_by_one = config() | {"max_concurrency": 1}  # else whether the good one is done in time is chance
            for given in ({"log": ["start"]}, None, None):
                try:
                    out.append(compiled.invoke(given, one_by_one, durability=durability))
                except ValueError as error:
                    out.append(error.args)
                out.append(plain(compiled.get_state(config())))
            return [*out, snapshots(compiled, config())]

        assert "at last" in compare(script)[-2].values["log"]

    def test_update_state_in_all_its_forms(self, compare: Any) -> None:
        def script(saver: BaseCheckpointSaver) -> Any:
            graph = chat(saver)
            graph.invoke(say(0), config())
            graph.invoke(say(1), config())
            graph.update_state(config(), {"messages": [HumanMessage("edited", id="h0")]}, as_node="model")
            graph.update_state(config(), {"turns": 99})
            history = list(graph.get_state_history(config()))
            for old in (history[-2], history[2], history[0]):
                copied = graph.update_state(old.config, None, as_node="__copy__")
                graph.update_state(copied, {"messages": [RemoveMessage(id="h0")]})
                graph.invoke(None, copied)
            graph.update_state(config(), None, as_node=END)
            both = [StateUpdate({"turns": 2}, "model"), StateUpdate(say(9), "trim")]
            graph.bulk_update_state(config(), [[StateUpdate({"turns": 1}, "model")], both])
            return snapshots(graph, config())

        compare(script)

    def test_time_travel_and_forks(self, compare: Any) -> None:
        """langgraph#4987: a fork gets a new latest."""

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = chat(saver)
            for number in range(5):
                graph.invoke(say(number), config())
            heads = [graph.get_state(config()).config["configurable"]["checkpoint_id"]]
            for depth in (3, 7, 12):
                old = list(graph.get_state_history(config()))[depth]
                graph.invoke(None, old.config)
                graph.invoke(say(100 + depth), old.config)
                heads.append(graph.get_state(config()).config["configurable"]["checkpoint_id"])
            graph.invoke(say(200), config())
            return [heads, snapshots(graph, config())]

        heads, _ = compare(script)
        assert sorted(set(heads)) == heads

    @pytest.mark.parametrize("durability", DURABILITIES)
    def test_async(self, compare: Any, durability: str) -> None:
        def script(saver: BaseCheckpointSaver) -> Any:
            async def run() -> Any:
                graph = chat(saver)
                for number in range(6):
                    await graph.ainvoke(say(number), config(), durability=durability)
                await graph.aupdate_state(config(), {"turns": 5})
                streamed = [
                    part async for part in graph.astream(say(9), config(), stream_mode="values", durability=durability)
                ]
                return [streamed, [plain(found) async for found in graph.aget_state_history(config())]]

            return asyncio.run(run())

        compare(script)

    def test_many_threads_at_once(self, open_store: OpenStore) -> None:
        saver = DeltaSaver(open_store(snapshot_frequency=3))
        graph = chat(saver)
        errors: list[BaseException] = []

        def talk(thread: int) -> None:
            try:
                for number in range(4):
                    graph.invoke(say(number), config(f"t{thread}"))
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        talkers = [threading.Thread(target=talk, args=(thread,)) for thread in range(6)]
        for talker in talkers:
            talker.start()
        for talker in talkers:
            talker.join()
        assert errors == []
        states = [graph.get_state(config(f"t{thread}")).values for thread in range(6)]
        assert all(difference(states[0], state) is None for state in states)


# --- delta channels ---------------------------------------------------------------------------


def joined(value: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(value or ()), *itertools.chain.from_iterable(writes)]


def appending(frequency: int) -> Any:
    return Annotated[list[str], DeltaChannel(joined, snapshot_frequency=frequency)]


def turns_graph(saver: BaseCheckpointSaver, frequency: int) -> Any:
    schema: Any = TypedDict("State", {"log": appending(frequency)})
    graph = StateGraph(schema)
    graph.add_node("answer", lambda state: {"log": [f"out-{len(state['log'])}"]})
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


class TestDeltaChannels:
    @pytest.mark.parametrize("durability", DURABILITIES)
    @pytest.mark.parametrize("frequency", [2, 1000])
    def test_chat(self, compare: Any, frequency: int, durability: str) -> None:
        messages = Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)]

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = chat(saver, messages)
            for number in range(9):
                graph.invoke(say(number), config(), durability=durability)
            graph.update_state(config(), {"messages": [HumanMessage("edit", id="h3")]})
            histories = [
                {
                    name: dict(found)
                    for name, found in saver.get_delta_channel_history(
                        config=one.config, channels=["messages", "turns"]
                    ).items()
                }
                for one in saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
            ]
            return [snapshots(graph, config()), histories]

        states, _ = compare(script)
        assert states[0].values["messages"]

    @pytest.mark.parametrize("frequency", [1, 2, 1000])
    def test_a_fork_drags_in_nothing_of_the_abandoned_branch(self, compare: Any, frequency: int) -> None:
        """langgraph#8443."""

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = turns_graph(saver, frequency)
            graph.invoke({"log": ["in-1"]}, config())
            kept = graph.get_state(config()).config
            graph.invoke({"log": ["in-2"]}, config())
            graph.invoke({"log": ["in-3"]}, kept)
            return [graph.get_state(config()).values, snapshots(graph, config())]

        values, _ = compare(script)
        assert values["log"] == ["in-1", "out-1", "in-3", "out-3"]

    @pytest.mark.parametrize("frequency", [1, 2, 1000])
    def test_editing_an_old_state_leaves_the_later_branch(self, compare: Any, frequency: int) -> None:
        """langgraph#8551."""

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = turns_graph(saver, frequency)
            graph.invoke({"log": ["in-1"]}, config())
            first = graph.get_state(config()).config
            graph.invoke({"log": ["in-2"]}, config())
            second = graph.get_state(config()).config
            before = plain(graph.get_state(second))
            edited = graph.update_state(first, {"log": ["edit"]})
            after = plain(graph.get_state(second))
            assert difference(before.values, after.values) is None
            return [before, after, graph.get_state(edited).values, snapshots(graph, config())]

        _, after, edited, _ = compare(script)
        assert after.values["log"] == ["in-1", "out-1", "in-2", "out-3"]
        assert edited["log"] == ["in-1", "out-1", "edit"]

    def test_parallel_writes_replay_in_the_order_they_ran(self, open_store: OpenStore) -> None:
        """langgraph#8382."""
        schema: Any = TypedDict("State", {"log": appending(1000)})
        graph = StateGraph(schema)
        for name in ("c", "a", "b"):
            graph.add_node(name, lambda _state, name=name: {"log": [name]})
            graph.add_edge(START, name)
        live = graph.compile(checkpointer=DeltaSaver(open_store()))
        reopened = graph.compile(checkpointer=DeltaSaver(open_store()))
        for thread in range(50):
            returned = live.invoke({"log": ["in"]}, config(f"t{thread}"))
            assert reopened.get_state(config(f"t{thread}")).values == returned

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_an_overwrite_among_plain_writes_gives_one_answer(self, compare: Any, order: tuple[int, ...]) -> None:
        """langgraph#8821: whatever the runtime's answer is, ours is the reference saver's."""
        writes = [["x"], Overwrite(["y"]), ["z"]]

        def script(saver: BaseCheckpointSaver) -> Any:
            schema: Any = TypedDict("State", {"log": appending(1000)})
            graph = StateGraph(schema)
            for number, place in enumerate(order):
                graph.add_node(f"n{number}", lambda _state, place=place: {"log": writes[place]})
                graph.add_edge(START, f"n{number}")
            compiled = graph.compile(checkpointer=saver)
            return [compiled.invoke({"log": ["in"]}, config()), snapshots(compiled, config())]

        compare(script)

    @pytest.mark.parametrize("frequency", [1, 1000])
    def test_update_state_on_a_new_thread_keeps_the_first_write(self, compare: Any, frequency: int) -> None:
        """deepagents#3774, langgraph#8011."""

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = turns_graph(saver, frequency)
            out = []
            for text in ("m1", "m2", "m3"):
                graph.update_state(config(), {"log": [text]}, as_node="answer")
                out.append(graph.get_state(config()).values["log"])
            return [*out, snapshots(graph, config())]

        assert compare(script)[:3] == [["m1"], ["m1", "m2"], ["m1", "m2", "m3"]]

    def test_message_ids_are_the_same_on_every_read(self, open_store: OpenStore) -> None:
        """langgraph#7913."""
        messages = Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=1000)]
        chat(DeltaSaver(open_store()), messages).invoke({"messages": [HumanMessage("no id")]}, config())

        def ids() -> list[str]:
            graph = chat(DeltaSaver(open_store()), messages)
            return [message.id for message in graph.get_state(config()).values["messages"]]

        first = ids()
        assert all(first)
        assert ids() == ids() == first
        graph = chat(DeltaSaver(open_store()), messages)
        graph.update_state(config(), {"messages": [RemoveMessage(id=first[0])]})
        assert ids() == first[1:]

    def test_a_channel_without_seed_begins_empty(self, compare: Any) -> None:
        """deepagents#3636: no seed means the channel's own empty value."""

        def script(saver: BaseCheckpointSaver) -> Any:
            schema: Any = TypedDict("State", {"log": appending(1000), "other": int})
            graph = StateGraph(schema)
            graph.add_node("first", lambda _: {"other": 1})
            graph.add_node("second", lambda _: {"log": ["delta"]})
            graph.add_edge(START, "first")
            graph.add_edge("first", "second")
            compiled = graph.compile(checkpointer=saver)
            compiled.invoke({"other": 0}, config())
            return snapshots(compiled, config())

        assert compare(script)[0].values["log"] == ["delta"]

    def test_many_turns_on_one_thread(self, compare: Any) -> None:
        """langgraph#8447: longer than a page, with packs and without any snapshot."""

        def script(saver: BaseCheckpointSaver) -> Any:
            graph = turns_graph(saver, 1000)
            for number in range(40):
                graph.invoke({"log": [f"in-{number}"]}, config())
            states = list(graph.get_state_history(config(), limit=5))
            return [len(states[0].values["log"]), states[-1].values]

        assert compare(script)[0] == 80


def test_every_script_meets_packs(open_store: OpenStore) -> None:
    """So that what is compared above was read from packs, too."""
    saver = DeltaSaver(open_store(snapshot_frequency=3))
    graph = chat(saver)
    for number in range(14):
        graph.invoke(say(number), config())
    assert _packed(saver) >= 32


def _packed(saver: DeltaSaver) -> int:
    from deltastore.log import rows
    from deltastore.log.reading import View

    with saver.store.log.storage.read() as tx:
        view = View(tx, 1, "t")
        found: Iterator[Any] = itertools.chain.from_iterable(
            view.record_rows(one.number) for one in rows.load_namespaces(tx, 1)
        )
        return sum(len(one.row.records) for one in found if one.row.packed)
