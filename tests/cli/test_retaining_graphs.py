"""retain on threads of real graphs: sub-graph calls, interrupts, writes whose checkpoint never came, branches."""

import time
from collections.abc import Callable
from datetime import timedelta
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import deltastore
from deltastore import Retention, Store, apply_retention
from deltastore.langgraph import DeltaSaver
from tests.cli.conftest import Ran
from tests.langgraph.comparing import checkpoint, config
from tests.raw import rows_of

Run = Callable[..., Ran]
DAY = timedelta(days=1)


class State(TypedDict):
    log: Annotated[list[str], add]


def outer(saver: DeltaSaver) -> Any:
    """Give a graph that calls a sub-graph, which asks when the log says so, and one that keeps a memory of its own."""

    def answer(state: State) -> dict[str, Any]:
        return {"log": [interrupt("sure?") if state["log"][-1].startswith("ask") else "answer"]}

    def graph(work: Any) -> Any:
        made = StateGraph(State)
        made.add_node("work", work)
        made.add_edge(START, "work")
        return made

    call = graph(answer).compile()
    memory = graph(lambda _: {"log": ["seen"]}).compile(checkpointer=True)
    made = StateGraph(State)
    made.add_node("call", call)
    made.add_node("memory", memory)
    made.add_edge(START, "call")
    made.add_edge("call", "memory")
    return made.compile(checkpointer=saver)


def where(thread: str = "t", id_: str | None = None) -> Any:
    return {"configurable": {"thread_id": thread} | ({"checkpoint_id": id_} if id_ else {})}


@pytest.fixture
def open_saver(path: Path) -> Callable[..., DeltaSaver]:
    """Open the test's store in a saver whose clock is some time ago."""

    def open_(ago: timedelta = timedelta(0)) -> DeltaSaver:
        saver = DeltaSaver.from_path(path, sync="none")
        saver.store.log._clock = lambda: time.time() - ago.total_seconds()
        return saver

    return open_


@pytest.fixture(params=["in the shell", "in Python"])
def retain(request: pytest.FixtureRequest, run: Run, path: Path) -> Callable[..., dict[str, Any]]:
    """Apply rules by the command, after a plan that says the same, or by the function; return counts by name."""

    def retain_(*threads: str, **rules: Any) -> dict[str, Any]:
        if request.param == "in Python":
            with deltastore.open(path) as store:
                made = Retention(**rules)
                report = apply_retention(store, made, threads=threads or None)
            by_reason = {reason.name.lower(): count for reason, count in report.by_reason.items()}
            return {"checkpoints": report.checkpoints, "stray_writes": report.stray_writes, "by_reason": by_reason}
        options = [part for name, value in rules.items() for part in (f"--{name.replace('_', '-')}", _shown(value))]
        planned = run("retain", *threads, *options, "--dry-run", "--json").document
        done = run("retain", *threads, *options, "--yes", "--json").document
        counts = {name: done[name] for name in ("checkpoints", "stray_writes", "by_reason")}
        assert counts == {name: planned[name] for name in counts}
        assert done["freed_bytes"] == planned["freed_bytes"]
        again = run("retain", *threads, *options, "--json").document  # nothing goes, so nobody is asked
        assert (again["applied"], again["changed"]) == (True, 0)
        return counts

    return retain_


def _shown(value: Any) -> str:
    return f"{value.total_seconds():.0f}s" if isinstance(value, timedelta) else str(value)


Retain = Callable[..., dict[str, Any]]


def spaces(store: Store, thread: str = "t") -> dict[str, int]:
    """Return how many checkpoints each namespace has, the names of calls without the ids of their tasks."""
    out: dict[str, int] = {}
    for name in store.log.namespaces(thread, 1):
        count = len(list(DeltaSaver(store).list(config(thread, ns=name))))
        kind = name.partition(":")[0]
        out[kind] = out.get(kind, 0) + count
    return out


def ids(saver: DeltaSaver, thread: str = "t", ns: str = "") -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(config(thread, ns=ns))][::-1]


class TestCalls:
    def test_a_call_lives_and_dies_with_the_root_checkpoint_it_started_from(
        self, retain: Retain, run: Run, open_saver: Callable[..., DeltaSaver]
    ) -> None:
        with open_saver() as saver:
            graph = outer(saver)
            for turn in range(3):
                graph.invoke({"log": [f"turn {turn}"]}, where())
            before = spaces(saver.store)
            roots = ids(saver)
            tagged = roots[1]  # of the first turn: its call started here
            saver.tag(config("t", tagged), "turn 0")
            calls = [name for name in saver.store.log.namespaces("t", 1) if name.startswith("call:")]
            values = {
                found.config["configurable"]["checkpoint_id"]: found.values
                for found in graph.get_state_history(where())
            }
        assert before == {"": 12, "call": 9, "memory": 9}
        assert len(calls) == 3
        done = retain(keep_last=1)
        assert done["by_reason"] == {"expired": 10 + 8, "with_root": 6}
        with open_saver() as saver:
            assert spaces(saver.store) == {"": 2, "call": 3, "memory": 1}
            assert ids(saver) == [tagged, roots[-1]]
            assert [name for name in saver.store.log.namespaces("t", 1) if name.startswith("call:")] == calls[:1]
            graph = outer(saver)
            for id_ in ids(saver):
                assert graph.get_state(where("t", id_)).values == values[id_]
            saver.untag(config("t"), "turn 0")
        shown = run("retain", "t", "--keep-last", "1", "--dry-run").out
        assert "call:" in shown
        assert "with the root checkpoint that the call started from" in shown
        assert retain(keep_last=1)["by_reason"] == {"expired": 1, "with_root": 3}
        with open_saver() as saver:
            assert spaces(saver.store) == {"": 1, "memory": 1}
            log = values[roots[-1]]["log"]
            more = outer(saver).invoke({"log": ["more"]}, where())["log"]
            assert more[: len(log) + 1] == [*log, "more"]
            assert spaces(saver.store) == {"": 5, "memory": 4, "call": 3}

    def test_an_interrupt_within_a_call_waits_and_is_answered(
        self, retain: Retain, open_saver: Callable[..., DeltaSaver]
    ) -> None:
        with open_saver() as saver:
            graph = outer(saver)
            graph.invoke({"log": ["hello"]}, where())
            graph.invoke({"log": ["ask 1"]}, where())
            waiting = graph.get_state(where(), subgraphs=True)
            inner = waiting.tasks[0].state
        assert retain(keep_last=1)["checkpoints"] > 0
        with open_saver() as saver:
            graph = outer(saver)
            found = graph.get_state(where(), subgraphs=True)
            assert (found.values, found.next, found.interrupts) == (waiting.values, waiting.next, waiting.interrupts)
            assert (found.tasks[0].state.values, found.tasks[0].state.next) == (inner.values, inner.next)
            answered = graph.invoke(Command(resume="yes"), where())
            assert "yes" in answered["log"]


class TestBranches:
    @pytest.fixture
    def ends(self, open_saver: Callable[..., DeltaSaver]) -> dict[str, str]:
        """A thread of four branches from one root; the latest is the newest, and one waits for an answer."""

        def work(state: State) -> dict[str, Any]:
            return {"log": [interrupt("sure?") if state["log"][-1] == "ask" else "done"]}

        def graph(saver: DeltaSaver) -> Any:
            made = StateGraph(State)
            made.add_node("work", work)
            made.add_edge(START, "work")
            return made.compile(checkpointer=saver)

        self.graph = graph
        found: dict[str, str] = {}
        base: str | None = None
        for name, days in (("base", 40), ("old", 30), ("waiting", 20), ("newer", 2), ("latest", 0)):
            with open_saver(days * DAY) as saver:
                graph(saver).invoke({"log": ["ask" if name == "waiting" else name]}, where("t", base))
                found[name] = ids(saver)[-1]
            base = base or found["base"]
        return found

    @pytest.mark.parametrize(
        ("keep", "stay"),
        [
            ("all", {"base", "old", "waiting", "newer", "latest"}),
            ("latest", {"base", "latest"}),
            (7 * DAY, {"base", "newer", "latest"}),
            (25 * DAY, {"base", "waiting", "newer", "latest"}),
        ],
    )
    def test_which_branches_stay(
        self, retain: Retain, open_saver: Callable[..., DeltaSaver], ends: dict[str, str], keep: Any, stay: set[str]
    ) -> None:
        with open_saver() as saver:
            graph = self.graph(saver)
            values = {name: graph.get_state(where("t", id_)).values for name, id_ in ends.items()}
            before = ids(saver)
        done = retain(keep_forks=keep)
        with open_saver() as saver:
            graph = self.graph(saver)
            left = ids(saver)
            assert {name for name, id_ in ends.items() if id_ in left} == stay
            assert {name: graph.get_state(where("t", ends[name])).values for name in stay} == {
                name: values[name] for name in stay
            }
            assert done["by_reason"] == ({} if keep == "all" else {"dropped_branch": len(before) - len(left)})

    def test_a_rule_by_number_spares_ends_and_interrupts(
        self, retain: Retain, open_saver: Callable[..., DeltaSaver], ends: dict[str, str]
    ) -> None:
        retain(keep_last=1)
        with open_saver() as saver:
            assert set(ids(saver)) == {ends[name] for name in ("old", "waiting", "newer", "latest")}
            graph = self.graph(saver)
            waiting = where("t", ends["waiting"])
            assert graph.get_state(waiting).interrupts
            assert graph.invoke(Command(resume="yes"), waiting)["log"] == ["base", "done", "ask", "yes"]

    def test_a_tag_keeps_a_branch(
        self, retain: Retain, run: Run, open_saver: Callable[..., DeltaSaver], ends: dict[str, str]
    ) -> None:
        run("tag", f"t@{ends['old']}", "best answer")
        retain(keep_forks="latest", keep_last=1)
        with open_saver() as saver:
            assert set(ids(saver)) == {ends["old"], ends["latest"]}


class TestStrayWrites:
    def test_writes_go_at_the_age_that_is_named(self, retain: Retain, run: Run, open_saver: Any) -> None:
        """Of a run that was cancelled, and of calls that never put; what came meanwhile, or is younger, stays."""
        with open_saver(3 * DAY) as saver:
            saver.put(config("t"), checkpoint("1", {"a": "1"}, {"a": 1}), {}, {})
            saver.put_writes(config("t", "1"), [("a", 1)], "task")
            saver.put_writes(config("t", "2"), [("a", 2), ("b", 2)], "cancelled")
            saver.put_writes(config("t", "8", ns="sub:8"), [("a", 8)], "cancelled")
            saver.put_writes(config("t", "3"), [("a", 3)], "late")
        with open_saver(timedelta(hours=1)) as saver:
            saver.put_writes(config("t", "4"), [("a", 4)], "young")
            saver.put_writes(config("t", "3"), [("b", 3)], "young too")
        assert run("stats", "--json").document["stray_writes"] == 6
        assert retain(keep_last=5)["stray_writes"] == 0  # a week, unless it is said
        assert retain(stray_writes=5 * DAY)["stray_writes"] == 0
        assert retain(keep_last=5, stray_writes=2 * DAY) == {"checkpoints": 0, "stray_writes": 3, "by_reason": {}}
        assert run("stats", "--json").document["stray_writes"] == 3
        with open_saver() as saver:
            assert saver.store.log.namespaces("t", 1) == [""]
            for id_, parent in (("3", "1"), ("4", "3")):
                saver.put(config("t", parent), checkpoint(id_, {"a": id_}, {"a": id_}), {}, {})
            found = {one.checkpoint["id"]: one.pending_writes for one in saver.list(config("t"))}
            assert found == {
                "1": [("task", "a", 1)],
                "3": [("late", "a", 3), ("young too", "b", 3)],
                "4": [("young", "a", 4)],
            }
        assert retain(stray_writes=timedelta(seconds=1))["stray_writes"] == 0

    def test_off_is_off(self, retain: Retain, open_saver: Any) -> None:
        with open_saver(300 * DAY) as saver:
            saver.put(config("t"), checkpoint("1", {"a": "1"}, {"a": 1}), {}, {})
            saver.put_writes(config("t", "2"), [("a", 2)], "cancelled")
            before = rows_of(saver.store.log.storage)
        assert retain(keep_last=5, stray_writes=timedelta(0))["stray_writes"] == 0
        with open_saver() as saver:
            assert rows_of(saver.store.log.storage) == before
