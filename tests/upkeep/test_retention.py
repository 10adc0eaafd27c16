"""Retention in cases: whole threads, sweeps, what comes in between, rules as stored, what users of others reported."""

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deltastore import (
    ChecksumError,
    InvalidInputError,
    Retention,
    RetentionReport,
    Store,
    ThreadNotFoundError,
    apply_retention,
    check,
    plan_retention,
)
from deltastore.codec.primitives import seal
from deltastore.langgraph import DeltaSaver
from deltastore.log import keys
from deltastore.log.retention import DEFAULT_STRAY_AGE
from deltastore.upkeep import retention
from deltastore.upkeep.retention import NO_RULES, Reason
from tests.conftest import OpenStore
from tests.langgraph.comparing import checkpoint, config
from tests.raw import put_raw, rows_of, states

DAY = timedelta(days=1)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, time: timedelta) -> None:
        self.now += time.total_seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(open_store: OpenStore, clock: Clock) -> Store:
    store = open_store()
    store.log._clock = clock
    return store


def fill(store: Store, name: str, count: int, **channels: Any) -> list[str]:
    thread = store.thread(name)
    return [thread.append({"log": [f"{name} {number}"], **channels}).id for number in range(count)]


def put(saver: DeltaSaver, thread: str, id_: str, parent: str | None = None, ns: str = "", root: str = "") -> None:
    described: Any = {"source": "loop", "step": 1, "parents": {"": root} if root else {}}
    saver.put(config(thread, parent, ns), checkpoint(id_, {"a": id_}, {"a": "value " + id_}), described, {"a": id_})


def ids(store: Store, name: str) -> list[str]:
    return [found.id for found in store.thread(name).history()][::-1]


class TestRules:
    def test_off_by_default_and_by_zero(self, store: Store, clock: Clock) -> None:
        fill(store, "t", 5)
        clock.wait(1000 * DAY)
        off = timedelta(0)
        for rules in (
            Retention(),
            Retention(keep_last=0, keep_within=off, drop_idle=off, max_bytes=0, stray_writes=off),
        ):
            assert rules.is_off
            assert apply_retention(store, rules).note == NO_RULES
        assert len(ids(store, "t")) == 5

    def test_an_empty_store(self, store: Store) -> None:
        assert apply_retention(store).note == NO_RULES
        assert apply_retention(store, Retention(keep_last=1)) == RetentionReport()
        assert plan_retention(store, Retention(keep_last=1)).threads == ()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("keep_last", -1),
            ("keep_last", True),
            ("keep_daily", 1.5),
            ("keep_weekly", "7"),
            ("max_bytes", 1 << 60),
            ("keep_within", 7),
            ("keep_within", timedelta(seconds=-1)),
            ("drop_idle", timedelta.max),
            ("stray_writes", "7d"),
            ("keep_forks", "none"),
            ("keep_forks", timedelta(0)),
            ("keep_forks", None),
        ],
    )
    def test_a_rule_outside_its_range_is_named(self, field: str, value: Any) -> None:
        with pytest.raises(InvalidInputError, match=f"^{field}=.*; expected "):
            Retention(**{field: value})

    def test_stray_writes_have_an_age_once_any_rule_is_on(self) -> None:
        assert Retention().stray_age == timedelta(0)
        assert Retention(keep_last=1).stray_age == DEFAULT_STRAY_AGE
        assert Retention(keep_last=1, stray_writes=timedelta(0)).stray_age == timedelta(0)
        assert Retention(stray_writes=DAY).stray_age == DAY
        assert not Retention(stray_writes=DAY).is_off

    def test_fields_come_back(self) -> None:
        rules = Retention(
            keep_last=2, keep_within=timedelta(microseconds=1), keep_forks=DAY, max_bytes=9, drop_idle=DAY
        )
        assert Retention.from_fields(rules.to_fields()) == rules
        assert Retention.from_fields(Retention(keep_forks="latest").to_fields()).keep_forks == "latest"
        assert Retention().to_fields() == {}
        with pytest.raises(InvalidInputError, match="keep_for_ever"):
            Retention.from_fields({"keep_for_ever": 1})

    def test_the_newest_of_each_day_and_week_in_utc(self, store: Store, clock: Clock) -> None:
        thread = store.thread("t")
        days = ["2026-11-20", "2026-11-21", "2026-11-22", "2026-11-23", "2026-11-25"]  # a Friday to a Wednesday
        made = {}
        for day in days:
            for hour in (1, 23):
                clock.now = datetime.fromisoformat(f"{day}T{hour:02}:00:00+00:00").timestamp()
                made[thread.append({"n": 1}).id] = f"{day} {hour:02}"
        daily = plan_retention(store, Retention(keep_daily=3)).threads[0]
        assert [made[one.id] for one in daily.checkpoints if one.stays] == [f"{day} 23" for day in days[2:]]
        apply_retention(store, Retention(keep_weekly=5))
        assert [made[id_] for id_ in ids(store, "t")] == ["2026-11-22 23", "2026-11-25 23"]

    def test_a_plan_tells_each_reason_and_changes_nothing(self, store: Store, clock: Clock) -> None:
        made = fill(store, "t", 6)
        thread = store.thread("t")
        thread.tag("before-deploy", made[1])
        fork = thread.append({"log": ["fork"]}, at=made[2]).id
        thread.put_writes(fork, {"log": "waits"})
        twig = thread.append({"log": ["twig"]}, at=made[2]).id
        last = thread.append({"log": ["last"]}, at=made[5]).id
        before = rows_of(store.log.storage)
        (planned,) = plan_retention(store, Retention(keep_last=2)).threads
        assert {one.id: one.reason for one in planned.checkpoints if one.stays} == {
            made[1]: Reason.TAGGED,
            fork: Reason.PENDING_WRITES,
            twig: Reason.FORK_HEAD,
            last: Reason.LATEST,
        }
        assert planned.by_reason(stays=False) == {Reason.EXPIRED: 5}
        assert (planned.going, planned.staying, planned.whole) == (5, 4, None)
        assert planned.freed_bytes > 0
        assert rows_of(store.log.storage) == before


class TestForks:
    @pytest.mark.parametrize("native", [True, False])
    def test_a_dropped_branch_and_the_other_s_head(self, store: Store, clock: Clock, native: bool) -> None:
        """surge#271: after one of two branches is dropped, the head of the other restores."""
        saver = DeltaSaver(store)
        thread = store.thread("t")
        if native:
            line = fill(store, "t", 3)
            old = [line[0]]
            for number in range(3):
                old.append(thread.append({"log": [f"old {number}"]}, at=old[-1]).id)
            clock.wait(3 * DAY)
            new = thread.append({"log": ["new"]}, at=line[2]).id
            wanted = thread.state(at=new)
        else:
            for id_, parent in (("1", None), ("2", "1"), ("3", "2"), ("4", "1"), ("5", "4")):
                put(saver, "t", id_, parent)
            line, old = ["1", "2", "3"], ["1", "4", "5"]
            clock.wait(3 * DAY)
            put(saver, "t", "6", "3")
            new = "6"
            tuple_ = saver.get_tuple(config("t", new))
            assert tuple_ is not None
            wanted = dict(tuple_.checkpoint)
        tagged = old[-1]
        assert apply_retention(store, Retention(keep_forks=7 * DAY)).checkpoints == 0
        thread.tag("kept", tagged)
        report = apply_retention(store, Retention(keep_forks=DAY))
        assert report.by_reason == {Reason.DROPPED_BRANCH: len(old) - 2}
        thread.untag("kept")
        assert apply_retention(store, Retention(keep_forks="latest")).by_reason == {Reason.DROPPED_BRANCH: 1}
        if native:
            assert ids(store, "t") == [*line, new]
            assert thread.state(at=new) == wanted
        else:
            assert [found.checkpoint["id"] for found in saver.list(config("t"))] == [new, *line[::-1]]
            found = saver.get_tuple(config("t", new))
            assert found is not None
            assert dict(found.checkpoint) == wanted

    def test_what_was_deleted_in_between_makes_no_end_of_a_branch(self, store: Store) -> None:
        made = fill(store, "t", 6)
        thread = store.thread("t")
        thread.tag("kept", made[1])
        thread.delete(made[2])
        thread.delete(made[3])
        (planned,) = plan_retention(store, Retention(keep_last=1)).threads
        assert planned.by_reason(stays=True) == {Reason.TAGGED: 1, Reason.LATEST: 1}
        thread.untag("kept")
        assert [found.parent_id for found in thread.history()] == [made[4], made[3], made[0], None]
        apply_retention(store, Retention(keep_last=1))
        assert ids(store, "t") == [made[5]]
        assert store.thread("t").checkpoint(made[5]).parent_id == made[4]


class TestMeanwhile:
    """What others do between a plan and a sweep, or between a sweep's look and its transaction."""

    @pytest.mark.parametrize("late", [True, False])
    def test_tags_forks_and_puts(self, store: Store, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
        made = fill(store, "t", 8)
        thread = store.thread("t")
        rules = Retention(keep_last=2)
        new: list[str] = []

        def others() -> None:
            thread.tag("before-deploy", made[2])
            new.append(thread.append({"log": ["fork"]}, at=made[4]).id)
            new.append(thread.append({"log": ["put"]}, at=made[7]).id)

        planned = plan_retention(store, rules)
        assert planned.going == 6
        if late:
            meanwhile(monkeypatch, others)
        else:
            others()
        wanted = states(thread)
        report = apply_retention(store, rules)
        stay = [made[2], *new]
        found = states(thread)
        assert sorted(found) == sorted(stay)
        assert report.checkpoints == 10 - len(stay)
        assert all(wanted.get(id_, state) == state for id_, state in found.items())

    @pytest.mark.parametrize("busy", [False, True])
    def test_it_is_decided_under_the_lock_only_where_others_wrote(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, busy: bool
    ) -> None:
        fill(store, "t", 8)
        decided: list[str] = []
        decide = retention.decide
        monkeypatch.setattr(
            retention, "decide", lambda *arguments: decided.append(arguments[0].name) or decide(*arguments)
        )
        if busy:
            meanwhile(monkeypatch, lambda: fill(store, "t", 1))
        assert apply_retention(store, Retention(keep_last=2)).changed == 1
        assert decided == ["t"] * (2 if busy else 1)
        assert len(ids(store, "t")) == 2

    def test_an_idle_thread_that_wakes_up(self, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(store, "t", 2)
        clock.wait(31 * DAY)
        meanwhile(monkeypatch, lambda: fill(store, "t", 1))
        assert apply_retention(store, Retention(drop_idle=30 * DAY)).changed == 0
        assert len(ids(store, "t")) == 3

    def test_a_thread_that_others_delete(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(store, "t", 3)
        meanwhile(monkeypatch, lambda: store.delete("t"))
        assert apply_retention(store, Retention(keep_last=1)).changed == 0


def meanwhile(monkeypatch: pytest.MonkeyPatch, others: Callable[[], object]) -> None:
    """Let others come just before a sweep's first write transaction."""
    change = retention._Sweep.change
    waiting = [others]

    def late(self: Any, name: str, looked: Any) -> Any:
        while waiting:
            waiting.pop()()
        return change(self, name, looked)

    monkeypatch.setattr(retention._Sweep, "change", late)


class TestIdle:
    def test_the_last_activity_counts(self, store: Store, clock: Clock) -> None:
        """dbos-transact-golang#469: a long run that goes on isn't old."""
        fill(store, "t", 1)
        clock.wait(10 * DAY)
        fill(store, "t", 1)
        clock.wait(timedelta(minutes=1))
        assert apply_retention(store, Retention(drop_idle=7 * DAY)).dropped == 0
        assert len(ids(store, "t")) == 2

    def test_writes_are_activity(self, store: Store, clock: Clock) -> None:
        (only,) = fill(store, "t", 1)
        clock.wait(10 * DAY)
        store.thread("t").put_writes(only, {"log": "waits"})
        assert apply_retention(store, Retention(drop_idle=7 * DAY)).dropped == 0

    def test_one_of_three_threads(self, store: Store, clock: Clock) -> None:
        """Idle for 1, 29 and 31 days, where 30 are allowed: langgraph PR #6661."""
        for name, wait in (("31", 2), ("29", 28), ("1", 1)):
            fill(store, name, 2)
            clock.wait(wait * DAY)
        rules = Retention(drop_idle=30 * DAY)
        planned = plan_retention(store, rules)
        assert {found.thread: found.whole for found in planned.threads} == {
            "31": Reason.IDLE_THREAD,
            "29": None,
            "1": None,
        }
        assert (planned.going, planned.staying) == (2, 4)
        report = apply_retention(store, rules)
        assert (report.looked_at, report.changed, report.dropped, report.checkpoints) == (3, 1, 1, 2)
        assert report.by_reason == {Reason.IDLE_THREAD: 2}
        assert report.freed_bytes == planned.freed_bytes > 0
        assert [found.name for found in store.threads()] == ["1", "29"]
        assert not any(key.startswith(keys.thread(1)) for key in rows_of(store.log.storage))

    def test_never_half_a_thread(self, store: Store, clock: Clock) -> None:
        """langchain-mongodb#151: an age of single documents leaves threads in parts."""
        saver = DeltaSaver(store)
        put(saver, "t", "1")
        put(saver, "t", "1", ns="sub:1", root="1")
        clock.wait(2 * DAY)
        saver.put_writes(config("t", "1"), [("a", 1)], "task")
        clock.wait(DAY)
        before = rows_of(store.log.storage)
        assert apply_retention(store, Retention(drop_idle=2 * DAY)).changed == 0
        assert rows_of(store.log.storage) == before
        clock.wait(2 * DAY)
        assert apply_retention(store, Retention(drop_idle=2 * DAY)).dropped == 1
        assert not any(key >= keys.thread(1) for key in rows_of(store.log.storage))


class TestSweeps:
    def test_a_limit_and_two_at_once(self, store: Store, clock: Clock) -> None:
        """Bounded sweeps, by several workers: langgraph PR #6784."""
        count = 1000
        for number in range(count):
            store.thread(f"t{number}").append({"n": number})
        clock.wait(31 * DAY)
        fill(store, "new", 1)
        rules = Retention(drop_idle=30 * DAY)
        done: list[tuple[int, int]] = []
        first = apply_retention(store, rules, limit=100, progress=lambda *so_far: done.append(so_far))
        assert (first.changed, first.more, len(done), done[-1]) == (100, True, 101, (101, count + 1))
        reports = [first]

        def sweep() -> None:
            while True:
                report = apply_retention(store, rules, limit=100)
                reports.append(report)
                if not report.more:
                    return

        workers = [threading.Thread(target=sweep) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sum(report.dropped for report in reports) == count
        assert max(report.changed for report in reports) == 100
        assert [found.name for found in store.threads()] == ["new"]
        assert check(store).queued_threads == 0

    def test_a_sweep_that_is_killed_is_taken_up(
        self, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in "abc":
            fill(store, name, 4)
        clock.wait(31 * DAY)

        def killed(done: int, total: int) -> None:
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            apply_retention(store, Retention(drop_idle=30 * DAY), progress=killed)
        assert [found.name for found in store.threads()] == ["a"]
        assert check(store).queued_threads == 2
        assert apply_retention(store, Retention(drop_idle=30 * DAY)).dropped == 1
        assert check(store).queued_threads == 0

    def test_a_thread_that_cannot_be_read_is_told_and_keeps_nothing_from_others(self, store: Store) -> None:
        for name in "abc":
            fill(store, name, 4)
        storage = store.log.storage
        key = next(key for key in rows_of(storage) if key.startswith(keys.records(2, 1)))
        whole = rows_of(storage)[key]
        put_raw(storage, key, b"damaged")
        report = apply_retention(store, Retention(keep_last=1))
        assert (report.changed, [name for name, _ in report.damaged]) == (2, ["b"])
        assert [name for name, _ in plan_retention(store, Retention(keep_last=1)).damaged] == ["b"]
        put_raw(storage, key, whole)
        header = rows_of(storage)[keys.header(2)]
        put_raw(storage, keys.header(2), b"damaged")
        assert [name for name, _ in apply_retention(store, Retention(keep_last=1)).damaged] == ["b"]
        put_raw(storage, keys.header(2), header)

    def test_bad_arguments(self, store: Store) -> None:
        rules = Retention(keep_last=1)
        with pytest.raises(InvalidInputError, match="time zone"):
            apply_retention(store, rules, now=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidInputError, match="list of names"):
            apply_retention(store, rules, threads="t")
        with pytest.raises(InvalidInputError, match="limit"):
            apply_retention(store, rules, limit=-1)
        with pytest.raises(InvalidInputError, match="Retention"):
            apply_retention(store, {"keep_last": 1})  # type: ignore[arg-type]

    def test_some_threads_and_another_time(self, store: Store, clock: Clock) -> None:
        for name in "ab":
            fill(store, name, 3)
        rules = Retention(keep_within=DAY)
        later = datetime.fromtimestamp(clock.now, UTC) + 2 * DAY
        assert plan_retention(store, rules).going == 0
        assert plan_retention(store, rules, now=later).going == 4
        assert apply_retention(store, rules, threads=["a", "unknown"], now=later).checkpoints == 2
        assert [len(ids(store, name)) for name in "ab"] == [1, 3]


class TestStored:
    def test_the_store_s_rules_and_a_thread_s_own(self, open_store: OpenStore) -> None:
        store = open_store()
        assert store.retention is None
        for name in "abc":
            fill(store, name, 4)
        report = apply_retention(store)
        assert (report.looked_at, report.changed, report.note) == (0, 0, NO_RULES)
        assert plan_retention(store).note == NO_RULES
        store.retention = Retention(keep_last=2, drop_idle=30 * DAY)
        store.thread("a").retention = Retention()
        store.thread("b", namespace="other").retention = Retention(keep_last=1)
        again = open_store()
        assert again.retention == Retention(keep_last=2, drop_idle=30 * DAY)
        assert again.thread("a").retention == Retention()
        assert again.thread("b").retention == Retention(keep_last=1)
        assert again.thread("c").retention is None
        assert apply_retention(again).note == ""
        assert [len(ids(again, name)) for name in "abc"] == [4, 1, 2]
        apply_retention(again, Retention(keep_last=1))
        assert [len(ids(again, name)) for name in "abc"] == [4, 1, 1]  # a thread's own come first
        again.retention = None
        again.thread("a").retention = None
        assert (again.retention, again.thread("a").retention) == (None, None)

    def test_only_a_thread_has_rules(self, store: Store) -> None:
        for name in "ab":
            fill(store, name, 3)
        store.thread("a").retention = Retention(keep_last=1)
        assert apply_retention(store).looked_at == 1
        assert [len(ids(store, name)) for name in "ab"] == [1, 3]

    def test_copies_take_them_along_and_deletions_too(self, store: Store) -> None:
        fill(store, "a", 3)
        store.thread("a").retention = Retention(keep_last=1)
        store.copy("a", "b")
        assert store.thread("b").retention == Retention(keep_last=1)
        store.delete("a")
        fill(store, "a", 1)
        assert store.thread("a").retention is None

    def test_an_unknown_thread_has_none(self, store: Store) -> None:
        with pytest.raises(ThreadNotFoundError):
            store.thread("t").retention = Retention(keep_last=1)
        with pytest.raises(ThreadNotFoundError):
            _ = store.thread("t").retention
        with pytest.raises(InvalidInputError):
            store.retention = 7  # type: ignore[assignment]

    @pytest.mark.parametrize("row", [b"\x93\x01\x02\x03", b"\x81\xa9keep_last\xff", b"\x81\xa7unknown\x01", b"\xc1"])
    def test_a_damaged_row_is_told(self, store: Store, row: bytes) -> None:
        fill(store, "t", 3)
        storage = store.log.storage
        for key in (keys.RETENTION, keys.retention(1)):
            put_raw(storage, key, seal(key, row))
            assert len(check(store).problems) == 1
            if key == keys.RETENTION:
                with pytest.raises(ChecksumError):
                    apply_retention(store)
            else:
                assert [name for name, _ in apply_retention(store, Retention(keep_last=1)).damaged] == ["t"]
            put_raw(storage, key, None)


class TestStrayWrites:
    def test_writes_of_a_checkpoint_that_never_came(self, store: Store, clock: Clock) -> None:
        """langgraph-redis#137: a cancelled run's writes stay behind when its checkpoints go."""
        saver = DeltaSaver(store)
        put(saver, "t", "1")
        saver.put_writes(config("t", "2"), [("a", 1), ("b", 2)], "task")
        saver.put_writes(config("t", "1", ns="sub:9"), [("a", 1)], "task")
        clock.wait(DEFAULT_STRAY_AGE)
        assert apply_retention(store, Retention(keep_last=5)).stray_writes == 0
        clock.wait(timedelta(seconds=1))
        saver.put_writes(config("t", "3"), [("a", 1)], "task")
        assert check(store).writes_without_checkpoint == 3
        assert plan_retention(store, Retention(keep_last=5)).stray_writes == 3
        report = apply_retention(store, Retention(keep_last=5))
        assert (report.stray_writes, report.checkpoints, report.changed) == (3, 0, 1)
        assert check(store).writes_without_checkpoint == 1
        assert store.log.namespaces("t", 1) == [""]  # the call's namespace had nothing else
        put(saver, "t", "3", "1")
        found = saver.get_tuple(config("t", "3"))
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]

    def test_a_thread_of_nothing_but_writes_goes_when_idle(self, store: Store, clock: Clock) -> None:
        DeltaSaver(store).put_writes(config("t", "1"), [("a", 1)], "task")
        clock.wait(31 * DAY)
        report = apply_retention(store, Retention(drop_idle=30 * DAY))
        assert (report.dropped, report.checkpoints) == (1, 0)
        assert check(store).writes_without_checkpoint == 0


class TestCalls:
    def test_a_call_lives_and_dies_with_its_root_checkpoint(self, store: Store) -> None:
        saver = DeltaSaver(store)
        for number in range(1, 5):
            put(saver, "t", str(number), str(number - 1) if number > 1 else None)
            for step in range(3):
                put(
                    saver, "t", f"{number}{step}", f"{number}{step - 1}" if step else None, f"sub:{number}", str(number)
                )
        saver.tag(config("t", "11", "sub:1"), "kept")
        for step in range(4):
            put(saver, "t", f"9{step}", f"9{step - 1}" if step else None, "kept", "1")
        (planned,) = plan_retention(store, Retention(keep_last=2)).threads
        assert {call.namespace: (call.stays, call.checkpoints) for call in planned.calls} == {
            "sub:2": (False, 3),
            "sub:3": (True, 3),
            "sub:4": (True, 3),
        }
        report = apply_retention(store, Retention(keep_last=2))
        assert report.by_reason == {Reason.EXPIRED: 2 + 2, Reason.WITH_ROOT: 3 + 1}
        left = {
            ns: [found.checkpoint["id"] for found in saver.list(config("t", ns=ns))]
            for ns in ("", "sub:1", "sub:2", "sub:3", "sub:4", "kept")
        }
        assert left == {
            "": ["4", "3"],
            "sub:1": ["12", "11"],
            "sub:2": [],
            "sub:3": ["32", "31", "30"],
            "sub:4": ["42", "41", "40"],
            "kept": ["93", "92"],
        }


class TestSizes:
    @pytest.mark.parametrize("native", [True, False])
    def test_the_oldest_go_until_the_rest_is_within(self, store: Store, native: bool) -> None:
        saver = DeltaSaver(store)
        rng = random.Random(1)
        for number in range(30):
            text = rng.randbytes(5_000).hex()
            if native:
                store.thread("t").put_state({"document": text})
            else:
                made = checkpoint(f"{number:02}", {"a": str(number)}, {"a": text})
                saver.put(config("t", f"{number - 1:02}" if number else None), made, {"step": 1}, {"a": str(number)})
        report = apply_retention(store, Retention(max_bytes=60_000))
        left = 30 - report.checkpoints
        assert 8 <= left <= 11  # about 5.2 KB each
        assert report.by_reason == {Reason.OVER_MAX_BYTES: report.checkpoints}
        apply_retention(store, Retention(max_bytes=1))
        assert [found.checkpoints for found in store.threads()] == [1]

    def test_what_all_share_counts_once(self, store: Store) -> None:
        thread = store.thread("t")
        big = random.Random(2).randbytes(50_000)
        thread.append({"document": big})
        for number in range(50):
            thread.append({"n": number})
        assert apply_retention(store, Retention(max_bytes=80_000)).checkpoints == 0
        assert apply_retention(store, Retention(max_bytes=53_000)).checkpoints > 20
        assert thread.state()["document"] == big


def test_a_put_after_a_sweep_goes_on(store: Store) -> None:
    """In-process use: some puts, then the thread alone is retained, again and again."""
    thread = store.thread("t")
    rules = Retention(keep_last=5)
    for number in range(60):
        thread.append({"log": [f"entry {number}"]})
        if number % 5 == 4:
            apply_retention(store, rules, threads=["t"])
            assert len(ids(store, "t")) == 5
    assert thread.state() == {"log": [f"entry {number}" for number in range(60)]}
