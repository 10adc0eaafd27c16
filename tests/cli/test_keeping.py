"""stats, check, compact, delete, tag and copy."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import deltastore
from deltastore.codec.primitives import seal
from deltastore.log import keys
from tests.cli.conftest import Ran
from tests.raw import put_raw, rows_of

Run = Callable[..., Ran]


class TestStats:
    def test_it_changes_nothing_and_names_nobody(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        before = hashlib.sha256((path / "env-1" / "data.mdb").read_bytes()).hexdigest()
        first = run("stats", "--keep-last", "1", "--json")
        assert "user-42" not in first.out + run("stats", "--keep-last", "1").out
        again = run("stats", "--keep-last", "1", "--json").document
        assert first.document["largest"] == again["largest"]
        assert run("stats", "--names", "--json").document["largest"][0]["thread"] == "user-42"
        assert hashlib.sha256((path / "env-1" / "data.mdb").read_bytes()).hexdigest() == before

    def test_two_stores_hide_a_name_differently(self, run: Run, path: Path, tmp_path: Path) -> None:
        with deltastore.open(path) as store, deltastore.open(tmp_path / "other.ds") as other:
            for each in (store, other):
                each.thread("user-42").append({"a": 1})
        found = [run("stats", "--json").document["largest"][0]["thread"]]
        path.rename(tmp_path / "old.ds")
        (tmp_path / "other.ds").rename(path)
        assert run("stats", "--json").document["largest"][0]["thread"] not in found

    def test_top_and_keep_last(self, run: Run, branched: dict[str, str]) -> None:
        document = run("stats", "--top", "0", "--json").document
        assert document["largest"] == document["channels"] == []
        assert document["freed_bytes"] is None
        run("stats", "--keep-last", "0", code=2)


class TestCheck:
    def test_a_sound_store(self, run: Run, branched: dict[str, str]) -> None:
        document = run("check", "--json").document
        assert (document["ok"], document["checkpoints"], document["problems"]) == (True, 4, [])
        assert run("check").out.startswith("no problems; 1 threads, 4 checkpoints")

    def test_problems(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        key = keys.thread(1) + b"?"
        with deltastore.open(path) as store:
            put_raw(store.log.storage, key, seal(key, b""))
        ran = run("check", "--json", code=1)
        assert ran.document["ok"] is False
        assert "unknown kind" in ran.document["problems"][0]["what"]
        assert "unknown kind" in run("check", code=1).out
        with deltastore.open(path) as store:
            put_raw(store.log.storage, key, None)


class TestCompact:
    def test_what_is_deleted_goes(self, run: Run, path: Path) -> None:
        with deltastore.open(path) as store:
            thread = store.thread("t")
            first = thread.append({"a": ["x" * 5000]})
            thread.append({"a": ["y"]}, at=first)
            other = thread.append({"b": ["z" * 5000]}, at=first)
            thread.delete(other)
        document = run("compact", "t", "--erase", "--json").document
        assert document["chunks_dropped"] == 1
        assert document["bytes_after"] < document["bytes_before"]
        assert run("stats", "--json").document["garbage_bytes"] == 0
        assert run("compact").out.startswith("1 threads compacted, 0 chunks dropped")
        run("compact", "unknown", code=3)

    def test_shrinking_makes_the_file_smaller(self, run: Run, path: Path) -> None:
        with deltastore.open(path, sync="none") as store:
            for number in range(300):
                store.thread(f"t{number % 30}").append({"a": [f"{number} " * 500]})
            for number in range(1, 30):
                store.delete(f"t{number}")
        assert run("compact", "--json").document["shrink"] is None
        before = run("info", "--json").document["file_bytes"]
        shrunk = run("compact", "--shrink", "--json").document["shrink"]
        assert shrunk["bytes_before"] == before
        assert shrunk["bytes_after"] == run("info", "--json").document["file_bytes"] < before / 2
        assert "\nfile   " in run("compact", "--shrink").out
        assert run("info", "--json").document["checkpoints"] == 10

    def test_the_level_is_zstds(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        assert run("compact", "--level", "1", "--json").document["threads"] == 1
        for wrong in ("0", "20", "best"):
            run("compact", "--level", wrong, code=2)


class TestDelete:
    def test_a_dry_run_changes_nothing(self, run: Run, path: Path, branched: dict[str, str]) -> None:
        with deltastore.open(path) as store:
            before = rows_of(store.log.storage)
        assert run("delete", "user-42", "--dry-run").out == "not deleted: user-42, 4 checkpoints\n"
        assert run("delete", f"user-42@{branched['second']}", "--dry-run", "--json").document == {
            "thread": "user-42",
            "namespace": "",
            "id": branched["second"],
            "checkpoints": 1,
            "deleted": False,
        }
        with deltastore.open(path) as store:
            assert rows_of(store.log.storage) == before

    def test_nobody_to_ask(self, run: Run, branched: dict[str, str]) -> None:
        assert "--yes" in run("delete", "user-42", code=2).err
        assert run("info", "--json").document["checkpoints"] == 4

    def test_one_checkpoint_then_the_thread(self, run: Run, branched: dict[str, str]) -> None:
        assert run("delete", "user-42@before-deploy", "--yes").out.startswith("deleted: user-42@")
        assert run("info", "--json").document["checkpoints"] == 3
        run("show", "user-42@before-deploy", code=3)
        assert run("delete", "user-42", "--yes", "--json").document["deleted"] is True
        assert run("threads", "--json").document == {"threads": []}
        run("delete", "user-42", "--yes", code=3)

    def test_a_namespace_alone_is_refused(self, run: Run, branched: dict[str, str]) -> None:
        run("delete", "user-42", "--namespace", "", "--yes", code=2)


class TestTag:
    def test_give_list_move_take_away(self, run: Run, branched: dict[str, str]) -> None:
        assert run("tag", "user-42", "--json").document["tags"] == {"before-deploy": branched["second"]}
        run("tag", "user-42", "now")
        run("tag", f"user-42@{branched['other']}", "before-deploy")
        assert run("tag", "user-42").out.splitlines() == [
            "TAG            CHECKPOINT",
            f"before-deploy  {branched['other']}",
            f"now            {branched['last']}",
        ]
        assert run("tag", "user-42", "now", "--delete", "--json").document["tags"] == {
            "before-deploy": branched["other"]
        }
        run("tag", "user-42", "now", "--delete", code=3)
        run("tag", "user-42", "--delete", code=2)


class TestCopy:
    def test_a_copy_and_a_name_in_use(self, run: Run, branched: dict[str, str]) -> None:
        assert run("copy", "user-42", "b").out == "copied user-42 to b\n"
        assert run("show", "b@before-deploy", "--json").document["id"] == branched["second"]
        assert "'b'" in run("copy", "user-42", "b", code=4).err
        run("copy", "nobody", "c", code=3)


@pytest.mark.parametrize("command", ["info", "threads", "stats", "check", "compact"])
def test_an_empty_store(run: Run, path: Path, command: str) -> None:
    deltastore.open(path).close()
    run(command)
    run(command, "--json")
