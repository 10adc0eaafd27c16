"""A store moved at any moment, by a dump, a backup or a copy, goes on as if it hadn't been.

The machines of the store's own test, with one more step: everything is taken to another storage, and operations go on
there.
"""

import io
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

import deltastore
from deltastore import Store, check, copy_store
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.backup import backup
from deltastore.upkeep.dumping import dump
from deltastore.upkeep.loading import load
from tests.graph_machine import GraphMachine
from tests.raw import rows_of
from tests.store_machine import StoreMachine, run
from tests.test_machine import NativeMachine
from tests.upkeep.copied import moved


class Moving(StoreMachine):
    """A machine whose store is moved."""

    moves = 0
    at: Any = None

    def _open(self, frequency: int) -> Store:
        if isinstance(self.at, MemoryStorage) or (self.at is None and self.kind == "memory"):
            return Store(self.at or self.memory, snapshot_frequency=frequency, **self.options)
        path = self.at or self.folder / "store.ds"
        return deltastore.open(path, sync="none", snapshot_frequency=frequency, **self.options)

    @rule(way=st.sampled_from(["dump to memory", "dump", "backup", "copy", "copy to memory"]))
    def move(self, way: str) -> None:
        self.moves += 1
        target: Any = self.folder / f"store-{self.moves}.ds"
        source = self.handles[0]
        rows = rows_of(source.log.storage)
        if way == "backup":
            assert backup(source, target) == len(rows)
        elif way.startswith("copy"):
            target = MemoryStorage() if way == "copy to memory" else target
            if self.moves % 2:
                copy_store(source, target, finish=False)
            assert copy_store(source, target).changed_since == 0
            rows = moved(rows)
        else:
            target = MemoryStorage() if way == "dump to memory" else target
            stream = io.BytesIO()
            dump(source, stream)
            before = stream.getvalue()
            with Store(target) if way == "dump to memory" else deltastore.open(target, sync="none") as store:
                load(store, io.BytesIO(before))
                report = check(store)
                assert report.ok, report.problems
                assert report.garbage_chunks == 0
                assert check(source).hidden == report.hidden
                again = io.BytesIO()
                dump(store, again)
                assert again.getvalue() == before
                if way == "dump to memory":
                    target = _copy_of(store.log.storage)
        for handle in self.handles:
            handle.close()
        self.at = target
        self.handles = [self._open(3), self._open(5)]
        if not way.startswith("dump"):
            assert rows_of(self.handles[0].log.storage) == rows
        for handle in self.handles:
            self.compare(handle)

    def reopen(self, pick: int, frequency: int) -> None:
        """Not in this machine: a handle closes by moving."""


def _copy_of(storage: Any) -> MemoryStorage:
    """Return rows in a storage that nobody closes."""
    copied = MemoryStorage()
    with copied.write() as tx:
        for key, row in rows_of(storage).items():
            tx.put(key, row)
    return copied


class MovingNative(Moving, NativeMachine):
    """The native API, moved."""


class MovingGraph(Moving, GraphMachine):
    """LangGraph threads, moved."""


@pytest.mark.parametrize(("machine", "kind"), [(MovingNative, "lmdb"), (MovingGraph, "memory")])
def test_a_moved_store_goes_on(
    machine: type[StoreMachine], kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(machine, kind, request, monkeypatch, share=0.15)  # its steps are long ones
