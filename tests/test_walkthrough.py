"""The commands of docs/walkthrough.md run, one after the other, and are those of tools/walkthrough."""

import re
import shlex
from pathlib import Path

import pytest

from deltastore.cli import main
from tools import walkthrough_store

ROOT = Path(__file__).parents[1]
COMMANDS = re.findall(r"^    \$ deltastore (.+)$", (ROOT / "docs" / "walkthrough.md").read_text(), re.MULTILINE)


def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    walkthrough_store.make("runs.ds")
    for command in COMMANDS:
        assert main(shlex.split(command)) == 0, (command, capsys.readouterr())


def test_they_are_the_scripts() -> None:
    script = (ROOT / "tools" / "walkthrough").read_text()
    assert re.findall(r'^ran ".*" (\w.*)$', script, re.MULTILINE) == COMMANDS
