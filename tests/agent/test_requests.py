"""What makes two calls the same call, and what is recorded of one."""

import asyncio
import functools
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore import InvalidInputError, Store
from deltastore.agent import AFTER_MESSAGES, ChangedPathError, CheckpointManager, Run, tool
from deltastore.agent.fingerprints import canonical
from deltastore.agent.values import Values


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store, on_changed_path="raise")


def collect(first: int, /, *args: int, **kwargs: Any) -> None: ...


class TestPartials:
    def test_what_a_partial_holds_is_part_of_the_call(self, manager: CheckpointManager) -> None:
        sent = []

        def send(to: str, body: str) -> None:
            sent.append(to)

        manager.run("r").call(functools.partial(send, "alice"), body="hi")
        manager.restore("r").call(functools.partial(send, "alice", body="no"), body="hi")
        manager.restore("r").call(send, "alice", "hi")
        assert sent == ["alice"]
        with pytest.raises(ChangedPathError):
            manager.restore("r").call(functools.partial(send, "bob"), body="hi")
        assert sent == ["alice"]
        assert manager.list_calls("r")[0].arguments == {"to": "alice", "body": "hi"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((1,), {"first": 2}), ((9,), {"first": 2})),
        (((1, 2), {"args": 3}), ((1, 7), {"args": 3})),
        (((1,), {"kwargs": 1}), ((1,), {"first": 1})),
    ],
)
def test_keywords_hide_no_argument(manager: CheckpointManager, one: Any, other: Any) -> None:
    def recorded(args: Any, kwargs: Any, run_id: str) -> str:
        run = manager.run(run_id)
        run.perform("tool", collect, args, kwargs)
        return repr(manager.list_calls(run_id)[0].arguments)

    assert recorded(*one, "one") != recorded(*other, "other")


@dataclass(frozen=True)
class Point:
    x: int


@given(st.dictionaries(st.one_of(st.integers(), st.tuples(st.integers()), st.builds(Point, st.integers())), st.text()))
def test_a_dict_in_another_order_is_the_same_argument(value: dict[Any, str]) -> None:
    values = Values()
    other = dict(reversed(value.items()))
    assert canonical(values.encode(value)) == canonical(values.encode(other))
    assert repr(canonical(values.encode([value]))) == repr(canonical(values.encode([other])))


def test_what_only_looks_like_a_tag_is_left_alone() -> None:
    values = Values()
    for odd in ({"~": "pairs", "of": 3}, {"~": "pairs", "of": [2, 1]}, {"~": "dict", "of": 1}):
        assert values.decode(canonical(values.encode(odd))) == odd
    assert canonical(values.encode({"~": "pairs", "of": [2, 1]})) != canonical(
        values.encode({"~": "pairs", "of": [1, 2]})
    )
    one, other = OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)
    assert canonical(values.encode(one)) != canonical(values.encode(other))  # they are unequal


def test_defaults_of_a_models_parameters_are_recorded_and_make_no_other_call(manager: CheckpointManager) -> None:
    def ask(messages: list[Any], model: str = "m", temperature: float = 0.2, client: object = object()) -> str:
        return "reply"

    def ask_later(messages: list[Any], model: str = "m", temperature: float = 0.9, top_k: int = 3) -> str:
        return "other"

    assert manager.run("r").model(ask, []) == "reply"
    assert manager.restore("r").model(ask_later, [], call_name="ask") == "reply"
    (call,) = manager.list_calls("r")
    assert call.arguments == {"messages": [], "model": "m", "temperature": 0.2}


class TestNested:
    """Tools that call tools: agents as tools."""

    def test_what_a_tool_completed_isnt_done_again_when_it_is(self, manager: CheckpointManager) -> None:
        done = []

        @tool
        def search(query: str) -> str:
            done.append(query)
            return query.upper()

        @tool(in_doubt="retry")
        def research(topic: str) -> list[str]:
            found = [search(f"{topic} 1"), search(f"{topic} 2")]
            if not resumed:
                raise Crash
            return [*found, search(f"{topic} 3")]

        resumed = False
        with pytest.raises(Crash), manager.run("r"):
            research("x")
        resumed = True
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), manager.run("r") as run:  # noqa: PT012
                assert research("x") == ["X 1", "X 2", "X 3"]
                assert [record["name"] for record in run.tool_calls] == ["research"]
                assert [record["name"] for record in run.tool_results] == ["research"]
                raise ZeroDivisionError
        assert done == ["x 1", "x 2", "x 3"]
        assert [call.name for call in manager.list_calls("r")] == ["research", "search", "search", "search"]

    def test_results_belong_to_the_call_that_they_were_made_in(self, manager: CheckpointManager) -> None:
        """The first order's failure was handled; what the second one is answered is its own order's number."""
        orders: list[int] = []

        def create() -> int:
            orders.append(len(orders))
            return orders[-1]

        def order(run: Run) -> int:
            made: int = run.call(create)
            if made == 0:
                raise ValueError
            if len(orders) == 2 and not resumed:
                raise Crash
            return made

        def program(run: Run) -> int:
            for _ in range(2):
                try:
                    return int(run.call(order, run, ignore=("run",), in_doubt="retry"))
                except ValueError:
                    continue
            raise AssertionError

        resumed = False
        with pytest.raises(Crash):
            program(manager.run("r"))
        resumed = True
        assert program(manager.restore("r")) == 1
        assert orders == [0, 1]

    def test_tokens_that_inner_calls_took_are_counted_in_every_life(self, manager: CheckpointManager) -> None:
        def ask() -> dict[str, Any]:
            return {"usage": {"input_tokens": 5, "output_tokens": 2}}

        def agent(run: Run) -> str:
            run.model(ask)
            run.call(lambda: run.model(ask), call_name="deeper")
            return "said"

        for _ in range(2):
            run = manager.run("r")
            assert run.call(agent, run, ignore=("run",)) == "said"
            assert run.model(ask) == ask()
            assert run.token_usage == {"input_tokens": 15, "output_tokens": 6}


class Crash(BaseException):
    """Ends a program as a kill would."""


class TestSnapshots:
    """What is recorded is what was returned, whatever the program makes of it."""

    def test_a_result_that_the_program_changes(self, store: Store) -> None:
        manager = CheckpointManager(store, AFTER_MESSAGES)
        for _ in range(2):
            run = manager.run("r")
            found = run.call(lambda: [3, 1, 2], call_name="numbers")
            assert found == [3, 1, 2]
            found.sort()
            assert run.tool_results[0]["result"] == [3, 1, 2]

    def test_a_node_whose_inputs_are_the_state(self, manager: CheckpointManager) -> None:
        with manager.run("r", state={"log": []}) as run:
            for name in "ab":
                with run.node(name, inputs=run.state) as node:
                    run.state["log"].append(name)
                    node.outputs = run.state
                run.step()
        edges = manager.list_checkpoints("r")[0].edges
        assert [edge["inputs"]["log"] for edge in edges] == [[], ["a"]]
        assert [edge["outputs"]["log"] for edge in edges] == [["a"], ["a", "b"]]


def test_nodes_beside_one_another_are_refused(manager: CheckpointManager) -> None:
    async def walk(run: Run, name: str) -> None:
        async with run.node(name), run.node(f"{name} within"):
            await run.acall(str, name)

    async def main() -> None:
        run = manager.run("r")
        await walk(run, "a")
        with pytest.raises(InvalidInputError, match="another task is in node 'a"):
            await asyncio.gather(walk(run, "a"), walk(run, "b"))

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda manager: manager.run("r", messages="hello"),
        lambda manager: manager.run("r", messages={"role": "user"}),
        lambda manager: manager.run("r", state=[1]),
        lambda manager: CheckpointManager(manager, "every_step"),
        lambda manager: manager.run("r") and manager.restore("r", 3),
        lambda manager: manager.run("r") and manager.fork("r", object(), as_="s"),
    ],
)
def test_invalid_input_is_told(manager: CheckpointManager, wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        wrong(manager)
