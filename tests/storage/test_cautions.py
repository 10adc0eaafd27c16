"""A store that is kept where or how it may be lost is opened all the same, and that is said once."""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deltastore.storage import cautions, filesystem
from deltastore.storage.cautions import caution_of
from deltastore.storage.filesystem import Mount, mount_of
from deltastore.storage.lmdb import LmdbStorage

ROOT = Path(__file__).parents[2]
TABLE = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /srv rw,relatime shared:9 master:3 - nfs4 server:/export rw,vers=4.2
31 30 254:1 /data /srv/local rw - xfs /dev/vdb rw
32 27 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 27 0:42 / /mnt rw - ext4 /dev/vdc rw
34 27 0:43 / /home rw - ext4 /dev/vdd rw
35 34 0:44 / /home rw - fuse.sshfs me@server:/home rw
36 27 0:45 / /back\134slash rw - tmpfs tmpfs rw
37 27 0:46 / /caf\303\251 rw - tmpfs tmpfs rw
38 27 0:47 / /broken
39 27 0:47 / /broken rw -

a line of a system to come
"""


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    before = dict(cautions._told)
    cautions._told.clear()
    yield
    cautions._told.clear()
    cautions._told.update(before)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("/", "ext4")),
        ("/var/lib/store", ("/", "ext4")),
        ("/srv", ("/srv", "nfs4")),
        ("/srv/runs.ds", ("/srv", "nfs4")),
        ("/srv2/runs.ds", ("/", "ext4")),  # no part of a name counts
        ("/srv/local/runs.ds", ("/srv/local", "xfs")),
        ("/srv/localized", ("/srv", "nfs4")),
        ("/mnt/with space/a", ("/mnt/with space", "cifs")),
        ("/mnt/with", ("/mnt", "ext4")),
        ("/home/me", ("/home", "fuse.sshfs")),  # the later one hides the other
        ("/back\\slash/x", ("/back\\slash", "tmpfs")),
        (os.fsdecode(b"/caf\xc3\xa9/x"), (os.fsdecode(b"/caf\xc3\xa9"), "tmpfs")),
        ("/broken/x", ("/", "ext4")),
    ],
)
def test_the_longest_mount_point_counts(path: str, expected: tuple[str, str]) -> None:
    assert mount_of(path, TABLE) == Mount(*expected)


@pytest.mark.parametrize("table", [b"", b"\0\xff - ", b" - \n" * 3, os.urandom(1000)])
def test_a_table_that_says_nothing(table: bytes) -> None:
    assert mount_of("/srv", table) is None


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "fuse.sshfs", "fuse.glusterfs"), "network"),
        (("9p", "virtiofs", "vboxsf", "drvfs"), "shared"),
        (("fuse", "fuse.anything"), "program"),
        (("overlay", "aufs", "fuse.fuse-overlayfs"), "volume"),
        (("tmpfs", "ramfs"), "memory"),
    ],
)
def test_what_is_said_of_a_kind(kinds: tuple[str, ...], said: str) -> None:
    for kind in kinds:
        assert said in (caution_of(kind) or "")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "f2fs", "apfs", "fuseblk", "", "new-one"])
def test_nothing_is_said_of_others(kind: str) -> None:
    assert caution_of(kind) is None


def test_a_network_file_system_is_told_once_for_each_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = os.path.realpath(tmp_path)
    table = tmp_path / "mountinfo"
    table.write_text(f"30 27 0:40 / {root} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", table)
    for name in ("a", "a", "b", "a", "b"):
        LmdbStorage(tmp_path / name).close()
    found = warnings(caplog)
    assert [text.split(" ")[0] for text in found] == [f"{root}/a", f"{root}/b"]
    assert all("nfs4" in text and f"mounted at {root}" in text and "local disk" in text for text in found)


def test_the_caution_comes_before_what_fails_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"30 27 0:40 / {os.path.realpath(tmp_path)} rw - cifs //server/share rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", table)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "CURRENT").write_text("env-1\n")
    with pytest.raises(Exception, match="missing"):
        LmdbStorage(tmp_path / "store")
    assert len(warnings(caplog)) == 1


def test_no_table_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "none")
    LmdbStorage(tmp_path / "store").close()
    assert warnings(caplog) == []


def test_an_unsafe_mode_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "none")
    for sync in ("full", "meta"):
        LmdbStorage(tmp_path / "store", sync=sync).close()
    with closing(LmdbStorage(tmp_path / "strong", sync="full")):
        LmdbStorage(tmp_path / "strong", sync="none").close()  # served by the stronger one
    assert warnings(caplog) == []
    for _ in range(3):
        LmdbStorage(tmp_path / "store", sync="none").close()
    (found,) = warnings(caplog)
    assert "sync='none'" in found
    assert "backup" in found


def test_who_sets_no_logging_up_reads_it_on_the_terminal(tmp_path: Path) -> None:
    script = """
import sys, deltastore
for _ in range(2):
    with deltastore.open(sys.argv[1], sync="none") as store:
        store.thread("t").append({"n": 1})
"""
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path / "store")]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("is open with sync='none'") == 1


@pytest.mark.skipif(mount_of("/dev/shm") != Mount("/dev/shm", "tmpfs"), reason="needs a tmpfs at hand")
def test_a_real_file_system_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for _ in range(2):
            LmdbStorage(Path(folder) / "store").close()
        (found,) = warnings(caplog)
        assert found.startswith(f"{os.path.realpath(folder)}/store is on tmpfs (mounted at /dev/shm)")
