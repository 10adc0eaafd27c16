"""The machine of LangGraph threads: puts and writes as graphs make them, deletions, copies and tags.

Threads of `DELTA_THREADS` have DeltaChannels, folded by LangGraph's own channel class, and follow LangGraph's rule that
a checkpoint whose writes another child took states these channels in full.
"""

import copy
import operator
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, reduce
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP, empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph

from deltastore import CheckpointNotFoundError, Store, ThreadExistsError
from deltastore.langgraph import DeltaSaver
from tests.store_machine import StoreMachine
from tests.vocabulary import choose, dicts, lists, picks, shown, values

GRAPH_THREADS = ("g", "h")
DELTA_THREADS = ("d", "e")
ALL_THREADS = GRAPH_THREADS + DELTA_THREADS
CALL = "sub:1"
SPACES = ("", CALL, "kept")
TASKS = ("t1", "t2")
TAGS = ("before-deploy", "é\0")
SNAPSHOT_EVERY = 7


def appended(value: list[Any], writes: Any) -> list[Any]:
    return reduce(operator.add, writes, value)


def merged(value: dict[str, Any], writes: Any) -> dict[str, Any]:
    return reduce(operator.or_, writes, value)


DELTA: dict[str, Any] = {"steps": DeltaChannel(appended, list), "notes": DeltaChannel(merged, dict)}


class DeltaState(TypedDict):
    """What the threads of this file hold."""

    steps: Annotated[list[Any], DeltaChannel(appended)]
    notes: Annotated[dict[str, Any], DeltaChannel(merged)]
    messages: Any
    plan: Any
    n: Any


@cache
def delta_graph() -> Any:
    """Return a graph with these channels, and the same in a sub-graph."""
    inner = StateGraph(DeltaState)
    inner.add_node("work", lambda _: {})
    inner.add_edge(START, "work")
    outer = StateGraph(DeltaState)
    for name in ("sub", "kept"):
        outer.add_node(name, inner.compile())
        outer.add_edge(START, name)
    return outer.compile()


def config_of(name: str, space: str, id_: str | None = None) -> Any:
    named = {"thread_id": name, "checkpoint_ns": space}
    return {"configurable": named | ({} if id_ is None else {"checkpoint_id": id_})}


Key = tuple[str, str]
"""A thread and a namespace."""


class GraphMachine(StoreMachine):
    """LangGraph threads, and the dicts that say what must be read."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: dict[Key, dict[str, dict[str, Any]]] = {}
        self.graph_writes: dict[tuple[str, str, str], dict[tuple[str, int], tuple[str, Any, str]]] = {}
        self.deleted: dict[Key, dict[str, dict[str, Any]]] = {}
        self.tags: dict[Key, dict[str, str]] = {}
        self.serial = 0

    def _saver(self, pick: int) -> DeltaSaver:
        return self.saver_of(self.handle(pick))

    def saver_of(self, handle: Store) -> DeltaSaver:
        return DeltaSaver(handle)

    # --- puts

    @rule(
        name=st.sampled_from(GRAPH_THREADS),
        space=st.sampled_from(SPACES),
        pick=picks,
        new=st.dictionaries(st.sampled_from(["messages", "plan", "n"]), lists | dicts | values, max_size=3),
        absent=st.sets(st.sampled_from(["messages", "plan", "n"]), max_size=1),
        parent=st.sampled_from(["latest", "latest", "latest", "any", "missing", "none", "deleted"]),
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
        deleted = self.deleted.get((name, space), {})
        parent_id = {
            "latest": max(known, default=None),
            "any": choose(known, pick),
            "missing": "0-never-put",
            "none": None,
            "deleted": choose(deleted, pick),
        }[parent]
        before = known.get(parent_id or "", {"versions": {}, "values": {}})
        self.serial += 1
        id_ = f"{self.serial:08}"
        if again == 0 and known:
            id_ = choose(known, pick) or id_
        elif again == 1 and parent == "deleted" and deleted:
            id_ = choose(deleted, pick + 1) or id_
        versions, values_ = dict(before["versions"]), dict(before["values"])
        for channel in (*new, *absent):
            versions[channel] = f"{self.serial:04}.{channel}"
            values_.pop(channel, None)
        values_ |= {channel: value for channel, value in new.items() if channel not in absent}
        self._put(name, space, pick, id_, parent_id, versions, values_, before["versions"])

    def _put(
        self,
        name: str,
        space: str,
        pick: int,
        id_: str,
        parent_id: str | None,
        versions: dict[str, str],
        values_: dict[str, Any],
        seen: dict[str, str],
    ) -> dict[str, Any]:
        known = self.graph.setdefault((name, space), {})
        checkpoint = empty_checkpoint() | {
            "id": id_,
            "ts": str(self.serial),
            "channel_values": copy.deepcopy(values_),
            "channel_versions": dict(versions),
            "versions_seen": {"node": dict(seen)},
        }
        roots = self.graph.get((name, ""), {})
        root = ("9-to-come" if pick % 7 == 0 else choose(roots, pick)) if space else None
        metadata: Any = {
            "step": self.serial,
            "run_id": f"run-{self.serial // 4}",
            "parents": {} if root is None else {"": root},
        }
        self._saver(pick).put(config_of(name, space, parent_id), checkpoint, metadata, {})
        known[id_] = {
            "versions": versions,
            "values": values_,
            "parent": parent_id,
            "step": self.serial,
            "run": metadata["run_id"],
            "root": root,
            "delta": {},
            "lost": set(),
        }
        self.deleted.get((name, space), {}).pop(id_, None)
        return known[id_]

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
        id_ = f"{self.serial + 1:08}" if ahead or not known else str(choose(known, pick))
        self._write(name, space, pick, id_, task, f"path-{task}", write)

    def _write(
        self, name: str, space: str, pick: int, id_: str, task: str, path: str, write: list[tuple[str, Any]]
    ) -> None:
        self._saver(pick).put_writes(config_of(name, space, id_), copy.deepcopy(write), task, path)
        if not write and not self._exists(name):
            return  # no write, no thread
        kept = self.graph_writes.setdefault((name, space, id_), {})
        for place, (channel, value) in enumerate(write):
            idx = WRITES_IDX_MAP.get(channel, place)
            if idx < 0 or (task, idx) not in kept:
                kept[task, idx] = (channel, value, path)

    # --- delta channels

    @rule(
        name=st.sampled_from(DELTA_THREADS),
        space=st.sampled_from(SPACES),
        pick=picks,
        steps=st.lists(st.lists(values, max_size=2), max_size=2),
        notes=st.lists(st.dictionaries(st.sampled_from(["k", "l"]), values, max_size=2), max_size=2),
        new=st.dictionaries(st.sampled_from(["messages", "n"]), lists | values, max_size=1),
        parent=st.sampled_from(["latest"] * 6 + ["any", "none", "deleted"]),
        count=st.sampled_from([1, 1, 1, 9]),
    )
    def delta_step(
        self,
        name: str,
        space: str,
        pick: int,
        steps: list[Any],
        notes: list[Any],
        new: dict[str, Any],
        parent: str,
        count: int,
    ) -> None:
        for turn in range(count):
            writes = {"steps": steps if turn % 2 == 0 else [], "notes": notes}
            self._delta_step(name, space, pick, writes, new, "latest" if turn else parent)

    @rule(
        name=st.sampled_from(DELTA_THREADS),
        space=st.sampled_from(SPACES),
        pick=picks,
        count=st.integers(4, 16),
        value=values,
        then=st.sampled_from(["prune", "erase", "runs", "one", "nothing"]),
    )
    def delta_run(self, name: str, space: str, pick: int, count: int, value: Any, then: str) -> None:
        """As an agent does: several steps, and then somebody tidies up."""
        for turn in range(count):
            writes: dict[str, list[Any]] = {"steps": [[turn, value]], "notes": [{str(turn): turn}] * (turn % 2)}
            self._delta_step(name, space, pick, writes, {}, "latest")
        if then in ("prune", "erase"):
            self.prune(name=name, pick=pick, erase=then == "erase")
        elif then == "runs":
            self.delete_for_runs(pick=pick, chosen={0, pick % 3})
        elif then == "one":
            self.delete_graph_checkpoint(name=name, space=space, pick=pick)
        self.compare(self.handle(pick))

    def _delta_step(
        self, name: str, space: str, pick: int, writes: dict[str, list[Any]], new: dict[str, Any], parent: str
    ) -> None:
        known = self.graph.setdefault((name, space), {})
        deleted = self.deleted.get((name, space), {})
        chosen = {"latest": max(known, default=None), "any": choose(known, pick), "none": None}
        parent_id = choose(deleted, pick) if parent == "deleted" else chosen[parent]
        stored = parent_id in known
        held: dict[str, Any] = known.get(parent_id or "") or deleted.get(parent_id or "") or {}
        before = dict(held.get("delta", {}))
        versions, values_ = dict(held.get("versions", {})), dict(held.get("values", {})) if stored else {}
        lost: set[str] = set(held.get("lost", ())) if stored else set(DELTA) & versions.keys()
        self.serial += 1
        for channel, value in new.items():
            versions[channel] = f"{self.serial:04}.{channel}"
            values_[channel] = value
        taken = {channel for _, (channel, _, _) in self.graph_writes.get((name, space, parent_id or ""), {}).items()}
        # writes on a checkpoint that has children would be theirs too: a graph puts a fork in between, in full
        ever = (*known.values(), *deleted.values())  # those of a child that was deleted may be its children's history
        superseded = stored and any(entry["parent"] == parent_id for entry in ever)
        after = dict(before)
        for channel, spec in DELTA.items():
            if not writes[channel] and channel not in taken:
                continue
            if writes[channel]:
                folding = spec.from_checkpoint(copy.deepcopy(before.get(channel)))
                folding.update(copy.deepcopy(writes[channel]))
                after[channel] = folding.get()
            versions[channel] = f"{self.serial:04}.{channel}"
            values_.pop(channel, None)
            # a parent whose writes another child took up can't tell whose they are: the channel is stated in full
            forced = superseded or channel in taken if stored else parent_id is None
            if forced or self.serial % SNAPSHOT_EVERY == 0:
                values_[channel] = _DeltaSnapshot(after.setdefault(channel, spec.typ()))
                lost.discard(channel)
            elif stored:
                for place, value in enumerate(writes[channel]):
                    task = f"{self.serial}-{channel}-{place}"
                    self._write(name, space, pick, str(parent_id), task, f"path-{place}", [(channel, value)])
            else:
                lost.add(channel)
        entry = self._put(name, space, pick, f"{self.serial:08}", parent_id, versions, values_, {})
        entry["delta"], entry["lost"] = after, lost

    def _rebuilt(self, saver: DeltaSaver, name: str, space: str, found: Any, channel: str) -> Any:
        """Return a delta channel's value as a graph rebuilds it."""
        spec = DELTA[channel]
        if channel in found.checkpoint["channel_values"]:
            return spec.from_checkpoint(found.checkpoint["channel_values"][channel]).get()
        history = saver.get_delta_channel_history(config=found.config, channels=[channel])[channel]
        folding = spec.from_checkpoint(history.get("seed"))
        folding.replay_writes(history["writes"])
        return folding.get()

    # --- deletions

    @rule(name=st.sampled_from(ALL_THREADS), pick=picks, erase=st.booleans())
    def prune(self, name: str, pick: int, erase: bool) -> None:
        saver = self._saver(pick)
        kept = {
            space: {max(known, default=""), *self.tags.get((name, space), {}).values()}
            for (thread, space), known in self.graph.items()
            if thread == name
        }
        roots = self.graph.get((name, ""), {})
        call = self.graph.get((name, CALL), {})
        root = call[max(call)]["root"] if call else None
        old = root is not None and root < max(roots, default="") and root not in kept[""]
        dropped = {CALL} if old and not self.tags.get((name, CALL)) else set()
        doomed = {space: self.graph[name, space].keys() - ids for space, ids in kept.items() if space not in dropped}
        # erasing keeps no history but that of delta channels, which is compared as their values
        with nullcontext() if erase else self._same_histories(saver, name, doomed, dropped):
            try:
                saver.prune([name, "never-put"], erase=erase, graph=delta_graph() if erase else None)
            except CheckpointNotFoundError:
                assert erase
                assert any(entry["lost"] for space in kept for entry in self.graph[name, space].values())
                return
            self._gone(name, doomed, dropped)

    @rule(pick=picks, chosen=st.sets(st.integers(0, 3), max_size=2))
    def delete_for_runs(self, pick: int, chosen: set[int]) -> None:
        runs = {f"run-{self.serial // 4 - number * 3}" for number in chosen}
        gone: dict[str, tuple[dict[str, set[str]], set[str]]] = {}
        for name in ALL_THREADS:
            doomed = {
                space: {id_ for id_, entry in known.items() if entry["run"] in runs}
                for (thread, space), known in self.graph.items()
                if thread == name
            }
            gone[name] = doomed, self._calls_of(name, doomed)
        saver = self._saver(pick)
        with ExitStack() as stack:
            for name, (doomed, dropped) in gone.items():
                stack.enter_context(self._same_histories(saver, name, doomed, dropped))
            saver.delete_for_runs(sorted(runs))
            for name, (doomed, dropped) in gone.items():
                self._gone(name, doomed, dropped)

    @rule(name=st.sampled_from(ALL_THREADS), space=st.sampled_from(SPACES), pick=picks)
    def delete_graph_checkpoint(self, name: str, space: str, pick: int) -> None:
        id_ = choose(self.graph.get((name, space), {}), pick)
        if id_ is not None:
            doomed = {space: {id_}}
            dropped = self._calls_of(name, doomed)
            with self._same_histories(self._saver(pick), name, doomed, dropped):
                self.handle(pick).thread(name, namespace=space).delete(id_)
                self._gone(name, doomed, dropped)

    def _calls_of(self, name: str, doomed: dict[str, set[str]]) -> set[str]:
        call = self.graph.get((name, CALL), {})
        return {CALL} if call and call[max(call)]["root"] in doomed.get("", ()) else set()

    def _gone(self, name: str, doomed: dict[str, Any], dropped: set[str]) -> None:
        for space in dropped:
            doomed = doomed | {space: set(self.graph[name, space])}
        for space, ids in doomed.items():
            for id_ in ids:
                self.deleted.setdefault((name, space), {})[id_] = self.graph[name, space].pop(id_)
                self.graph_writes.pop((name, space, id_), None)
            tags = self.tags.get((name, space), {})
            for tag in [tag for tag, id_ in tags.items() if id_ in ids]:
                del tags[tag]
        for space in dropped:
            for key in [key for key in self.graph_writes if key[:2] == (name, space)]:
                del self.graph_writes[key]

    @contextmanager
    def _same_histories(
        self, saver: DeltaSaver, name: str, doomed: dict[str, Any], dropped: set[str]
    ) -> Iterator[None]:
        """Compare, before and after, what the checkpoints that stay can be asked for."""
        before = dict(self._histories(saver, name, doomed, dropped))
        yield
        assert dict(self._histories(saver, name, doomed, dropped)) == before

    def _histories(
        self, saver: DeltaSaver, name: str, doomed: dict[str, Any], dropped: set[str]
    ) -> Iterator[tuple[Any, str]]:
        for (thread, space), known in self.graph.items():
            if thread != name or space in dropped:
                continue
            for id_ in known.keys() - set(doomed.get(space, ())):
                channels = [c for c in known[id_]["versions"] if c not in known[id_]["values"] and c not in DELTA]
                try:
                    found = saver.get_delta_channel_history(config=config_of(name, space, id_), channels=channels)
                except CheckpointNotFoundError:  # a parent that was never put can't be told from one that was deleted
                    yield (space, id_), "lost"
                else:
                    yield (space, id_), shown(found)

    # --- copies, tags

    @rule(pick=picks, delta=st.booleans())
    def copy_graph_thread(self, pick: int, delta: bool) -> None:
        names = DELTA_THREADS if delta else GRAPH_THREADS
        source, target = names[pick % 2], names[(pick + 1) % 2]
        saver = self._saver(pick)
        if self._exists(source) and self._exists(target):
            with pytest.raises(ThreadExistsError):
                saver.copy_thread(source, target)
            return
        saver.copy_thread(source, target)
        if self._exists(source):
            self._copy(source, target)

    @rule(name=st.sampled_from(ALL_THREADS), pick=picks, native=st.booleans())
    def delete_thread(self, name: str, pick: int, native: bool) -> None:
        if native:
            self.handle(pick).delete(name)
        else:
            self._saver(pick).prune([name], strategy="delete")
        for model in (self.graph, self.deleted, self.tags):
            for key in [key for key in model if key[0] == name]:
                del model[key]
        for writes in [key for key in self.graph_writes if key[0] == name]:
            del self.graph_writes[writes]

    def _copy(self, source: str, target: str) -> None:
        for model in (self.graph, self.deleted, self.tags):
            for name, space in list(model):
                if name == source:
                    model[target, space] = copy.deepcopy(model[source, space])  # type: ignore[index]
        for (name, space, id_), kept in list(self.graph_writes.items()):
            if name == source:
                self.graph_writes[target, space, id_] = dict(kept)

    def _exists(self, name: str) -> bool:
        return any(key[0] == name for key in (*self.graph, *self.graph_writes))

    @rule(name=st.sampled_from(ALL_THREADS), space=st.sampled_from(SPACES), tag=st.sampled_from(TAGS), pick=picks)
    @precondition(lambda self: any(self.graph.values()))
    def tag(self, name: str, space: str, tag: str, pick: int) -> None:
        id_ = choose(self.graph.get((name, space), {}), pick)
        if id_ is None:
            return
        named = None if pick % 3 == 0 else id_
        wanted = max(self.graph[name, space]) if named is None else id_
        assert self._saver(pick).tag(config_of(name, space, named), tag) == config_of(name, space, wanted)
        self.tags.setdefault((name, space), {})[tag] = wanted

    @rule(name=st.sampled_from(ALL_THREADS), space=st.sampled_from(SPACES), tag=st.sampled_from(TAGS), pick=picks)
    def untag(self, name: str, space: str, tag: str, pick: int) -> None:
        there = self.tags.get((name, space), {}).pop(tag, None)
        assert self._saver(pick).untag(config_of(name, space), tag) == (there is not None)

    # --- what must hold

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (name, _), known in self.graph.items():
            if known:
                found[name] = found.get(name, 0) + len(known)
        return found

    def compare(self, handle: Store) -> None:
        saver = self.saver_of(handle)
        for (name, space), known in self.graph.items():
            config = config_of(name, space)
            listed = list(saver.list(config))
            assert [found.checkpoint["id"] for found in listed] == sorted(known, reverse=True)
            assert saver.tags(config) == {
                tag: config_of(name, space, id_) for tag, id_ in self.tags.get((name, space), {}).items()
            }
            for found in listed:
                self._compare_checkpoint(saver, name, space, known[found.checkpoint["id"]], found)

    def _compare_checkpoint(
        self, saver: DeltaSaver, name: str, space: str, expected: dict[str, Any], found: Any
    ) -> None:
        assert found.checkpoint["channel_versions"] == expected["versions"]
        in_order = {c: expected["values"][c] for c in expected["versions"] if c in expected["values"]}
        read = dict(found.checkpoint["channel_values"])
        for channel in DELTA:  # erasing states them in full: that is compared as what a graph rebuilds
            in_order.pop(channel, None)
            read.pop(channel, None)
        assert shown(read) == shown(in_order)
        for channel, value in expected["delta"].items():
            if channel in expected["lost"] and channel not in found.checkpoint["channel_values"]:
                with pytest.raises(CheckpointNotFoundError):
                    self._rebuilt(saver, name, space, found, channel)
            else:
                assert shown(self._rebuilt(saver, name, space, found, channel)) == shown(value)
        assert found.metadata["step"] == expected["step"]
        parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        assert parent == expected["parent"]
        kept = self.graph_writes.get((name, space, found.checkpoint["id"]), {})
        ordered = sorted(kept.items(), key=lambda item: (item[1][2], *item[0]))
        wanted = [(task, channel, value) for (task, _), (channel, value, _) in ordered]
        assert shown(found.pending_writes) == shown(wanted)
