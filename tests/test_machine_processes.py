"""The machines over two processes on one store: each executes some of the steps, and sees at once what the other did.

Their second handle is open in another process, which is killed now and then and opens it anew.
"""

import contextlib
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from deltastore import check
from deltastore.langgraph import DeltaSaver
from deltastore.log import dictionaries
from deltastore.upkeep import training
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.shrinking import shrink
from tests.graph_machine import GraphMachine, delta_graph
from tests.remote import Remote, RemoteStore, other_process
from tests.store_machine import StoreMachine, run
from tests.test_machine import NativeMachine
from tests.vocabulary import picks


def native_options() -> dict[str, Any]:
    return dict(NativeMachine.options)


def graph_options() -> dict[str, Any]:
    return {}


class RemoteSaver:
    """A saver whose calls the other process makes; what it can't be sent, it makes there."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def prune(self, threads: list[str], *, graph: Any = None, **options: Any) -> None:
        self._saver.prune(threads, graph=delta_graph if graph else None, **options)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._saver, method)


class TwoProcesses(StoreMachine):
    """A machine whose second handle is another process's."""

    remote: ClassVar[Remote]

    @initialize(first=st.integers(1, 7), second=st.integers(1, 7))
    def open_both(self, first: int, second: int) -> None:
        self.handles = [self._open(first), self._open_there(second)]

    def _open_there(self, frequency: int) -> Any:
        return self.remote.open(str(self.folder / "store.ds"), frequency)

    def saver_of(self, handle: Any) -> Any:
        return RemoteSaver(handle.saver()) if isinstance(handle, RemoteStore) else DeltaSaver(handle)

    @rule(pick=picks, frequency=st.integers(1, 7), killed=st.booleans())
    def reopen_one(self, pick: int, frequency: int, killed: bool) -> None:
        if killed and pick % 2:
            self.remote.kill()
        else:
            self.handle(pick).close()
        self.handles[pick % 2] = self._open_there(frequency) if pick % 2 else self._open(frequency)

    def reopen(self, pick: int, frequency: int) -> None:
        self.reopen_one(pick, frequency, False)

    def _call(self, pick: int, call: Any, *arguments: Any, **options: Any) -> Any:
        """Call a function of a store with one of the handles, in its process."""
        handle: Any = self.handle(pick)
        if isinstance(handle, RemoteStore):
            return handle.remote.ask(call, *arguments, **options)
        return call(handle, *arguments, **options)

    @rule(pick=picks, erase=st.booleans())
    def compact(self, pick: int, erase: bool) -> None:
        self._call(pick, compact, erase=erase, level=1)
        if erase:
            assert self._call(pick + 1, check).garbage_chunks == 0

    @rule(pick=picks, kind=st.sampled_from(dictionaries.KINDS), content=st.none() | st.binary(min_size=8, max_size=400))
    def use_dictionary(self, pick: int, kind: str, content: bytes | None) -> None:
        self._call(pick, training.apply, training.Training(kind, content, "as a test wants it"))

    @rule(pick=picks)
    def shrink(self, pick: int) -> None:
        self._call(pick, shrink)

    def teardown(self) -> None:
        try:
            super().teardown()
        except BaseException:
            with contextlib.suppress(BaseException):  # so that the next example finds it closed
                self.remote.kill()
            raise


class NativeInTwo(TwoProcesses, NativeMachine):
    """The native API."""


class GraphInTwo(TwoProcesses, GraphMachine):
    """LangGraph threads."""


@pytest.mark.parametrize(("machine", "options"), [(NativeInTwo, native_options), (GraphInTwo, graph_options)])
def test_two_processes_see_each_other(
    machine: type[TwoProcesses], options: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_process(options) as remote:
        monkeypatch.setattr(machine, "remote", remote, raising=False)
        run(machine, "lmdb", request, monkeypatch, share=0.05)  # each step asks the other process
