"""backup, dump and load, and copies of whole stores: files, streams, names in use."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import deltastore
from deltastore.cli import main
from deltastore.log import keys
from tests.cli.conftest import Ran
from tests.raw import rows_of

Run = Callable[..., Ran]
PROGRAM = [sys.executable, "-m", "deltastore"]


class TestBackup:
    def test_it_is_the_store(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        target = tmp_path / "backup.ds"
        document = run("backup", str(target), "--json").document
        with deltastore.open(path) as store, deltastore.open(target) as made:
            before = rows_of(store.log.storage)
            assert rows_of(made.log.storage) == before
            assert document == {"target": str(target), "rows": len(before), "file_bytes": made.info().file_bytes}

    def test_what_is_there_stays(self, run: Run, branched: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "mine").write_text("x")
        run("backup", str(tmp_path / "notes"), code=5)
        assert [each.name for each in (tmp_path / "notes").iterdir()] == ["mine"]

    def test_no_store(self, run: Run, tmp_path: Path) -> None:
        run("backup", str(tmp_path / "backup.ds"), code=5)
        assert not (tmp_path / "backup.ds").exists()


class TestCopyOfAStore:
    def test_it_is_the_store(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        target = tmp_path / "copy.ds"
        plan = run("copy", str(target), "--dry-run", "--json").document
        assert not target.exists()
        document = run("copy", str(target), "--json").document
        with deltastore.open(path) as store, deltastore.open(target) as made:
            rows = rows_of(store.log.storage)
            assert rows_of(made.log.storage) == rows
        rows = {key: row for key, row in rows.items() if not key.startswith(keys.COUNTERS)}  # the storage's own
        size = sum(len(key) + len(row) for key, row in rows.items())
        assert document == {
            "applied": True,
            "resumes": None,
            "location": str(target),
            "finished": True,
            "threads": 1,
            "rows": len(rows),
            "bytes": size,
            "copied_threads": 1,
            "copied_rows": len(rows) - 1,
            "copied_bytes": plan["bytes"],
            "passes": 2,
            "changed_since": 0,
        }
        counts = {"threads": 1, "rows": len(rows) - 1, "bytes": document["copied_bytes"]}
        assert counts.items() <= plan.items()
        assert (plan["applied"], plan["resumes"], plan["finished"], plan["passes"]) == (False, False, None, None)
        assert main(["check", str(target)]) == 0

    def test_prepared_it_is_no_store_before_it_is_finished(
        self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target = str(tmp_path / "copy.ds")
        assert "is unfinished" in run("copy", target, "--prepare").out
        for command in ("info", "threads", "check"):
            assert main([command, target]) == 5
            assert f"finish it with deltastore copy {path} {target}" in capsys.readouterr().err
        with deltastore.open(path) as store:
            store.thread("other").append({"m": [1]})
        assert ", where a copy was begun" in run("copy", target, "--dry-run").out
        assert run("copy", target, "--dry-run", "--json").document["threads"] == 1
        ran = run("copy", target, "--passes", "1")
        assert ran.out.startswith("1 threads, ")
        assert "is a store now, of 2 threads" in ran.out
        assert "is a store already" in run("copy", target, code=5).err
        assert "is a store already" in run("copy", target, "--dry-run", code=5).err

    def test_a_thread_without_a_new_name_is_not_taken_for_a_place(
        self, run: Run, branched: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for option in ([], ["--dry-run"]):
            error = run("copy", "user-42", *option, code=2).err
            assert "user-42 is a thread of" in error
            assert "write ./user-42" in error
        assert not (tmp_path / "user-42").exists()
        run("copy", "./user-42", "--prepare")
        run("copy", "user-42")  # it is there, so it is meant
        assert deltastore.check(tmp_path / "user-42").ok

    def test_what_is_for_stores_alone(self, run: Run, branched: dict[str, str]) -> None:
        for option in (["--dry-run"], ["--prepare"], ["--passes", "2"]):
            assert "for copying a store" in run("copy", "user-42", "other", *option, code=2).err
        assert [each["name"] for each in run("threads", "--json").document["threads"]] == ["user-42"]
        run("copy", "place", "--passes", "0", code=2)

    def test_places_that_are_taken(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "mine").write_text("x")
        for option in ([], ["--dry-run"]):
            for target in (str(tmp_path / "notes"), str(path), ":memory:"):
                assert run("copy", target, *option, code=5).err.count("\n") == 1
        assert [each.name for each in (tmp_path / "notes").iterdir()] == ["mine"]

    def test_no_store(self, run: Run, tmp_path: Path) -> None:
        run("copy", str(tmp_path / "copy.ds"), code=5)
        assert not (tmp_path / "copy.ds").exists()


class TestDumpAndLoad:
    def test_there_and_back(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        run("copy", "user-42", "other")
        file = tmp_path / "runs.dump"
        document = run("dump", str(file), "--json").document
        assert document == {"file": str(file), "threads": 2, "checkpoints": 8, "bytes": file.stat().st_size}
        shown = run("show", "user-42@before-deploy").out
        path.rename(tmp_path / "old.ds")
        assert run("load", str(file)).out == "2 threads, 8 checkpoints loaded\n"
        assert run("show", "user-42@before-deploy").out == shown

    def test_some_threads(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        run("copy", "user-42", "other")
        assert run("dump", str(tmp_path / "one"), "other", "--json").document["threads"] == 1
        run("delete", "other", "--yes")
        run("load", str(tmp_path / "one"))
        assert {each["name"] for each in run("threads", "--json").document["threads"]} == {"user-42", "other"}
        run("dump", str(tmp_path / "two"), "nobody", code=3)
        assert not (tmp_path / "two").exists()

    def test_names_in_use(self, run: Run, branched: dict[str, str], tmp_path: Path) -> None:
        file = str(tmp_path / "runs.dump")
        run("dump", file)
        assert "'user-42'" in run("load", file, code=4).err
        document = run("load", file, "--skip-existing", "--json").document
        assert document == {"threads": 0, "skipped": 1, "checkpoints": 0}
        assert "1 left out" in run("load", file, "--skip-existing").out

    def test_under_another_name(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        file = str(tmp_path / "runs.dump")
        run("copy", "user-42", "a=b\n")
        run("dump", file)
        shown = [each["name"] for each in run("threads", "--json").document["threads"]]
        taken = run("load", file, "--rename", "user-42=before", code=4).err
        assert "'a=b\\n'" in taken
        assert "rename" in taken
        assert "1 threads before it were loaded" in taken
        run("delete", "before", "--yes")
        renames = ["--rename", "user-42=before", "--rename", r"a\x3db\n=x=y"]
        assert run("load", file, *renames, "--json").document == {"threads": 2, "skipped": 0, "checkpoints": 8}
        assert {each["name"] for each in run("threads", "--json").document["threads"]} == {*shown, "before", "x=y"}
        assert (
            run("show", "before@before-deploy").out.partition("\n")[2]
            == (run("show", "user-42@before-deploy").out.partition("\n")[2])
        )
        assert run("load", file, *renames, "--skip-existing", "--json").document["skipped"] == 2

    def test_names_that_are_to_be_given_and_cannot(
        self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path
    ) -> None:
        file = str(tmp_path / "runs.dump")
        run("dump", file)
        path.rename(tmp_path / "old.ds")
        error = run("load", file, "--rename", "user-41=before", code=3).err
        assert "'user-41'" in error
        assert "it holds 'user-42'; nothing of it was loaded" in error
        for wrong in ("user-42", "=x", "user-42="):
            assert "OLD=NEW" in run("load", file, "--rename", wrong, code=2).err
        assert "two names" in run("load", file, "--rename", "user-42=a", "--rename", "user-42=b", code=2).err
        assert "can't both" in run("load", file, "--rename", "user-42=a", "--rename", "user-43=a", code=2).err
        assert not path.exists()

    def test_what_is_no_dump_makes_no_store(self, run: Run, path: Path, tmp_path: Path) -> None:
        with deltastore.open(":memory:") as store:
            deltastore.dump(store, tmp_path / "empty.dump")
        data = (tmp_path / "empty.dump").read_bytes()
        file = tmp_path / "file"
        for content, code in (
            (b"", 6),
            (b"PK\3\4 an archive", 6),
            (data[:10], 6),
            (data[:16], 7),
            (data[:18], 7),
            (data[:30], 7),
            (data[:16] + bytes(4) + data[20:], 7),
        ):
            file.write_bytes(content)
            assert run("load", str(file), code=code).err.count("\n") == 1
            piped = subprocess.run([*PROGRAM, "load", str(path), "-"], input=content, capture_output=True, check=False)
            assert piped.returncode == code
            assert not path.exists()
        run("load", str(tmp_path / "empty.dump"))
        assert path.exists()

    def test_files_that_are_wrong(self, run: Run, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        file = tmp_path / "runs.dump"
        run("dump", str(file))
        run("dump", str(file), code=2)  # it is there
        run("delete", "user-42", "--yes")
        file.write_bytes(file.read_bytes()[:-60])
        assert run("load", str(file), code=7).err.count("\n") == 1
        file.write_bytes(b"no dump at all, but a text")
        run("load", str(file), code=6)
        run("load", str(tmp_path), code=2)

    def test_a_name_mistyped_makes_no_store(self, run: Run, path: Path, tmp_path: Path) -> None:
        run("load", str(tmp_path / "nothing"), code=2)
        assert not path.exists()

    def test_streams(self, path: Path, branched: dict[str, str], tmp_path: Path) -> None:
        dumped = subprocess.run([*PROGRAM, "dump", str(path), "-"], capture_output=True, check=True)
        with deltastore.open(path) as store:
            deltastore.dump(store, tmp_path / "file")
        assert dumped.stdout == (tmp_path / "file").read_bytes()
        assert dumped.stderr.startswith(b"1 threads, 4 checkpoints dumped to standard output")
        loaded = subprocess.run(
            [*PROGRAM, "load", str(tmp_path / "new.ds"), "-"], input=dumped.stdout, capture_output=True, check=True
        )
        assert loaded.stdout == b"1 threads, 4 checkpoints loaded\n"
        assert loaded.stderr == b""

    def test_a_reader_that_stops(self, path: Path, tmp_path: Path) -> None:
        with deltastore.open(path, sync="none") as store:
            for number in range(100):
                store.thread(f"t{number}").append({"n": os.urandom(10_000)})  # more than a pipe holds
        script = '"$@" | head -c 10 >/dev/null; echo "${PIPESTATUS[0]}"'
        done = subprocess.run(
            ["bash", "-c", script, "bash", *PROGRAM, "dump", str(path), "-"], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        assert done.stdout == "141\n"
