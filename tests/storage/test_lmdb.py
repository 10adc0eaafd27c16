"""What the embedded storage does beyond the contract: directories, processes, forks, moves, a map that is full."""

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from deltastore.errors import (
    ChecksumError,
    ClosedError,
    CorruptionError,
    DeltastoreError,
    InvalidInputError,
    StorageError,
    StoreFullError,
    StorePathError,
    SyncModeError,
)
from deltastore.storage import RESERVED_PREFIX, RetryTransaction, engine, environment, sharing
from deltastore.storage.directory import CURRENT, MOVED_KEY, moved_name, moved_value
from deltastore.storage.lmdb import LmdbStorage

ROOT = Path(__file__).parents[2]
EVERYTHING = (b"", b"\xff" * 8)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    left = [shared.location for shared in sharing._process.open.values()]
    assert left == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def put(storage: LmdbStorage, **rows: bytes) -> None:
    with storage.write() as transaction:
        for key, value in rows.items():
            transaction.put(key.encode(), value)


def get(storage: LmdbStorage, key: str) -> bytes | None:
    with storage.read() as transaction:
        return transaction.get(key.encode())


def names(path: Path) -> list[str]:
    return sorted(inner.name for inner in path.iterdir())


def environments() -> int:
    return len(sharing._process.open)


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    prelude = "import sys, os\nfrom pathlib import Path\nfrom deltastore.storage.lmdb import LmdbStorage\n"
    command = [sys.executable, "-W", "error", "-c", prelude + script, *map(str, arguments)]
    pipe = subprocess.PIPE
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=surroundings)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


def run(script: str, *arguments: object) -> str:
    return finish(start(script, *arguments))


def in_child(act) -> str:
    """Fork, act in the child, and return what it returned, or its error's text."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(act())
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            answer = f"{type(error).__name__}: {error}"
        os.write(there, answer.encode())
        os._exit(0)
    os.close(there)
    with open(here, "rb") as file:  # noqa: PTH123 - a descriptor
        answer = file.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return answer


class TestPaths:
    def test_a_fresh_path_becomes_a_store(self, path: Path) -> None:
        storage = LmdbStorage(path)
        assert names(path) == [CURRENT, "env-1"]
        assert (path / CURRENT).read_text() == "env-1\n"
        assert storage.location == str(path)
        storage.close()

    def test_what_was_written_is_there_when_opened_again(self, path: Path) -> None:
        storage = LmdbStorage(os.fspath(path))
        put(storage, a=b"1")
        storage.close()
        storage = LmdbStorage(path)
        assert get(storage, "a") == b"1"
        storage.close()

    def test_the_parent_must_exist(self, path: Path) -> None:
        with pytest.raises(StorePathError, match="parent"):
            LmdbStorage(path / "deeper")
        assert not path.exists()

    def test_a_file_is_no_store(self, path: Path) -> None:
        path.write_text("mine")
        with pytest.raises(StorePathError, match="directory"):
            LmdbStorage(path)
        assert path.read_text() == "mine"

    def test_a_directory_of_something_else_is_left_alone(self, path: Path) -> None:
        (path / "env-1").mkdir(parents=True)
        (path / "env-1" / "notes").write_text("mine")
        with pytest.raises(StorePathError, match="env-1/notes"):
            LmdbStorage(path)
        (path / "thesis.tex").write_text("mine")
        with pytest.raises(StorePathError, match="thesis"):
            LmdbStorage(path)
        assert names(path) == ["env-1", "thesis.tex"]
        assert names(path / "env-1") == ["notes"]

    @pytest.mark.parametrize("left", [[], ["env-1/"], ["env-1/", "env-1/data.mdb"], ["CURRENT.tmp", "env-1/"]])
    def test_a_creation_that_was_cut_off_is_completed(self, path: Path, left: list[str]) -> None:
        path.mkdir()
        for name in left:
            (path / name).mkdir() if name.endswith("/") else (path / name).touch()
        storage = LmdbStorage(path)
        put(storage, a=b"1")
        assert names(path) == [CURRENT, "env-1"]
        storage.close()

    @pytest.mark.parametrize("found", [b"", b"env-1", b"env-01\n", b"../env-1\n", b"env-1\nenv-2\n", b"\xff" * 100])
    def test_a_damaged_current_is_named(self, path: Path, found: bytes) -> None:
        LmdbStorage(path).close()
        (path / CURRENT).write_bytes(found)
        if found == b"env-1":  # without its line's end it is as good
            LmdbStorage(path).close()
            return
        with pytest.raises(CorruptionError, match=r"CURRENT is damaged.*env-1"):
            LmdbStorage(path)
        assert (path / CURRENT).read_bytes() == found

    def test_a_current_that_names_nothing_is_damage(self, path: Path) -> None:
        LmdbStorage(path).close()
        (path / CURRENT).write_text("env-7\n")
        with pytest.raises(CorruptionError, match=r"env-7.*there are env-1"):
            LmdbStorage(path)
        assert not (path / "env-7").exists()

    def test_a_missing_current_beside_several_environments_is_damage(self, path: Path) -> None:
        LmdbStorage(path).close()
        (path / "env-1").rename(path / "env-2")
        (path / CURRENT).unlink()
        with pytest.raises(CorruptionError, match="no file CURRENT"):
            LmdbStorage(path)

    def test_a_file_that_is_no_data_is_damage(self, path: Path) -> None:
        LmdbStorage(path).close()
        (path / "env-1" / "data.mdb").write_bytes(b"\x01" * 8192)
        with pytest.raises(CorruptionError, match="env-1"):
            LmdbStorage(path)

    def test_arguments_outside_the_rule_are_refused(self, path: Path) -> None:
        with pytest.raises(InvalidInputError):
            LmdbStorage(path, sync="fast")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            LmdbStorage(path, max_bytes=4096)
        assert not path.exists()


class TestSharing:
    def test_every_path_to_a_store_leads_to_one_environment(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "link").symlink_to(path)
        monkeypatch.chdir(tmp_path)
        storages = [LmdbStorage(where) for where in (path, tmp_path / "link", "store", tmp_path / "x" / ".." / "store")]
        assert environments() == 1
        put(storages[1], a=b"1")
        assert [get(storage, "a") for storage in storages] == [b"1"] * 4
        storages[0].close()
        storages[0].close()
        assert get(storages[3], "a") == b"1"
        with pytest.raises(ClosedError):
            get(storages[0], "a")
        for storage in storages:
            storage.close()
        assert environments() == 0

    def test_a_transaction_under_way_outlives_its_handle(self, path: Path) -> None:
        storage = LmdbStorage(path)
        with storage.write() as transaction:
            transaction.put(b"a", b"1")
            storage.close()
            transaction.put(b"b", b"2")
            again = LmdbStorage(path)
            assert environments() == 1
        assert get(again, "b") == b"2"
        with again.read() as reader:
            again.close()
            assert reader.get(b"a") == b"1"

    def test_a_directory_made_anew_is_another_store(self, path: Path, tmp_path: Path) -> None:
        old = LmdbStorage(path)
        put(old, a=b"old")
        path.rename(tmp_path / "away")
        new = LmdbStorage(path)
        assert get(new, "a") is None
        put(new, a=b"new")
        with pytest.raises(StorageError, match="deleted or replaced"):
            put(old, a=b"lost")
        assert get(new, "a") == b"new"
        old.close()
        new.close()

    def test_a_write_into_a_deleted_file_is_refused(self, path: Path) -> None:
        storage = LmdbStorage(path)
        (path / "env-1" / "data.mdb").unlink()
        with pytest.raises(StorageError, match="deleted or replaced"):
            put(storage, a=b"lost")
        storage.close()

    def test_many_processes_open_a_fresh_path_at_once(self, path: Path) -> None:
        script = """
sys.stdin.readline()
storage = LmdbStorage(sys.argv[1], sync="none")
for _ in range(20):
    with storage.write() as transaction:
        transaction.put(b"row%d" % transaction.mint(b"n"), b"")
"""
        processes = [start(script, path) for _ in range(6)]
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            finish(process)
        storage = LmdbStorage(path)
        with storage.read() as transaction:
            assert len(list(transaction.scan(b"row", b"rox"))) == 120
        assert names(path) == [CURRENT, "env-1"]
        storage.close()

    def test_many_threads_open_a_fresh_path_at_once(self, path: Path) -> None:
        gate = threading.Barrier(8)

        def open_and_write(number: int) -> LmdbStorage:
            gate.wait()
            storage = LmdbStorage(path, sync="none")
            put(storage, **{f"row{number}": b""})
            return storage

        with ThreadPoolExecutor(8) as pool:
            storages = list(pool.map(open_and_write, range(8)))
        assert environments() == 1
        with storages[0].read() as transaction:
            assert len(list(transaction.scan(*EVERYTHING))) == 8
        for storage in storages:
            storage.close()

    def test_handles_open_and_close_while_others_work(self, path: Path) -> None:
        LmdbStorage(path, sync="none").close()

        def work(number: int) -> None:
            for _ in range(30):
                storage = LmdbStorage(path, sync="none")
                put(storage, **{f"row{number}": b""})
                get(storage, "row0")
                storage.close()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert environments() == 0


class TestSyncModes:
    @pytest.mark.parametrize(("mode", "sync"), [("full", True), ("meta", True), ("none", False)])
    def test_a_mode_decides_what_is_flushed(self, path: Path, mode, sync: bool) -> None:
        storage = LmdbStorage(path, sync=mode)
        flags = storage.shared.env.flags()
        assert (flags["sync"], flags["metasync"], flags["writemap"]) == (sync, False, False)
        storage.close()

    def test_a_weaker_mode_is_served_by_the_stronger(self, path: Path) -> None:
        strong, weak = LmdbStorage(path, sync="full"), LmdbStorage(path, sync="none")
        assert weak.shared is strong.shared
        strong.close()
        weak.close()

    def test_a_stronger_mode_is_refused(self, path: Path) -> None:
        weak = LmdbStorage(path, sync="meta")
        with pytest.raises(SyncModeError, match="meta"):
            LmdbStorage(path, sync="full")
        weak.close()
        LmdbStorage(path, sync="full").close()


@forks
class TestForks:
    def test_a_child_opens_the_store_anew(self, path: Path) -> None:
        storage = LmdbStorage(path)
        put(storage, a=b"parent")

        def act() -> object:
            seen = get(storage, "a")
            put(storage, b=b"child")
            other = LmdbStorage(path)
            return seen, get(other, "b"), environments(), storage.info().readers

        assert in_child(act) == "(b'parent', b'child', 1, 0)"
        assert get(storage, "b") == b"child"
        put(storage, c=b"parent")
        storage.close()

    def test_a_child_of_a_child_does_too(self, path: Path) -> None:
        storage = LmdbStorage(path)
        put(storage, a=b"1")
        assert in_child(lambda: (get(storage, "a"), in_child(lambda: get(storage, "a")))) == "(b'1', \"b'1'\")"
        storage.close()

    def test_a_transaction_is_refused_in_a_child_and_goes_on_in_the_parent(self, path: Path) -> None:
        storage = LmdbStorage(path)
        put(storage, a=b"1", b=b"2")
        with storage.read() as reader:
            scan = reader.scan(*EVERYTHING)
            next(scan)
            assert "forked inside a transaction" in in_child(lambda: reader.get(b"a"))
            assert "forked inside a transaction" in in_child(lambda: next(scan))
            assert "forked inside a transaction" in in_child(lambda: reader.measure(*EVERYTHING))
            assert in_child(lambda: get(storage, "a")) == "b'1'"
            assert [key for key, _ in scan] == [b"b"]
        with storage.write() as writer:
            writer.put(b"c", b"3")
            assert "forked inside a transaction" in in_child(lambda: writer.put(b"d", b"4"))
            assert "forked inside a transaction" in in_child(lambda: writer.__exit__(None, None, None))
            assert in_child(lambda: get(storage, "c")) == "None"
        assert get(storage, "c") == b"3"
        storage.close()

    def test_a_child_ends_as_usual_while_a_thread_of_the_parent_writes(self, path: Path) -> None:
        # The child runs to the end of the interpreter, where everything it inherited is finalised.
        script = """
import threading
storage = LmdbStorage(sys.argv[1])
inside, go_on = threading.Event(), threading.Event()
def write():
    with storage.write() as transaction:
        transaction.put(b"a", b"1")
        inside.set()
        go_on.wait()
thread = threading.Thread(target=write)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with storage.read() as reader:
        assert reader.get(b"a") is None
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
go_on.set()
thread.join()
child = os.fork()
with storage.write() as transaction:
    transaction.put(b"child" if child == 0 else b"parent", b"")
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
with storage.read() as reader:
    print([key for key, _ in reader.scan(b"", b"z")])
storage.close()
"""
        assert run(script, path) == "[b'a', b'child', b'parent']"

    def test_a_fork_while_other_threads_work(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                put(storage, b=b"2")
                get(storage, "a")

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        answers = {in_child(lambda: (get(storage, "a"), put(storage, c=b"3"))) for _ in range(15)}
        done.set()
        for thread in threads:
            thread.join()
        assert answers == {"(b'1', None)"}
        storage.close()

    def test_a_closed_handle_stays_closed_in_a_child(self, path: Path) -> None:
        storage = LmdbStorage(path)
        other = LmdbStorage(path)
        storage.close()
        assert "ClosedError" in in_child(lambda: get(storage, "a"))
        assert in_child(lambda: (other.close(), other.close())) == "(None, None)"
        other.close()

    def test_a_child_whose_store_is_gone_says_so(self, path: Path, tmp_path: Path) -> None:
        storage = LmdbStorage(path)

        def act() -> object:
            path.rename(tmp_path / "away")
            return get(storage, "a")

        assert "holds no store any more" in in_child(act)
        assert not path.exists()
        storage.close()


MOVER = """
storage = LmdbStorage(sys.argv[1])
with storage.write() as transaction:
    transaction.move_to(sys.argv[2])
"""


def make_environment(path: Path, name: str, **rows: bytes) -> None:
    (path / name).mkdir()
    with lmdb.open(str(path / name), map_size=1 << 24) as made, made.begin(write=True) as transaction:
        for key, value in rows.items():
            transaction.put(key.encode(), value)


class TestMoves:
    def test_a_value_names_its_environment(self) -> None:
        assert moved_name(moved_value("env-12"), "here") == "env-12"
        for name in ("env-0", "../env-2", "env-2\n", ""):
            with pytest.raises(InvalidInputError):
                moved_value(name)
        for value in (b"", b"env-2", moved_value("env-2")[:-1], b"x" + moved_value("env-2")):
            with pytest.raises(ChecksumError, match="here"):
                moved_name(value, "here")

    def test_a_move_in_this_process_is_followed(self, path: Path) -> None:
        storage, other = LmdbStorage(path), LmdbStorage(path)
        put(storage, a=b"old")
        make_environment(path, "env-2", a=b"new")
        with other.read() as reader:
            with storage.write() as transaction:
                transaction.move_to("env-2")
            assert get(storage, "a") == b"new"
            assert reader.get(b"a") == b"old"
            put(other, b=b"2")
        assert get(storage, "b") == b"2"
        assert (path / CURRENT).read_text() == "env-2\n"
        assert storage.shared is other.shared
        assert environments() == 1
        storage.close()
        other.close()

    def test_a_move_by_another_process_is_followed_by_writers_too(self, path: Path) -> None:
        storage = LmdbStorage(path)
        put(storage, a=b"old")
        make_environment(path, "env-2", a=b"new")
        run(MOVER, path, "env-2")
        assert (path / CURRENT).read_text() == "env-1\n"  # the mover died before the rename
        put(storage, b=b"2")
        assert (path / CURRENT).read_text() == "env-2\n"
        assert get(storage, "a") == b"new"
        reader = "\nwith LmdbStorage(sys.argv[1]).read() as r: print(r.get(b'a'), r.get(b'b'))"
        assert run(reader, path) == "b'new' b'2'"
        storage.close()

    def test_a_chain_of_moves_is_followed_when_opening(self, path: Path) -> None:
        LmdbStorage(path).close()
        for number in (2, 3, 4):
            make_environment(path, f"env-{number}", a=str(number).encode())
        for before, after in ((1, 2), (2, 3), (3, 4)):
            (path / CURRENT).write_text(f"env-{before}\n")
            run(MOVER, path, f"env-{after}")
        (path / CURRENT).write_text("env-1\n")
        storage = LmdbStorage(path)
        assert get(storage, "a") == b"4"
        assert (path / CURRENT).read_text() == "env-4\n"
        assert environments() == 1
        storage.close()

    def test_a_circle_of_moves_is_an_error(self, path: Path) -> None:
        LmdbStorage(path).close()
        make_environment(path, "env-2")
        run(MOVER, path, "env-2")
        (path / CURRENT).write_text("env-2\n")
        run(MOVER, path, "env-1")
        with pytest.raises(StorageError, match="tries"):
            LmdbStorage(path)

    def test_a_late_follower_does_not_undo_a_later_move(self, path: Path) -> None:
        storage = LmdbStorage(path)
        make_environment(path, "env-2", a=b"2")
        make_environment(path, "env-3", a=b"3")
        run(MOVER, path, "env-2")
        (path / CURRENT).write_text("env-2\n")
        run(MOVER, path, "env-3")
        (path / CURRENT).write_text("env-3\n")
        assert get(storage, "a") == b"3"
        assert (path / CURRENT).read_text() == "env-3\n"
        storage.close()

    def test_no_write_is_lost_while_the_store_moves(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"")
        make_environment(path, "env-2")
        halfway = threading.Barrier(5)

        def write(number: int) -> None:
            for step in range(60):
                if step == 20:
                    halfway.wait()
                put(storage, **{f"row{number}-{step}": b""})

        with ThreadPoolExecutor(4) as pool:
            results = [pool.submit(write, number) for number in range(4)]
            halfway.wait()
            target = sharing.acquire(path / "env-2", "none", None)
            with storage.write() as old, target.env.begin(write=True) as new:
                for key, value in old.scan(*EVERYTHING):
                    new.put(key, value)
                new.commit()
                old.move_to("env-2")
            sharing.release(target)
        for result in results:
            result.result()
        with storage.read() as reader:
            assert len(list(reader.scan(b"row", b"rox"))) == 240
        assert storage.shared.path.name == "env-2"
        storage.close()

    def test_a_target_that_is_not_there_is_refused(self, path: Path) -> None:
        storage = LmdbStorage(path)
        with storage.write() as transaction:
            for name in ("env-1", "env-2"):
                with pytest.raises(InvalidInputError):
                    transaction.move_to(name)
        storage.close()

    def test_a_target_that_is_gone_is_damage(self, path: Path) -> None:
        storage = LmdbStorage(path)
        make_environment(path, "env-2")
        run(MOVER, path, "env-2")
        (path / "env-2").rename(path / "env-9")
        with pytest.raises(CorruptionError, match=r"env-2.*env-9"):
            get(storage, "a")
        storage.close()
        assert (path / CURRENT).read_text() == "env-1\n"

    def test_a_damaged_row_is_named(self, path: Path) -> None:
        LmdbStorage(path).close()
        with lmdb.open(str(path / "env-1")) as raw, raw.begin(write=True) as transaction:
            transaction.put(MOVED_KEY, b"env-2")
        with pytest.raises(ChecksumError, match="moved row"):
            LmdbStorage(path)

    def test_handles_keep_the_strongest_mode_over_a_move(self, path: Path) -> None:
        full, none = LmdbStorage(path, sync="full"), LmdbStorage(path, sync="none")
        make_environment(path, "env-2")
        run(MOVER, path, "env-2")
        get(none, "a")
        get(full, "a")
        assert full.shared.sync == none.shared.sync == "full"
        full.close()
        none.close()


class TestMeasuring:
    def test_lengths_are_told_without_copying_values(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"x" * 20_000_000, b=b"y" * 20_000_000)
        with storage.read() as transaction:
            tracemalloc.start()
            assert transaction.measure(*EVERYTHING) == (2, 40_000_002)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert storage.info().readers == 1  # what measuring took for itself was given back
        assert peak < 100_000
        storage.close()

    def test_the_moment_is_that_of_the_transaction(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")
        with storage.read() as transaction:
            put(storage, b=b"2")
            assert transaction.measure(*EVERYTHING) == (1, 2)
        storage.close()

    def test_without_a_free_reader_slot(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "MAX_READERS", 1)
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")
        with storage.read() as transaction:
            assert transaction.measure(*EVERYTHING) == (1, 2)
        assert get(storage, "a") == b"1"
        storage.close()


def test_reserved_rows_are_never_met(path: Path) -> None:
    LmdbStorage(path).close()
    hidden = [RESERVED_PREFIX, RESERVED_PREFIX + b"other"]
    shown = [RESERVED_PREFIX[:-1], RESERVED_PREFIX[:-1] + b'"']
    with lmdb.open(str(path / "env-1")) as raw, raw.begin(write=True) as transaction:
        for key in hidden + shown:
            transaction.put(key, b"v")
    storage = LmdbStorage(path)
    with storage.write() as transaction:
        assert [key for key, _ in transaction.scan(b"", b"\xff" * 8)] == shown
        assert [key for key, _ in transaction.scan(b"", b"\xff" * 8, reverse=True)] == shown[::-1]
        found = transaction.seek_many([(RESERVED_PREFIX, b"\xff"), (RESERVED_PREFIX, RESERVED_PREFIX + b"z")])
        assert found == [(shown[1], b"v"), None]
        assert transaction.delete_range(*EVERYTHING) == 2
    storage.close()
    with lmdb.open(str(path / "env-1")) as raw, raw.begin() as transaction:
        assert [key for key, _ in transaction.cursor()] == hidden


class TestFullMap:
    def test_a_capped_store_stays_readable_and_can_be_emptied(self, path: Path) -> None:
        storage = LmdbStorage(path, max_bytes=1 << 20, sync="none")
        number = 0

        def fill() -> None:
            nonlocal number
            while number < 10_000:
                put(storage, **{f"row{number:06}": bytes(900)})
                number += 1

        with pytest.raises(StoreFullError, match="max_bytes"):
            fill()
        assert number > 500
        with storage.read() as reader:
            assert len(list(reader.scan(*EVERYTHING))) == number
        with pytest.raises(StoreFullError):
            put(storage, big=bytes(1 << 22))
        for start_row in range(0, number, 7):  # scattered deletes copy most pages
            with storage.write() as transaction:
                assert transaction.delete(b"row%06d" % start_row)
        with storage.write() as transaction:
            assert transaction.delete_range(*EVERYTHING) == number - len(range(0, number, 7))
        put(storage, **{f"again{n}": bytes(900) for n in range(300)})
        assert storage.info().file_bytes <= 1 << 20
        storage.close()

    def test_an_error_within_a_block_can_not_be_committed_over(self, path: Path) -> None:
        storage = LmdbStorage(path, max_bytes=1 << 20)
        put(storage, a=b"1")

        def go_on() -> None:
            with storage.write() as transaction:
                transaction.put(b"b", b"2")
                with pytest.raises(StoreFullError):
                    transaction.put(b"c", bytes(1 << 21))
                with pytest.raises(StorageError):
                    transaction.put(b"d", b"4")

        with pytest.raises(StorageError, match="nothing was written"):
            go_on()
        assert get(storage, "b") is None
        put(storage, b=b"2")
        storage.close()

    def test_two_caps_at_once_are_refused(self, path: Path) -> None:
        storage = LmdbStorage(path, max_bytes=1 << 21)
        with pytest.raises(StorageError, match="max_bytes"):
            LmdbStorage(path, max_bytes=1 << 22)
        other = LmdbStorage(path)
        assert other.info().map_bytes == 1 << 21
        other.close()
        storage.close()

    def test_the_map_is_a_tebibyte_that_takes_no_room(self, path: Path) -> None:
        storage = LmdbStorage(path)
        info = storage.info()
        assert (info.kind, info.map_bytes) == ("lmdb", 1 << 40)
        assert info.file_bytes < 1 << 20
        storage.close()


@pytest.fixture
def small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that address space is scarce, so that the map grows in small steps."""
    monkeypatch.setattr(environment, "RESERVED_MAP_BYTES", 1 << 17)
    monkeypatch.setattr(environment, "STEP_BYTES", 1 << 17)


def put_again(storage: LmdbStorage, **rows: bytes) -> int:
    """Put, as the layer above does: run the block again when it is asked for."""
    for tries in range(100):
        try:
            put(storage, **rows)
        except RetryTransaction:
            continue
        return tries
    raise AssertionError


@pytest.mark.usefixtures("small_maps")
class TestGrowingMap:
    def test_a_full_map_grows_and_the_block_runs_again(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        before = storage.info().map_bytes
        with pytest.raises(RetryTransaction, match="again"):
            put(storage, a=b"1", b=bytes(before))
        assert get(storage, "a") is None
        assert storage.info().map_bytes > before
        put_again(storage, a=b"1", b=bytes(before * 20))
        assert get(storage, "b") == bytes(before * 20)
        storage.close()

    def test_growth_waits_for_the_readers_of_this_process(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")
        reading, written = threading.Event(), threading.Event()

        def read() -> None:
            with storage.read() as reader:
                reading.set()
                while not storage.shared.blocked:
                    reader.get(b"a")
                with storage.read() as inner:  # a thread inside may go further in
                    assert inner.get(b"a") == b"1"
                assert reader.get(b"a") == b"1"
                assert not written.is_set()

        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(read)
            reading.wait()
            assert put_again(storage, b=bytes(1 << 18)) > 0
            written.set()
            result.result()
        storage.close()

    def test_growth_from_within_a_reader_is_refused(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        with storage.read(), pytest.raises(StorageError, match="end it first"):
            put(storage, a=bytes(1 << 18))
        assert put_again(storage, a=bytes(1 << 18)) > 0
        storage.close()

    def test_many_threads_grow_it_together(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")

        def work(number: int) -> None:
            for step in range(20):
                put_again(storage, **{f"row{number}-{step}": bytes(20_000)})
                with storage.read() as reader:
                    for _ in reader.scan(*EVERYTHING):
                        pass

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        with storage.read() as reader:
            assert len(list(reader.scan(*EVERYTHING))) == 120
        storage.close()

    def test_the_growth_of_another_process_is_adopted(self, path: Path) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")
        script = """
with LmdbStorage(sys.argv[1], sync="none").write() as transaction:
    transaction.put(b"b", bytes(1 << 22))
"""
        with storage.read() as old:
            run(script, path)
            assert old.get(b"a") == b"1"
        assert get(storage, "b") == bytes(1 << 22)
        put_again(storage, c=bytes(1 << 22))
        storage.close()

    def test_no_address_space_left_is_a_full_store(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")
        monkeypatch.setattr(engine, "can_map", lambda more_bytes: False)
        with pytest.raises(StoreFullError, match="address space"):
            put(storage, b=bytes(1 << 18))
        assert get(storage, "a") == b"1"
        put(storage, c=b"3")
        storage.close()

    def test_a_map_lost_while_growing_is_opened_again(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = LmdbStorage(path, sync="none")
        put(storage, a=b"1")

        class Failing:
            def __init__(self, env: lmdb.Environment) -> None:
                self._env = env

            def __getattr__(self, name: str) -> object:
                return getattr(self._env, name)

            def set_mapsize(self, size: int) -> None:
                raise lmdb.MemoryError("no memory")

        storage.shared.env = Failing(storage.shared.env)  # type: ignore[assignment]
        monkeypatch.setattr(environment, "RESERVED_MAP_BYTES", 1 << 19)
        assert put_again(storage, b=bytes(1 << 18)) == 1
        assert get(storage, "a") == b"1"
        storage.close()


def test_a_limit_of_virtual_memory_is_lived_with(path: Path) -> None:
    script = """
import resource
from deltastore.storage import RetryTransaction
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
storage = LmdbStorage(sys.argv[1], sync="none")
small = storage.info().map_bytes
again = 0
for number in range(20):
    while True:
        try:
            with storage.write() as transaction:
                transaction.put(b"row%d" % number, bytes(8 << 20))
            break
        except RetryTransaction:
            again += 1
with storage.read() as reader:
    print(small, again, sum(1 for _ in reader.scan(b"", b"z")), storage.info().map_bytes)
"""
    small, again, rows, grown = map(int, run(script, path).split())
    assert small == environment.STEP_BYTES
    assert again > 0
    assert rows == 20
    assert grown > small
    storage = LmdbStorage(path)  # without the limit it is an ordinary store
    assert get(storage, "row19") == bytes(8 << 20)
    # And the limited process reads what an unlimited one wrote beyond its map.
    put(storage, big=bytes(100 << 20))
    storage.close()


def test_a_limited_process_adopts_an_unlimited_one_s_file(path: Path) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
storage = LmdbStorage(sys.argv[1], sync="none")
print("open", flush=True)
sys.stdin.readline()
with storage.read() as reader:
    print(len(reader.get(b"big")))
"""
    process = start(script, path)
    assert process.stdout
    assert process.stdout.readline() == "open\n"
    storage = LmdbStorage(path, sync="none")
    put(storage, big=bytes(100 << 20))
    assert finish(process) == str(100 << 20)
    storage.close()


def test_slots_of_killed_readers_are_cleaned(path: Path) -> None:
    script = """
storage = LmdbStorage(sys.argv[1], sync="none")
transactions = [storage.read().__enter__() for _ in range(300)]
print("reading", flush=True)
sys.stdin.readline()
"""
    storage = LmdbStorage(path, sync="none")
    processes = [start(script, path) for _ in range(3)]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "reading\n"
    assert storage.info().readers == 900
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    # Fill the table: the dead make room when it is full.
    transactions = [storage.read() for _ in range(500)]
    for transaction in transactions:
        transaction.__enter__()
    assert storage.info().readers == 500
    more = [storage.read() for _ in range(engine.MAX_READERS - 500)]
    for transaction in more:
        transaction.__enter__()
    with pytest.raises(StorageError, match="reader slots"):
        get(storage, "a")
    for transaction in transactions + more:
        transaction.__exit__(None, None, None)
    assert get(storage, "a") is None
    storage.close()


def test_opening_cleans_slots_of_the_dead(path: Path) -> None:
    run("storage = LmdbStorage(sys.argv[1])\nstorage.read().__enter__()\nos._exit(0)", path)
    storage = LmdbStorage(path)
    assert storage.info().readers == 0
    storage.close()


def test_a_full_device_is_a_full_store(path: Path) -> None:
    script = """
import resource
from deltastore.errors import StoreFullError
storage = LmdbStorage(sys.argv[1], sync="none")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with storage.write() as transaction:
        transaction.put(b"a", bytes(1 << 22))
except StoreFullError as error:
    print(error)
with storage.write() as transaction:
    transaction.put(b"b", b"2")
with storage.read() as reader:
    print(reader.get(b"a"), reader.get(b"b"))
"""
    answer = run(script, path)
    assert "no room left" in answer
    assert answer.endswith("None b'2'")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="the superuser may write anywhere")
def test_a_store_without_permission_is_an_error_of_the_storage(path: Path) -> None:
    LmdbStorage(path).close()
    (path / "env-1" / "data.mdb").chmod(0o400)
    with pytest.raises(StorageError, match="permission"):
        LmdbStorage(path)


def test_every_error_of_the_engine_has_a_translation() -> None:
    kinds = [kind for kind in vars(lmdb).values() if isinstance(kind, type) and issubclass(kind, lmdb.Error)]
    assert len(kinds) > 20
    for kind in kinds:
        error = engine.translate(kind("doing"), "/somewhere")
        assert isinstance(error, DeltastoreError)
        assert "/somewhere" in str(error)
