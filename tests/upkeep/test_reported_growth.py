"""Faults that users of other stores reported of expiry, sweeps, reports and erasure, in Python and in the shell.

Each test takes the whole kind of a report, not its one input.
"""

import hashlib
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import Retention, Store, apply_retention, check, plan_retention
from deltastore.cli import main
from deltastore.langgraph import DeltaSaver
from deltastore.log import deleting
from deltastore.log.names import in_write
from deltastore.upkeep.statistics import measure
from tests.langgraph.comparing import checkpoint, config
from tests.upkeep.both_fronts import plain_rows

ROOT = Path(__file__).parents[2]
DAY = timedelta(days=1)
Cli = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.ds"


@pytest.fixture
def cli(path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command on the test's store, and return its document."""

    def run(command: str, *arguments: object) -> Any:
        capsys.readouterr()
        ended = main([command, str(path), *map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert ended == 0, err
        return json.loads(out)

    return run


def aged(store: Store, ago: timedelta) -> Store:
    """Let a store's clock be in the past."""
    store.log._clock = lambda: time.time() - ago.total_seconds()
    return store


def append(store: Store, name: str, ago: timedelta, count: int = 1) -> None:
    for number in range(count):
        aged(store, ago).thread(name).append({"log": [f"{name} {number}"]})


def names(store: Store) -> set[str]:
    return {found.name for found in store.threads()}


# --- age --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in the shell", "stored", "in Python"])
def test_a_thread_is_as_old_as_what_was_put_to_it_last(path: Path, cli: Cli, how: str) -> None:
    """indexnetwork/index#1088, dbos-transact-golang#469, dbos-transact-py#836: puts, writes, calls; and 0 is off."""
    with deltastore.open(path, sync="none") as store:
        saver = DeltaSaver(store)
        for days in (6, 8):
            append(store, f"{days} days", days * DAY, 2)
        append(store, "nearly 7", 7 * DAY - timedelta(minutes=10))
        for name in ("old and fresh", "old and a write", "old and a tag"):
            append(store, name, 30 * DAY)
        append(store, "old and fresh", timedelta(minutes=1))
        aged(store, DAY).thread("old and a write").put_writes(store.thread("old and a write").latest(), {"log": ["w"]})
        store.thread("old and a tag").tag("kept")  # says what stays of a thread, and isn't activity
        aged(store, 30 * DAY)
        for name in ("old and a call", "old call"):
            saver.put(config(name), checkpoint("1", {"a": "1"}, {"a": 1}), {}, {})
        aged(store, DAY)
        saver.put(config("old and a call", ns="sub:1"), checkpoint("2", {"a": "2"}, {"a": 2}), {}, {})
        before = names(store)
    gone = {"8 days", "old call", "old and a tag"}
    if how == "in the shell":
        off = cli("retain", "--drop-idle", "0", "--yes")
        planned = cli("retain", "--drop-idle", "7d", "--dry-run")
        done = cli("retain", "--drop-idle", "7d", "--yes")
        assert {found["thread"] for found in planned["plan"] if found["whole"]} == gone
        assert (off["changed"], off["dropped"]) == (0, 0)
        assert (planned["dropped"], done["dropped"], done["checkpoints"]) == (3, 3, 4)
    elif how == "stored":
        cli("retain", "--drop-idle", "7d", "--store")
        assert cli("maintain", "--dry-run")["retention"]["dropped"] == 3
        assert cli("maintain", "--yes")["retention"]["dropped"] == 3
    else:
        with deltastore.open(path) as store:
            assert apply_retention(store, Retention(drop_idle=timedelta(0))).changed == 0
            assert plan_retention(store, Retention(drop_idle=7 * DAY)).going == 4
            assert apply_retention(store, Retention(drop_idle=7 * DAY)).dropped == 3
    with deltastore.open(path) as store:
        assert names(store) == before - gone
        assert len(list(store.thread("old and fresh").history())) == 2  # no part of a thread is too old
        assert check(store).ok


def test_one_call_forgets_the_idle_and_says_what_it_did(path: Path, cli: Cli) -> None:
    """langgraph#6661: of threads idle for 1, 29 and 31 days one goes, where 30 are allowed; a plan changes nothing."""
    with deltastore.open(path, sync="none") as store:
        for days in (31, 29, 1):
            append(store, f"{days}", days * DAY, 3)
    before = digests(path)
    planned = cli("retain", "--drop-idle", "30d", "--dry-run")
    assert (planned["applied"], planned["looked_at"], planned["dropped"], planned["checkpoints"]) == (False, 3, 1, 3)
    assert digests(path) == before
    done = cli("retain", "--drop-idle", "30d", "--yes")
    assert (done["applied"], done["dropped"], done["checkpoints"]) == (True, 1, 3)
    assert done["by_reason"] == {"idle_thread": 3}
    assert done["freed_bytes"] == planned["freed_bytes"] > 0
    assert {found["name"] for found in cli("threads")["threads"]} == {"29", "1"}
    assert cli("stats")["orphan_bytes"] == 0
    assert cli("retain", "--drop-idle", "30d", "--yes")["changed"] == 0


# --- sweeps -----------------------------------------------------------------------------------

SWEEPER = """
import sys
from deltastore.cli import main

print("ready", flush=True)
sys.stdin.readline()
sys.exit(main(sys.argv[1:]))
"""


def sweep_at_once(path: Path, count: int, *arguments: str) -> list[dict[str, Any]]:
    """Run `retain` in several processes that begin together; return what each did."""
    command = [sys.executable, "-c", SWEEPER, "retain", os.fspath(path), *arguments, "--yes", "--json"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    out = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count
    return [json.loads(text) for text in out]


def test_bounded_sweeps_of_two_processes_are_taken_up_again_after_more_puts(path: Path) -> None:
    """langgraph#6784, aegra#71, aegra#545: threads that keep their latest are swept anew once they have grown again."""
    count, each, limit = 120, 4, 25
    with deltastore.open(path, sync="none") as store:
        for number in range(count):
            append(store, f"t{number}", timedelta(0), each)
        store.thread("t7").retention = Retention()  # a thread's own rules, here: all of it stays
        latest = {name: store.thread(name).latest() for name in names(store)}
    reports: list[dict[str, Any]] = []
    while not reports or any(report["more"] for report in reports[-2:]):
        reports += sweep_at_once(path, 2, "--keep-last", "1", "--limit", str(limit))
    assert max(report["changed"] for report in reports) <= limit
    assert sum(report["checkpoints"] for report in reports) == (count - 1) * (each - 1)
    assert sum(report["changed"] for report in reports) == count - 1
    with deltastore.open(path, sync="none") as store:
        assert {name: store.thread(name).latest() for name in names(store)} == latest
        assert len(list(store.thread("t7").history())) == each
        assert apply_retention(store, Retention(keep_last=1)).changed == 0
        for number in range(5):
            append(store, f"t{number}", timedelta(0), 2)
        again = apply_retention(store, Retention(keep_last=1), limit=limit)
        assert (again.changed, again.checkpoints, again.more) == (5, 2 * 5, False)
        assert store.thread("t3").state() == {"log": [f"t3 {n}" for n in (*range(each), 0, 1)]}
        report = check(store)
        assert report.ok
        assert report.checkpoints == count - 1 + each


# --- reports ----------------------------------------------------------------------------------


def digests(path: Path) -> dict[str, str]:
    """Return the digests of a store's files, but of the locks, which readers write into."""
    files = [found for found in path.rglob("*") if found.is_file() and found.name != "lock.mdb"]
    assert any(found.name == "data.mdb" for found in files)
    return {os.fspath(found): hashlib.sha256(found.read_bytes()).hexdigest() for found in files}


def test_reports_and_plans_change_no_byte_and_name_nobody(
    path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    """deer-flow#3014, deer-flow#3015: bytes of threads and channels, orphans, what keeping the last would free."""
    large, small, steps = 1_000_000, 10_000, 8
    chance = random.Random(1)
    with deltastore.open(path, sync="none") as store:
        for number in range(100):
            size = large if number == 42 else small
            thread = store.thread(f"user-{number}@example.org")
            for step in range(steps):
                thread.append({"document": chance.randbytes(size // steps), "step": step})
        store.thread("user-1@example.org").put_writes(store.thread("user-1@example.org").latest(), {"step": 9})
        for step in range(40):
            store.thread("deleted").append({"document": chance.randbytes(1_000), "step": step})
        (gone,) = (found for found in measure(store).threads if found.name == "deleted")
        queue(store, "deleted")
        orphans = measure(store).orphans
        assert (orphans.rows, orphans.bytes) == (sum(kind.rows for kind in gone.kinds.values()), gone.bytes)
    before = digests(path)
    shown = cli("stats", "--top", "1", "--keep-last", "4")
    (top,) = shown["largest"]
    assert (shown["threads"], shown["checkpoints"], len(shown["channels"])) == (100, 800, 1)
    assert top["bytes"] == pytest.approx(large, rel=0.05)
    assert shown["channels"][0]["channel"] == "document"
    assert shown["channels"][0]["bytes"] == pytest.approx(large + 99 * small, rel=0.05)
    assert shown["orphan_bytes"] == orphans.bytes
    # what was replaced and isn't kept: half of each thread's documents
    assert shown["freed_bytes"] == pytest.approx((large + 99 * small) / 2, rel=0.2)
    assert top["freed_bytes"] == pytest.approx(large / 2, rel=0.1)
    planned = cli("retain", "--keep-last", "4", "--dry-run")
    assert (planned["changed"], planned["checkpoints"]) == (100, 400)
    for command in (["info"], ["threads"], ["check"], ["maintain", "--dry-run"], ["stats"]):
        cli(*command)
    for command in (["stats"], ["stats", "--keep-last", "1"]):
        assert main([command[0], str(path), *command[1:]]) == 0
        assert "example.org" not in capsys.readouterr().out
    assert "example.org" not in json.dumps(shown)
    assert digests(path) == before
    done = cli("retain", "--keep-last", "4", "--yes")
    assert (done["checkpoints"], done["freed_bytes"]) == (planned["checkpoints"], planned["freed_bytes"])
    cli("compact", "--level", "1")
    after = cli("stats", "--keep-last", "4")
    assert (after["orphan_bytes"], after["garbage_bytes"], after["freed_bytes"]) == (0, 0, 0)
    assert shown["bytes"] - after["bytes"] == pytest.approx(shown["freed_bytes"], rel=0.1)


# --- erasure ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["delete the thread", "delete checkpoints", "retain", "maintain"])
def test_text_that_was_deleted_is_in_no_byte_after_an_erasing_compaction(path: Path, cli: Cli, how: str) -> None:
    """alkemio#1972, aegra#499: values, metadata, writes, tags, tasks, ids and names, gone as the page on it says."""
    secret = {part: f"secret {part} {secrets.token_hex(16)}" for part in ("value", "metadata", "write", "task", "tag")}
    native, graph = f"native {secrets.token_hex(16)}", f"graph {secrets.token_hex(16)}"
    doomed_id = f"1 {secrets.token_hex(16)}"
    with deltastore.open(path, sync="none") as store:
        aged(store, 10 * DAY)
        saver = DeltaSaver(store)
        thread = store.thread(native)
        thread.append({"text": "kept at first"})
        made = thread.put_state({"text": secret["value"]}, metadata={"note": secret["metadata"]})
        thread.put_writes(made, {"text": secret["write"]}, task=secret["task"])
        if how in ("delete the thread", "delete checkpoints"):
            thread.tag(secret["tag"], at=made)
        thread.put_state({"text": "kept"})
        versions = {"text": "1"}
        doomed = checkpoint(doomed_id, versions, {"text": secret["value"]})
        saver.put(config(graph), doomed, {"note": secret["metadata"]}, versions)
        saver.put_writes(config(graph, doomed_id), [("text", secret["write"])], secret["task"])
        saver.put(config(graph, doomed_id), checkpoint("2", {"text": "2"}, {"text": "kept"}), {}, {})
        append(store, "other", timedelta(0))
        sought = {*secret.values(), doomed_id} - ({secret["tag"]} if how in ("retain", "maintain") else set())
        assert found(path, store, sought) == sought
    wholly = how in ("delete the thread", "maintain")
    if how == "delete the thread":
        for name in (native, graph):
            cli("delete", name, "--yes")
    elif how == "delete checkpoints":
        cli("delete", f"{native}@{secret['tag']}", "--yes")
        cli("delete", f"{graph}@{doomed_id}", "--yes")
    elif how == "retain":
        cli("retain", native, graph, "--keep-last", "1", "--yes")
    else:
        cli("retain", "--drop-idle", "7d", "--store")
    if how == "maintain":
        cli("maintain", "--yes", "--erase", "--shrink")
    else:
        cli("compact", "--erase", "--shrink")
    with deltastore.open(path) as store:
        left = found(path, store, sought | {native, graph})
        if wholly:
            assert left == set()
            assert names(store) == {"other"}
        else:
            # a checkpoint that stays says whose child it was, so the id of its parent stays with it
            assert left == {native, graph, doomed_id}
            assert store.thread(native).state() == {"text": "kept"}
        report = check(store)
        assert (report.ok, report.garbage_chunks, report.queued_threads) == (True, 0, 0)


def found(path: Path, store: Store, texts: set[str]) -> set[str]:
    """Return the texts that are in any file, as it is or decompressed."""
    held = [file.read_bytes() for file in path.rglob("*") if file.is_file()] + list(plain_rows(store))
    return {text for text in texts if any(text.encode() in part for part in held)}


def queue(store: Store, name: str) -> None:
    """Delete a thread and be killed before its rows are collected."""
    in_write(store.log.storage, (), lambda tx: deleting.delete_thread(tx, name, store.log.now_ms()))
