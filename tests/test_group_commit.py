"""Writers that come at the same time share a commit: each is durable on return, and fails or succeeds by itself."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import ConflictError, Reducer, StorageError, Store, check
from deltastore.langgraph import DeltaSaver
from deltastore.log import committing
from deltastore.storage import RetryTransaction, Storage
from deltastore.storage.info import StorageInfo
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config

SUM = {"sum": "sum"}
WAIT = 60
"""Longer than any of this takes; a test that waits so long fails."""


@dataclass
class Counted:
    """A storage that counts commits, and holds the first one until as many writers wait as a test wants."""

    remote = False
    inner: Storage
    commits: int = 0
    hold: Callable[[], None] | None = None
    fail: list[Exception] = field(default_factory=list)
    """What commits fail with."""
    interrupt: list[BaseException] = field(default_factory=list)
    """What is raised once they were made."""

    @property
    def location(self) -> str:
        return self.inner.location

    def read(self) -> Any:
        return self.inner.read()

    @contextmanager
    def write(self, threads: Any = ()) -> Iterator[Any]:
        with self.inner.write(threads) as tx:
            yield tx
            hold, self.hold = self.hold, None
            fails = self.fail.pop() if self.fail else None
            interrupt = self.interrupt.pop() if self.interrupt else None
            if hold is not None:
                hold()
            if fails is not None:
                raise fails
            self.commits += 1
        if interrupt is not None:
            raise interrupt

    def info(self) -> StorageInfo:
        return self.inner.info()

    def close(self) -> None:
        self.inner.close()


def beside(
    store: Store, works: list[Callable[[], Any]], *failures: Exception, interrupt: BaseException | None = None
) -> list[Any]:
    """Run works in threads that all wait for one commit under way; return outcomes or errors.

    `failures`: what their commits fail with. `interrupt`: what is raised after their first commit.
    """
    storage: Any = store.log.storage
    queue = store.log._commits
    out: list[Any] = [None] * len(works)
    begun = threading.Event()

    def hold() -> None:
        begun.set()
        while len(queue._waiting) < len(works):  # all of them wait
            pass
        storage.fail += failures
        storage.interrupt += [interrupt] if interrupt else []

    def run(place: int) -> None:
        try:
            out[place] = works[place]()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            out[place] = error

    storage.hold = hold
    leader = threading.Thread(target=store.thread("leader").append, args=({"n": [0]},))
    leader.start()
    assert begun.wait(WAIT)
    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in (leader, *threads):
        thread.join(WAIT)
        assert not thread.is_alive()
    return out


@pytest.fixture
def counted() -> tuple[Store, Counted]:
    storage = Counted(MemoryStorage())
    store = Store(storage)
    for name in ("leader", *map(str, range(30))):  # so that nothing has to be named meanwhile
        store.thread(name).append({"n": [0]})
    return store, storage


def test_writers_that_wait_share_a_commit(counted: tuple[Store, Counted]) -> None:
    store, storage = counted
    before = storage.commits
    made = beside(store, [lambda n=n: store.thread(str(n)).append({"n": [n]}) for n in range(30)])  # type: ignore[misc]
    assert storage.commits == before + 2  # the one that all waited for, and theirs
    assert [store.thread(str(n)).state(at=made[n]) for n in range(30)] == [{"n": [0, n]} for n in range(30)]
    assert check(store).ok


def test_writers_of_one_thread_come_one_after_the_other(counted: tuple[Store, Counted]) -> None:
    store, _ = counted
    beside(store, [lambda n=n: store.thread("0").append({"n": [n]}) for n in range(1, 21)])  # type: ignore[misc]
    (chain,) = [store.thread("0").state()["n"]]
    assert sorted(chain) == list(range(21))
    assert store.thread("0").forks() == []


def test_new_threads_and_writes_too(counted: tuple[Store, Counted]) -> None:
    store, _ = counted
    at = store.thread("1").latest()
    assert at is not None
    works: list[Callable[[], Any]] = [
        lambda n=n: store.thread("new" if n % 2 else f"new {n}").append({"n": [n]})  # type: ignore[misc]
        for n in range(8)
    ]
    works += [lambda n=n: store.thread("1").put_writes(at, {"n": [n]}, task=f"{n}") for n in range(8)]  # type: ignore[misc]
    found = beside(store, works)
    assert not [error for error in found if isinstance(error, Exception)]
    assert sorted(store.thread("new").state()["n"]) == [1, 3, 5, 7]
    assert len(store.thread("1").writes(at)) == 8
    assert check(store).ok


def test_one_that_is_refused_leaves_the_others_alone(counted: tuple[Store, Counted]) -> None:
    store, storage = counted
    ids = {n: store.thread(str(n)).append({"n": [1]}).id for n in range(10)}
    before = storage.commits
    works: list[Callable[[], Any]] = [
        lambda n=n: store.thread(str(n)).append({"n": [2]}, expected_parent="" if n % 3 else ids[n])  # type: ignore[misc]
        for n in range(10)
    ]
    found = beside(store, works)
    assert [isinstance(error, ConflictError) for error in found] == [bool(n % 3) for n in range(10)]
    assert storage.commits == before + 2
    assert [store.thread(str(n)).state()["n"] for n in range(10)] == [[0, 1] if n % 3 else [0, 1, 2] for n in range(10)]


def test_one_that_breaks_off_in_the_middle_undoes_only_itself(
    counted: tuple[Store, Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = counted
    from deltastore.log import putting, rows

    store_header, broken = rows.store_header, []

    def store_but_one(tx: Any, thread: int, header: rows.Header) -> None:
        if header.name == b"5":
            broken.append(thread)
            raise ZeroDivisionError("on purpose")
        store_header(tx, thread, header)

    monkeypatch.setattr(putting.rows, "store_header", store_but_one)
    found = beside(store, [lambda n=n: store.thread(str(n)).append({"n": [n]}) for n in range(10)])  # type: ignore[misc]
    monkeypatch.undo()
    assert len(broken) == 2  # with the others, and alone
    assert [type(each).__name__ for each in found] == [
        "ZeroDivisionError" if n == 5 else "Checkpoint" for n in range(10)
    ]
    assert [store.thread(str(n)).state()["n"] for n in range(10)] == [[0] if n == 5 else [0, n] for n in range(10)]
    assert check(store).ok


def test_a_commit_that_fails_is_told_to_all_and_not_tried_again(counted: tuple[Store, Counted]) -> None:
    store, storage = counted
    before = storage.commits
    works = [lambda n=n: store.thread(str(n)).append({"n": [n]}) for n in range(6)]  # type: ignore[misc]
    found = beside(store, works, StorageError("the disk said no"))
    assert [str(each) for each in found] == ["the disk said no"] * 6
    assert len(set(map(id, found))) == 6
    assert storage.commits == before + 1
    assert [store.thread(str(n)).state() for n in range(6)] == [{"n": [0]}] * 6
    store.thread("0").append({"n": [1]})
    assert check(store).ok


def test_a_transaction_that_must_be_run_again_is(counted: tuple[Store, Counted]) -> None:
    store, _ = counted
    works = [lambda n=n: store.thread(str(n)).append({"n": [n]}) for n in range(10)]  # type: ignore[misc]
    beside(store, works, RetryTransaction("the map has grown"))
    assert [store.thread(str(n)).state()["n"] for n in range(10)] == [[0, n] for n in range(10)]


def test_a_batch_has_an_end(counted: tuple[Store, Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "MAX_BATCH", 4)
    store, storage = counted
    before = storage.commits
    beside(store, [lambda n=n: store.thread(str(n)).append({"n": [n]}) for n in range(10)])  # type: ignore[misc]
    assert storage.commits == before + 1 + 3
    assert [store.thread(str(n)).state()["n"] for n in range(10)] == [[0, n] for n in range(10)]


def test_tasks_share_commits(tmp_path: Path) -> None:
    storage = Counted(MemoryStorage())
    saver = DeltaSaver(Store(storage))

    async def chat(number: int) -> None:
        where = config(f"chat {number}")
        for step in range(5):
            made = checkpoint(f"{step}", {"n": f"{step}"}, {"n": [number, step]})
            where = await saver.aput(where, made, {"step": step}, {"n": f"{step}"})
            await saver.aput_writes(where, [("n", step)], "task")

    async def all_chats() -> None:
        await asyncio.gather(*(chat(number) for number in range(50)))

    asyncio.run(all_chats())
    assert storage.commits < 50 * 10
    for number in range(50):
        found = saver.get_tuple(config(f"chat {number}"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": [number, 4]}
        assert found.pending_writes == [("task", "n", 4)]
    assert check(saver.store).ok
    saver.store.close()


def test_errors_of_tasks_reach_them(tmp_path: Path) -> None:
    with DeltaSaver.from_path(tmp_path / "s.ds") as saver:
        fenced = DeltaSaver(saver.store, fenced=True)

        async def race() -> list[Any]:
            made = [checkpoint(f"{n}", {"n": "1"}, {"n": n}) for n in range(20)]
            return await asyncio.gather(
                *(fenced.aput(config("t"), each, {"step": 0}, {"n": "1"}) for each in made), return_exceptions=True
            )

        found = asyncio.run(race())
        assert sum(isinstance(each, ConflictError) for each in found) == 19
        assert len(list(saver.list(config("t")))) == 1
    closed = saver

    async def late() -> None:
        await closed.aput(config("t"), checkpoint("x", {}, {}), {}, {})

    with pytest.raises(deltastore.ClosedError):
        asyncio.run(late())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_child_has_a_queue_of_its_own(tmp_path: Path) -> None:
    """The parent forks while others commit: the child must not wait for threads that it hasn't got."""
    with deltastore.open(tmp_path / "s.ds", sync="none") as store:
        ended = threading.Event()

        def busy(number: int) -> None:
            while not ended.is_set():
                store.thread(f"busy {number}").append({"n": [number]})

        threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for round_ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(WAIT)  # rather than wait for ever
                try:
                    store.thread(f"child {round_}").append({"n": [1]})
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ended.set()
        for thread in threads:
            thread.join(WAIT)
        assert [store.thread(f"child {round_}").state() for round_ in range(5)] == [{"n": [1]}] * 5
        assert check(store).ok


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Let the first SIGINT raise KeyboardInterrupt, and set this; later ones do nothing."""
    happened = threading.Event()

    def once(*_: Any) -> None:
        if not happened.is_set():
            happened.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, once)
    yield happened
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_writer_takes_nobody_with_it(
    counted: tuple[Store, Counted], interrupted: threading.Event
) -> None:
    store, storage = counted
    main = threading.get_ident()
    started = threading.Event()

    def hold() -> None:
        started.set()
        waiting = store.log._commits._waiting
        while len(waiting) < 2:
            pass
        signal.pthread_kill(main, signal.SIGINT)
        while not interrupted.wait(0.1):  # Python doesn't hear of one that comes just before it falls asleep
            signal.pthread_kill(main, signal.SIGINT)
        while len(waiting) > 1:  # until the main thread has left the queue
            pass

    storage.hold = hold
    leader = threading.Thread(target=store.thread("leader").append, args=({"n": [1]},))
    other = threading.Thread(target=store.thread("1").append, args=({"n": [1]},))
    leader.start()
    assert started.wait(WAIT)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        store.thread("0").append({"n": [1]})
    for thread in (leader, other):
        thread.join(WAIT)
        assert not thread.is_alive()
    store.thread("2").append({"n": [1]})  # the queue goes on
    assert store.thread("1").state() == {"n": [0, 1]}
    assert check(store).ok


def test_nobody_writes_twice_where_a_commit_was_interrupted(counted: tuple[Store, Counted]) -> None:
    """The signal reaches the thread that commits for all when the commit was made: the others can't come again."""
    store, _ = counted
    works: list[Callable[[], Any]] = [
        lambda n=n: store.thread(str(n)).append({"n": [1]})  # type: ignore[misc]
        for n in range(5)
    ]
    found = beside(store, works, interrupt=KeyboardInterrupt())
    assert sorted(type(outcome).__name__ for outcome in found) == ["CommitUnknownError"] * 4 + ["KeyboardInterrupt"]
    assert [store.thread(str(n)).state() for n in range(5)] == [{"n": [0, 1]}] * 5
    store.thread("0").append({"n": [2]})  # the queue goes on
    assert check(store).ok


def test_a_reducer_may_wait_for_another_threads_put() -> None:
    """It runs while a put is prepared; whoever commits meanwhile must not wait for it in turn."""
    notes = Store(MemoryStorage())
    stores: list[Store] = []

    def fold(value: int, write: int) -> int:
        done = threading.Thread(target=lambda: stores[0].thread(f"beside {write}").append({"n": [write]}))
        done.start()
        done.join(WAIT)
        assert not done.is_alive()
        notes.thread("folds").append({"n": [write]})
        return value + write

    stores.append(Store(MemoryStorage(), snapshot_frequency=1, reducers=[Reducer("sum", 1, fold, int)], channels=SUM))
    failed: list[Exception] = []

    def work(number: int) -> None:
        try:
            for step in range(3):
                stores[0].thread(f"own {number}").append({"sum": 10 * number + step})
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
        assert not thread.is_alive()
    assert failed == []
    for number in range(4):
        assert stores[0].thread(f"own {number}").state() == {"sum": 30 * number + 3}
