"""Pruning, deleting runs and copying threads of real graphs: what stays reads as before, and goes on as before."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from deltastore import Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config, difference, key_of
from tests.langgraph.deleting import agent, hidden, history, of_runs, runs, said, sizes, where, without
from tests.raw import rows_of

OpenStore = Callable[..., Store]
STORES = pytest.mark.parametrize(
    ("open_store", "frequency"), [("memory", 1), ("lmdb", 3), ("memory", 50)], indirect=["open_store"]
)
"""Both storages and all frequencies, but not each with each: the storages give the same bytes."""


def same(expected: Any, actual: Any) -> None:
    found = difference(expected, actual)
    assert found is None, found


@STORES
@pytest.mark.parametrize(
    ("how", "turns", "steps"),
    [("keep_latest", 1, 25), ("early", 3, 8), ("middle", 3, 8), ("last", 3, 8), ("copy", 1, 25)],
)
def test_delta_channels_outlive_every_deletion(
    open_store: OpenStore, frequency: int, how: str, turns: int, steps: int
) -> None:
    """langgraph#7736: state, history and what a graph does next are those of a thread that nobody tidied up."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph, twin = agent(saver, steps=steps), agent(InMemorySaver(), steps=steps)
    same(runs(twin, "t", range(turns)), runs(graph, "t", range(turns)))
    expected, thread = history(graph, "t", each=False), "t"
    run = {"early": "t-0", "middle": "t-1", "last": f"t-{turns - 1}"}.get(how, "unknown")

    def tidy() -> None:
        if how == "keep_latest":
            saver.prune(["t"])
        else:
            saver.delete_for_runs([run])

    if how == "copy":
        saver.copy_thread("t", "copy")
        same(expected, history(graph, "t", each=False))
        saver.delete_thread("t")
        thread = "copy"
    tidy()
    gone = expected.keys() - {max(expected)} if how == "keep_latest" else of_runs(expected, run)
    expected = without(expected, gone)
    rows = rows_of(saver.store.log.storage)
    tidy()
    assert rows_of(saver.store.log.storage) == rows
    reopened = agent(DeltaSaver(open_store()), steps=steps)
    same(expected, history(graph, thread, each=False))
    same(expected, history(reopened, thread))

    if how == "last":  # what goes on never had that run
        twin = agent(InMemorySaver(), steps=steps)
        runs(twin, "t", range(turns - 1))
    same(runs(twin, "t", [turns, turns + 1]), runs(reopened, thread, [turns, turns + 1]))
    after = history(graph, thread, each=False)
    new = sorted(after.keys() - expected.keys(), reverse=True)
    ran = list(history(twin, "t", each=False).values())
    same([one[:2] for one in ran[: len(new)]], [after[id_][:2] for id_ in new])
    same(expected, {id_: after[id_] for id_ in expected})


@STORES
@pytest.mark.parametrize("erase", [False, True])
def test_pruning_after_every_run_keeps_a_store_bounded(open_store: OpenStore, frequency: int, erase: bool) -> None:
    """langgraph#7736: nothing of what went piles up, neither records nor writes nor names."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph, twin = agent(saver, steps=3), agent(InMemorySaver(), steps=3)
    seen = []
    for turn in range(30):
        same(runs(twin, "t", [turn]), runs(graph, "t", [turn]))
        saver.prune(["t"], erase=erase, graph=graph if erase else None)
        seen.append(sizes(saver.store))
    assert {checkpoints for checkpoints, _, _ in seen} == {1}
    assert max(kept for _, kept, _ in seen) <= (0 if erase else 15)
    assert max(rows for _, _, rows in seen[15:]) <= max(rows for _, _, rows in seen[:15])
    assert hidden(saver.store) == seen[-1][1]


def test_runs_may_be_deleted_in_any_order(open_store: OpenStore) -> None:
    """Each deletion looks again at what earlier ones kept; with the last run that needed it, it goes."""
    saver = DeltaSaver(open_store(snapshot_frequency=3))
    graph = agent(saver, steps=4, frequency=1000)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        thread = "".join(map(str, order))
        runs(graph, thread, range(4))
        expected = history(graph, thread, each=False)
        for turn in order:
            saver.delete_for_runs([f"{thread}-{turn}"])
            expected = without(expected, of_runs(expected, f"{thread}-{turn}"))
            same(expected, history(graph, thread, each=False))
        assert expected == {}
        assert hidden(saver.store) == 0


def interleaved(saver: DeltaSaver, thread: str, kind: str) -> dict[tuple[str, str], Any]:
    """Put five checkpoints in each of two namespaces, of runs r1 and r2 by turns; return what each is read as."""
    for space in ("", "inner"):
        parent: str | None = None
        for number in range(5):
            id_ = f"{number}{space}"
            values = {} if kind == "delta" else {"log": [f"{thread} {n}" for n in range(number)]}
            made = checkpoint(id_, {"log": f"{number}"}, values)
            run = {"source": "loop", "step": number, "parents": {}, "run_id": f"r{1 + number % 2}"}
            saver.put(config(thread, parent, space), made, run, {})
            saver.put_writes(config(thread, id_, space), [("log", [f"{thread}{space} {number}"])], "task")
            parent = None if kind == "forked" and number == 2 else "1inner" if kind == "forked" and space else id_
    return reads(saver, thread)


def reads(saver: DeltaSaver, thread: str) -> dict[tuple[str, str], Any]:
    """Return each checkpoint's tuple, and the history that a graph would ask for, by namespace and id."""
    return {
        key_of(found)[1:]: (
            found,
            "log" not in found.checkpoint["channel_values"]
            and saver.get_delta_channel_history(config=found.config, channels=["log"]),
        )
        for found in saver.list({"configurable": {"thread_id": thread}})
    }


@STORES
@pytest.mark.parametrize("kind", ["plain", "delta", "forked"])
def test_pruning_one_thread_leaves_the_latest_of_its_namespaces_and_all_of_others(
    open_store: OpenStore, frequency: int, kind: str
) -> None:
    """langgraph#8531, langchain-mysql#89."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    before = {thread: interleaved(saver, thread, kind) for thread in ("one", "other")}
    saver.prune(["one"])
    latest = {key: before["one"][key] for key in (("", "4"), ("inner", "4inner"))}
    for reader in (saver, DeltaSaver(open_store())):
        assert reads(reader, "one") == latest
        assert reads(reader, "other") == before["other"]
    saver.prune(["one"], strategy="delete")
    assert reads(saver, "one") == {}
    assert [found.name for found in saver.threads()] == ["other"]
    saver.prune(["other"], strategy="delete")
    assert check(saver.store).checkpoints == check(saver.store).chunks == hidden(saver.store) == 0
    thread_rows = [key for key in rows_of(saver.store.log.storage) if key[:6] != bytes(6)]
    assert thread_rows == []


@STORES
@pytest.mark.parametrize("kind", ["plain", "delta", "forked"])
def test_only_the_named_runs_go(open_store: OpenStore, frequency: int, kind: str) -> None:
    """langgraph#7644: two runs by turns in two namespaces, of all threads."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    before = {thread: interleaved(saver, thread, kind) for thread in ("one", "other")}
    rows = rows_of(saver.store.log.storage)
    for nothing in ([], ["unknown"], [""], ["r"]):
        saver.delete_for_runs(nothing)
        assert rows_of(saver.store.log.storage) == rows
    saver.delete_for_runs(["r1", "unknown"])
    for reader in (saver, DeltaSaver(open_store())):
        for thread in ("one", "other"):
            left = {key: found for key, found in before[thread].items() if found[0].metadata["run_id"] == "r2"}
            assert reads(reader, thread) == left
            assert len(left) == 4
    saver.delete_for_runs(["r2"])
    assert list(saver.list(None)) == []
    assert check(saver.store).checkpoints == hidden(saver.store) == 0


@STORES
@pytest.mark.parametrize("delta", [10, 1000])
def test_a_copied_checkpoint_outlives_its_copy(open_store: OpenStore, frequency: int, delta: int) -> None:
    """deer-flow#4189: a checkpoint, and one under a new id with the same versions, share what they hold."""
    store = open_store(snapshot_frequency=frequency)
    saver = DeltaSaver(store)
    graph = agent(saver, steps=3, frequency=delta)
    runs(graph, "t", [0])
    before = history(graph, "t")
    copied = graph.update_state(where("t"), None, as_node="__copy__")["configurable"]["checkpoint_id"]
    found = saver.get_tuple(where("t"))
    assert found is not None
    forged = found.checkpoint | {"id": "ffffffff-ffff-6fff-8fff-ffffffffffff"}
    saver.put(config("t", max(before)), forged, found.metadata, {})
    for id_ in (copied, forged["id"]):
        assert graph.get_state(where("t", checkpoint_id=id_)).values == before[max(before)][0]
        store.thread("t").delete(id_)
        found_now = history(graph, "t")
        same(before, {one: found_now[one] for one in before})
    same(before, history(agent(DeltaSaver(open_store()), steps=3, frequency=delta), "t"))


@STORES
@pytest.mark.parametrize("gone", ["a", "b"])
@pytest.mark.parametrize("delta", [4, 1000])
def test_a_branch_outlives_its_sister(open_store: OpenStore, frequency: int, gone: str, delta: int) -> None:
    """surge#271: two branches share ancestors; either may go, and then the ancestors too."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    graph = agent(saver, steps=4, frequency=delta)
    runs(graph, "t", [0])
    base = graph.get_state(where("t")).config["configurable"]["checkpoint_id"]
    for run, turn in (("a", 1), ("b", 2), ("a", 3), ("b", 4)):
        ends = [id_ for id_, one in history(graph, "t", each=False).items() if one[2]["run_id"] == run]
        start = max(ends, default=base)
        graph.invoke(said(turn), where("t", run, checkpoint_id=start))
    expected = history(graph, "t")
    for runs_ in ([gone], ["t-0"]):
        saver.delete_for_runs(runs_)
        expected = without(expected, of_runs(expected, *runs_))
        same(expected, history(graph, "t"))
        same(expected, history(agent(DeltaSaver(open_store()), steps=4, frequency=delta), "t"))
    kept = max(expected)
    assert expected[kept][0]["log"] == expected[kept][0]["plain"]
    saver.prune(["t"])
    same({kept: expected[kept]}, history(graph, "t"))
