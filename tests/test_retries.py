"""A storage may ask for any transaction to be run again, as LMDB does when its map grows: nothing is counted twice."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import deltastore
from deltastore import CheckpointNotFoundError, Retention, Store, ThreadNotFoundError, apply_retention, check, compact
from deltastore.langgraph import DeltaSaver
from deltastore.storage import RetryTransaction, WriteTransaction
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config
from tests.langgraph.deleting import agent, runs
from tests.raw import Interrupted
from tests.upkeep.both_fronts import fill, told


@dataclass
class Doubting(Interrupted):
    """A storage in which every transaction has to be run twice."""

    doubts: bool = False
    _again: bool = False

    @contextmanager
    def write(self, threads: Any = ()) -> Iterator[WriteTransaction]:
        with self.inner.write(threads) as tx:
            yield tx
            self._again = self.doubts and not self._again
            if self._again:
                raise RetryTransaction("the map has grown; run it again")


def dumped() -> io.BytesIO:
    stream = io.BytesIO()
    with deltastore.open(":memory:") as store:
        fill(store)
        deltastore.dump(store, stream)
    stream.seek(0)
    return stream


def put_again(saver: DeltaSaver) -> None:
    found = saver.get_tuple(config("g"))
    assert found is not None
    saver.put(found.config, found.checkpoint, found.metadata, {})


OPERATIONS: dict[str, Callable[[Store, DeltaSaver], Any]] = {
    "append": lambda store, _: store.thread("n").append({"messages": ["more"]}),
    "put_writes": lambda store, _: store.thread("n").put_writes(store.thread("n").latest(), {"n": 7}),
    "put": lambda _, saver: saver.put(config("g"), checkpoint("f" * 32, {"a": "1"}, {"a": 1}), {"step": 50}, {}),
    "an id again": lambda _, saver: put_again(saver),
    "a graph": lambda _, saver: runs(agent(saver, steps=3), "g", [9]),
    "delete": lambda store, _: store.thread("n").delete(list(store.thread("n").history())[3]),
    "delete a thread": lambda store, _: store.delete("docs"),
    "delete for runs": lambda _, saver: saver.delete_for_runs(["g-0", "g-2"]),
    "prune": lambda _, saver: saver.prune(["g"]),
    "prune and erase": lambda _, saver: saver.prune(["g"], erase=True, graph=agent(saver, steps=3)),
    "retention": lambda store, _: apply_retention(store, Retention(keep_last=2, keep_forks="latest")),
    "idle": lambda store, _: apply_retention(
        store, Retention(drop_idle=timedelta(days=1)), now=datetime.now(UTC) + timedelta(days=9)
    ),
    "strays": lambda store, _: apply_retention(
        store, Retention(stray_writes=timedelta(days=1)), now=datetime.now(UTC) + timedelta(days=9)
    ),
    "copy": lambda store, _: store.copy("g", "twin"),
    "tag": lambda store, _: store.thread("n").tag("kept"),
    "load": lambda store, _: deltastore.load(store, dumped(), rename=lambda name: f"{name} loaded"),
    "compact": lambda store, _: compact(store, erase=True, level=1),
    "rules": lambda store, _: setattr(store.thread("n"), "retention", Retention(keep_last=1)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_whose_transactions_are_run_twice_is_done_once(name: str) -> None:
    shown = []
    for doubts in (False, True):
        storage = Doubting(MemoryStorage())
        store = Store(storage, snapshot_frequency=4)
        saver = DeltaSaver(store)
        fill(store)
        saver.put_writes(config("g", "never"), [("a", 1)], "task")
        storage.doubts = doubts
        OPERATIONS[name](store, saver)
        for reader in (store, Store(storage.inner)):
            report = check(reader)
            assert report.ok, report.problems
        counts = (report.threads, report.checkpoints, report.hidden, report.chunks, report.writes_without_checkpoint)
        storage.doubts = False
        known = {found.name for found in store.threads()}
        if doubts:  # the handle that did it goes on as well as a fresh one
            for going_on in (store, Store(storage.inner)):
                going_on.thread("n").append({"messages": ["after"]})
                runs(agent(DeltaSaver(going_on), steps=1), "g", [11])
                assert check(going_on).ok
            if known >= {"n", "docs", "g"}:
                assert told(store) == told(Store(storage.inner))
        shown.append((counts, known))
    assert shown[0] == shown[1]


def told_or_refused(store: Store) -> object:
    """Return all that a store holds, or why not: the child of a deleted parent has no history."""
    try:
        return told(store)
    except (CheckpointNotFoundError, ThreadNotFoundError) as error:
        return str(error)


@pytest.mark.parametrize("name", [*OPERATIONS, "delete the latest", "made anew", "strays for good"])
def test_a_handle_goes_on_where_another_one_changed_what_it_remembers(name: str) -> None:
    storage = MemoryStorage()
    store, other = Store(storage, snapshot_frequency=4), Store(storage)
    saver = DeltaSaver(store)
    fill(store)
    store.thread("n").append({"messages": ["last"]})
    saver.put_writes(config("g", "never"), [("a", "stray")], "task")
    latest = saver.get_tuple(config("g"))
    assert latest is not None
    match name:
        case "delete the latest":
            other.thread("n").delete(next(other.thread("n").history()))
            DeltaSaver(other).delete_for_runs([latest.metadata["run_id"]])
        case "made anew":
            other.delete("n")
            other.thread("n").append({"messages": ["anew"]})
            other.delete("g")
            runs(agent(DeltaSaver(other), steps=2), "g", [5])
        case "strays for good":
            OPERATIONS["strays"](other, DeltaSaver(other))
            compact(other, erase=True)
        case _:
            OPERATIONS[name](other, DeltaSaver(other))
    fresh = Store(storage)
    before = fresh.thread("n").state()["messages"] if "n" in {found.name for found in fresh.threads()} else []
    store.thread("n").append({"messages": ["after"]})
    assert fresh.thread("n").state()["messages"] == [*before, "after"]
    saver.put_writes(config("g", "never"), [("a", "stray")], "another task")
    # under a parent that it remembers, and that may be gone
    id_ = "f" * 32 + "1"
    child = checkpoint(id_, {"a": "2", "b": "1"}, {"a": [name], "b": 2})
    saver.put_writes(latest.config, [("a", name)], "late task")
    saver.put(latest.config, child, {"step": 99}, {"a": "2", "b": "1"})
    found = DeltaSaver(Store(storage)).get_tuple(config("g", id_))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": [name], "b": 2}
    for reader in (store, Store(storage)):
        report = check(reader)
        assert report.ok, report.problems
    assert told_or_refused(store) == told_or_refused(Store(storage))
