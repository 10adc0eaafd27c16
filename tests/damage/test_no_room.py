"""A full device, a full map, a read-only mount, lost permissions, odd paths: typed, readable, whole with room.

The devices are real where the tests run as root on Linux (tmpfs), and left out elsewhere; a full map is everywhere.
"""

import errno
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import DeltastoreError, InvalidInputError, Retention, Store, StoreFullError, check
from deltastore.storage.memory import MemoryStorage
from tests.damage.files import in_child

LIMIT_BYTES = 12 << 20
BIG = 100_000
NOBODY = 65534
root = pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root mounts a file system, or becomes nobody"
)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "device"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(store: Store, name: str, size: int = 3000) -> int:
    """Put until there is no room; return how many puts returned."""
    chance, count = random.Random(name), 0
    while True:
        try:
            store.thread(name).put_state({"m": [chance.randbytes(size)]})  # so that older ones can go
        except StoreFullError:
            return count
        count += 1


def write_for_ever(descriptor: int) -> None:
    while True:
        os.write(descriptor, bytes(512))


def take_all(device: Path, *, leave: int = 0) -> Path:
    """Fill a device with a file; return that."""
    path = device / "fill"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_for_ever(descriptor)
    os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - leave))
    os.close(descriptor)
    return path


def tried(work: Callable[[], Any]) -> Any:
    """Return what work gives, or the code of the error that it raises and its message."""
    try:
        return work()
    except DeltastoreError as error:
        return [error.code, str(error)]


def opened(path: Path, *, create: bool = False) -> Any:
    """Open a store in a child, and count a thread's checkpoints."""

    def work() -> Any:
        with deltastore.open(path, sync="none", create=create) as store:
            return len(list(store.thread("t").history()))

    ended = in_child(lambda: tried(work))
    assert not ended.signal, ended
    return ended.told


@root
class TestFullDevice:
    def test_what_was_put_stays_and_more_goes_in_with_room(self, device: Path) -> None:
        take_all(device, leave=1 << 20)
        with deltastore.open(device / "store.ds", sync="none") as store:
            count = fill_up(store, "t")
            assert count > 50
            thread = store.thread("t")
            assert len(list(thread.history())) == count
            assert thread.state()["m"][-1]
            assert check(store).ok
            for refused in (lambda: deltastore.shrink(store), lambda: store.copy("t", "copy")):
                assert tried(refused)[0] == "store-full"
                assert check(store).ok
            (device / "fill").unlink()
            thread.append({"m": ["after"]})
            assert thread.state()["m"][-1] == "after"
            assert check(store).ok

    def test_deleting_makes_room(self, device: Path) -> None:
        with deltastore.open(device / "store.ds", sync="none") as store:
            before = fill_up(store, "t")
            assert store.delete("t")
            assert fill_up(store, "u") > before / 2
            assert check(store).ok

    def test_opening_never_crashes(self, device: Path) -> None:
        """The lock file is mapped: without room for it the engine died of SIGBUS."""
        with deltastore.open(device / "store.ds", sync="none") as store:
            store.thread("t").append({"n": 1})
        fill = take_all(device)
        assert opened(device / "store.ds") == 1
        code, text = opened(device / "new.ds", create=True)
        assert code == "store-full", text
        shutil.rmtree(device / "new.ds")
        (device / "store.ds" / "env-1" / "lock.mdb").unlink()
        take_all(device)
        code, text = opened(device / "store.ds")
        assert code == "store-full"
        assert "for the lock file; make room" in text
        fill.unlink()
        assert opened(device / "store.ds") == 1
        assert opened(device / "new.ds", create=True) == 0

    def test_backups_and_dumps_tell(self, device: Path, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds", sync="none") as store:
            chance = random.Random(1)
            for _ in range(100):
                store.thread("t").append({"m": [chance.randbytes(30_000)]})
            for work in (
                lambda: deltastore.backup(store, device / "backup.ds"),
                lambda: deltastore.dump(store, device / "dump"),
            ):
                code, text = tried(work)
                assert code == "store-full", text
                assert sorted(path.name for path in device.iterdir() if path.name != "backup.ds") == []
            take_all(device)
            code, text = tried(lambda: deltastore.backup(store, device / "other.ds"))
            assert code == "store-full", text

    def test_a_read_only_mount_is_told(self, device: Path) -> None:
        with deltastore.open(device / "store.ds", sync="none") as store:
            store.thread("t").append({"n": 1})
        subprocess.run(["mount", "-o", "remount,ro", str(device)], check=True)
        for path in (device / "store.ds", device / "new.ds"):
            code, text = opened(path, create=True)
            assert code in ("storage", "store-path")
            assert "ead-only file system" in text
        assert "copy the store to read it" in opened(device / "store.ds")[1]


class TestFullMap:
    """`max_bytes` is reached: a part of it is kept for deleting."""

    def test_reading_deleting_and_compacting_go_on(self, tmp_path: Path) -> None:
        with deltastore.open(tmp_path / "store.ds", sync="none", max_bytes=LIMIT_BYTES) as store:
            for _ in range(2):
                count = fill_up(store, "t", BIG)
                thread = store.thread("t")
                assert len(list(thread.history())) >= count > 50
                assert thread.state()["m"]
                assert check(store).ok
                deltastore.apply_retention(store, Retention(keep_last=1))
                assert len(list(thread.history())) == 1
                deltastore.compact(store, erase=True)
                assert check(store).ok
            assert store.delete("t")
            store.collect()
            assert fill_up(store, "u", BIG) > 50
            deltastore.shrink(store)
            assert tried(lambda: fill_up(store, "u", BIG)) < 100
            assert store.delete("u")
            assert fill_up(store, "t", BIG) > 50
            assert check(store).ok
            sizes = [path.stat().st_size for path in (tmp_path / "store.ds").glob("env-*/data.mdb")]
            assert max(sizes) <= LIMIT_BYTES


@root
@pytest.mark.parametrize(
    ("what", "mode"),
    [
        (".", 0),
        (".", 0o500),
        ("store.ds", 0),
        ("store.ds/CURRENT", 0),
        ("store.ds/env-1", 0),
        ("store.ds/env-1/data.mdb", 0o400),
        ("store.ds/env-1/data.mdb", 0),
        ("store.ds/env-1/lock.mdb", 0o400),
    ],
)
def test_lost_permissions_are_told(what: str, mode: int, tmp_path: Path) -> None:
    base = Path("/tmp") / f"deltastore-{os.getpid()}"
    base.mkdir(mode=0o777)
    try:
        with deltastore.open(base / "store.ds", sync="none") as store:
            store.thread("t").append({"n": 1})
        for path in (base, *base.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        (base / what).chmod(mode)

        def work() -> list[Any]:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            out = []
            for name, create in itertools.product(("store.ds", "new.ds"), (False, True)):
                out.append(tried(lambda name=name, create=create: deltastore.open(base / name, create=create).close()))
            return out

        told = in_child(work).told
        refused = [answer for answer in told if answer is not None]
        assert refused
        for code, text in refused:
            assert code in ("storage", "store-path"), (code, text)
            assert "ermission" in text or "doesn't exist" in text
    finally:
        shutil.rmtree(base)


@pytest.mark.parametrize("path", ["x" * 300, "y/" * 3000, "nul\0byte", "/dev/null", "/dev/null/x", ""])
def test_odd_paths_are_told(path: str) -> None:
    store = Store(MemoryStorage())
    store.thread("t").append({"n": 1})
    calls: list[Callable[[], object]] = [
        lambda: deltastore.open(path),
        lambda: deltastore.open(path, create=False),
        lambda: deltastore.backup(store, path),
        lambda: deltastore.load(store, path),
        lambda: check(path),
    ]
    if "\0" in path:
        calls.append(lambda: check(path, isolated=True))
    if path != "/dev/null":
        calls.append(lambda: deltastore.dump(store, path))
    for call in calls:
        with pytest.raises(DeltastoreError):
            call()
    with pytest.raises(InvalidInputError if "\0" in path else DeltastoreError):
        deltastore.open(path)
