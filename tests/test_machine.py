"""Rebuilt equals full: a random mix of operations against a dict of full states.

Two handles on one store write native threads and LangGraph threads, fork, delete, copy and reopen; after each
step `check` must find nothing, and every state that is read must be the model's. Run longer with
`tools/test --profile ci -k machine`.
"""

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langgraph.checkpoint.base import WRITES_IDX_MAP, empty_checkpoint

import deltastore
from deltastore import REMOVE_ALL, Reducer, Remove, Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.log import policy
from deltastore.storage.memory import MemoryStorage
from tests.conftest import MACHINE_STEPS, STEPS_PER_EXAMPLE

NATIVE_THREADS = ("a", "b", "a\0b")
GRAPH_THREADS = ("g", "h")
SPACES = ("", "sub:1")
TASKS = ("t1", "t2")

CHANNELS = {"log": "append", "facts": "merge", "last": "replace", "items": "upsert", "sums": "sum"}
REDUCERS = [Reducer("sum", 1, lambda value, write: [value[0] + write[0], *value[1:], write], lambda: [0])]

DOCUMENT = "".join(f"line {number} of a document that is edited in place\n" for number in range(250))
scalars = st.sampled_from(
    [None, True, False, 0, 1, 1.0, -0.0, 0.0, float("nan"), "", "x", "é", "y" * 100, 2**63, b"\0"]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "l", "id"]), inner, max_size=3),
    max_leaves=6,
)
edits = st.integers(0, 249).map(lambda line: DOCUMENT.replace(f"line {line} ", f"LINE {line} "))
lists = st.lists(values, max_size=4) | st.lists(st.integers(-3, 3), max_size=5)
dicts = st.dictionaries(st.sampled_from(["k", "l", "m", "doc"]), values | edits, max_size=3)
items = st.lists(
    st.builds(lambda key, text: {"id": key, "text": text}, st.sampled_from(["1", "2", "3", 1, None]), scalars)
    | st.sampled_from(["1", "2", 1]).map(Remove)
    | st.just(REMOVE_ALL),
    max_size=4,
)
writes = st.fixed_dictionaries(
    {},
    optional={
        "log": lists,
        "facts": dicts,
        "last": values | edits,
        "items": items,
        "sums": st.lists(st.integers(0, 9), min_size=1, max_size=1),
    },
)
states = st.permutations(sorted(CHANNELS)).flatmap(
    lambda order: st.fixed_dictionaries({}, optional={name: _states_of(name) for name in order})
)
picks = st.integers(0, 10**6)


def _states_of(channel: str) -> st.SearchStrategy[Any]:
    if channel == "items":
        return items.map(lambda found: [item for item in found if not isinstance(item, Remove)])
    if channel == "sums":
        return st.lists(st.integers(0, 9), min_size=1, max_size=2)
    return {"log": lists, "facts": dicts, "last": values | edits}[channel]


def shown(value: Any) -> str:
    """Tell values apart by type, order and bits, as `==` doesn't."""
    return repr(value)


# --- the model's reducers, in plain Python --------------------------------------------


def folded(channel: str, before: Any, write: Any, present: bool) -> Any:
    if channel == "log":
        return (before if present else []) + write
    if channel == "last":
        return write
    if channel == "sums":
        return REDUCERS[0].fold(before if present else [0], write)
    if channel == "facts":
        merged = {shown(key): (key, value) for key, value in (before if present else {}).items()}
        for key, value in write.items():
            merged[shown(key)] = (key, value)
        return dict(merged.values())
    return upserted(before if present else [], write)


def upserted(before: list[Any], write: list[Any]) -> list[Any]:
    for place in range(len(write) - 1, -1, -1):
        if write[place] == REMOVE_ALL:
            before, write = [], write[place + 1 :]
            break

    def known(element: Any) -> Any:
        found = element.get("id") if isinstance(element, dict) else None
        return shown(found) if type(found) in (str, int, bytes) else None

    merged = list(before)
    places = {known(element): place for place, element in enumerate(merged) if known(element) is not None}
    gone: set[int] = set()
    for element in write:
        if isinstance(element, Remove):
            if shown(element.id) in places:
                gone.add(places[shown(element.id)])
            continue
        key = known(element)
        if key is not None and key in places:
            gone.discard(places[key])
            merged[places[key]] = element
        else:
            if key is not None:
                places[key] = len(merged)
            merged.append(element)
    return [element for place, element in enumerate(merged) if place not in gone]


class Machine(RuleBasedStateMachine):
    """Operations on a store through two handles, and the dicts that say what must be read."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="deltastore-machine-"))
        self.memory = MemoryStorage()
        self.handles: list[Store] = []
        self.native: dict[str, dict[str, dict[str, Any]]] = {}
        self.parents: dict[str, dict[str, str | None]] = {}
        self.kept: dict[tuple[str, str], dict[tuple[str, int], tuple[str, Any]]] = {}
        self.graph: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        self.graph_writes: dict[tuple[str, str, str], dict[tuple[str, int], tuple[str, Any, str]]] = {}
        self.serial = 0

    @initialize(first=st.integers(1, 7), second=st.integers(1, 7))
    def open_both(self, first: int, second: int) -> None:
        self.handles = [self._open(first), self._open(second)]

    def _open(self, frequency: int) -> Store:
        options: dict[str, Any] = {"snapshot_frequency": frequency, "channels": CHANNELS, "reducers": REDUCERS}
        if self.kind == "memory":
            return Store(self.memory, **options)
        return deltastore.open(self.folder / "store.ds", sync="none", **options)

    def _handle(self, pick: int) -> Store:
        return self.handles[pick % 2]

    def teardown(self) -> None:
        try:
            if self.handles:
                self.compare_everything()
        finally:
            for handle in self.handles if self.kind == "lmdb" else ():
                handle.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- native threads

    @rule(name=st.sampled_from(NATIVE_THREADS), write=writes, pick=picks, fork=st.booleans())
    def append(self, name: str, write: dict[str, Any], pick: int, fork: bool) -> None:
        self._append(name, write, pick, fork)

    @rule(name=st.sampled_from(NATIVE_THREADS), write=writes, pick=picks, count=st.integers(6, 14))
    def append_many(self, name: str, write: dict[str, Any], pick: int, count: int) -> None:
        for _ in range(count):  # enough for packs of chunks and of records
            self._append(name, write, pick, False)

    def _append(self, name: str, write: dict[str, Any], pick: int, fork: bool) -> None:
        known = self.native.get(name, {})
        at = self._choose(known, pick) if fork else None
        before = known[at] if at else (known[max(known)] if known else {})
        after = dict(before)
        for channel, value in write.items():
            after[channel] = folded(channel, before.get(channel), value, channel in before)
        put = self._handle(pick).thread(name).append(copy.deepcopy(write), at=at)
        self._note(name, put, after, at)

    @rule(name=st.sampled_from(NATIVE_THREADS), state=states, pick=picks, old=st.booleans())
    def put_state(self, name: str, state: dict[str, Any], pick: int, old: bool) -> None:
        at = self._choose(self.native.get(name, {}), pick) if old else None
        given = copy.deepcopy(state)
        put = self._handle(pick).thread(name).put_state(given, at=at)
        for value in given.values():  # what was put is fixed by then
            if isinstance(value, list):
                value.append("changed later")
        self._note(name, put, copy.deepcopy(state), at)

    @rule(name=st.sampled_from(NATIVE_THREADS), pick=picks, write=writes, frequency=st.integers(1, 7))
    def edit_what_was_read(self, name: str, pick: int, write: dict[str, Any], frequency: int) -> None:
        """As an agent does that resumes: open, read the latest state, put it with a channel changed."""
        known = self.native.get(name, {})
        if not known:
            return
        self.reopen(pick, frequency)
        thread = self._handle(pick).thread(name)
        state = thread.state()
        assert shown(state) == shown(known[max(known)])
        for channel, value in write.items():
            if channel != "items" or not any(isinstance(item, Remove) for item in value):
                state[channel] = folded(channel, state.get(channel), value, channel in state)
        self._note(name, thread.put_state(copy.deepcopy(state)), state, None)

    def _note(self, name: str, put: deltastore.Checkpoint, state: dict[str, Any], at: str | None) -> None:
        known = self.native.setdefault(name, {})
        parent = at or max(known, default=None)
        assert put.parent_id == parent
        assert put.id > max(known, default="")
        known[put.id] = state
        self.parents.setdefault(name, {})[put.id] = parent

    @staticmethod
    def _choose(known: dict[str, Any], pick: int) -> str | None:
        ids = sorted(known)
        return ids[pick % len(ids)] if ids else None

    @rule(name=st.sampled_from(NATIVE_THREADS), pick=picks, write=writes, task=st.sampled_from(TASKS))
    def keep_writes(self, name: str, pick: int, write: dict[str, Any], task: str) -> None:
        at = self._choose(self.native.get(name, {}), pick)
        if at is None:
            return
        self._handle(pick).thread(name).put_writes(at, copy.deepcopy(write), task=task)
        kept = self.kept.setdefault((name, at), {})
        for idx, (channel, value) in enumerate(write.items()):
            kept.setdefault((task, idx), (channel, value))

    @rule(name=st.sampled_from(NATIVE_THREADS), pick=picks)
    def delete_checkpoint(self, name: str, pick: int) -> None:
        at = self._choose(self.native.get(name, {}), pick)
        if at is None:
            return
        self._handle(pick).thread(name).delete(at)
        del self.native[name][at]
        self.kept.pop((name, at), None)
        with pytest.raises(deltastore.NotFoundError):
            self._handle(pick + 1).thread(name).state(at=at)

    # --- threads

    @rule(name=st.sampled_from(NATIVE_THREADS + GRAPH_THREADS), pick=picks)
    def delete_thread(self, name: str, pick: int) -> None:
        self._handle(pick).delete(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.native.pop(name, None)
        self.parents.pop(name, None)
        for kept in [key for key in self.kept if key[0] == name]:
            del self.kept[kept]
        for space in SPACES:
            self.graph.pop((name, space), None)
        for key in [key for key in self.graph_writes if key[0] == name]:
            del self.graph_writes[key]

    @rule(pick=picks, native=st.booleans())
    def copy_thread(self, pick: int, native: bool) -> None:
        names = NATIVE_THREADS if native else GRAPH_THREADS
        source, target = names[pick % len(names)], names[(pick + 1) % len(names)]
        there = [name for name in (source, target) if self._exists(name)]
        if source in there and target in there:
            with pytest.raises(deltastore.ThreadExistsError):
                self._handle(pick).copy(source, target)
        elif source in there:
            self._handle(pick).copy(source, target)
            if source in self.native:
                self.native[target] = copy.deepcopy(self.native[source])
                self.parents[target] = dict(self.parents[source])
            for (name, id_), kept in list(self.kept.items()):
                if name == source:
                    self.kept[target, id_] = dict(kept)
            for space in SPACES:
                if (source, space) in self.graph:
                    self.graph[target, space] = copy.deepcopy(self.graph[source, space])
            for (name, space, id_), kept_writes in list(self.graph_writes.items()):
                if name == source:
                    self.graph_writes[target, space, id_] = dict(kept_writes)

    def _exists(self, name: str) -> bool:
        """A thread is there from its first put or pending write on, until it is deleted."""
        return name in self.native or any(key[0] == name for key in (*self.graph, *self.graph_writes))

    @rule(pick=picks, frequency=st.integers(1, 7))
    def reopen(self, pick: int, frequency: int) -> None:
        if self.kind == "lmdb":
            self._handle(pick).close()
        self.handles[pick % 2] = self._open(frequency)

    # --- LangGraph threads

    @rule(
        name=st.sampled_from(GRAPH_THREADS),
        space=st.sampled_from(SPACES),
        pick=picks,
        new=st.dictionaries(st.sampled_from(["messages", "plan", "n"]), lists | dicts | values, max_size=3),
        absent=st.sets(st.sampled_from(["messages", "plan", "n"]), max_size=1),
        parent=st.sampled_from(["latest", "latest", "latest", "any", "missing", "none"]),
        again=st.integers(0, 5),
        count=st.sampled_from([1, 1, 1, 1, 12]),
    )
    def graph_put(
        self,
        name: str,
        space: str,
        pick: int,
        new: dict[str, Any],
        absent: set[str],
        parent: str,
        again: int,
        count: int,
    ) -> None:
        for turn in range(count):
            self._graph_put(name, space, pick, new, absent, "latest" if turn else parent, again if count == 1 else 1)

    def _graph_put(
        self, name: str, space: str, pick: int, new: dict[str, Any], absent: set[str], parent: str, again: int
    ) -> None:
        known = self.graph.setdefault((name, space), {})
        parent_id = {
            "latest": max(known, default=None),
            "any": self._choose(known, pick),
            "missing": "0-never-put",
            "none": None,
        }[parent]
        before = known.get(parent_id or "", {"versions": {}, "values": {}})
        self.serial += 1
        id_ = self._choose(known, pick) if again == 0 and known else f"{self.serial:08}"
        versions, values_ = dict(before["versions"]), dict(before["values"])
        for channel in (*new, *absent):
            versions[channel] = f"{self.serial:04}.{channel}"
            values_.pop(channel, None)
        values_ |= {channel: value for channel, value in new.items() if channel not in absent}
        checkpoint = empty_checkpoint() | {
            "id": id_,
            "ts": str(self.serial),
            "channel_values": copy.deepcopy(values_),
            "channel_versions": dict(versions),
            "versions_seen": {"node": dict(before["versions"])},
        }
        config: dict[str, Any] = {"configurable": {"thread_id": name, "checkpoint_ns": space}}
        if parent_id is not None:
            config["configurable"]["checkpoint_id"] = parent_id
        DeltaSaver(self._handle(pick)).put(config, checkpoint, {"step": self.serial}, {})
        known[id_] = {"versions": versions, "values": values_, "parent": parent_id, "step": self.serial}

    @rule(
        name=st.sampled_from(GRAPH_THREADS),
        space=st.sampled_from(SPACES),
        pick=picks,
        task=st.sampled_from(TASKS),
        write=st.lists(
            st.tuples(st.sampled_from(["messages", "plan", "__error__", "__resume__"]), lists | values), max_size=3
        ),
        ahead=st.booleans(),
    )
    def graph_writes_put(
        self, name: str, space: str, pick: int, task: str, write: list[tuple[str, Any]], ahead: bool
    ) -> None:
        known = self.graph.get((name, space), {})
        id_ = f"{self.serial + 1:08}" if ahead or not known else str(self._choose(known, pick))
        config: dict[str, Any] = {"configurable": {"thread_id": name, "checkpoint_ns": space, "checkpoint_id": id_}}
        DeltaSaver(self._handle(pick)).put_writes(config, copy.deepcopy(write), task, f"path-{task}")
        if not write and not self._exists(name):
            return  # no write, no thread
        kept = self.graph_writes.setdefault((name, space, id_), {})
        for place, (channel, value) in enumerate(write):
            idx = WRITES_IDX_MAP.get(channel, place)
            if idx < 0 or (task, idx) not in kept:
                kept[task, idx] = (channel, value, f"path-{task}")

    # --- what must hold

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.handles:
            report = check(self.handles[0])
            assert report.ok, report.problems

    @rule(pick=picks)
    @precondition(lambda self: any(self.native.values()))
    def read_one(self, pick: int) -> None:
        name = sorted(name for name, known in self.native.items() if known)[
            pick % len([k for k in self.native.values() if k])
        ]
        at = self._choose(self.native[name], pick)
        assert shown(self._handle(pick).thread(name).state(at=at)) == shown(self.native[name][at or ""])

    def compare_everything(self) -> None:
        for handle in self.handles:
            listed = {info.name: info.checkpoints for info in handle.threads()}
            expected = {name: len(known) for name, known in self.native.items() if known}
            for (name, _), known in self.graph.items():
                if known:
                    expected[name] = expected.get(name, 0) + len(known)
            assert listed == expected
        first, second = self.handles
        self._compare_native(first)
        self._compare_graph(second)

    def _compare_native(self, handle: Store) -> None:
        for name, known in self.native.items():
            thread = handle.thread(name)
            history = list(thread.history())
            assert [entry.id for entry in history] == sorted(known, reverse=True)
            assert all(entry.parent_id == self.parents[name][entry.id] for entry in history)
            for id_, state in known.items():
                assert shown(thread.state(at=id_)) == shown(state)
                kept = self.kept.get((name, id_), {})
                if not kept and id_ != max(known):
                    continue  # one without writes is enough
                expected = [
                    (task, channel, value)
                    for (task, _), (channel, value) in sorted(kept.items(), key=lambda item: item[0])
                ]
                found = [(write.task, write.channel, write.value) for write in thread.writes(id_)]
                assert shown(found) == shown(expected)
            if known:
                assert shown(thread.state()) == shown(known[max(known)])

    def _compare_graph(self, handle: Store) -> None:
        saver = DeltaSaver(handle)
        for (name, space), known in self.graph.items():
            config: dict[str, Any] = {"configurable": {"thread_id": name, "checkpoint_ns": space}}
            listed = list(saver.list(config))
            assert [found.checkpoint["id"] for found in listed] == sorted(known, reverse=True)
            for found in listed:
                id_ = found.checkpoint["id"]
                expected = known[id_]
                assert found.checkpoint["channel_versions"] == expected["versions"]
                in_order = {c: expected["values"][c] for c in expected["versions"] if c in expected["values"]}
                assert shown(found.checkpoint["channel_values"]) == shown(in_order)
                assert found.metadata["step"] == expected["step"]
                parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
                assert parent == expected["parent"]
                kept = self.graph_writes.get((name, space, id_), {})
                ordered = sorted(kept.items(), key=lambda item: (item[1][2], *item[0]))
                wanted = [(task, channel, value) for (task, _), (channel, value, _) in ordered]
                assert shown(found.pending_writes) == shown(wanted)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_any_mix_of_operations_reads_as_full_states_would(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # small packs, so that a few dozen steps make many, and change what is in them
    monkeypatch.setattr(policy, "MIN_LOOSE_ROWS", 4)
    monkeypatch.setattr(policy, "MIN_LOOSE_BYTES", 20_000)
    monkeypatch.setattr(policy, "MAX_PACK_BYTES", 40_000)
    monkeypatch.setattr(policy, "MAX_PACK_RECORDS", 8)
    steps = MACHINE_STEPS[request.config.getoption("--profile")] // 2
    machine = type("MachineOn" + kind, (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=steps // STEPS_PER_EXAMPLE,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
