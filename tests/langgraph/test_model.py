"""DeltaSaver against InMemorySaver: the same lawful calls, drawn by Hypothesis, give the same answers.

Lawful means what the graph runtime keeps to: within a thread and namespace a channel's version decides its value, and
a version that was minted is never minted again. Everything else is drawn: forks, copies under any checkpoint, ids in
any order, missing parents, writes before their checkpoint, several handles with several frequencies and cache sizes.
"""

import shutil
import tempfile
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send

import deltastore
from deltastore import Store
from deltastore.langgraph import DeltaSaver
from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.memory import MemoryStorage
from deltastore.storage.port import Storage
from tests.langgraph.comparing import Pair, checkpoint, config

THREADS = ("t", "other", "third")
NAMESPACES = ("", "sub:1", "a|b:2")
CHANNELS = ("messages", "files", "plan", "step", "__start__", "branch:to:node")
PLACES = [("t", "")] * 5 + [("t", "sub:1")] * 2 + [(thread, ns) for thread in THREADS for ns in NAMESPACES]
"""Where calls go: mostly to one place, so that they meet."""
TASKS = ("task 1", "task 2", "a task")
PATHS = ("", "~__pregel_pull, a", "~__pregel_push, 0001")
WRITE_CHANNELS = (*CHANNELS, "__error__", "__interrupt__", "__resume__", "__scheduled__", "__pregel_tasks")
ABSENT = object()

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    TEXT,
    st.sampled_from([0, 1, 1.0, True, "", -0.0]),
)
LARGE = st.builds(
    lambda place, text: "".join(f"{n * 7919 % 10007} " for n in range(2000))[:place] + text, st.integers(0, 9000), TEXT
)
ODD = st.sampled_from(
    [
        (1, (2, [3])),
        {1, 2},
        frozenset({"a"}),
        b"bytes",
        Decimal("1.50"),
        uuid.UUID(int=1),
        datetime(2026, 1, 2, tzinfo=UTC),
        ValueError("x", 1),
        Send("node", {"a": [1]}),
        Interrupt(value="?", id="i"),
        _DeltaSnapshot([1, HumanMessage("in a snapshot", id="s")]),
    ]
)
MESSAGES = st.one_of(
    st.builds(lambda text, n: HumanMessage(text, id=f"h{n}"), TEXT, st.integers(0, 9)),
    st.builds(
        lambda text, n: AIMessage(
            text,
            id=f"a{n}",
            additional_kwargs={"refusal": None},
            tool_calls=[{"name": "f", "args": {"n": n}, "id": f"c{n}"}] * (n % 3),
            usage_metadata={"input_tokens": n, "output_tokens": 1, "total_tokens": n + 1} if n % 2 else None,
        ),
        TEXT,
        st.integers(0, 9),
    ),
    st.builds(
        lambda text, n: ToolMessage(text, tool_call_id=f"c{n}", status="error" if n % 2 else "success"),
        TEXT,
        st.integers(0, 9),
    ),
)
ITEMS = st.one_of(SCALARS, MESSAGES, ODD, st.lists(SCALARS, max_size=3), st.dictionaries(TEXT, SCALARS, max_size=3))
VALUES = st.one_of(
    ITEMS,
    LARGE,
    st.lists(MESSAGES, max_size=5),
    st.lists(ITEMS, max_size=5),
    st.lists(SCALARS, max_size=40),
    st.dictionaries(st.one_of(TEXT, st.integers(-5, 5)), st.one_of(ITEMS, LARGE), max_size=5),
    st.integers(0, 2500).map(lambda length: list(range(length))),
    st.builds(_DeltaSnapshot, st.one_of(st.lists(MESSAGES, max_size=5), st.dictionaries(TEXT, LARGE, max_size=3))),
)


@st.composite
def evolved(draw: st.DrawFn, old: Any) -> Any:
    """Return a value as a graph would make it of an old one."""
    if draw(st.integers(0, 5)) == 0:
        return draw(VALUES)
    if type(old) is _DeltaSnapshot:
        return _DeltaSnapshot(draw(evolved(old.value)))
    if type(old) is list:
        place, stop = sorted((draw(st.integers(0, len(old))), draw(st.integers(0, len(old)))))
        kind = draw(st.sampled_from(["append", "append", "splice", "cut", "repeat", "same"]))
        if kind == "append":
            return [*old, *draw(st.lists(st.one_of(MESSAGES, ITEMS), min_size=1, max_size=3))]
        if kind == "splice":
            return [*old[:place], *draw(st.lists(ITEMS, max_size=3)), *old[stop:]]
        return {"cut": old[:place] + old[stop:], "repeat": old + old[place:stop], "same": list(old)}[kind]
    if type(old) is dict:
        keys = draw(st.lists(st.sampled_from(list(old)), max_size=2)) if old else []
        return {key: item for key, item in old.items() if key not in keys} | draw(
            st.dictionaries(st.sampled_from([*old, "new", 3]), st.one_of(ITEMS, LARGE), max_size=2)
        )
    if type(old) is str and old:
        place = draw(st.integers(0, len(old)))
        return old[:place] + draw(TEXT) + old[place:]
    return draw(VALUES)


class Known(NamedTuple):
    """A checkpoint of the model: its versions, and when it was put."""

    versions: dict[str, Any]
    order: int


class SaverMachine(RuleBasedStateMachine):
    """One store, two handles, three threads, three namespaces."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="deltastore-model-"))
        self.savers: list[DeltaSaver] = []
        self.pair: Any = None
        self.count = 0
        self.bursts = 0
        self.known: dict[tuple[str, str], dict[str, Known]] = {}
        self.pairs: dict[tuple[str, str], dict[tuple[str, Any], Any]] = {}
        self.sums: dict[tuple[str, str], dict[str, Any]] = {}
        """What the next snapshot of a channel would hold: the last list or dict, and what was written to it since."""
        self.touched: list[dict[str, Any]] = []

    def storage(self) -> Storage:
        raise NotImplementedError

    def open(self, place: int, frequency: int, cache_bytes: int) -> None:
        saver = DeltaSaver(Store(self.storage(), snapshot_frequency=frequency, cache_bytes=cache_bytes))
        self.savers[place : place + 1] = [saver]

    frequencies = st.integers(1, 7)
    caches = st.sampled_from([0, 4000, 64 * 1024 * 1024])
    handles = st.integers(0, 1)

    @initialize(frequency=frequencies, cache_bytes=caches)
    def start(self, frequency: int, cache_bytes: int) -> None:
        self.open(0, frequency, cache_bytes)
        self.open(1, frequency, 64 * 1024 * 1024)
        self.pair = Pair(self.savers[0])

    def use(self, handle: int) -> Pair:
        self.pair.saver = self.savers[handle]
        return self.pair

    # --- puts

    def new_versions(self, data: st.DataObject, where: tuple[str, str], before: dict[str, Any]) -> dict[str, Any]:
        """Return the versions of a next step, and note the values of those that are new."""
        versions = dict(before)
        for name in data.draw(
            st.lists(st.sampled_from(CHANNELS), min_size=1, max_size=3, unique=True), label="channels"
        ):
            fate = data.draw(st.sampled_from([*["value"] * 4, "no value", "no value", "snapshot", "gone"]), label=name)
            pairs = self.pairs[where]
            old = pairs.get((name, versions.get(name)), ABSENT)
            if fate == "gone":
                versions.pop(name, None)
                continue
            self.count += 1
            versions[name] = self.count if where[0] == "third" else f"{self.count:032}.{self.count * 7919 % 10000:016}"
            value = ABSENT
            if fate == "value":
                value = data.draw(VALUES if old is ABSENT else evolved(old), label="value")
            sums = self.sums.setdefault(where, {})
            if fate == "snapshot":
                value = data.draw(evolved(_DeltaSnapshot(sums.get(name, []))), label="snapshot")
            held = value.value if type(value) is _DeltaSnapshot else value
            if type(held) in (list, dict):
                sums[name] = held
            pairs[name, versions[name]] = value
        return versions

    def values_of(
        self, data: st.DataObject, where: tuple[str, str], versions: dict[str, Any], parent: str | None
    ) -> dict[str, Any]:
        """Return channel_values: each that there is, but for inherited ones, where what is given doesn't matter."""
        parent_versions = self.known[where][parent].versions if parent in self.known[where] else {}
        out: dict[str, Any] = {}
        for name, version in versions.items():
            value = self.pairs[where][name, version]
            if name in parent_versions and parent_versions[name] == version:
                value = data.draw(st.sampled_from([value, value, ABSENT, "whatever"]), label=f"inherited {name}")
            if value is not ABSENT:
                out[name] = value
        return out

    def store(
        self,
        data: st.DataObject,
        handle: int,
        where: tuple[str, str],
        parent: str | None,
        id_: str,
        versions: dict[str, Any],
    ) -> None:
        thread, ns = where
        values = self.values_of(data, where, versions, parent)
        step = len(self.known[where])
        metadata = {"source": "loop", "step": step, "parents": {"": "root"} if ns else {}, "kind": step % 3}
        made = checkpoint(id_, versions, values, pending=[step])
        made["versions_seen"] = {"node": dict(list(versions.items())[: step % 4]), "__input__": {}}
        pair = self.use(handle)
        pair.put(config(thread, parent, ns), made, metadata)
        self.count += 1
        self.known[where][id_] = Known(versions, self.count)
        self.touched.append(config(thread, id_, ns))

    def next_id(self) -> str:
        self.count += 1
        return f"{self.count:06}"

    def place(self, thread: str, ns: str) -> tuple[str, str]:
        self.known.setdefault((thread, ns), {})
        self.pairs.setdefault((thread, ns), {})
        return thread, ns

    def tip(self, where: tuple[str, str]) -> str | None:
        return max(self.known[where], key=lambda id_: self.known[where][id_].order, default=None)

    @rule(
        data=st.data(),
        handle=handles,
        place=st.sampled_from(PLACES),
        length=st.sampled_from([1, 1, 1, 2, 3, 6]),
    )
    def put_steps(self, data: st.DataObject, handle: int, place: tuple[str, str], length: int) -> None:
        where = self.place(*place)
        for _ in range(length):
            parent = self.tip(where)
            before = self.known[where][parent].versions if parent else {}
            self.store(data, handle, where, parent, self.next_id(), self.new_versions(data, where, before))

    @precondition(lambda self: self.bursts < 2)
    @rule(handle=handles, thread=st.sampled_from(["t", "t", "other"]), length=st.integers(20, 50))
    def put_many_steps(self, handle: int, thread: str, length: int) -> None:
        """Enough for packs."""
        self.bursts += 1
        where = self.place(thread, "")
        pair = self.use(handle)
        for number in range(length):
            parent = self.tip(where)
            versions = dict(self.known[where][parent].versions) if parent else {}
            self.count += 1
            version = f"{self.count:032}.0"
            old = self.pairs[where].get(("messages", versions.get("messages")), ABSENT)
            value = [
                *(old if type(old) is list else []),
                f"message {self.count} of some length, so that it is a chunk of its own ......",
            ][-40:]
            self.pairs[where]["messages", version] = value
            versions["messages"] = version
            id_ = self.next_id()
            values = {name: self.pairs[where][name, one] for name, one in versions.items()}
            made = checkpoint(id_, versions, {name: one for name, one in values.items() if one is not ABSENT})
            if number % 4 == 0:
                pair.put_writes(config(thread, id_), [("messages", value[-1:])], "task")
            pair.put(config(thread, parent), made, {"step": number})
            self.count += 1
            self.known[where][id_] = Known(versions, self.count)
            self.touched.append(config(thread, id_))

    def some_id(self, data: st.DataObject, where: tuple[str, str]) -> str:
        """Return an id that is stored, as a rule."""
        ids = sorted(self.known[where])
        return data.draw(st.sampled_from([*ids, "nowhere"] if ids else ["nowhere", "future"]), label="id")

    @rule(data=st.data(), handle=handles, place=st.sampled_from(PLACES))
    def put_anywhere(self, data: st.DataObject, handle: int, place: tuple[str, str]) -> None:
        """A fork, a copy under any checkpoint, a missing parent, an id out of order or put again, even under itself."""
        where = self.place(*place)
        source = data.draw(st.sampled_from(sorted(self.known[where])), label="source") if self.known[where] else None
        versions = dict(self.known[where][source].versions) if source else {}
        parent = data.draw(st.one_of(st.none(), st.just(source)), label="parent") or self.some_id(data, where)
        kind = data.draw(st.sampled_from(["step", "step", "copy"]), label="kind")
        if kind == "step":
            versions = self.new_versions(data, where, versions)
        id_ = data.draw(
            st.one_of(
                st.builds(self.next_id), st.sampled_from(["zz", "a", "é", "future"]), st.just(self.some_id(data, where))
            ),
            label="new id",
        )
        self.store(data, handle, where, None if parent == "nowhere" and kind == "copy" else parent, id_, versions)

    # --- writes and deletions

    @rule(
        data=st.data(),
        handle=handles,
        place=st.sampled_from(PLACES),
        calls=st.lists(st.tuples(st.sampled_from(TASKS), st.sampled_from(PATHS)), min_size=1, max_size=4),
    )
    def put_writes(
        self, data: st.DataObject, handle: int, place: tuple[str, str], calls: list[tuple[str, str]]
    ) -> None:
        where = self.place(*place)
        tip = self.tip(where)
        id_ = tip if tip and data.draw(st.booleans()) else self.some_id(data, where)
        head = self.known[where][tip].versions if tip else {}
        at = config(where[0], id_, where[1])
        for task, path in calls:
            writes = []
            for channel in data.draw(st.lists(st.sampled_from(WRITE_CHANNELS), max_size=4), label="writes"):
                old = self.pairs[where].get((channel, head.get(channel)), ABSENT)
                value = data.draw(VALUES if old is ABSENT else evolved(old), label="value")
                writes.append((channel, value))
                sums = self.sums.setdefault(where, {})
                if type(value) in (list, dict) and type(sums.get(channel)) is type(value):
                    sums[channel] = sums[channel] + value if type(value) is list else sums[channel] | value
            self.use(handle).put_writes(at, writes, task, path)
        self.touched.append(at)

    @rule(handle=handles, thread=st.sampled_from(THREADS), rarely=st.sampled_from([False, False, False, True]))
    def delete_thread(self, handle: int, thread: str, rarely: bool) -> None:
        if not rarely:
            return
        self.use(handle).delete_thread(thread)
        for where in list(self.known):
            if where[0] == thread:
                del self.known[where], self.pairs[where]
        self.touched.append(config(thread))

    @rule(place=handles, frequency=frequencies, cache_bytes=caches)
    def reopen(self, place: int, frequency: int, cache_bytes: int) -> None:
        self.close_one(self.savers[place])
        self.open(place, frequency, cache_bytes)
        for (thread, ns), known in self.known.items():
            self.pair.compare(config(thread, ns=ns), self.savers[place])
            for id_ in sorted(known)[:: 1 + len(known) // 4]:
                self.pair.compare(config(thread, id_, ns), self.savers[place])

    def close_one(self, saver: DeltaSaver) -> None:
        saver.store.close()

    # --- answers

    @invariant()
    def what_was_touched_is_equal(self) -> None:
        touched, self.touched = self.touched[-3:], []
        for where in touched:
            thread, ns = where["configurable"]["thread_id"], where["configurable"]["checkpoint_ns"]
            for saver in self.savers:
                self.pair.compare(where, saver)
                self.pair.compare(config(thread, ns=ns), saver)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        handle=handles,
        limit=st.one_of(st.none(), st.integers(0, 40)),
        filter_=st.sampled_from([None, {"kind": 1}, {"step": 3}, {"kind": 0, "source": "loop"}, {"x": 1}]),
    )
    def list_some(self, data: st.DataObject, handle: int, limit: int | None, filter_: dict[str, Any] | None) -> None:
        thread, ns = data.draw(st.sampled_from(sorted(self.known)), label="where")
        before = data.draw(st.one_of(st.none(), st.just(self.some_id(data, (thread, ns)))), label="before")
        query = {"before": config(thread, before) if before else None, "filter": filter_}
        saver = self.savers[handle]
        self.pair.compare_list(config(thread, ns=ns), saver, limit=limit, **query)
        self.pair.compare_list({"configurable": {"thread_id": thread}}, saver, **query)
        self.pair.compare_list(config(thread, self.some_id(data, (thread, ns)), ns), saver, **query)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), handle=handles)
    def walk_history(self, data: st.DataObject, handle: int) -> None:
        """The history that a delta channel is rebuilt from."""
        thread, ns = data.draw(st.sampled_from(sorted(self.known)), label="where")
        where = config(thread, data.draw(st.one_of(st.none(), st.just(self.some_id(data, (thread, ns))))), ns)
        if self.pair.reference.get_tuple(where) is None or self.loops(where):
            return
        self.pair.compare_history(where, CHANNELS, self.savers[handle])

    def loops(self, where: dict[str, Any]) -> bool:
        """Tell whether parents lead in a circle, where neither saver's walk ends."""
        seen: set[str] = set()
        found = self.pair.reference.get_tuple(where)
        while found is not None:
            if found.checkpoint["id"] in seen:
                return True
            seen.add(found.checkpoint["id"])
            found = found.parent_config and self.pair.reference.get_tuple(found.parent_config)
        return False

    def teardown(self) -> None:
        try:
            for saver in self.savers:
                self.close_one(saver)
            if self.pair is not None:
                with Store(self.storage()) as store:
                    saver = DeltaSaver(store)
                    self.pair.compare_list(None, saver)
                    for thread, ns, id_ in self.pair.stored()[::3]:
                        self.pair.compare(config(thread, id_, ns), saver)
                    report = deltastore.check(store)
                    assert report.ok, report.problems
        finally:
            shutil.rmtree(self.directory)


class MemoryMachine(SaverMachine):
    """In memory: a handle that is closed leaves the storage to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStorage()

    def storage(self) -> Storage:
        return self.memory

    def close_one(self, saver: DeltaSaver) -> None:
        pass


class LmdbMachine(SaverMachine):
    """On LMDB, without syncs."""

    def storage(self) -> Storage:
        return LmdbStorage(self.directory / "store.ds", sync="none")


def profile(share: float) -> settings:
    """Return that share of the profile's examples."""
    return settings(max_examples=max(1, int(settings.default.max_examples * share)), stateful_step_count=30)


def test_memory() -> None:
    run_state_machine_as_test(MemoryMachine, settings=profile(0.4))


def test_lmdb() -> None:
    run_state_machine_as_test(LmdbMachine, settings=profile(0.2))
