"""retain: plans, questions, sweeps, stored rules; ages and sizes."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltastore
from deltastore import Retention
from deltastore.cli import quantities
from deltastore.errors import InvalidInputError
from deltastore.log import keys
from tests.cli.conftest import Ran
from tests.raw import put_raw, rows_of

Run = Callable[..., Ran]


@pytest.fixture
def three(path: Path) -> None:
    """Three threads of five checkpoints each."""
    with deltastore.open(path) as store:
        for name in "abc":
            for number in range(5):
                store.thread(name).append({"n": number})


class TestSweeps:
    def test_a_dry_run_changes_nothing(self, run: Run, path: Path, three: None) -> None:
        with deltastore.open(path) as store:
            before = rows_of(store.log.storage)
        document = run("retain", "--keep-last", "2", "--dry-run", "--json").document
        assert document["applied"] is False
        assert (document["looked_at"], document["changed"], document["checkpoints"]) == (3, 3, 9)
        assert document["by_reason"] == {"expired": 9}
        assert document["rules"] == {"keep_last": 2}
        reasons = [one["reason"] for one in document["plan"][0]["checkpoints"]]
        assert reasons == ["expired"] * 3 + ["keep_last", "latest"]
        shown = run("retain", "--keep-last", "2", "--dry-run").out.splitlines()
        assert shown[0].split() == ["THREAD", "GO", "STAY", "SIZE", "WHY"]
        assert shown[1].startswith("c")
        assert shown[-1] == "9 checkpoints in 3 threads would go; 6 others of 3 threads with rules stay"
        with deltastore.open(path) as store:
            assert rows_of(store.log.storage) == before

    def test_named_threads_are_shown_checkpoint_by_checkpoint(self, run: Run, three: None) -> None:
        shown = run("retain", "b", "--keep-last", "2", "--dry-run").out.splitlines()
        assert [line[0] for line in shown if line.startswith(("+ ", "- "))] == ["+", "+", "-", "-", "-"]
        assert sum("expired" in line for line in shown if line.startswith("- ")) == 3
        run("retain", "nobody", "--keep-last", "2", "--dry-run", code=3)

    def test_nobody_to_ask(self, run: Run, three: None) -> None:
        error = run("retain", "--keep-last", "2", code=2).err
        assert "Delete 9 checkpoints of 3 threads? Nobody can be asked" in error
        assert "--yes" in error
        assert run("info", "--json").document["checkpoints"] == 15

    def test_applying(self, run: Run, three: None) -> None:
        document = run("retain", "a", "--keep-last", "2", "--yes", "--json").document
        assert (document["applied"], document["checkpoints"], document["plan"]) == (True, 3, None)
        assert run("info", "--json").document["checkpoints"] == 12
        shown = run("retain", "--keep-last", "2", "--yes").out
        assert shown.startswith("6 checkpoints deleted in 2 threads of 3 with rules; 0 threads went whole; ")
        assert "\n  6 expired\n" in shown
        # nothing goes, so nobody is asked
        assert run("retain", "--keep-last", "2", "--json").document["checkpoints"] == 0

    def test_a_limit_stops(self, run: Run, three: None) -> None:
        document = run("retain", "--keep-last", "2", "--limit", "1", "--yes", "--json").document
        assert (document["changed"], document["more"]) == (1, True)
        assert "others may be due" in run("retain", "--keep-last", "1", "--limit", "1", "--yes").out
        run("retain", "--keep-last", "2", "--limit", "0", "--yes", code=2)

    def test_every_rule_arrives(self, run: Run, three: None) -> None:
        options = (
            "--keep-last 1 --keep-within 12h --keep-hourly 2 --keep-daily 3 --keep-weekly 4 --keep-forks 7d "
            "--max-bytes 50M --drop-idle 90d --stray-writes 1.5s"
        )
        run("retain", *options.split(), "--store")
        assert run("retain", "--show", "--json").document["rules"] == {
            "keep_last": 1,
            "keep_within": 43200.0,
            "keep_hourly": 2,
            "keep_daily": 3,
            "keep_weekly": 4,
            "keep_forks": 604800.0,
            "max_bytes": 50_000_000,
            "drop_idle": 7776000.0,
            "stray_writes": 1.5,
        }
        again = run("retain", "--show").out.removeprefix("store: ").split()
        with_same = run("retain", *again, "--store", "--json").document
        assert with_same["rules"] == run("retain", "--show", "--json").document["rules"]

    def test_idle_threads_go_whole(self, run: Run, three: None) -> None:
        planned = run("retain", "--drop-idle", "0.000001s", "--dry-run", "--json").document
        assert planned["rules"] == {"drop_idle": 1e-06}
        document = run("retain", "--drop-idle", "0.001s", "--yes", "--json").document
        assert (document["dropped"], document["by_reason"]) == (3, {"idle_thread": 15})
        assert run("threads", "--json").document == {"threads": []}

    def test_a_damaged_thread_is_told_and_the_others_done(self, run: Run, path: Path, three: None) -> None:
        with deltastore.open(path) as store:
            row = rows_of(store.log.storage)[keys.header(2)]
            put_raw(store.log.storage, keys.header(2), b"nonsense")
        ran = run("retain", "--keep-last", "1", "--yes", "--json", code=7)
        assert [each["thread"] for each in ran.document["damaged"]] == ["b"]
        assert ran.document["changed"] == 2
        assert "can't be read: b: " in run("retain", "--keep-last", "1", "--dry-run", code=7).out
        with deltastore.open(path) as store:
            put_raw(store.log.storage, keys.header(2), row)


class TestStoredRules:
    def test_without_rules_nothing_goes_and_it_is_said(self, run: Run, three: None) -> None:
        assert "no rules are given" in run("retain").out
        assert run("retain", "--dry-run", "--json").document["rules"] is None
        assert run("retain", "--show").out == "store: no rules, so all stays\n"

    def test_store_show_apply_forget(self, run: Run, path: Path, three: None) -> None:
        assert run("retain", "--keep-last", "2", "--store").out == "store: --keep-last 2\n"
        shown = run("retain", "b", "--keep-forks", "all", "--store").out
        assert shown == "store: --keep-last 2\nthread b: all stays\n"
        document = run("retain", "--show", "--json").document
        assert document == {"rules": {"keep_last": 2}, "own": [{"thread": "b", "rules": {}}]}
        assert run("retain", "a", "--show", "--json").document["own"] == []
        assert run("retain", "--yes", "--json").document["checkpoints"] == 6
        with deltastore.open(path) as store:
            assert store.retention == Retention(keep_last=2)
            assert store.thread("b").retention == Retention()
        run("retain", "b", "--forget")
        assert run("retain", "--forget", "--json").document == {"rules": None, "own": []}

    @pytest.mark.parametrize(
        "call",
        [
            "--store",
            "--store --show --keep-last 1",
            "--show --keep-last 1",
            "--forget --keep-last 1",
            "--store --keep-last 1 --dry-run",
            "--show --limit 1",
            "--keep-last -1",
            "--keep-within 5",
            "--keep-within 40000d",
            "--keep-forks none",
            "--keep-forks 0",
            "--max-bytes 5X",
            "--drop-idle 999999999999999w",
        ],
    )
    def test_wrong_calls(self, run: Run, three: None, call: str) -> None:
        ran = run("retain", *call.split(), code=2)
        assert ran.err.count("\n") == 1
        assert run("retain", "--show", "--json").document == {"rules": None, "own": []}


class TestMaintain:
    def test_stored_rules_then_compaction_then_the_file(self, run: Run, three: None) -> None:
        run("retain", "--keep-last", "2", "--store")
        planned = run("maintain", "--dry-run", "--json").document
        assert (planned["retention"]["checkpoints"], planned["compact"], planned["shrink"]) == (9, None, None)
        assert "--yes" in run("maintain", code=2).err
        assert run("info", "--json").document["checkpoints"] == 15
        document = run("maintain", "--yes", "--erase", "--shrink", "--json").document
        assert (document["retention"]["checkpoints"], document["compact"]["threads"]) == (9, 3)
        assert document["shrink"]["bytes_after"] == run("info", "--json").document["file_bytes"]
        assert run("stats", "--json").document["garbage_bytes"] == 0

    def test_without_rules_it_compacts_and_asks_nobody(self, run: Run, three: None) -> None:
        lines = run("maintain").out.splitlines()
        assert lines[1].startswith("no rules are given")
        assert lines[2] == "3 threads compacted, 0 chunks dropped"
        assert run("maintain", "--json").document["shrink"] is None

    def test_it_does_what_the_function_does(self, run: Run, path: Path, three: None, tmp_path: Path) -> None:
        run("retain", "--keep-last", "2", "--store")
        run("backup", str(tmp_path / "other.ds"))
        document = run("maintain", "--yes", "--json").document
        with deltastore.open(path) as store, deltastore.open(tmp_path / "other.ds") as other:
            report = deltastore.maintain(other)
            assert report.retention.checkpoints == document["retention"]["checkpoints"]
            assert report.compact.rows_after == document["compact"]["rows_after"]
            assert rows_of(store.log.storage).keys() == rows_of(other.log.storage).keys()


class TestQuantities:
    @given(st.integers(0, 10**12), st.sampled_from([1, 10**6, 60 * 10**6, 3600 * 10**6, 86400 * 10**6]))
    def test_an_age_reads_back(self, count: int, unit: int) -> None:
        span = timedelta(microseconds=count * unit % (36_500 * 86400 * 10**6))
        found = quantities.parse_age(quantities.age(span), "x")
        assert abs(found - span) <= timedelta(microseconds=1)  # decimals go through a float

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("0", 0), ("4096", 4096), ("10b", 10), ("1k", 1000), ("1K", 1000), ("2kib", 2048), ("0.5G", 5 * 10**8)],
    )
    def test_sizes(self, text: str, expected: int) -> None:
        assert quantities.parse_size(text, "x") == expected

    @pytest.mark.parametrize("text", ["", "k", "-1", "1kk", "1 M", "1e3", "٣", "nan", "1.M"])
    def test_what_is_no_quantity(self, text: str) -> None:
        with pytest.raises(InvalidInputError):
            quantities.parse_size(text, "x")
        with pytest.raises(InvalidInputError):
            quantities.parse_age(text, "x")
