"""Many processes on one store, killed at random: nothing acknowledged is lost, nothing is wrong, nobody fails."""

import multiprocessing
import os
import platform
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

import deltastore
from deltastore import StoreFullError, check
from deltastore.langgraph import DeltaSaver
from deltastore.storage.lmdb import LmdbStorage
from tests import fleet, workers
from tests.fleet import Fleet, hear, judge, run_all, spawn
from tests.workers import Job

KILLS = {"quick": 5, "ci": 40, "deep": 400}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.ds"


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--profile")


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("front", workers.FRONTS)
def test_processes_killed_at_random(path: Path, front: str, shared: bool, profile: str, chance: random.Random) -> None:
    """The store is held open here all along, and read after each kill; others go on writing and reading meanwhile."""
    with Fleet() as crews, deltastore.open(path, sync="none") as held:
        jobs = fleet.crews(path, front, processes=3, writers=2, readers=1, shared=shared, sync="none")
        crews.launch(*jobs)
        for number in range(KILLS[profile]):
            for _ in range(chance.randint(1, 40)):
                assert crews.listen() is not None
            for _ in range(chance.randrange(40_000)):  # up to about the time that a put takes
                pass
            victim = chance.choice(crews.alive)
            crews.kill(victim)
            name, id_, *_ = crews.acknowledged[-1]
            if front == "native":
                workers.Native(held).look(name, chance)
                workers.check_items(held.thread(name).state(at=id_)["items"])
            else:
                found = DeltaSaver(held).get_tuple(workers.config(name, id_))
                workers.check_tuple(found, written=True)
                workers.Saver(DeltaSaver(held)).look(name, chance)
            crews.launch(Job(str(path), front, 3 + number, writers=2, readers=1, shared=shared, sync="none"))
        crews.finish()
        assert crews.reads
    count = judge(path, front, crews)
    print(f"{count} checkpoints, {len(crews.acknowledged)} acknowledged, {crews.reads} reads of those that ended")


@pytest.mark.parametrize("front", workers.FRONTS)
def test_a_map_that_grows_under_everybody(path: Path, front: str) -> None:
    """Each process begins with a map of 128 KiB and grows it in such steps, or finds that another one has."""
    done = run_all(
        *(
            Job(str(path), front, workers.HEAVY + number, writers=2, readers=1, puts=12, sync="none", map_bytes=1 << 17)
            for number in range(3)
        )
    )
    assert judge(path, front, done) == len(done.acknowledged) == 3 * 2 * 12
    with deltastore.open(path) as store:
        assert store.info().file_bytes > 10 << 17


def test_a_capped_process_beside_one_without_a_cap(path: Path) -> None:
    """The cap is the process's own: beyond it, it reads and deletes what others put, and puts are refused."""
    with deltastore.open(path, sync="none", max_bytes=1 << 20) as capped:
        first = capped.thread("t").append({"items": [workers.message(0, 0, 0)]})
        heavy = workers.HEAVY
        done = run_all(Job(str(path), "native", heavy, writers=2, puts=40, sync="none"))
        assert capped.info().file_bytes > 1 << 20
        for number in range(2):
            assert capped.thread(f"t{heavy}.{number}").state() == {"items": workers.messages(heavy, number, 40)}
        with pytest.raises(StoreFullError, match="max_bytes"):
            capped.thread("t").put_state({"items": [os.urandom(4000) for _ in range(400)]})
        assert capped.thread("t").latest() == first
        for number in range(2):
            assert capped.delete(f"t{heavy}.{number}")
        capped.thread("t").append({"items": [workers.message(0, 0, 1)]})
        assert check(capped).ok
    assert len(done.acknowledged) == 80


def test_writers_go_on_when_the_one_inside_is_killed(path: Path) -> None:
    """The lock of a dead writer is taken from it, whether others wait for it already or come later."""
    with deltastore.open(path, sync="none") as store:
        first = store.thread("t").append({"items": [workers.message(9, 0, 0)]})
        for turn in range(4):
            holder, pipe = spawn(workers.hold_write, str(path))
            assert [hear(pipe), hear(pipe)] == ["open", "inside"]
            with Fleet() as crews:
                if turn % 2:
                    holder.kill()
                    holder.join()
                crews.launch(Job(str(path), "native", turn, writers=3, puts=2, sync="none"))
                holder.kill()  # while they wait, or have begun to
                crews.finish()
            holder.join()
            holder.close()
            pipe.close()
            assert len(crews.acknowledged) == 6
        assert store.thread("t").latest() == first
        with store.log.storage.read() as transaction:
            assert transaction.get(b"half") is None
        assert check(store).ok


WAITS = {"202", "72"} if platform.machine() == "x86_64" else {"98", "25"}
"""The system calls in which a process waits for a lock: futex and fcntl."""


def until(condition: Callable[[], bool]) -> None:
    """Look again and again; what is waited for is sure to come, unless something is wrong."""
    end = time.monotonic() + fleet.TIMEOUT
    while not condition():
        assert time.monotonic() < end, "it never came"
        select.select([], [], [], 0.001)


def waits(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in WAITS


@pytest.mark.skipif(not os.access("/proc/self/syscall", os.R_OK), reason="needs to see where a process waits")
def test_a_waiter_killed_as_its_turn_comes_strands_nobody(path: Path) -> None:
    """LMDB's own lock wakes one sleeper; where that one dies and another writer is faster, the others slept on."""
    with closing(LmdbStorage(path)) as storage, ExitStack() as stack:
        found = []
        for _ in range(3):
            process, pipe = spawn(workers.hold_write, str(path))
            stack.callback(process.join)
            stack.callback(process.kill)
            stack.callback(pipe.close)
            found.append((process, pipe))
            assert hear(pipe) == "open"
            if len(found) == 1:
                assert hear(pipe) == "inside"
            else:
                until(partial(waits, process.pid))
        (_, holding), (victim, news), (_, waiting) = found
        # The victim runs where this test's thread does, and only while that one sleeps: it is woken, and can't run.
        one = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(victim.pid, one)
        os.sched_setscheduler(victim.pid, os.SCHED_IDLE, os.sched_param(0))
        inside, leave = threading.Event(), threading.Event()

        def write() -> None:
            os.sched_setaffinity(0, one)
            holding.send("leave")
            while not holding.poll():
                pass
            with storage.write():
                with suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)
                inside.set()
                leave.wait()

        faster = threading.Thread(target=write, daemon=True)
        faster.start()
        until(lambda: inside.is_set() or waiting.poll() or news.poll())  # the last: it ran after all
        victim.kill()
        victim.join()
        leave.set()
        assert waiting.poll(30), "it sleeps on"
        assert waiting.recv() == "inside"
        waiting.send("leave")
        faster.join()


@pytest.mark.parametrize("front", ["native", "saver"])
def test_a_fresh_path_that_all_open_at_once(tmp_path: Path, front: str) -> None:
    for turn in range(2):
        path = tmp_path / f"store-{turn}.ds"
        found = [spawn(workers.open_and_put, str(path), front, number) for number in range(12)]
        for _, pipe in found:
            assert hear(pipe) == "ready"
        for _, pipe in found:
            pipe.send("go")
        for process, pipe in found:
            assert hear(pipe) == "put"
            process.join()
            assert process.exitcode == 0
            process.close()
            pipe.close()
        with deltastore.open(path, create=False) as store:
            assert [(one.name, one.checkpoints) for one in store.threads()] == [("t", 12)]
            report = check(store)
            assert report.ok
            assert report.checkpoints == 12


def _use_in_child(saver: DeltaSaver, number: int) -> None:
    """What a worker does with the handle that its parent had opened: read, put, fork itself, close."""
    found = saver.get_tuple(workers.config("parent"))
    assert found is not None
    workers.check_tuple(found)  # whose writes may be under way
    front = workers.Saver(saver)
    for nth in range(4):
        front.put("shared", number, 0, nth)
        front.look("shared", random.Random(nth))
    native = workers.Native(saver.store)
    for nth in range(4):
        native.put("native", number, 0, nth)
        native.look("native", random.Random(nth))
    if number < 10:
        _fork(saver, number + 10)()
    saver.close()


def _fork(saver: DeltaSaver, number: int):
    child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(saver, number))
    child.start()

    def join() -> None:
        child.join()
        assert child.exitcode == 0
        child.close()

    return join


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_open_saver_is_used_by_parent_and_children(path: Path) -> None:
    """As web servers do that load the application and fork: each child, and its child, opens the store anew."""
    with deltastore.open(path, sync="none", snapshot_frequency=3) as store:
        saver = DeltaSaver(store)
        front, native = workers.Saver(saver), workers.Native(store)
        for nth in range(5):
            front.put("parent", 0, 0, nth)
            native.put("native", 0, 0, nth)
        joins = [_fork(saver, number) for number in range(1, 4)]
        for nth in range(5, 15):
            front.put("parent", 0, 0, nth)
            front.look("shared", random.Random(nth))
            native.put("native", 0, 0, nth)
            native.look("native", random.Random(nth))
        for join in joins:
            join()
        assert len(list(saver.list(workers.config("shared")))) == 6 * 4
        for found in saver.list(None):
            workers.check_tuple(found, written=True)
        items = store.thread("native").state()["items"]
        workers.check_items(items)
        assert len(items) == 15 + 6 * 4
        assert check(store).ok
