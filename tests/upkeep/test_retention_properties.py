"""Retention against a simple model of its rules, over random histories: both APIs, several rounds, any rules.

The model remembers the whole tree, also what is gone, and knows nothing of how the store finds its way.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore import Reducer, Retention, Store, apply_retention, check, plan_retention
from deltastore.langgraph import DeltaSaver
from deltastore.log import policy
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.retention import Reason
from tests.langgraph.comparing import checkpoint, config

START = 1_700_000_000.0
ALWAYS = {Reason.LATEST, Reason.TAGGED, Reason.PENDING_WRITES}
CALLS = ("sub:1", "sub:2")
SPACES = ("", "kept", *CALLS)


@dataclass
class Node:
    """A checkpoint as the model knows it, for ever."""

    id: str
    parent: str | None
    time: float
    state: Any
    root: str | None = None
    waits: bool = False
    alive: bool = True


@dataclass
class Space:
    """A namespace of the model."""

    nodes: dict[str, Node] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    strays: dict[str, float] = field(default_factory=dict)

    @property
    def alive(self) -> dict[str, Node]:
        return {id_: node for id_, node in self.nodes.items() if node.alive}

    def path(self, id_: str) -> Iterator[str]:
        """From a checkpoint up to its root, over what is gone too."""
        at: str | None = id_
        while at is not None:
            yield at
            at = self.nodes[at].parent


def period(rules: Retention, time: float) -> dict[str, Any]:
    when = datetime.fromtimestamp(time, UTC)
    return {
        "keep_hourly": (when.date(), when.hour),
        "keep_daily": when.date(),
        "keep_weekly": when.isocalendar()[:2],
    }


def kept_by_rules(alive: dict[str, Node], living: set[str], rules: Retention, now: float) -> dict[str, Reason]:
    down = sorted(living, reverse=True)
    reasons: dict[str, Reason] = {}
    for id_ in down[: rules.keep_last]:
        reasons.setdefault(id_, Reason.KEEP_LAST)
    for id_ in down if rules.keep_within else ():
        if now - alive[id_].time <= rules.keep_within.total_seconds():
            reasons.setdefault(id_, Reason.KEEP_WITHIN)
    for name in ("keep_hourly", "keep_daily", "keep_weekly"):
        ids = {period(rules, alive[id_].time)[name]: id_ for id_ in sorted(living)}
        for _, id_ in sorted(ids.items(), reverse=True)[: getattr(rules, name)]:
            reasons.setdefault(id_, Reason(name))
    return reasons


def expected(space: Space, rules: Retention, now: float) -> dict[str, tuple[bool, Reason]]:
    """What becomes of each checkpoint of a namespace that is no call, and why."""
    alive = space.alive
    if not alive:
        return {}
    above = {ancestor for id_ in alive for ancestor in itertools.islice(space.path(id_), 1, None)}
    ends = [id_ for id_ in alive if id_ not in above]
    latest = max(alive)
    forks = rules.keep_forks
    heads = [
        id_
        for id_ in ends
        if id_ == latest
        or forks == "all"
        or (isinstance(forks, timedelta) and now - alive[id_].time <= forks.total_seconds())
    ]
    living = {ancestor for head in heads for ancestor in space.path(head)} & alive.keys()
    reasons = kept_by_rules(alive, living, rules, now)
    any_rule = rules.keep_last or rules.keep_within or rules.keep_hourly or rules.keep_daily or rules.keep_weekly
    out: dict[str, tuple[bool, Reason]] = {}
    for id_, node in alive.items():
        if id_ == latest:
            out[id_] = True, Reason.LATEST
        elif id_ in space.tags.values():
            out[id_] = True, Reason.TAGGED
        elif id_ not in living:
            out[id_] = False, Reason.DROPPED_BRANCH
        elif id_ in ends:
            out[id_] = True, Reason.PENDING_WRITES if node.waits else Reason.FORK_HEAD
        elif not any_rule:
            out[id_] = True, Reason.NO_RULE
        else:
            out[id_] = (True, reasons[id_]) if id_ in reasons else (False, Reason.EXPIRED)
    return out


class World:
    """A store with one thread, and the model of it."""

    def __init__(self, front: str, frequency: int) -> None:
        self.now = START
        self.front = front
        self.store = Store(
            MemoryStorage(),
            snapshot_frequency=frequency,
            reducers=[Reducer("longest", 1, lambda value, write: max(value, write, key=len), str)],
            channels={"own": "longest"} if front == "native" else None,
        )
        self.store.log._clock = lambda: self.now
        self.saver = DeltaSaver(self.store)
        self.spaces: dict[str, Space] = {name: Space() for name in SPACES}
        self.serial = 0

    def put(self, name: str, pick: int, branch: bool) -> None:
        space = self.spaces[name]
        alive = sorted(space.alive)
        parent = (alive[pick % len(alive)] if branch else alive[-1]) if alive else None
        before = space.nodes[parent].state if parent else {"m": [], "d": {}}
        self.serial += 1
        state = {"m": [*before["m"], f"message {self.serial} " * 3], "d": before["d"] | {str(pick % 5): self.serial}}
        if self.front == "native":
            thread = self.store.thread("t", namespace=name)
            writes: dict[str, Any] = {"m": [state["m"][-1]], "d": {str(pick % 5): self.serial}}
            if pick % 3 == 0:
                writes["own"] = "x" * (pick % 17)
                state["own"] = max([before.get("own", ""), writes["own"]], key=len)
            elif "own" in before:
                state["own"] = before["own"]
            id_ = thread.append(writes, at=parent).id
            root = None
        else:
            id_ = f"{self.serial:06}"
            roots = sorted(self.spaces[""].alive)
            root = roots[pick % len(roots)] if name in CALLS and roots else None
            if name in CALLS and space.alive:  # a call is of one root checkpoint
                root = space.alive[max(space.alive)].root
            parents = {} if root is None else {"": root}
            versions = {"m": f"{self.serial:06}", "d": f"{self.serial:06}"}
            self.saver.put(
                config("t", parent, name),
                checkpoint(id_, versions, state),
                {"step": self.serial, "parents": parents},
                versions,
            )
        space.nodes[id_] = Node(id_, parent, self.now, state, root, waits=id_ in space.strays)
        space.strays.pop(id_, None)

    def write(self, name: str, pick: int, stray: bool) -> None:
        space = self.spaces[name]
        if stray and self.front == "langgraph":
            id_ = f"{self.serial + 1 + pick % 3:06}" if pick % 2 else f"never-{pick}"
            if id_ in space.nodes:
                return
            if id_ in space.strays:
                return  # one write each; a task's write that is put again is the first one still
            self.saver.put_writes(config("t", id_, name), [("m", "stray")], f"task-{pick}")
            space.strays[id_] = self.now
            return
        alive = sorted(space.alive)
        if not alive:
            return
        id_ = alive[pick % len(alive)]
        if self.front == "native":
            self.store.thread("t", namespace=name).put_writes(id_, [("m", "pending")], task=f"task-{pick}")
        else:
            self.saver.put_writes(config("t", id_, name), [("m", "pending")], f"task-{pick}")
        space.nodes[id_].waits = True

    def tag(self, name: str, pick: int) -> None:
        alive = sorted(self.spaces[name].alive)
        if alive:
            id_ = alive[pick % len(alive)]
            self.store.thread("t", namespace=name).tag(f"tag-{pick % 2}", id_)
            self.spaces[name].tags[f"tag-{pick % 2}"] = id_

    def expect(self, rules: Retention) -> tuple[dict[tuple[str, str], tuple[bool, Reason]], set[tuple[str, str]]]:
        """What becomes of all checkpoints, and which ids' writes go as stray."""
        out: dict[tuple[str, str], tuple[bool, Reason]] = {}
        roots = expected(self.spaces[""], rules, self.now)
        dropped = set()
        for name, space in self.spaces.items():
            alive = space.alive
            root = alive[max(alive)].root if alive else None
            if name in CALLS and self.front == "langgraph" and root in roots:
                stays = roots[str(root)][0]
                tagged = set(space.tags.values())
                if not stays and not tagged:
                    dropped.add(name)
                for id_ in alive:
                    if stays or id_ in tagged or (tagged and id_ == max(alive)):
                        reason = Reason.WITH_ROOT if stays else Reason.LATEST if id_ == max(alive) else Reason.TAGGED
                        out[name, id_] = True, reason
                    else:
                        out[name, id_] = False, Reason.WITH_ROOT
            else:
                out |= {(name, id_): verdict for id_, verdict in expected(space, rules, self.now).items()}
        age = rules.stray_age.total_seconds()
        strays = {
            (name, id_)
            for name, space in self.spaces.items()
            for id_, time in space.strays.items()
            if age and self.now - time > age and name not in dropped
        }
        for name in dropped:
            self.spaces[name].strays.clear()
        return out, strays

    def read(self) -> dict[tuple[str, str], Any]:
        if self.front == "native":
            return {
                (name, found.id): (
                    self.store.thread("t", namespace=name).state(at=found),
                    found.parent_id,
                    found.created_at,
                )
                for name in SPACES
                for found in self.store.thread("t", namespace=name).history()
            }
        return {
            (found.config["configurable"]["checkpoint_ns"], found.config["configurable"]["checkpoint_id"]): (
                found.checkpoint,
                found.metadata,
                found.parent_config,
                found.pending_writes,
            )
            for found in self.saver.list(config("t"))
        } | {
            (name, found.config["configurable"]["checkpoint_id"]): (
                found.checkpoint,
                found.metadata,
                found.parent_config,
                found.pending_writes,
            )
            for name in SPACES
            for found in self.saver.list(config("t", ns=name))
        }


ages = st.sampled_from([timedelta(minutes=1), timedelta(hours=3), timedelta(days=2), timedelta(days=20)])
rules_of = st.builds(
    Retention,
    keep_last=st.sampled_from([0, 0, 1, 2, 5]),
    keep_within=st.none() | ages,
    keep_hourly=st.sampled_from([0, 0, 1, 3]),
    keep_daily=st.sampled_from([0, 0, 1, 3]),
    keep_weekly=st.sampled_from([0, 0, 1, 2]),
    keep_forks=st.sampled_from(["all", "latest"]) | ages,
    stray_writes=st.none() | ages,
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 8 + ["branch", "branch", "write", "stray", "tag"]),
        st.sampled_from(["", "", "", *SPACES]),
        st.integers(0, 1000),
        st.sampled_from([0, 1, 600, 4_000, 90_000, 700_000]),
        st.sampled_from([1, 1, 1, 12]),
    ),
    max_size=25,
)


def play(world: World, history: list[Any]) -> None:
    for kind, name, pick, wait, count in history:
        world.now += wait
        for _ in range(count if kind == "put" else 1):
            if kind in ("put", "branch"):
                world.put(name, pick, kind == "branch")
            elif kind == "tag":
                world.tag(name, pick)
            else:
                world.write(name, pick, kind == "stray")


def told(plan: Any, world: World) -> dict[tuple[str, str], tuple[bool, Reason]]:
    """What a thread's plan says of each checkpoint."""
    out = {(one.namespace, one.id): (one.stays, one.reason) for one in plan.checkpoints}
    for call in plan.calls:
        alive = world.spaces[call.namespace].alive
        assert call.checkpoints == len(alive)
        out |= {(call.namespace, id_): (call.stays, call.reason) for id_ in alive}
    return out


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MIN_LOOSE_ROWS", 4)
    monkeypatch.setattr(policy, "MAX_PACK_RECORDS", 8)


@pytest.mark.parametrize("front", ["native", "langgraph"])
@given(frequency=st.integers(1, 6), rounds=st.lists(st.tuples(steps, rules_of), min_size=1, max_size=3))
def test_what_the_rules_say_stays_and_reads_as_before(front: str, frequency: int, rounds: list[Any]) -> None:
    world = World(front, frequency)
    for history, rules in rounds:
        play(world, history)
        before = world.read()
        exists = any(space.nodes or space.strays for space in world.spaces.values())
        wanted, strays = world.expect(rules)
        plan = plan_retention(world.store, rules)
        assert len(plan.threads) == (exists and not rules.is_off)
        if plan.threads:
            (of_thread,) = plan.threads
            if rules.looks_at_checkpoints:
                assert told(of_thread, world) == wanted
            assert of_thread.stray_writes == len(strays)
        going = {key for key, (stays, _) in wanted.items() if not stays}
        assert plan.going == len(going)
        assert world.read() == before
        report = apply_retention(world.store, rules)
        assert (report.checkpoints, report.stray_writes) == (plan.going, plan.stray_writes)
        assert sum(report.by_reason.values()) == report.checkpoints
        for name, id_ in going:
            world.spaces[name].nodes[id_].alive = False
        for name, id_ in strays:
            del world.spaces[name].strays[id_]
        for space in world.spaces.values():
            space.tags = {tag: id_ for tag, id_ in space.tags.items() if space.nodes[id_].alive}
        assert world.read() == {key: found for key, found in before.items() if key not in going}
        found = check(world.store)
        assert found.ok, found.problems
        assert found.writes_without_checkpoint == sum(len(space.strays) for space in world.spaces.values())
        again = apply_retention(world.store, rules)
        assert (again.changed, again.checkpoints) == (0, 0)


@pytest.mark.parametrize("front", ["native", "langgraph"])
@given(history=steps, rules=rules_of, limit=st.integers(1, 6_000), frequency=st.integers(1, 6))
def test_max_bytes_takes_the_oldest_and_once(
    front: str, history: list[Any], rules: Retention, limit: int, frequency: int
) -> None:
    world = World(front, frequency)
    play(world, history)
    before = world.read()
    rules = Retention.from_fields(rules.to_fields() | {"max_bytes": limit})
    others, _ = world.expect(rules)
    plan = plan_retention(world.store, rules)
    for thread in plan.threads:
        verdicts = told(thread, world)
        # where a call's root goes for its bytes, what stays of the call has another reason, a tag say
        depends = (Reason.OVER_MAX_BYTES, Reason.WITH_ROOT)
        settled = [
            key
            for key, found in verdicts.items()
            if found[1] not in depends and (key not in others or others[key][1] is not Reason.WITH_ROOT)
        ]
        assert {key: verdicts[key] for key in settled} == {key: others.get(key) for key in settled}
        gone = [key for key, found in verdicts.items() if found[1] is Reason.OVER_MAX_BYTES]
        open_ = [
            key
            for key, (stays, reason) in others.items()
            if stays and reason not in ALWAYS and reason is not Reason.WITH_ROOT
        ]
        ranked = sorted(open_, key=lambda key: key[1])  # ids grow with every put, whatever the namespace
        assert sorted(gone, key=lambda key: key[1]) == ranked[: len(gone)]
    report = apply_retention(world.store, rules)
    assert report.checkpoints == plan.going
    after = world.read()
    assert after == {key: before[key] for key in after}
    found = check(world.store)
    assert found.ok, found.problems
    assert apply_retention(world.store, rules).changed == 0
