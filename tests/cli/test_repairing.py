"""`deltastore check --repair`: exit codes, what it tells, and that a dry run writes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

import deltastore
from deltastore.log import keys
from tests.cli.conftest import Ran
from tests.raw import put_raw, rows_of

Run = Callable[..., Ran]


def damage(path: Path, *kinds: bytes) -> None:
    """Flip a bit in the last row of each of these kinds, of thread 1."""
    with deltastore.open(path) as store:
        for kind in kinds:
            found = rows_of(store.log.storage)
            key = max(key for key in found if key.startswith(keys.thread(1) + kind))
            put_raw(store.log.storage, key, found[key][:-1] + bytes((found[key][-1] ^ 1,)))


def files(path: Path) -> dict[str, bytes]:
    return {str(found): found.read_bytes() for found in path.rglob("data.mdb")}


@pytest.mark.usefixtures("branched")
class TestRepair:
    def test_a_whole_store(self, run: Run, path: Path) -> None:
        before = files(path)
        assert "repair: 0 things were mended" in run("check", "--repair").out
        assert files(path) == before
        assert run("check", "--json").document["repair"] is None

    def test_a_dry_run_tells_and_writes_nothing(self, run: Run, path: Path) -> None:
        damage(path, b"r")
        before = files(path)
        told = run("check", "--repair", "--dry-run", code=1).out
        assert files(path) == before
        assert "fails its checksum" in told
        assert "1 checkpoints lost" in told
        assert "would be mended" in told
        found = run("check", "--repair", "--dry-run", "--json", code=1).document
        assert found["ok"] is False
        assert found["quarantined"] == 0
        assert len(found["repair"]["lost"]) == 1
        assert files(path) == before
        run("check", "--repair", code=8)

    def test_what_is_lost_is_named_once(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        damage(path, b"r")
        found = run("check", "--repair", "--json", code=8).document
        assert found["ok"] is True
        assert [lost["id"] for lost in found["repair"]["lost"]] == [branched["last"]]
        assert found["quarantined"] == found["repair"]["quarantined"] > 0
        again = run("check", "--repair", "--json").document
        assert again["repair"] == {"actions": [], "lost": [], "quarantined": 0, "skipped": [], "left": []}
        assert f"quarantined: {found['quarantined']} rows" in run("check").out
        assert f"{found['quarantined']} rows" in run("info").out

    def test_what_other_rows_tell_is_no_loss(self, run: Run, path: Path) -> None:
        before = run("log", "user-42").out
        damage(path, b"h")
        run("check", code=1)
        told = run("check", "--repair").out
        assert "its header: rebuilt" in told
        assert run("log", "user-42").out == before

    def test_a_dry_run_of_nothing(self, run: Run) -> None:
        assert "check alone writes nothing" in run("check", "--dry-run", code=2).err

    def test_names_from_the_store_are_escaped(self, run: Run, path: Path) -> None:
        with deltastore.open(path) as store:
            put_raw(store.log.storage, keys.thread(1) + b"x\x1b", b"foreign")
        assert "\x1b" not in run("check", "--repair", code=8).out
