"""Asynchronous calls under way at once, on one event loop and on several, come out as if in some order.

The machine gives DeltaSavers a batch of tasks, each a few calls in a row. Afterwards it looks for an order of all the
calls, each task's kept, in which every answer is what it was and the store ends as it did; none is a fault.
"""

import asyncio
import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from deltastore import Store
from deltastore.langgraph import DeltaSaver
from tests.graph_machine import config_of
from tests.store_machine import StoreMachine, run
from tests.vocabulary import lists, picks, shown, values

THREADS = ("g", "h")
IDS = ("1", "2", "3", "4")
"""Few, so that calls meet on one."""

threads = st.sampled_from(THREADS)
ids = st.sampled_from(IDS)
calls = st.one_of(
    st.tuples(
        st.just("put"),
        threads,
        ids,
        st.sampled_from([*IDS, None]),
        st.dictionaries(st.sampled_from(["messages", "n"]), lists | values, max_size=2),
    ),
    st.tuples(
        st.just("write"),
        threads,
        ids,
        st.sampled_from(["t1", "t2"]),
        st.lists(st.tuples(st.sampled_from(["messages", "__error__"]), lists | values), min_size=1, max_size=2),
    ),
    st.tuples(st.just("get"), threads, st.sampled_from([*IDS, None])),
    st.tuples(st.just("list"), threads),
)
batches = st.lists(st.lists(calls, min_size=1, max_size=3), min_size=2, max_size=4)

SPECIAL = {"__error__": -1}
Effect = Callable[["Model"], "Model"]
Event = tuple[str, Any, Any]
"""What a call did, and when it was a read what it must have seen: ("do", effect, None), ("see", question, answer)."""


class Model:
    """Checkpoints and writes; never changed, so that orders can be tried."""

    def __init__(self, known: dict[tuple[str, str], Any], writes: dict[tuple[str, str], Any]) -> None:
        self.known = known
        self.writes = writes

    def put(self, name: str, id_: str, entry: dict[str, Any]) -> "Model":
        return Model(self.known | {(name, id_): entry}, self.writes)

    def write(self, name: str, id_: str, task: str, write: list[tuple[str, Any]]) -> "Model":
        kept = dict(self.writes.get((name, id_), {}))
        for place, (channel, value) in enumerate(write):
            idx = SPECIAL.get(channel, place)
            if idx < 0 or (task, idx) not in kept:
                kept[task, idx] = (channel, value)
        return Model(self.known, self.writes | {(name, id_): kept})

    def read(self, name: str, id_: str | None) -> str:
        if id_ is None:
            id_ = max((found for thread, found in self.known if thread == name), default=None)
        entry = self.known.get((name, id_ or ""))
        if entry is None:
            return "nothing"
        kept = sorted(self.writes.get((name, id_ or ""), {}).items(), key=lambda item: item[0])
        return shown((id_, entry, [(task, channel, value) for (task, _), (channel, value) in kept]))

    def all(self) -> dict[tuple[str, str], str]:
        return {key: self.read(*key) for key in self.known}


def seen(found: Any) -> str:
    """Return a tuple that a saver returned as a model shows it."""
    if found is None:
        return "nothing"
    made = found.checkpoint
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    entry = {"versions": made["channel_versions"], "values": made["channel_values"], "parent": parent}
    return shown((made["id"], entry, found.pending_writes))


def serialize(model: Model, tasks: list[list[Event]], final: dict[tuple[str, str], str]) -> Model | None:
    """Find an order of events in which every read saw what it says, and all ends as it did.

    A read that fits is taken at once: it changes nothing, so any order with it later has one with it here.
    """
    tasks = [list(task) for task in tasks]
    moved = True
    while moved:
        moved = False
        for task in tasks:
            while task and task[0][0] == "see" and model.read(*task[0][1]) == task[0][2]:
                task.pop(0)
                moved = True
    left = [number for number, task in enumerate(tasks) if task]
    if not left:
        return model if model.all() == final else None
    for number in left:
        kind, effect, _ = tasks[number][0]
        if kind == "do":
            rest = [task[1:] if place == number else task for place, task in enumerate(tasks)]
            found = serialize(effect(model), rest, final)
            if found is not None:
                return found
    return None


class AsyncMachine(StoreMachine):
    """Batches of calls of two savers' asynchronous methods."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model({}, {})
        self.serial = 0

    @rule(batch=batches, loops=st.integers(1, 3), pick=picks)
    def all_at_once(self, batch: list[list[Any]], loops: int, pick: int) -> None:
        events: list[list[Event]] = [[] for _ in batch]
        before = set(self.model.known)
        work = [[self._prepare(call) for call in task] for task in self._telling(batch)]
        barrier = threading.Barrier(loops)
        failed: list[BaseException] = []

        async def follow(saver: DeltaSaver, number: int) -> None:
            for call in work[number]:
                events[number] += await call(saver)

        async def gather(loop: int) -> None:
            saver = DeltaSaver(self.handle(pick + loop))
            await asyncio.gather(*(follow(saver, number) for number in range(loop, len(batch), loops)))

        def begin(loop: int) -> None:
            barrier.wait()
            try:
                asyncio.run(gather(loop))
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                failed.append(error)

        running = [threading.Thread(target=begin, args=(loop,)) for loop in range(loops)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failed:
            raise failed[0]
        final = self._stored(self.handles[0])
        assert self._stored(self.handles[1]) == final
        assert before <= final.keys()
        found = serialize(self.model, events, final)
        assert found is not None, ("no order explains", batch, events, final)
        self.model = found

    def _telling(self, batch: list[list[Any]]) -> list[list[Any]]:
        """Return a batch after which the order of all its calls shows, as far as it matters to later ones.

        Of writes to a checkpoint that isn't there yet nothing is seen: those of one task come in one order only.
        """
        by: dict[tuple[str, str, str], int] = {}

        def shows(number: int, call: Any) -> bool:
            if call[0] != "write" or call[1:3] in self.model.known:
                return True
            return by.setdefault(call[1:4], number) == number

        return [[call for call in task if shows(number, call)] for number, task in enumerate(batch)]

    def _prepare(self, call: Any) -> Callable[[DeltaSaver], Any]:
        """Fix what a call gives, as the model is when the batch begins."""
        match call:
            case ("put", name, id_, parent, new):
                return partial(self._put, name, id_, self._entry(name, parent, new))
            case ("write", name, id_, task, write):
                return partial(self._write, name, id_, task, write)
            case ("get", name, id_):
                return partial(self._get, name, id_)
            case ("list", name):
                return partial(self._list, name, {id_ for thread, id_ in self.model.known if thread == name})
        raise AssertionError(call)

    def _entry(self, name: str, parent: str | None, new: dict[str, Any]) -> dict[str, Any]:
        above = self.model.known.get((name, parent or ""), {"versions": {}, "values": {}})
        self.serial += 1
        versions = above["versions"] | {channel: f"{self.serial:04}.{channel}" for channel in new}
        given = above["values"] | new
        return {"versions": versions, "values": {channel: given[channel] for channel in versions}, "parent": parent}

    async def _put(self, name: str, id_: str, entry: dict[str, Any], saver: DeltaSaver) -> list[Event]:
        made: Any = {
            "v": 4,
            "id": id_,
            "ts": "",
            "channel_values": copy.deepcopy(entry["values"]),
            "channel_versions": dict(entry["versions"]),
            "versions_seen": {},
        }
        put = saver.aput(config_of(name, "", entry["parent"]), made, {}, {})
        assert await put == config_of(name, "", id_)
        return [("do", lambda model: model.put(name, id_, entry), None)]

    async def _write(
        self, name: str, id_: str, task: str, write: list[tuple[str, Any]], saver: DeltaSaver
    ) -> list[Event]:
        await saver.aput_writes(config_of(name, "", id_), copy.deepcopy(write), task)
        return [("do", lambda model: model.write(name, id_, task, write), None)]

    async def _get(self, name: str, id_: str | None, saver: DeltaSaver) -> list[Event]:
        return [("see", (name, id_), seen(await saver.aget_tuple(config_of(name, "", id_))))]

    async def _list(self, name: str, known: set[str], saver: DeltaSaver) -> list[Event]:
        """A list is no single moment: each of its checkpoints is read at one, none before the last one's."""
        found = [one async for one in saver.alist(config_of(name, ""))]
        listed = [one.checkpoint["id"] for one in found]
        assert listed == sorted(set(listed), reverse=True)
        assert known <= set(listed)
        return [("see", (name, one.checkpoint["id"]), seen(one)) for one in found]

    # --- what must hold

    def _stored(self, handle: Store) -> dict[tuple[str, str], str]:
        saver = DeltaSaver(handle)
        return {
            (name, found.checkpoint["id"]): seen(found) for name in THREADS for found in saver.list(config_of(name, ""))
        }

    def counts(self) -> dict[str, int]:
        names = [name for name, _ in self.model.known]
        return {name: names.count(name) for name in THREADS if name in names}

    def compare(self, handle: Store) -> None:
        assert self._stored(handle) == self.model.all()
        saver = DeltaSaver(handle)
        for name, id_ in self.model.known:
            assert seen(saver.get_tuple(config_of(name, "", id_))) == self.model.read(name, id_)
            assert seen(saver.get_tuple(config_of(name, ""))) == self.model.read(name, None)


@pytest.mark.parametrize(("kind", "share"), [("memory", 0.1), ("lmdb", 0.1), ("postgres", 0.1)])
def test_calls_at_once_come_out_as_in_some_order(
    kind: str, share: float, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(AsyncMachine, kind, request, monkeypatch, share=share)  # its steps are long ones
