"""Many writers at once: nothing is lost, nothing is mixed up, and nobody fails for having to wait."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import CheckpointNotFoundError, EncodeError, Store, Thread, check
from deltastore.storage.memory import MemoryStorage
from tests import fleet
from tests.conftest import OpenStore
from tests.raw import Interrupted, everything, interrupted

Work = Callable[[int], Any]


def run_together(count: int, work: Work) -> list[Any]:
    """Run `work(0)` … `work(count - 1)`, all beginning at once; return their results, or raise the first error."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def assert_chain(store: Store, name: str, expected: int) -> None:
    """Each checkpoint follows the one before it, and adds one message to its state."""
    history = list(store.thread(name).history())
    assert len(history) == expected
    assert [c.parent_id for c in history] == [*(c.id for c in history[1:]), None]
    messages = store.thread(name).state()["messages"]
    for place, checkpoint in enumerate(reversed(history), 1):
        assert store.thread(name).state(at=checkpoint)["messages"] == messages[:place]


class TestThreads:
    def test_appends_to_one_thread_make_one_chain(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=7)

        def append(number: int) -> list[str]:
            thread = store.thread("t")
            return [thread.append({"messages": [{"by": number, "nth": nth}]}).id for nth in range(6)]

        ids = [id_ for found in run_together(16, append) for id_ in found]
        assert len(set(ids)) == 96
        assert_chain(store, "t", 96)
        messages = store.thread("t").state()["messages"]
        assert sorted((m["by"], m["nth"]) for m in messages) == [(by, nth) for by in range(16) for nth in range(6)]
        for by in range(16):
            assert [m["nth"] for m in messages if m["by"] == by] == list(range(6))

    def test_many_more_writers_than_attempts_all_get_through(self) -> None:
        with Store(MemoryStorage()) as store:

            def append(number: int) -> None:
                for nth in range(3):
                    store.thread("t").append({"messages": [f"{number}.{nth}"]})

            run_together(64, append)
            assert_chain(store, "t", 192)
            assert check(store).ok

    def test_appends_to_many_threads(self, store: Store) -> None:
        def append(number: int) -> list[str]:
            thread = store.thread(f"t{number}")
            return [thread.append({"messages": [{"by": number, "nth": nth}]}).id for nth in range(10)]

        for number, ids in enumerate(run_together(12, append)):
            assert [c.id for c in store.thread(f"t{number}").history()] == ids[::-1]
            assert store.thread(f"t{number}").state() == {"messages": [{"by": number, "nth": nth} for nth in range(10)]}
        assert {info.name: info.checkpoints for info in store.threads()} == {f"t{number}": 10 for number in range(12)}

    def test_threads_that_have_one_name_begin_as_one(self, store: Store) -> None:
        run_together(8, lambda number: store.thread("new").append({"messages": [number]}))
        assert_chain(store, "new", 8)

    def test_branches_put_at_once_stay_apart(self, store: Store) -> None:
        base = store.thread("t").append({"messages": ["base"]})

        def branch(number: int) -> list[str]:
            at = base
            for nth in range(5):
                at = store.thread("t").append({"messages": [f"{number}.{nth}"]}, at=at)
            return [at.id, *store.thread("t").state(at=at)["messages"]]

        for number, (id_, *messages) in enumerate(run_together(8, branch)):
            assert messages == ["base", *(f"{number}.{nth}" for nth in range(5))]
            assert store.thread("t").state(at=id_)["messages"] == messages

    def test_every_write_of_thirty_tasks_is_stored(self, store: Store) -> None:  # langgraph#8115
        checkpoint = store.thread("t").append({"messages": ["a"]})

        def put(number: int) -> None:
            writes = [
                ("messages", [f"same for all {place}" for place in range(3)]),
                ("own", {"task": number, "pad": "x" * 300}),
            ]
            store.thread("t").put_writes(checkpoint, writes, task=f"task {number:02}")

        run_together(30, put)
        found = store.thread("t").writes(checkpoint)
        assert [(w.task, w.channel) for w in found] == [
            (f"task {number:02}", channel) for number in range(30) for channel in ("messages", "own")
        ]
        for number in range(30):
            assert found[2 * number].value == [f"same for all {place}" for place in range(3)]
            assert found[2 * number + 1].value == {"task": number, "pad": "x" * 300}
        assert store.thread("t").state() == {"messages": ["a"]}

    def test_readers_see_whole_checkpoints_while_others_write(self, open_store: OpenStore) -> None:
        store = open_store(snapshot_frequency=5)
        store.thread("t").append({"messages": [0], "count": 1})
        done = threading.Event()

        def write() -> None:
            try:
                for number in range(1, 80):
                    store.thread("t").append({"messages": [number], "count": number + 1})
            finally:
                done.set()

        def read() -> int:
            reads = 0
            last = 0
            while not done.is_set() or not reads:
                state = store.thread("t").state()
                assert state["messages"] == list(range(state["count"]))
                assert state["count"] >= last
                last = state["count"]
                listed = list(store.thread("t").history(limit=3))
                assert [c.parent_id for c in listed[:-1]] == [c.id for c in listed[1:]]
                reads += 1
            return reads

        reads = run_together(4, lambda number: write() if number == 0 else read())
        assert all(reads[1:])
        assert store.thread("t").state()["count"] == 80

    def test_writers_and_deleters_of_one_thread(self, open_store: OpenStore) -> None:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        store = open_store(snapshot_frequency=4)
        kept: list[tuple[str, list[str]]] = []
        lock = threading.Lock()

        def work(number: int) -> None:
            chance = random.Random(seed + number)
            thread = store.thread("t")
            at, messages = None, []
            for nth in range(12):
                made = thread.append({f"m{number}": [f"{number}.{nth}"]}, at=at)
                messages = [*messages, f"{number}.{nth}"]
                if at is not None and chance.random() < 0.4:
                    thread.delete(at)
                elif at is not None:
                    with lock:
                        kept.append((at.id, messages[:-1]))
                at = made

        run_together(6, work)
        for id_, messages in kept:
            assert store.thread("t").state(at=id_)[f"m{messages[0].split('.')[0]}"] == messages


class TestBetweenSnapshotAndCache:
    """A put reads a snapshot, then a cache that may already be ahead of it."""

    @pytest.fixture(params=["read", "remembered"])
    def storage(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
        """A write is prepared by a snapshot, or by what its handle remembers."""
        return interrupted(request.param, monkeypatch)

    @pytest.fixture
    def thread(self, storage: Interrupted) -> Iterator[Thread]:
        """A thread of a store whose channels have numbers already: a put's first snapshot is the one that counts."""
        store = Store(storage, snapshot_frequency=2)
        store.thread("warm").append({"a": 1, "b": 1, "c": 1, "x": 1})
        yield store.thread("t")
        fresh = Store(storage.inner)
        assert check(fresh).ok
        assert everything(fresh) == everything(store)

    def test_writes_of_another_task_in_between(self, storage: Interrupted, thread: Thread) -> None:
        checkpoint = thread.append({"a": 1})
        storage.after_snapshot = [
            lambda: thread.put_writes(checkpoint, {"x": ["one", "two", {"k": "three"}]}, task="first")
        ]
        thread.put_writes(checkpoint, {"x": ["zero", {"k": "three"}, "four"]}, task="second")
        thread.put_writes(checkpoint, {"x": ["zero", {"k": "three"}, "four"]}, task="third")
        assert [(w.task, w.value) for w in thread.writes(checkpoint)] == [
            ("first", ["one", "two", {"k": "three"}]),
            ("second", ["zero", {"k": "three"}, "four"]),
            ("third", ["zero", {"k": "three"}, "four"]),
        ]

    def test_a_put_in_between_writes(self, storage: Interrupted, thread: Thread) -> None:
        checkpoint = thread.append({"a": 1})
        storage.after_snapshot = [lambda: thread.put_state({"a": ["one", {"k": "two"}], "b": "new"})]
        thread.put_writes(checkpoint, {"a": [{"k": "zero"}, {"k": "two"}, "three"]}, task="late")
        assert thread.writes(checkpoint)[0].value == [{"k": "zero"}, {"k": "two"}, "three"]

    def test_writes_in_between_a_put(self, storage: Interrupted, thread: Thread) -> None:
        checkpoint = thread.append({"a": 1, "x": ["x"]})
        storage.after_snapshot = [lambda: thread.put_writes(checkpoint, {"x": [{"k": "one"}, {"k": "two"}]})]
        after = thread.append({"x": [{"k": "zero"}, {"k": "two"}, {"k": "three"}]})
        assert thread.state(at=after)["x"] == ["x", {"k": "zero"}, {"k": "two"}, {"k": "three"}]
        assert thread.writes(checkpoint)[0].value == [{"k": "one"}, {"k": "two"}]

    def test_edits_of_a_large_value_in_between(self, storage: Interrupted, thread: Thread) -> None:
        large = "".join(f"line {number} of the document\n" for number in range(800))
        checkpoint = thread.append({"a": large})
        edits = [large.replace(f"line {number} ", f"LINE {number} ") for number in range(4)]
        storage.after_snapshot = [lambda: thread.put_writes(checkpoint, {"x": edits[0], "a": edits[1]}, task="first")]
        thread.put_writes(checkpoint, {"b": edits[2], "a": edits[3]}, task="second")
        thread.put_state({"a": edits[3], "b": edits[1]})
        assert [w.value for w in thread.writes(checkpoint)] == edits
        assert thread.state() == {"a": edits[3], "b": edits[1]}

    def test_a_put_that_the_storage_asks_to_run_again(self, storage: Interrupted, thread: Thread) -> None:
        checkpoint = thread.append({"a": {"k": "old"}})

        def arm() -> None:
            thread.put_writes(
                checkpoint, {"a": {"k": "one"}, "b": {"l": "two"}}
            )  # takes numbers, so the put's are shifted
            storage.retries = 1

        storage.after_snapshot = [arm]
        thread.put_state({"a": {"k": "new"}, "c": {"m": "three"}})
        thread.put_state({"a": {"k": "new", "n": "four"}, "c": {"m": "three"}})
        assert storage.retries == 0
        assert thread.state() == {"a": {"k": "new", "n": "four"}, "c": {"m": "three"}}

    def test_a_put_in_between_a_put(self, storage: Interrupted, thread: Thread) -> None:
        thread.append({"x": ["a"]})
        storage.after_snapshot = [lambda: thread.append({"x": ["b"]})]
        thread.append({"x": ["c"]})
        assert thread.state() == {"x": ["a", "b", "c"]}
        history = list(thread.history())
        assert [c.parent_id for c in history] == [*(c.id for c in history[1:]), None]

    def test_the_thread_deleted_in_between_a_put(self, storage: Interrupted, thread: Thread) -> None:
        thread.append({"x": ["a"]})
        other = Store(storage.inner)
        storage.after_snapshot = [lambda: other.delete("t")]
        made = thread.append({"x": ["b"]})
        assert thread.state() == {"x": ["b"]}
        assert made.parent_id is None

    def test_the_parent_deleted_in_between_a_put(self, storage: Interrupted, thread: Thread) -> None:
        first = thread.append({"x": ["a"]})
        thread.append({"x": ["b"]})
        storage.after_snapshot = [lambda: thread.delete(first)]
        with pytest.raises(CheckpointNotFoundError):
            thread.append({"x": ["c"]}, at=first)
        assert thread.state() == {"x": ["a", "b"]}

    def test_the_checkpoint_deleted_in_between_its_writes(self, storage: Interrupted, thread: Thread) -> None:
        checkpoint = thread.append({"x": ["a"]})
        thread.append({"x": ["b"]})
        storage.after_snapshot = [lambda: thread.delete(checkpoint)]
        with pytest.raises(CheckpointNotFoundError):
            thread.put_writes(checkpoint, {"x": ["late"]})
        assert check(Store(storage.inner)).writes_without_checkpoint == 0


def test_a_refused_value_holds_nobody_up(store: Store) -> None:  # openai-agents-python#4163
    with pytest.raises(EncodeError):
        store.thread("t").append({"bad": object()})
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.thread("t").append, {"good": 1}).result(timeout=30)
    assert store.thread("t").state() == {"good": 1}


class TestProcesses:
    @pytest.mark.parametrize("shared", [False, True], ids=["own threads", "one thread"])
    def test_four_processes_of_four_os_threads(self, tmp_path: Path, shared: bool) -> None:  # langgraph#8136
        path = tmp_path / "store.ds"
        done = fleet.run_all(*fleet.crews(path, "native", processes=4, writers=4, puts=12, shared=shared))
        assert fleet.judge(path, "native", done) == len(done.acknowledged) == 4 * 4 * 12

    def test_a_forked_child_goes_on_with_the_store(self, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds") as store:
            thread = store.thread("t")
            first = thread.append({"messages": ["parent"]})
            read_end, write_end = os.pipe()
            child = os.fork()
            if child == 0:  # nothing of the test runner may run here
                code = 1
                try:
                    made = thread.append({"messages": ["child"]})
                    os.write(write_end, made.id.encode())
                    code = (
                        0 if made.parent_id == first.id and thread.state() == {"messages": ["parent", "child"]} else 2
                    )
                finally:
                    os._exit(code)
            os.close(write_end)
            id_ = os.read(read_end, 100).decode()
            os.close(read_end)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert thread.append({"messages": ["parent again"]}).parent_id == id_
            assert thread.state() == {"messages": ["parent", "child", "parent again"]}
            assert check(store).ok

    def test_a_child_forked_while_others_put(self, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds", sync="none") as store:
            store.thread("t").append({"messages": ["first"]})
            stop = threading.Event()

            def put() -> None:
                while not stop.is_set():
                    store.thread("busy").append({"messages": ["x"]})

            busy = threading.Thread(target=put)
            busy.start()
            try:
                for number in range(8):
                    child = os.fork()
                    if child == 0:
                        code = 1
                        try:
                            store.thread("t").append({"messages": [number]})
                            store.thread(f"t{number}").put_state({"n": number})
                            code = 0
                        finally:
                            os._exit(code)
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            finally:
                stop.set()
                busy.join()
            assert store.thread("t").state() == {"messages": ["first", *range(8)]}
            assert_chain(store, "busy", len(list(store.thread("busy").history())))
            assert check(store).ok
