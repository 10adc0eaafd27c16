"""Rebuilt equals full: a random mix of operations against a dict of full states.

Two handles on one store write native threads, or LangGraph threads (`graph_machine`), fork, delete, copy and reopen;
after each step `check` must find nothing, and every state that is read must be the model's. Run longer with
`tools/test --profile ci -k machine`.
"""

import copy
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import deltastore
from deltastore import REMOVE_ALL, Reducer, Remove, Store
from tests.graph_machine import GraphMachine
from tests.store_machine import StoreMachine, run
from tests.vocabulary import choose, dicts, edits, lists, picks, scalars, shown, values

NATIVE_THREADS = ("a", "b", "a\0b")

TASKS = ("t1", "t2")

CHANNELS = {"log": "append", "facts": "merge", "last": "replace", "items": "upsert", "sums": "sum"}
REDUCERS = [Reducer("sum", 1, lambda value, write: [value[0] + write[0], *value[1:], write], lambda: [0])]

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


def _states_of(channel: str) -> st.SearchStrategy[Any]:
    if channel == "items":
        return items.map(lambda found: [item for item in found if not isinstance(item, Remove)])
    if channel == "sums":
        return st.lists(st.integers(0, 9), min_size=1, max_size=2)
    return {"log": lists, "facts": dicts, "last": values | edits}[channel]


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
    gone: set[Any] = set()
    for element in write:
        if isinstance(element, Remove):
            if shown(element.id) in places:
                gone.add(shown(element.id))
            continue
        key = known(element)
        if key is not None and key in places:
            gone.discard(key)
            merged[places[key]] = element
        else:
            if key is not None:
                places[key] = len(merged)
            merged.append(element)
    return [element for element in merged if known(element) not in gone]


class NativeMachine(StoreMachine):
    """Operations of the native API, and the dicts that say what must be read."""

    options: ClassVar[dict[str, Any]] = {"channels": CHANNELS, "reducers": REDUCERS}

    def __init__(self) -> None:
        super().__init__()
        self.native: dict[str, dict[str, dict[str, Any]]] = {}
        self.parents: dict[str, dict[str, str | None]] = {}
        self.kept: dict[tuple[str, str], dict[tuple[str, int], tuple[str, Any]]] = {}
        self.tags: dict[str, dict[str, str]] = {}

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
        at = choose(known, pick) if fork else None
        before = known[at] if at else (known[max(known)] if known else {})
        after = dict(before)
        for channel, value in write.items():
            after[channel] = folded(channel, before.get(channel), value, channel in before)
        put = self.handle(pick).thread(name).append(copy.deepcopy(write), at=at)
        self._note(name, put, after, at)

    @rule(name=st.sampled_from(NATIVE_THREADS), state=states, pick=picks, old=st.booleans())
    def put_state(self, name: str, state: dict[str, Any], pick: int, old: bool) -> None:
        at = choose(self.native.get(name, {}), pick) if old else None
        given = copy.deepcopy(state)
        put = self.handle(pick).thread(name).put_state(given, at=at)
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
        thread = self.handle(pick).thread(name)
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

    @rule(name=st.sampled_from(NATIVE_THREADS), pick=picks, write=writes, task=st.sampled_from(TASKS))
    def keep_writes(self, name: str, pick: int, write: dict[str, Any], task: str) -> None:
        at = choose(self.native.get(name, {}), pick)
        if at is None:
            return
        self.handle(pick).thread(name).put_writes(at, copy.deepcopy(write), task=task)
        kept = self.kept.setdefault((name, at), {})
        for idx, (channel, value) in enumerate(write.items()):
            kept.setdefault((task, idx), (channel, value))

    @rule(name=st.sampled_from(NATIVE_THREADS), pick=picks)
    def delete_checkpoint(self, name: str, pick: int) -> None:
        at = choose(self.native.get(name, {}), pick)
        if at is None:
            return
        self.handle(pick).thread(name).delete(at)
        del self.native[name][at]
        self.tags[name] = {tag: id_ for tag, id_ in self.tags.get(name, {}).items() if id_ != at}
        self.kept.pop((name, at), None)
        with pytest.raises(deltastore.NotFoundError):
            self.handle(pick + 1).thread(name).state(at=at)

    @rule(name=st.sampled_from(NATIVE_THREADS), tag=st.sampled_from(["v1", "é\0"]), pick=picks, away=st.booleans())
    def tag(self, name: str, tag: str, pick: int, away: bool) -> None:
        at = choose(self.native.get(name, {}), pick)
        thread = self.handle(pick).thread(name)
        if away:
            assert thread.untag(tag) == (self.tags.get(name, {}).pop(tag, None) is not None)
        elif at is not None:
            assert thread.tag(tag, at) == at
            self.tags.setdefault(name, {})[tag] = at

    # --- threads

    @rule(name=st.sampled_from(NATIVE_THREADS), pick=picks)
    def delete_thread(self, name: str, pick: int) -> None:
        self.handle(pick).delete(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.native.pop(name, None)
        self.parents.pop(name, None)
        self.tags.pop(name, None)
        for kept in [key for key in self.kept if key[0] == name]:
            del self.kept[kept]

    @rule(pick=picks)
    def copy_thread(self, pick: int) -> None:
        names = NATIVE_THREADS
        source, target = names[pick % len(names)], names[(pick + 1) % len(names)]
        there = [name for name in (source, target) if name in self.native]
        if source in there and target in there:
            with pytest.raises(deltastore.ThreadExistsError):
                self.handle(pick).copy(source, target)
        elif source in there:
            self.handle(pick).copy(source, target)
            self.native[target] = copy.deepcopy(self.native[source])
            self.parents[target] = dict(self.parents[source])
            self.tags[target] = dict(self.tags.get(source, {}))
            for (name, id_), kept in list(self.kept.items()):
                if name == source:
                    self.kept[target, id_] = dict(kept)

    # --- what must hold

    @rule(pick=picks)
    @precondition(lambda self: any(self.native.values()))
    def read_one(self, pick: int) -> None:
        name = sorted(name for name, known in self.native.items() if known)[
            pick % len([k for k in self.native.values() if k])
        ]
        at = choose(self.native[name], pick)
        assert shown(self.handle(pick).thread(name).state(at=at)) == shown(self.native[name][at or ""])

    def counts(self) -> dict[str, int]:
        return {name: len(known) for name, known in self.native.items() if known}

    def compare(self, handle: Store) -> None:
        for name, known in self.native.items():
            thread = handle.thread(name)
            history = list(thread.history())
            assert [entry.id for entry in history] == sorted(known, reverse=True)
            assert thread.tags() == self.tags.get(name, {})
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


@pytest.mark.parametrize("machine", [NativeMachine, GraphMachine])
@pytest.mark.parametrize(("kind", "share"), [("memory", 0.5), ("lmdb", 0.5), ("postgres", 0.1)])
def test_any_mix_of_operations_reads_as_full_states_would(
    machine: type[StoreMachine],
    kind: str,
    share: float,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(machine, kind, request, monkeypatch, share=share)
