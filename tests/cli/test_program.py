"""The program as a whole: exit codes, errors, documents, terminals, pipes, signals, completion, its page."""

import ast
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore import errors
from deltastore.cli import LIBRARIES, commands, document, exits, main
from deltastore.cli.app import COMMANDS
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "deltastore"]
ON_SERVERS = ("migrate",)
"""Commands that take no directory."""
CALLS: dict[str, list[list[str]]] = {
    "info": [[]],
    "threads": [[]],
    "log": [["user-42"]],
    "show": [["user-42"]],
    "diff": [["user-42"], ["user-42@before-deploy", "user-42"], ["user-42", "user-42@before-deploy"]],
    "stats": [["--keep-last", "1"]],
    "check": [[], ["--repair"]],
    "retain": [
        ["--keep-last", "1", "--keep-forks", "latest", "--dry-run"],
        ["user-42", "--keep-last", "1", "--store"],
        ["user-42", "--dry-run"],
    ],
    "maintain": [["--yes"], ["--yes", "--shrink", "--erase", "--level", "3"], ["--dry-run"]],
    "compact": [["--shrink", "--level", "3"]],
    "delete": [["user-42", "--dry-run"]],
    "tag": [["user-42"]],
    "copy": [["user-42", "copied"], ["copied.ds", "--dry-run"], ["copied.ds", "--prepare"], ["copied.ds"]],
    "backup": [["backup.ds"]],
    "dump": [["new.dump", "user-42"]],
    "load": [["runs.dump", "--skip-existing"]],
}


@pytest.fixture
def surroundings(path: Path, branched: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that calls name."""
    monkeypatch.chdir(tmp_path)
    with deltastore.open(path) as store:
        deltastore.dump(store, "runs.dump")


def test_every_command_is_called_here_and_has_a_module() -> None:
    modules = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__"}
    assert {*CALLS, *ON_SERVERS} == COMMANDS.keys() == modules


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_help_with_an_example(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "Example: " in shown
        assert all(option in shown for option in ("STORE", "--json", "--debug"))
        assert COMMANDS[command].EXAMPLE.startswith(f"deltastore {command} ")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_argument_and_option_has_help(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        section = document.page().split(f"## {command}\n")[1].split("\n## ")[0]
        assert "|  |" not in section
        assert "None" not in section

    def test_without_arguments(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        shown = capsys.readouterr().out
        assert all(f"\n  {command}" in shown for command in COMMANDS)

    def test_the_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--version"]) == 0
        assert re.fullmatch(r"deltastore \d+\.\d+\S*\n|deltastore, which isn't installed.*\n", capsys.readouterr().out)

    def test_the_page_is_fresh(self) -> None:
        page = ROOT / "docs" / "cli.md"
        assert page.read_text() == document.page(), "run python -m deltastore.cli.document > docs/cli.md"


# --- documents


def paths(value: Any, keys: set[str], at: str = "") -> Iterator[str]:
    """Iterate over the documented paths in a document; what is below one that nothing goes on from is anybody's."""
    further = any(key.startswith((f"{at}.", f"{at}[]")) for key in keys) if at else True
    if at in keys and not further:
        yield at
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, keys, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, keys, f"{at}[]")
    elif value is not None or at in keys:
        yield at


@pytest.mark.parametrize("command", CALLS)
def test_documents_hold_the_documented_keys(run: Run, surroundings: None, command: str) -> None:
    keys = set(COMMANDS[command].KEYS)
    found: set[str] = set()
    for call in CALLS[command]:
        found |= set(paths(run(command, *call, "--json").document, keys))
    rare = {
        key
        for key in keys
        if key.startswith(
            ("oldest_reader", "problems[]", "repair.actions[]", "repair.lost[]", "damaged[]", "plan[].calls[]")
        )
    }
    assert found - keys == set()
    assert keys - rare <= found


# --- errors


def _classes() -> list[type[errors.DeltastoreError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    # no command carries out a run of an agent
    return [v for v in found if issubclass(v, errors.DeltastoreError) and not issubclass(v, errors.RunError)]


@pytest.mark.parametrize("kind", [kind for kind in _classes() if kind is not errors.DeltastoreError])
def test_every_error_has_its_code(kind: type[errors.DeltastoreError]) -> None:
    code = exits.code_of(kind("x"))
    assert code in set(exits.OF_ERRORS.values())
    assert code in exits.MEANINGS


class TestErrors:
    def test_no_store(self, run: Run, path: Path, tmp_path: Path) -> None:
        assert run("info", code=5).err == f"deltastore: {path} doesn't exist; expected the directory of a store\n"
        assert not path.exists()
        path.write_text("a file")
        assert "is a file" in run("info", code=5).err
        path.unlink()
        path.mkdir()
        assert "it holds nothing" in run("info", code=5).err
        (path / "notes.txt").touch()
        assert "it holds notes.txt" in run("info", code=5).err
        assert [file.name for file in path.iterdir()] == ["notes.txt"]
        (path / "notes.txt").unlink()
        path.rmdir()

    def test_a_damaged_store(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with deltastore.open(tmp_path / "x.ds") as store:
            store.thread("t").append({"a": 1})
        (tmp_path / "x.ds" / "CURRENT").write_text("nonsense")
        assert main(["info", str(tmp_path / "x.ds")]) == 7
        assert "CURRENT is damaged" in capsys.readouterr().err

    def test_usage(self, run: Run, branched: dict[str, str]) -> None:
        assert run("log", code=2).err.startswith("deltastore: Missing argument 'THREAD'; see ")
        assert main(["nonsense"]) == 2
        run("info", "--nonsense", code=2)
        run("threads", "--limit", "-1", code=2)
        run("threads", "--sort", "nonsense", code=2)
        run("show", "", code=2)

    def test_one_line_unless_debugging(self, run: Run, branched: dict[str, str]) -> None:
        assert run("show", "no\nbody", code=3).err.count("\n") == 1
        shown = run("show", "nobody", "--debug", code=3).err
        assert "Traceback" in shown
        assert shown.splitlines()[-1].startswith("deltastore: no thread")

    def test_a_fault_of_the_program(self, run: Run, branched: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("deltastore.cli.commands.show.inspect", lambda *_: 1 / 0)
        assert run("show", "user-42", code=70).err.count("\n") == 1
        assert "ZeroDivisionError" in run("show", "user-42", "--debug", code=70).err


# --- surroundings


def test_nothing_but_text_off_a_terminal(run: Run, surroundings: None) -> None:
    for command, calls in CALLS.items():
        for call in calls:
            ran = run(command, *call)
            assert re.fullmatch(r"[\n\x20-\x7e…]*", ran.out + ran.err), ran


@pytest.mark.parametrize("missing", LIBRARIES)
def test_without_the_extra(path: Path, missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None\nfrom deltastore.cli import main\nsys.exit(main(['info', '/']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if missing == "rich" and done.returncode == 5:
        return  # only a terminal's progress needs it
    assert done.returncode == 2
    assert done.stderr == (
        f"deltastore: the command line needs {missing}, which isn't installed; pip install '.[cli]' "
        "in a clone of deltastore\n"
    )


def test_the_entry_point_is_the_programs() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"deltastore": "deltastore.cli:main"}
    assert {re.split(r"[<>=]", each)[0] for each in project["optional-dependencies"]["cli"]} == set(LIBRARIES)


def test_nothing_of_the_extra_is_imported_before_the_message() -> None:
    source = Path(str(sys.modules["deltastore.cli"].__file__)).read_text()
    top = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [getattr(node, "module", None) or node.names[0].name for node in top] == ["sys", "collections.abc"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    shown = subprocess.run(
        [*PROGRAM, "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_DELTASTORE_COMPLETE" in shown.stdout
    asked = subprocess.run(
        PROGRAM,
        env={
            **os.environ,
            "_DELTASTORE_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "deltastore st",
            "COMP_CWORD": "1",
            "_TYPER_COMPLETE_ARGS": "deltastore st",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "stats" in asked.stdout


def test_a_broken_pipe_ends_quietly(path: Path) -> None:
    with deltastore.open(path, sync="none") as store:
        for number in range(3000):
            store.thread("t").append({"n": number}, metadata={"text": "x" * 50})
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -1; echo "${PIPESTATUS[0]}"', "bash", *PROGRAM, "log", str(path), "t"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].startswith("*")
    assert done.stdout.splitlines()[1] == "141"


@pytest.mark.parametrize("call", [["info"], ["threads"], ["check"], ["show", "user-42"], ["log", "user-42", "--json"]])
def test_output_that_cannot_be_written_is_said_in_a_line(path: Path, branched: dict[str, str], call: list[str]) -> None:
    command, *others = call
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PROGRAM, command, str(path), *others], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith("deltastore: what was asked for is done, but standard output can't be written: ")


def test_a_dump_that_cannot_be_written_is_said_in_a_line(path: Path, branched: dict[str, str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PROGRAM, "dump", str(path), "-"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert "standard output can't be written" in line


def test_where_a_thread_alone_is_taken_that_is_said(
    path: Path, branched: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", str(path), "user-42@before-deploy"]) == 3
    assert "one is named 'user-42'; this takes a thread alone" in capsys.readouterr().err


def test_a_wrong_call_leads_to_the_commands_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "--nonsense"]) == 2
    assert capsys.readouterr().err.endswith("; see deltastore log --help\n")
    assert main(["nonsense"]) == 2
    assert capsys.readouterr().err.endswith("; see deltastore --help\n")


def test_nothing_is_done_where_output_is_closed(path: Path, branched: dict[str, str]) -> None:
    command = ["bash", "-c", '"$@" >&-', "bash", *PROGRAM, "tag", str(path), "user-42", "here"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert "standard output is closed" in line
    with deltastore.open(path) as store:
        assert "here" not in store.thread("user-42").tags()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.controller, terminal = pty.openpty()
        self.process = subprocess.Popen([*PROGRAM, *arguments], stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        self.shown = ""

    def read(self, until: str | None = None) -> str:
        """Read until some text was shown, or the command ended."""
        deadline = time.monotonic() + 30
        while until is None or until not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if not select.select([self.controller], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.controller, 65536)
            except OSError:  # ended
                break
            if not data:
                break
            self.shown += data.decode()
        return self.shown

    def end(self) -> int:
        self.read()
        code = self.process.wait(timeout=30)
        os.close(self.controller)
        return code


def test_a_terminal_has_colours_and_progress(path: Path, branched: dict[str, str]) -> None:
    terminal = Terminal("diff", str(path), "user-42")
    assert terminal.end() == 0
    assert "\x1b[32m+ 3\x1b[0m" in terminal.shown
    terminal = Terminal("check", str(path))
    assert terminal.end() == 0
    assert "checking threads" in terminal.shown


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked_before_a_deletion(path: Path, branched: dict[str, str], answer: str, left: int) -> None:
    terminal = Terminal("delete", str(path), "user-42")
    assert "Delete user-42, 4 checkpoints? [y/N]" in terminal.read("[y/N] ")
    os.write(terminal.controller, f"{answer}\n".encode())
    assert terminal.end() == 0
    with deltastore.open(path) as store:
        assert len(list(store.threads())) == left


@pytest.mark.parametrize(("answer", "left"), [("y", 2), ("n", 4)])
def test_a_terminal_is_asked_before_a_sweep(path: Path, branched: dict[str, str], answer: str, left: int) -> None:
    terminal = Terminal("retain", str(path), "--keep-last", "1", "--keep-forks", "latest")
    before, asked, _ = terminal.read("[y/N] ").partition("Delete 2 checkpoints of 1 thread? ")
    assert asked
    assert re.search(r"THREAD +GO +STAY .*\n.*user-42 +2 +2 ", before)
    os.write(terminal.controller, f"{answer}\n".encode())
    assert terminal.end() == 0
    assert terminal.shown.count("THREAD") == 1
    assert ("nothing was deleted" in terminal.shown) == (answer == "n")
    with deltastore.open(path) as store:
        assert len(list(store.thread("user-42").history())) == left


def test_an_interruption_ends_quietly(path: Path, branched: dict[str, str]) -> None:
    terminal = Terminal("delete", str(path), "user-42")
    terminal.read("[y/N] ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    with deltastore.open(path) as store:
        assert len(list(store.threads())) == 1


def test_any_encoding_will_do(path: Path) -> None:
    with deltastore.open(path) as store:
        store.thread("é☃").append({"a": "é"})
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for command in (["threads", str(path)], ["show", str(path), "é☃"]):
        done = subprocess.run([*PROGRAM, *command], capture_output=True, text=True, check=True, env=environment)
        assert "\\xe9\\u2603" in done.stdout
