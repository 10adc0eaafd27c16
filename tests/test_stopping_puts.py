"""kill -9 at every call that a put, a fork, a write, a deletion, a copy or a tag makes, in both APIs.

After each the store is, by its public API and to the byte of each id, what it was before or what it is after: nothing
else. Where it is as before, the same call done again ends as the one that nobody killed; and the next put works (in
the quick profile that is tried only where the rows are neither the ones before nor the ones after).
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import deltastore
from deltastore import Retention, Store, check, ulid
from deltastore.langgraph import DeltaSaver
from deltastore.log import copying, deleting
from tests.langgraph.comparing import config
from tests.langgraph.deleting import put, say
from tests.raw import rows_of
from tests.upkeep.both_fronts import small_packs
from tests.upkeep.many_threads import Told, make, set_clock, told
from tests.upkeep.stopping import STORE, Operation, Stops

LARGE = "".join(f"line {number}\n" for number in range(3000))


def native(work: Callable[[deltastore.Thread], object], name: str = "n", namespace: str = "") -> Operation:
    return lambda store: work(store.thread(name, namespace=namespace))


def through_saver(work: Callable[[DeltaSaver], object]) -> Operation:
    return lambda store: work(DeltaSaver(store))


def nth(thread: deltastore.Thread, number: int) -> deltastore.Checkpoint:
    """Return a checkpoint by its place, 0 for the oldest, -1 for the newest."""
    return list(thread.history())[::-1][number]


def keep(thread: deltastore.Thread) -> None:
    thread.retention = Retention(keep_last=3)


# each with the threads that it changes or makes
OPERATIONS: dict[str, tuple[Operation, set[str]]] = {
    "append": (native(lambda thread: thread.append({"messages": ["more"], "n": 9, "new channel": [1]})), {"n"}),
    "append to a new thread": (native(lambda thread: thread.append({"messages": ["first"]}), "fresh"), {"fresh"}),
    "append in a new namespace": (native(lambda thread: thread.append({"m": ["inner"]}), "n", "inner"), {"n"}),
    "fork": (native(lambda thread: thread.append({"messages": ["other"]}, at=nth(thread, 1))), {"n"}),
    "put_state": (native(lambda thread: thread.put_state({"messages": [LARGE], "doc": LARGE})), {"n"}),
    "put_writes": (native(lambda thread: thread.put_writes(nth(thread, -1), {"n": LARGE, "m": 1}, task="x")), {"n"}),
    "delete the newest": (native(lambda thread: thread.delete(nth(thread, -1))), {"n"}),
    "delete one with children": (native(lambda thread: thread.delete(nth(thread, 3))), {"n"}),
    "delete the oldest, packed": (native(lambda thread: thread.delete(nth(thread, 0))), {"n"}),
    "delete a thread": (lambda store: store.delete("n"), {"n"}),
    "delete an idle thread": (lambda store: store.delete("idle"), {"idle"}),
    "copy": (lambda store: store.copy("n", "copied"), {"copied"}),
    "tag": (native(lambda thread: thread.tag("more", nth(thread, 2))), {"n"}),
    "untag": (native(lambda thread: thread.untag("kept")), {"n"}),
    "set rules": (native(keep), {"n"}),
    "collect": (lambda store: store.collect(), set()),
    "saver put": (through_saver(lambda saver: put(saver, "7", "6", thread="calls", value=LARGE)), {"calls"}),
    "saver put of a new thread": (through_saver(lambda saver: put(saver, "1", thread="fresh", value=1)), {"fresh"}),
    "saver put after an older one": (
        through_saver(lambda saver: put(saver, "7", "2", thread="calls", value="other")),
        {"calls"},
    ),
    "saver put of an id again": (
        through_saver(lambda saver: put(saver, "4", "3", thread="calls", value="another 4")),
        {"calls"},
    ),
    "saver put of a parent that comes late": (
        through_saver(lambda saver: put(saver, "9", "8", thread="calls", value="9")),
        {"calls"},
    ),
    "saver put of a call": (
        through_saver(lambda saver: put(saver, "a", thread="calls", ns="sub:6", root="6", value="a")),
        {"calls"},
    ),
    "saver put_writes": (through_saver(lambda saver: say(saver, "6", LARGE, thread="calls")), {"calls"}),
    "saver put_writes before their checkpoint": (
        through_saver(lambda saver: say(saver, "7", "early", thread="calls")),
        {"calls"},
    ),
    "saver put_writes replaced": (
        through_saver(lambda saver: saver.put_writes(config("calls", "5"), [("__error__", "boom")], "task")),
        {"calls"},
    ),
    "saver delete_thread": (through_saver(lambda saver: saver.delete_thread("calls")), {"calls"}),
    "saver copy_thread": (through_saver(lambda saver: saver.copy_thread("g", "copied")), {"copied"}),
    "saver tag": (through_saver(lambda saver: saver.tag(config("h"), "more")), {"h"}),
}


@dataclass(frozen=True)
class Found:
    """What a store holds: its rows, and what the public API tells of each thread."""

    rows: dict[bytes, bytes]
    told: Told
    rules: dict[str, Retention | None]


def found_in(store: Store) -> Found:
    """Return what a store holds; it must be whole."""
    report = check(store)
    assert report.ok, report.problems
    rules = {info.name: store.log.keeping.retention(info.name) for info in store.threads()}
    return Found(rows_of(store.log.storage), told(store), rules)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    """A site with a store that has packs, forks, tags, calls, waiting and stray writes in both APIs."""
    site = tmp_path_factory.mktemp("stopping")
    make(site / STORE)
    with deltastore.open(site / STORE, sync="none") as store:
        return site, found_in(store)


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_anywhere_it_is_as_before_or_as_after(
    name: str,
    original: tuple[Path, Found],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The random part of a new thread's ids, so that two runs make the same ones.
    monkeypatch.setattr(ulid, "os", SimpleNamespace(urandom=lambda count: b"\7" * count))
    monkeypatch.setattr(copying, "MAX_COPIED_ROWS", 5)  # a transaction
    monkeypatch.setattr(deleting, "MAX_COLLECTED_ROWS", 5)
    work, changing = OPERATIONS[name]

    def operation(store: Store) -> None:
        set_clock(store)
        with small_packs():
            work(store)

    site, before = original
    shutil.copytree(site, tmp_path / "whole")
    with deltastore.open(tmp_path / "whole" / STORE, sync="none") as store:
        operation(store)
        after = found_in(store)
    assert {thread for thread in {**before.told, **after.told} if differs(thread, before, after)} == changing
    profile = request.config.getoption("--profile")
    stops = Stops(site, operation, tmp_path, profile=profile)
    ends: set[str] = set()
    seen: set[int] = set()
    for stop in stops:
        with deltastore.open(stop.site / STORE, sync="none") as store:
            rows = rows_of(store.log.storage)
            state = hash(tuple(rows.items()))
            if state in seen:
                continue
            seen.add(state)
            is_done = rows == after.rows
            if rows not in (before.rows, after.rows):  # names without a use, or rows that nothing names
                now = found_in(store)
                assert (now.told, now.rules) in ((before.told, before.rules), (after.told, after.rules)), stop
                is_done = (now.told, now.rules) == (after.told, after.rules)
            elif profile == "quick":
                ends.add("after" if is_done else "before")
                continue  # the very rows that were looked at
            ends.add("after" if is_done else "before")
            if not is_done:
                operation(store)
                now = found_in(store)
                assert (now.told, now.rules) == (after.told, after.rules)
            _go_on(store)
    print(f"{name}: {stops}, {len(seen)} states")
    assert ends == {"before", "after"}


def differs(thread: str, before: Found, after: Found) -> bool:
    return (before.told.get(thread), before.rules.get(thread)) != (after.told.get(thread), after.rules.get(thread))


def _go_on(store: Store) -> None:
    """Put to a thread of each API, collect what the dead one left, and find nothing wrong."""
    store.thread("afterwards").append({"messages": ["goes on"]})
    for name in ("n", "idle"):
        thread = store.thread(name)
        state = thread.state() if thread.latest() else {}
        thread.append({"messages": ["goes on"]})
        assert thread.state() == state | {"messages": [*state.get("messages", []), "goes on"]}
    saver = DeltaSaver(store)
    put(saver, "zz", "6", thread="calls", value="goes on")
    latest = saver.get_tuple(config("calls"))
    assert latest is not None
    assert latest.checkpoint["channel_values"]["value"] == "goes on"
    set_clock(store, -1)  # what was under way isn't any more
    store.collect()
    report = check(store)
    assert report.ok, report.problems
    assert report.queued_threads == 0


def test_what_takes_two_transactions_would_be_seen_half_done(original: tuple[Path, Found], tmp_path: Path) -> None:
    def twice(store: Store) -> None:
        set_clock(store)
        thread = store.thread("n")
        thread.append({"messages": ["one"]})
        thread.append({"messages": ["two"]})

    lasts: list[str] = []
    for stop in Stops(original[0], twice, tmp_path, profile="quick"):
        with deltastore.open(stop.site / STORE, sync="none") as store:
            lasts.append(store.thread("n").state()["messages"][-1])
    assert lasts == ["last", "one", "two"]
