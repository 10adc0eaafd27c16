"""A backup is the store as of one moment, or it is nothing that opens."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import ClosedError, Store, StorePathError, check
from deltastore.storage.filling import fill
from deltastore.upkeep import backup as module
from deltastore.upkeep.backup import backup
from tests.raw import everything, rows_of

ROOT = Path(__file__).parents[2]


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


def fill_with_puts(store: Store, count: int = 60) -> None:
    for number in range(count):
        thread = store.thread(f"t{number % 3}")
        made = thread.append({"m": [{"text": f"{number} " * 50}], "n": number})
    thread.put_writes(made, {"w": "pending"})
    thread.tag("kept")


def test_a_backup_is_the_store(store: Store, tmp_path: Path) -> None:
    fill_with_puts(store)
    told: list[Any] = []
    count = backup(store, tmp_path / "copy.ds", progress=lambda done, total: told.append((done, total)))
    rows = rows_of(store.log.storage)
    size = sum(len(key) + len(row) for key, row in rows.items())
    assert (count, told[-1]) == (len(rows), (size, size))
    with deltastore.open(tmp_path / "copy.ds") as copy:
        assert rows_of(copy.log.storage) == rows
        assert copy.log.uuid == store.log.uuid
        assert everything(copy) == everything(store)
        assert copy.thread("t2").tags() == store.thread("t2").tags()
        assert check(copy).ok
        copy.thread("t0").append({"m": ["goes on"]})
    assert rows_of(store.log.storage) == rows


def test_writers_go_on_and_aren_t_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_BYTES", 500)
    with deltastore.open(tmp_path / "store.ds", sync="none") as store:
        fill_with_puts(store)
        before = rows_of(store.log.storage)
        written: list[str] = []

        def write(done: int, total: int | None) -> None:
            writer = threading.Thread(target=lambda: written.append(store.thread("t1").append({"n": done}).id))
            writer.start()
            writer.join()

        backup(store, tmp_path / "copy.ds", progress=write)
        assert len(written) > 5
        assert store.thread("t1").state()["n"] > 500
        with deltastore.open(tmp_path / "copy.ds") as copy:
            assert rows_of(copy.log.storage) == before


def test_nothing_is_overwritten(store: Store, tmp_path: Path) -> None:
    fill_with_puts(store, 3)
    backup(store, tmp_path / "copy.ds")
    for path in (tmp_path / "copy.ds", tmp_path, tmp_path / "missing" / "copy.ds", ":memory:"):
        with pytest.raises(StorePathError):
            backup(store, path)
    with deltastore.open(tmp_path / "copy.ds") as copy:
        assert everything(copy) == everything(store)


def test_an_empty_directory_is_taken(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copy.ds").mkdir()
    backup(store, tmp_path / "copy.ds")
    with deltastore.open(tmp_path / "copy.ds") as copy:
        assert copy.log.uuid == store.log.uuid


@pytest.mark.parametrize("there", [True, False])
def test_a_backup_that_fails_leaves_nothing(store: Store, tmp_path: Path, there: bool) -> None:
    fill_with_puts(store, 3)
    path = tmp_path / "copy.ds"
    if there:
        path.mkdir()

    def fail(done: int, total: int | None) -> None:
        assert names(path) == ["env-1.filling"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(store, path, progress=fail)
    assert path.exists() == there
    assert not there or names(path) == []
    backup(store, path)


def test_a_closed_store_leaves_no_directory(tmp_path: Path) -> None:
    store = deltastore.open(":memory:")
    store.close()
    with pytest.raises(ClosedError):
        backup(store, tmp_path / "copy.ds")
    assert names(tmp_path) == []


def run(script: str, *arguments: Path) -> subprocess.Popen[str]:
    script = "import os, resource, sys, time\nimport deltastore\nfrom deltastore.upkeep import backup as b\n" + script
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
    )


def test_killed_in_the_middle_it_opens_as_nothing(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.ds", tmp_path / "copy.ds"
    with deltastore.open(path, sync="none") as store:
        fill_with_puts(store)
    script = """
from deltastore.storage import filling
filling.MAX_BATCH_ROWS, b.TOLD_BYTES = 5, 2000
def told(done, total):
    if done > total / 2:
        os.write(1, b"half\\n")
        time.sleep(600)
b.backup(deltastore.open(sys.argv[1]), sys.argv[2], progress=told)
"""
    with run(script, path, copy) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
    assert names(copy) == ["env-1.filling"]
    assert (copy / "env-1.filling" / "data.mdb").stat().st_size > 8192
    with pytest.raises(StorePathError, match=r"no store but holds env-1\.filling"):
        deltastore.open(copy)
    with deltastore.open(path) as store:
        assert check(store).ok
        with pytest.raises(StorePathError, match="left behind unfinished; remove it"):
            backup(store, copy)


def test_killed_before_it_is_named_it_is_complete(store: Store, tmp_path: Path) -> None:
    fill_with_puts(store)
    rows = rows_of(store.log.storage)
    (tmp_path / "copy.ds").mkdir()
    fill(tmp_path / "copy.ds" / "env-1", sorted(rows.items()))
    with deltastore.open(tmp_path / "copy.ds") as copy:
        assert rows_of(copy.log.storage) == rows


def test_a_full_device_leaves_nothing(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.ds", tmp_path / "copy.ds"
    with deltastore.open(path, sync="none") as store:
        store.thread("t").append({"document": os.urandom(1 << 20).hex()})
    script = """
store = deltastore.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
try:
    b.backup(store, sys.argv[2])
except deltastore.StoreFullError as error:
    print(error)
"""
    with run(script, path, copy) as child:
        assert child.stdout is not None
        assert "no room left" in child.stdout.read()
    assert names(tmp_path) == ["store.ds"]
