"""A shrinking moves the store into a file that is as small as its rows; nobody fails, and nothing is lost."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import ConflictError, CorruptionError, StorageError, Store, UnavailableError, check
from deltastore.langgraph import DeltaSaver
from deltastore.log import deleting, names, rows
from deltastore.storage import directory, filling, lmdb, moving
from deltastore.storage.memory import MemoryStorage
from deltastore.upkeep.backup import backup
from deltastore.upkeep.compaction import compact
from deltastore.upkeep.shrinking import shrink
from tests.raw import everything, rows_of
from tests.upkeep import beside, both_fronts
from tests.upkeep.both_fronts import told
from tests.upkeep.stopping import in_child

ROOT = Path(__file__).parents[2]
ROUNDS = {"quick": 3, "ci": 10, "deep": 50}


def files(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.ds"


# --- what it does


def test_rows_are_the_same_and_the_file_is_small(path: Path) -> None:
    expected = both_fronts.make(path, 3)
    with deltastore.open(path) as store:
        store.collect()
        for number in range(40):
            store.thread(f"many {number}").append({"text": os.urandom(20_000).hex()})
        for number in range(40):
            store.delete(f"many {number}")
        before = rows_of(store.log.storage)
        told_bytes: list[Any] = []
        report = shrink(store, progress=lambda done, total: told_bytes.append((done, total)))
        assert report.bytes_after == store.info().file_bytes < report.bytes_before / 2
        assert told_bytes[-1][0] == told_bytes[-1][1] > 0
        assert rows_of(store.log.storage) == before
        assert told(store) == expected
        assert files(path) == ["CURRENT", "env-2", "moving.lock"]
        store.thread("n").append({"n": 1})
    with deltastore.open(path) as store:
        assert shrink(store).bytes_after <= report.bytes_after + 8192
        assert files(path) == ["CURRENT", "env-3", "moving.lock"]
        assert check(store).ok


def test_deleted_threads_that_wait_in_the_queue_go_first(path: Path) -> None:
    with deltastore.open(path) as store:
        store.thread("t").append({"text": "gone"})
        names.in_write(store.log.storage, (), lambda tx: deleting.delete_thread(tx, "t", 0))
        shrink(store)
        assert check(store).queued_threads == 0


def test_only_lmdb_has_a_file() -> None:
    with Store(MemoryStorage()) as store, pytest.raises(UnavailableError):
        shrink(store)


def test_a_capped_store_that_is_full_can_be_emptied_and_shrunk(path: Path) -> None:
    with deltastore.open(path, max_bytes=16 << 20, sync="none") as store:

        def put_all() -> None:
            for number in range(400):
                store.thread("t").put_state({"text": os.urandom(60_000).hex(), "n": number})

        with pytest.raises(deltastore.StoreFullError):
            put_all()
        expected = everything(store)
        compact(store, level=1)
        shrink(store)
        assert everything(store) == expected
        ids = [found.id for found in store.thread("t").history()]
        for id_ in ids[1:]:
            store.thread("t").delete(id_)
        compact(store, erase=True, level=1)
        assert shrink(store).bytes_after < 200_000
        store.thread("t").put_state({"text": "room again"})
        assert store.log.storage.shared.max_bytes == 16 << 20


# --- handles


def test_idle_handles_follow_over_any_number_of_moves(path: Path) -> None:
    """What an idle handle has open says that env-2 took over; by then env-2 is gone as well."""
    with deltastore.open(path) as store, deltastore.open(path) as same:
        store.thread("t").append({"n": 1})
        idle = beside.start("idle", path, path.with_name("none"))
        assert beside.ask(idle) == "done"
        for moves in (1, 2, 3):
            for _ in range(moves):
                shrink(store)
            assert beside.ask(idle) == "done"
            same.thread("t").append({"n": moves})
        beside.end(idle)
        assert len(list(store.thread("idle").history())) == 4
        assert [found.name for found in path.glob("env-*")] == ["env-7"]


def test_a_forked_child_follows(path: Path) -> None:
    with deltastore.open(path, sync="none") as store:
        store.thread("t").append({"n": 1})

        def work() -> None:
            with deltastore.open(path, sync="none") as own:
                shrink(own)
                shrink(own)
            store.thread("t").append({"n": 2})

        assert in_child(work) == 0
        assert store.thread("t").state()["n"] == 2


def test_a_chain_that_leads_nowhere_is_still_damage(path: Path) -> None:
    with deltastore.open(path) as store, deltastore.open(path) as other:
        store.thread("t").append({"n": 1})
        shrink(store)
        shutil.rmtree(path / "env-2")
        with pytest.raises((CorruptionError, StorageError)):
            other.thread("t").append({"n": 2})


@pytest.mark.parametrize("step", ["named", "identified", "opened"])
def test_opening_while_the_store_moves(path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reads CURRENT; before it has that environment open, the store is elsewhere and the old one gone."""
    with deltastore.open(path, sync="none") as store:
        store.thread("t").append({"n": 1})
        done: list[object] = []

        def move() -> None:
            if not done:
                done.append(None)
                mover = os.fork()
                if mover == 0:
                    monkeypatch.undo()
                    with deltastore.open(path, sync="none") as own:
                        shrink(own)
                        shrink(own)
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(mover, 0)[1]) == 0

        def before(module: Any, name: str) -> None:
            inner = getattr(module, name)

            def call(*arguments: Any, **options: Any) -> Any:
                move()
                return inner(*arguments, **options)

            monkeypatch.setattr(module, name, call)

        def work() -> None:
            target = {
                "named": (directory, "check_named"),
                "identified": (lmdb.sharing, "acquire"),
                "opened": (lmdb.engine, "open_environment"),
            }[step]
            before(*target)
            with deltastore.open(path, sync="none") as own:
                assert done
                assert own.thread("t").state() == {"n": 1}
                own.thread("t").append({"n": 2})

        assert in_child(work) == 0
        assert store.thread("t").state() == {"n": 2}
        assert files(path) == ["CURRENT", "env-3", "moving.lock"]


def test_an_environment_is_renamed_before_it_is_emptied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opened a directory whose data file just went would get a new, empty one, and write into it."""
    with deltastore.open(path) as store:
        store.thread("t").append({"n": 1})
        removed: list[str] = []
        remove = shutil.rmtree

        def look(doomed: Path, **options: Any) -> None:
            removed.append(doomed.name)
            remove(doomed, **options)

        monkeypatch.setattr(moving.shutil, "rmtree", look)
        shrink(store)
        assert "env-1" not in removed
        assert "env-1.gone" in removed


def test_two_at_once_are_refused(path: Path) -> None:
    with deltastore.open(path) as store, deltastore.open(path) as other:
        both_fronts.fill(store)
        expected = told(store)
        met: list[object] = []

        def meet(done: int, total: int | None) -> None:
            if not met:
                with pytest.raises(ConflictError, match="being moved"):
                    shrink(other)
                met.append(in_child(lambda: _refused(path)))

        shrink(store, progress=meet)
        assert met == [0]
        shrink(other)
        assert told(store) == expected
        assert files(path) == ["CURRENT", "env-3", "moving.lock"]


def _refused(path: Path) -> None:
    with deltastore.open(path) as store, pytest.raises(ConflictError):
        shrink(store)


def test_a_child_forked_meanwhile_does_not_hold_the_lock(path: Path) -> None:
    with deltastore.open(path) as store:
        store.thread("t").append({"n": 1})
        waiting, ending = os.pipe()
        children: list[int] = []

        def fork(done: int, total: int | None) -> None:
            if children:
                return
            children.append(os.fork())
            if children == [0]:
                os.close(ending)
                os.read(waiting, 1)
                os._exit(0)

        shrink(store, progress=fork)
        shrink(store)
        os.close(ending)
        os.waitpid(children[0], 0)
        os.close(waiting)


# --- others at work


def test_copies_loads_deletions_and_puts_under_way(path: Path) -> None:
    """Whatever others do between two of its steps is in the new environment as it would be in the old one."""
    with deltastore.open(path, sync="none") as store, deltastore.open(path, sync="none") as other:
        both_fronts.fill(store)
        for number in range(12):
            store.thread(f"many {number}").append({"m": [number]})
        saver = DeltaSaver(other)
        steps = [
            lambda: other.copy("n", "copied"),
            lambda: other.delete("docs"),
            lambda: other.thread("n").append({"messages": ["put"]}),
            lambda: other.thread("new").append({"messages": ["new"]}),
            lambda: saver.prune(["g"]),
            lambda: compact(other, erase=True, level=1),
            lambda: names.in_write(other.log.storage, (), _queue_a_copy),
        ]
        left = list(steps)

        def meddle(done: int, total: int | None) -> None:
            if left:
                left.pop(0)()

        shrink(store, progress=meddle)
        assert not left
        assert {"copied", "new", "n"} <= {info.name for info in store.threads()}
        assert "docs" not in {info.name for info in store.threads()}
        assert store.thread("n").state()["messages"][-1] == "put"
        assert repr(list(saver.list({"configurable": {"thread_id": "g", "checkpoint_ns": ""}})))
        report = check(store)
        assert report.ok, report.problems
        before = rows_of(store.log.storage)
        shrink(other)
        assert rows_of(store.log.storage) == before


def _queue_a_copy(tx: Any) -> None:
    number = names.new_number(tx, b"t")
    rows.enqueue(tx, rows.Queued(number, rows.FILLING, 1 << 45))


def test_a_copy_that_reads_the_old_environment_ends_in_the_new_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltastore.log import copying

    with deltastore.open(path, sync="none") as store, deltastore.open(path, sync="none") as other:
        both_fronts.fill(store)
        expected = told(store)
        monkeypatch.setattr(copying, "MAX_COPIED_ROWS", 3)
        write = copying._write
        moves: list[object] = []

        def moved(*arguments: Any) -> None:
            write(*arguments)
            if len(moves) < 2:
                moves.append(shrink(other))

        monkeypatch.setattr(copying, "_write", moved)
        store.copy("n", "copied")
        assert len(moves) == 2
        assert [found.metadata for found in store.thread("copied").history()] == [
            found.metadata for found in store.thread("n").history()
        ]
        assert told(store) == expected
        assert check(store).ok


def test_writers_and_readers_in_other_processes(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    log = tmp_path / "acknowledged"
    with deltastore.open(path, sync="none") as store:
        store.thread("t0").append({"messages": []})
        running = [
            *(beside.start("writer", path, log, seed) for seed in range(2)),
            beside.start("reader", path, log),
            beside.start("opener", path, log),
        ]
        idle, lister = beside.start("idle", path, log), beside.start("lister", path, log)
        for process in [*running[:2], *running, idle]:
            assert beside.ask(process) == "done"
        for number in range(ROUNDS[request.config.getoption("--profile")]):
            assert beside.ask(lister) == "open"
            compact(store, erase=bool(number % 2), level=1)
            for _ in range(1 + number % 2):
                shrink(store)
            for process in running:
                assert beside.ask(process) == "done"
            assert beside.ask(lister) == "done"
            assert beside.ask(idle) == "done"
            compact(store, level=1)
            assert [found.name for found in path.glob("env-*")] == [(path / "CURRENT").read_text().strip()]
        for process in [*running, idle, lister]:
            beside.end(process)
        found = beside.acknowledged(log)
        assert len(found) > 20
        beside.compare(store, os.fspath(log), None)
        report = check(store)
        assert report.ok, report.problems
        assert {id_ for _, id_, _ in found} <= {c.id for n in range(4) for c in store.thread(f"t{n}").history()}


def test_threads_of_this_process_go_on(path: Path) -> None:
    with deltastore.open(path, sync="none") as store:
        stop = threading.Event()
        put: list[list[str]] = [[], []]

        def work(number: int) -> None:
            while not stop.is_set():
                put[number].append(store.thread(f"t{number}").append({"n": [len(put[number])]}).id)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        for _ in range(4):
            compact(store, level=1)
            shrink(store)
        stop.set()
        for worker in workers:
            worker.join()
        for number, ids in enumerate(put):
            assert [found.id for found in store.thread(f"t{number}").history()] == ids[::-1]
            if ids:
                assert store.thread(f"t{number}").state()["n"] == list(range(len(ids)))
        assert check(store).ok


# --- bounded, and short of room


def test_only_what_changed_is_written_while_others_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "MAX_BATCH_ROWS", 20)
    with deltastore.open(path, sync="none") as store:
        for number in range(30):
            store.thread(f"t{number}").append({"m": [os.urandom(5000).hex()]})
        batches: list[int] = []
        amended: list[tuple[bool, int]] = []
        append, amend, write = filling._append, moving._amend, store.log.storage.write
        inside: list[object] = []

        def begun(*arguments: Any) -> Any:
            inside.append(None)
            return write(*arguments)

        def noted(*arguments: Any) -> int:
            amended.append((bool(inside), amend(*arguments)))
            return amended[-1][1]

        def batch(shared: Any, given: list[Any]) -> None:
            batches.append(len(given))
            append(shared, given)

        def meddle(done: int, total: int | None) -> None:
            if not batches:
                store.thread("t1").append({"m": ["meanwhile"]})
                inside.clear()

        monkeypatch.setattr(filling, "_append", batch)
        monkeypatch.setattr(moving, "_amend", noted)
        monkeypatch.setattr(store.log.storage, "write", begun)
        shrink(store, progress=meddle)
        assert max(batches) <= 20
        assert len(batches) > 5
        assert all(count < 100 for _, count in amended)
        assert store.thread("t1").state()["m"][-1] == "meanwhile"


def test_a_full_device_leaves_the_store_as_it_was(path: Path) -> None:
    with deltastore.open(path, sync="none") as store:
        for number in range(40):
            store.thread("t").append({"m": [os.urandom(30_000).hex()], "n": number})
        expected = everything(store)
    script = """
import resource, sys
import deltastore
from deltastore.upkeep.shrinking import shrink
store = deltastore.open(sys.argv[1], sync="none")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
try:
    shrink(store)
except deltastore.StoreFullError as error:
    print(error)
print(len(store.thread("t").state()["m"]))
"""
    child = subprocess.run(
        [sys.executable, "-c", script, path],
        capture_output=True,
        check=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
    )
    assert "no room left" in child.stdout, child.stderr
    assert child.stdout.endswith("40\n")
    assert files(path) == ["CURRENT", "env-1", "moving.lock"]
    (path / "env-2.filling").mkdir()
    (path / "env-2.filling" / "data.mdb").write_bytes(b"left behind")
    (path / "env-3").mkdir()
    (path / "env-1.gone").mkdir()
    with deltastore.open(path, sync="none") as store:
        assert everything(store) == expected
        shrink(store)
        assert files(path) == ["CURRENT", "env-2", "moving.lock"]
        assert everything(store) == expected


def test_a_shrinking_that_is_ended_leaves_the_store_as_it_was(path: Path) -> None:
    with deltastore.open(path, sync="none") as store:
        expected = both_fronts.make(path.with_name("other.ds"))
        both_fronts.fill(store)

        def fail(done: int, total: int | None) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shrink(store, progress=fail)
        assert files(path) == ["CURRENT", "env-1", "moving.lock"]
        assert len(told(store)) == len(expected)


def test_a_backup_of_a_shrunk_store(path: Path) -> None:
    expected = both_fronts.make(path)
    with deltastore.open(path, sync="none") as store:
        shrink(store)
        backup(store, path.with_name("backup.ds"))
    with deltastore.open(path.with_name("backup.ds")) as store:
        assert told(store) == expected
