"""Deletions while others put, copy and delete, and a process killed in the midst of them."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from deltastore import ContentionError, Store, ThreadExistsError, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import checkpoint, config, difference
from tests.langgraph.deleting import agent, folding, joined, runs

OpenStore = Callable[..., Store]
STORES = pytest.mark.parametrize(("open_store", "frequency"), [("memory", 50), ("lmdb", 3)], indirect=["open_store"])
SNAPSHOT_EVERY = 7
ROUNDS = 15


def step(saver: DeltaSaver, thread: str, number: int) -> None:
    """Put the checkpoint of a number after the one before, with the writes that lead to it."""
    parent = f"{number - 1:04}" if number else None
    if parent is not None:
        saver.put_writes(config(thread, parent), [("log", [f"w{number - 1}"])], f"task {number}")
    values: dict[str, Any] = {"plain": list(range(number))}
    if number % SNAPSHOT_EVERY == 0:
        values["log"] = _DeltaSnapshot([f"w{n}" for n in range(number)])
    versions = {"log": f"{number:04}", "plain": f"{number:04}"}
    described: Any = {"source": "loop", "step": number, "parents": {}, "run_id": f"{thread}-{number // 5}"}
    saver.put(config(thread, parent), checkpoint(f"{number:04}", versions, values), described, {})


def verify(saver: DeltaSaver, thread: str, found: Any) -> None:
    """See that a checkpoint holds what its number says."""
    number = int(found.checkpoint["id"])
    assert found.checkpoint["channel_values"]["plain"] == list(range(number))
    expected = [f"w{n}" for n in range(number)]
    if "log" in found.checkpoint["channel_values"]:
        assert found.checkpoint["channel_values"]["log"] == _DeltaSnapshot(expected)
    else:
        walked = saver.get_delta_channel_history(config=config(thread, found.checkpoint["id"]), channels=["log"])["log"]
        seed = walked["seed"].value if "seed" in walked else []
        assert joined(seed, [value for _, _, value in walked["writes"]]) == expected
    assert found.metadata["step"] == number


def together(*works: Callable[[], None]) -> None:
    """Run in OS threads; raise what any of them raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@STORES
def test_putters_and_pruners_do_not_hinder_each_other(open_store: OpenStore, frequency: int) -> None:
    """No put fails, and what was acknowledged last is there, whole, whoever deletes what is older."""
    store = open_store(snapshot_frequency=frequency)
    done = [threading.Event() for _ in range(3)]

    def putter(place: int) -> None:
        saver, thread = DeltaSaver(store), f"t{place % 2}" if place < 2 else "lone"
        try:
            for number in range(40):
                step(saver, thread, number)
                found = saver.get_tuple(config(thread))
                assert found is not None
                assert found.checkpoint["id"] == f"{number:04}"
                verify(saver, thread, found)
        finally:
            done[place].set()

    def tidier(erase: bool) -> None:
        saver, graph, turn = DeltaSaver(store), folding() if erase else None, 0
        while not all(event.is_set() for event in done):
            turn += 1
            if turn % 3:
                with suppress(ContentionError):  # others were faster than the folding, ten times
                    saver.prune(["t0", "t1", "lone", "unknown"], erase=erase, graph=graph)
            else:
                latest = [found for thread in ("t0", "t1", "lone") for found in saver.list(config(thread), limit=1)]
                old = [one for one in latest if one.metadata["step"] >= 5]
                saver.delete_for_runs([f"{one.config['configurable']['thread_id']}-0" for one in old])

    together(*(lambda place=place: putter(place) for place in range(3)), lambda: tidier(False), lambda: tidier(True))
    saver = DeltaSaver(store)
    for thread in ("t0", "t1", "lone"):
        saver.prune([thread])
        (found,) = saver.list(config(thread))
        assert found.checkpoint["id"] == "0039"
        verify(saver, thread, found)


@STORES
def test_a_thread_may_be_deleted_and_copied_while_it_is_pruned(open_store: OpenStore, frequency: int) -> None:
    """Each copy is a moment of the thread: every checkpoint in it reads as it was put."""
    store = open_store(snapshot_frequency=frequency)
    done = threading.Event()

    def putter() -> None:
        saver = DeltaSaver(store)
        try:
            for number in range(60):
                if number % 12 == 0:
                    saver.delete_thread("t")
                step(saver, "t", number % 12)
        finally:
            done.set()

    def pruner() -> None:
        saver = DeltaSaver(store)
        while not done.is_set():
            saver.prune(["t"])

    def copier() -> None:
        saver = DeltaSaver(store)
        while not done.is_set():
            try:
                saver.copy_thread("t", "copy")
            except ThreadExistsError:
                for found in saver.list(config("copy")):
                    verify(saver, "copy", found)
                saver.prune(["copy"], strategy="delete")

    together(putter, pruner, copier)
    saver = DeltaSaver(store)
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["id"] == "0011"
    verify(saver, "t", found)


@STORES
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_graph_runs_while_its_thread_is_pruned(open_store: OpenStore, frequency: int, durability: Any) -> None:
    """What it gives is what it gives alone, whatever is erased behind its back."""
    store = open_store(snapshot_frequency=frequency)
    graph, twin = agent(DeltaSaver(store), steps=6, frequency=20), agent(InMemorySaver(), steps=6, frequency=20)
    done = threading.Event()
    given: list[Any] = []

    def run() -> None:
        try:
            for turn in range(6):
                given.extend(runs(graph, "t", [turn], durability))
        finally:
            done.set()

    def tidy() -> None:
        saver, erase = DeltaSaver(store), False
        while not done.is_set():
            with suppress(ContentionError):  # the run was faster than the folding, ten times
                saver.prune(["t"], erase=erase, graph=graph if erase else None)
            erase = not erase

    together(run, tidy)
    found = difference(runs(twin, "t", range(6)), given)
    assert found is None, found
    assert graph.get_state(config("t")).values == given[-1]


@STORES
@pytest.mark.parametrize("meanwhile", ["erase", "prune", "put", "delete", "delete_thread", "again"])
def test_what_others_do_while_a_graph_folds(open_store: OpenStore, frequency: int, meanwhile: str) -> None:
    """No transaction is open while a reducer runs: whatever comes in between, each checkpoint reads right after."""
    saver = DeltaSaver(open_store(snapshot_frequency=frequency))
    last, hooks = 6, [meanwhile]  # the last of those before a checkpoint that has a value of its own
    for number in range(last + 1):
        step(saver, "t", number)
    saver.delete_for_runs(["t-0"])  # the snapshot of the first goes with it

    def interrupting(value: Any, writes: Any) -> Any:
        match hooks.pop() if hooks else None:
            case "erase":
                saver.prune(["t"], erase=True, graph=folding())
            case "prune":
                step(saver, "t", last + 1)
                step(saver, "t", last + 2)
                saver.prune(["t"])
            case "put":
                step(saver, "t", last + 1)
                step(saver, "t", last + 2)
            case "delete":
                saver.store.thread("t").delete(f"{last:04}")
            case "delete_thread":
                saver.delete_thread("t")
            case "again":
                saver.delete_thread("t")
                for number in range(last + 1):
                    step(saver, "t", number)
        return joined(value, writes)

    saver.prune(["t"], erase=True, graph=folding(interrupting))
    assert hooks == []
    report = check(saver.store)
    assert report.ok, report.problems
    assert report.hidden == 0
    left = list(saver.list(config("t")))
    for found in left:
        verify(saver, "t", found)
    newest = {"put": last + 2, "prune": last + 2, "delete": last - 1}.get(meanwhile, last)
    assert [int(found.checkpoint["id"]) for found in left] == ([] if meanwhile == "delete_thread" else [newest])


# --- kill -9 ----------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Fork a worker for each line read, and tell when it has ended: imports are paid once."""
    graph = folding()
    for line in sys.stdin:
        worker = os.fork()
        if worker == 0:
            try:
                work(path, random.Random(int(line)), graph)
            finally:
                os._exit(1)
        _, status = os.waitpid(worker, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def say(*what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def work(path: str, chance: random.Random, graph: Any) -> None:
    """Put and tidy up for ever, going on where the last worker was killed."""
    say("worker", os.getpid())
    saver = DeltaSaver.from_path(path, snapshot_frequency=4)
    latest = saver.get_tuple(config("t"))
    number = int(latest.checkpoint["id"]) + 1 if latest else 0
    while True:
        for _ in range(chance.randint(1, 6)):
            step(saver, "t", number)
            say("put", number)
            number += 1
        match chance.randrange(4):
            case 0:
                saver.prune(["t"])
            case 1:
                saver.prune(["t"], erase=True, graph=graph)
            case 2:
                saver.delete_for_runs([f"t-{n}" for n in range((number - 1) // 5) if chance.random() < 0.5])
            case _:
                saver.delete_thread("copy")
                saver.copy_thread("t", "copy")
        say("tidied", number)


def test_kill_9_in_the_midst_of_deletions(tmp_path: Path) -> None:
    """What was acknowledged is there; whatever is there reads right; the next process goes on."""
    path = tmp_path / "store.ds"
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    program = "from tests.langgraph.test_deletion_races import serve; import sys; serve(sys.argv[1])"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        acknowledged = -1
        for _ in range(ROUNDS):
            server.stdin.write(f"{chance.randrange(2**32)}\n")
            server.stdin.flush()
            left = chance.randint(1, 12)
            worker = 0
            for line in server.stdout:
                what = json.loads(line)
                if what[0] == "ended":
                    assert what[1] == -signal.SIGKILL
                    break
                if what[0] == "worker":
                    worker = what[1]
                elif what[0] == "put":
                    acknowledged = what[1]
                left -= 1
                if left == 0:
                    os.kill(worker, signal.SIGKILL)
            with DeltaSaver.from_path(path) as saver:
                report = check(saver.store)
                assert report.ok, report.problems
                latest = saver.get_tuple(config("t"))
                assert latest is not None or acknowledged < 0
                assert latest is None or int(latest.checkpoint["id"]) >= acknowledged
                for thread in ("t", "copy"):
                    for found in saver.list(config(thread)):
                        verify(saver, thread, found)
        server.stdin.close()
        assert server.wait(30) == 0
