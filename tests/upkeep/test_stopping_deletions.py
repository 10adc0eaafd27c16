"""kill -9 at every call that retention, deletions of runs, pruning and maintenance make: test_stopping's, for them.

These change what a store holds, each thread in one transaction: after a kill each thread is wholly as it was or wholly
as an operation leaves it that nobody kills, and running it again ends as that one did. Maintenance is retention,
compaction and shrinking.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.deleting import agent
from tests.raw import rows_of
from tests.upkeep.many_threads import GRAPHS, RULES, Told, make, set_clock, told
from tests.upkeep.stopping import STORE, Operation, Stops

RUNS = ["g-0", "g-2", "h-1", "calls 1", "calls fork", "idle calls 0"]


def retain(store: Store) -> None:
    deltastore.apply_retention(store, RULES)


def maintain(store: Store) -> None:
    deltastore.maintain(store, RULES, shrink=True, level=1)


def through_saver(work: Callable[[DeltaSaver], object]) -> Operation:
    return lambda store: work(DeltaSaver(store))


def erasing(work: Callable[..., object], *what: Any) -> Operation:
    def operation(store: Store) -> None:
        saver = DeltaSaver(store)
        work(saver, *what, erase=True, graph=agent(saver, steps=1, frequency=4))

    return operation


def at_now(operation: Operation, store: Store) -> None:
    set_clock(store)
    operation(store)


# each with the threads that it changes
OPERATIONS: dict[str, tuple[Operation, set[str]]] = {
    "retention": (retain, {"n", "g", "h", "calls", "idle", "idle calls"}),
    "runs": (through_saver(lambda saver: saver.delete_for_runs(RUNS)), {"g", "h", "calls", "idle calls"}),
    "runs, erased": (erasing(DeltaSaver.delete_for_runs, RUNS[:3]), {"g", "h"}),
    "prune": (through_saver(lambda saver: saver.prune([*GRAPHS, "calls"])), {"g", "h", "calls"}),
    "prune, erased": (erasing(DeltaSaver.prune, GRAPHS), {"g", "h"}),
    "maintain": (maintain, {"n", "g", "h", "calls", "idle", "idle calls"}),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with a store on which each operation has something to do."""
    site = tmp_path_factory.mktemp("stopping")
    make(site / STORE)
    return site


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_anywhere_each_thread_is_as_before_or_as_after(
    name: str, original: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    operation, changing = OPERATIONS[name]
    operation = partial(at_now, operation)
    shutil.copytree(original, tmp_path / "whole")
    with deltastore.open(tmp_path / "whole" / STORE, sync="none") as store:
        before = told(store)
        operation(store)
        after, rows_after = told(store), rows_of(store.log.storage)
    assert {thread for thread in before if before[thread] != after.get(thread)} == changing
    seen: set[object] = set()
    done: set[frozenset[str]] = set()
    stops = Stops(original, operation, tmp_path, profile=request.config.getoption("--profile"))
    for stop in stops:
        path = stop.site / STORE
        files = sorted(str(found.relative_to(path)) for found in path.rglob("*"))
        with deltastore.open(path, sync="none") as store:
            state = ((path / "CURRENT").read_text(), *files, hash(tuple(rows_of(store.log.storage).items())))
            if state not in seen:
                seen.add(state)
                done.add(_look(store, before, after))
                operation(store)
                assert told(store) == after
                report = check(store)
                assert report.ok, report.problems
                if name == "maintain":
                    assert report.queued_threads == 0
                    assert [found.name for found in path.glob("env-*")] == [(path / "CURRENT").read_text().strip()]
                else:
                    assert rows_of(store.log.storage) == rows_after
    print(f"{name}: {stops}, {len(seen)} states, {len(done)} outcomes")
    assert len(done) == len(changing) + 1  # none of them, then one after the other


def _look(store: Store, before: Told, after: Told) -> frozenset[str]:
    """Compare each thread with both; return which are done."""
    report = check(store)
    assert report.ok, report.problems
    found = told(store)
    assert found.keys() <= before.keys()
    for thread in before:
        assert found.get(thread) in (before[thread], after.get(thread)), thread
    return frozenset(thread for thread in before if found.get(thread) == after.get(thread) != before[thread])
