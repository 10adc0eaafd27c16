"""Retention rules given to a saver: applied in the background, and never in a put's way."""

import multiprocessing
import threading
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import deltastore
from deltastore import InvalidInputError, Retention, Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.upkeep import background
from deltastore.upkeep.background import EVERY_PUTS

RULES = Retention(keep_last=5)


def put_many(saver: DeltaSaver, thread: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        if number > first:
            config["configurable"]["checkpoint_id"] = f"{number - 1:06}"
        checkpoint = empty_checkpoint() | {
            "id": f"{number:06}",
            "channel_values": {"messages": [f"message {n}" for n in range(number)]},
            "channel_versions": {"messages": number},
        }
        saver.put(config, checkpoint, {"step": number}, {})


def ids(saver: DeltaSaver, thread: str) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list({"configurable": {"thread_id": thread}})]


def test_old_checkpoints_go_and_what_stays_reads_as_before(tmp_path: Path) -> None:
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=RULES) as saver:
        put_many(saver, "a", 1, 100)
        put_many(saver, "b", 1, 3)
    with DeltaSaver.from_path(tmp_path / "s.ds") as saver:
        left = ids(saver, "a")
        assert left[:5] == ["000100", "000099", "000098", "000097", "000096"]
        assert len(left) <= 5 + EVERY_PUTS
        assert ids(saver, "b") == ["000003", "000002", "000001"]
        for found in saver.list({"configurable": {"thread_id": "a"}}):
            number = int(found.checkpoint["id"])
            assert found.checkpoint["channel_values"]["messages"] == [f"message {n}" for n in range(number)]
        assert check(saver.store).ok


def test_a_threads_own_rules_go_before(tmp_path: Path) -> None:
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=RULES) as saver:
        put_many(saver, "audit", 1, 1)
        saver.store.thread("audit").retention = Retention()
        put_many(saver, "audit", 2, 60)
    with DeltaSaver.from_path(tmp_path / "s.ds") as saver:
        assert len(ids(saver, "audit")) == 61


def test_many_threads_and_tasks(tmp_path: Path) -> None:
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=RULES, sync="none") as saver:
        workers = [threading.Thread(target=put_many, args=(saver, f"t{n}", 1, 50)) for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    with DeltaSaver.from_path(tmp_path / "s.ds") as saver:
        for number in range(8):
            left = ids(saver, f"t{number}")
            assert left[0] == "000050"
            assert 5 <= len(left) <= 5 + EVERY_PUTS


@dataclass
class Looks:
    """What the background looked at, in order, and a way to wait for the next look."""

    threads: list[str] = field(default_factory=list)
    queue: "SimpleQueue[str]" = field(default_factory=SimpleQueue)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks()
    real = background.apply

    def apply(store: Store, rules: Retention, *, threads: list[str]) -> Any:
        report = real(store, rules, threads=threads)
        found.threads += threads
        found.queue.put(threads[0])
        return report

    monkeypatch.setattr(background, "apply", apply)
    return found


def test_without_a_pause_it_waits_for_more_puts(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_S", 3600)
    monkeypatch.setattr(background, "MAX_WAIT_S", 3600)
    patience = EVERY_PUTS * background.PATIENCE
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=RULES, sync="none") as saver:
        put_many(saver, "b", 1, EVERY_PUTS)
        put_many(saver, "a", 1, patience - 1)
        assert looks.threads == []
        assert len(ids(saver, "a")) == patience - 1
        put_many(saver, "a", patience, 1)
        assert looks.queue.get(timeout=60) == "a"
        assert len(ids(saver, "a")) == 5
        put_many(saver, "a", patience + 1, patience - 1)
        assert looks.threads == ["a"]
        put_many(saver, "a", 2 * patience, 1)
        assert looks.queue.get(timeout=60) == "a"
    assert looks.threads == ["a", "a", "b"]  # what was due is done at the end


def test_no_thread_waits_for_a_pause_for_ever(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_S", 3600)
    monkeypatch.setattr(background, "MAX_WAIT_S", 0.01)
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=RULES, sync="none") as saver:
        for thread in "ab":
            put_many(saver, thread, 1, EVERY_PUTS)
            assert looks.queue.get(timeout=60) == thread
            assert len(ids(saver, thread)) == 5


def test_in_a_pause_all_that_is_due_is_done(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=RULES, sync="none") as saver:
        for thread in "abc":
            put_many(saver, thread, 1, EVERY_PUTS)
        put_many(saver, "few", 1, EVERY_PUTS - 1)
        assert {looks.queue.get(timeout=60) for _ in range(3)} == {"a", "b", "c"}
        assert [len(ids(saver, thread)) for thread in ("a", "b", "c", "few")] == [5, 5, 5, EVERY_PUTS - 1]


def test_nothing_runs_without_work_and_rules_are_checked(tmp_path: Path) -> None:
    before = threading.active_count()
    with DeltaSaver.from_path(tmp_path / "s.ds", retention=Retention()) as saver:
        put_many(saver, "a", 1, 40)
        assert len(ids(saver, "a")) == 40
        assert threading.active_count() == before
    with pytest.raises(InvalidInputError, match="retention"):
        DeltaSaver.from_path(tmp_path / "s.ds", retention=5)  # type: ignore[arg-type]


def test_a_clone_ends_nothing(tmp_path: Path) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    serde = JsonPlusSerializer(allowed_msgpack_modules=[("somewhere", "Something")])
    with DeltaSaver.from_path(tmp_path / "s.ds", serde=serde, retention=RULES) as saver:
        clone = saver.with_allowlist([("elsewhere", "Anything")])
        assert clone is not saver
        clone.close()
        put_many(saver, "a", 1, 40)
    with DeltaSaver.from_path(tmp_path / "s.ds") as saver:
        assert len(ids(saver, "a")) <= 5 + EVERY_PUTS


def test_a_damaged_thread_is_left_alone_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.raw import put_raw, rows_of

    with deltastore.open(tmp_path / "s.ds") as store:
        put_many(DeltaSaver(store), "a", 1, 30)
        lost = next(key for key in rows_of(store.log.storage) if key[6:7] == b"r")
        put_raw(store.log.storage, lost, None)
        saver = DeltaSaver(store, retention=RULES)
        put_many(saver, "a", 100, EVERY_PUTS + 1)
        saver.close()
        assert "retention left thread 'a' alone" in caplog.text
        latest = saver.get_tuple({"configurable": {"thread_id": "a"}})
        assert latest is not None
        assert latest.checkpoint["id"] == f"{100 + EVERY_PUTS:06}"


def test_a_forked_child_begins_anew(tmp_path: Path) -> None:
    with deltastore.open(tmp_path / "s.ds") as store:
        saver = DeltaSaver(store, retention=RULES)
        put_many(saver, "a", 1, 40)
        child = multiprocessing.get_context("fork").Process(target=_put_in_child, args=(saver,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        saver.close()
        assert len(ids(saver, "a")) <= 5 + EVERY_PUTS
        assert len(ids(saver, "child")) <= 5 + EVERY_PUTS
        assert check(store).ok


def _put_in_child(saver: DeltaSaver) -> None:
    put_many(saver, "child", 1, 40)
    saver.close()


def test_rules_live_as_long_as_the_store(open_store: Any) -> None:
    store: Store = open_store()
    saver = DeltaSaver(store, retention=RULES)
    put_many(saver, "a", 1, 40)
    saver.close()
    saver.close()
    put_many(saver, "a", 41, 1)  # the store is the caller's: it goes on without
    assert ids(saver, "a")[0] == "000041"
