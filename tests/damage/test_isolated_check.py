"""A check in a process of its own: the same report, whatever becomes of the process, and nobody else comes to harm."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import CorruptionError, StorageError, Store, StorePathError, check
from deltastore.cli import main
from deltastore.log import keys
from deltastore.storage.memory import MemoryStorage
from tests.damage.files import PAGE, kind_of
from tests.raw import put_raw, rows_of

DATA = Path("env-1", "data.mdb")
children = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find the child")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.ds"
    with deltastore.open(path, sync="none") as store:
        for name in ("a", "b", "c"):
            for number in range(50):
                store.thread(name).append({"m": [f"{number} of {name}"], "big": "x" * 100 * number})
    return path


def children_of_this() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def send(number: int) -> Callable[[int, int | None], object]:
    """Return a progress that sends a signal to the child, from the second thread on."""
    others = children_of_this()

    def progress(done: int, total: int | None) -> None:
        if done == 1:
            (child,) = children_of_this() - others
            os.kill(child, number)

    return progress


def damage_leaf(path: Path) -> None:
    """Zero the last leaf that is in use and isn't looked at before the store is opened."""
    data = bytearray((path / DATA).read_bytes())
    for number in reversed(range(2, len(data) // PAGE)):
        if kind_of(data, number) != "leaf":
            continue
        (path / DATA).write_bytes(data[: number * PAGE] + bytes(PAGE) + data[(number + 1) * PAGE :])
        with contextlib.suppress(CorruptionError), deltastore.open(path) as store:
            storage: Any = store.log.storage
            if storage.damaged_places():
                return
    raise AssertionError


def test_it_reports_what_a_check_here_does(path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    here = check(path)
    assert here.ok
    assert check(path, isolated=True, progress=lambda *done: told.append(done)) == here
    assert told == [(0, 3), (1, 3), (2, 3)]
    with deltastore.open(path) as store:
        assert check(store, isolated=True) == here
        key = max(key for key in rows_of(store.log.storage) if key.startswith(keys.thread(2) + b"r"))
        put_raw(store.log.storage, key, b"damaged")
        here = check(store)
        assert not here.ok
        assert not here.file_damaged
        assert check(store, isolated=True) == here


def test_a_store_in_memory_is_checked_here() -> None:
    assert check(Store(MemoryStorage()), isolated=True).ok


def test_errors_keep_their_class(path: Path, tmp_path: Path) -> None:
    for isolated in (False, True):
        with pytest.raises(StorePathError, match="doesn't exist"):
            check(tmp_path / "missing.ds", isolated=isolated)
    (path / DATA).write_bytes((path / DATA).read_bytes()[:PAGE])
    with pytest.raises(CorruptionError, match="expected at least its first two pages"):
        check(path, isolated=True)


@children
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT"])
def test_a_crash_is_a_problem_of_the_report(path: Path, name: str) -> None:
    # On a busy machine the child may be through before the signal reaches it.
    reports = (check(path, isolated=True, progress=send(getattr(signal, name))) for _ in range(20))
    report = next(report for report in reports if report.file_damaged)
    (problem,) = report.problems
    assert problem.where == "file"
    assert f"the storage engine crashed ({name}) while thread " in problem.what
    assert problem.what.endswith("of 3 was read: the file's tree is damaged; restore from a backup")
    assert check(path).ok


@children
def test_a_child_ended_from_outside_is_no_damage(path: Path) -> None:
    def checked() -> None:
        for _ in range(20):  # on a busy machine the child may be through before the signal reaches it
            check(path, isolated=True, progress=send(signal.SIGKILL))

    with pytest.raises(StorageError, match=r"ended with code -9 while .*; try again"):
        checked()


@children
def test_no_child_outlives_the_call(path: Path) -> None:
    others = children_of_this()

    def interrupted(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(path, isolated=True, progress=interrupted)
    assert children_of_this() == others


def test_pages_are_looked_at_before_rows(path: Path) -> None:
    damage_leaf(path)
    for isolated in (False, True):
        report = check(path, isolated=isolated)
        assert report.file_damaged
        assert report.threads == 0
        assert {problem.where for problem in report.problems} == {"file"}
        assert "rows weren't looked at" in report.problems[-1].what


def test_the_shell_tells_damaged_pages_by_its_exit_code(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file_damaged"] is False
    damage_leaf(path)
    before = (path / DATA).read_bytes()
    for arguments in ([], ["--repair"]):
        assert main(["check", str(path), *arguments, "--json"]) == 9
        answer = json.loads(capsys.readouterr().out)
        assert answer["file_damaged"] is True
        assert answer["repair"] is None
    assert (path / DATA).read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_the_shell_can_be_interrupted(path: Path) -> None:
    with deltastore.open(path, sync="none") as store:
        for number in range(300):
            store.copy("a", f"copy {number}")
    process = subprocess.Popen(
        [sys.executable, "-m", "deltastore", "check", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not listed.read_text():
        pass
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")
