"""Commands run in this process, on stores that are checked when the test ends."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import deltastore
from deltastore.cli import main


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where the test's store is to be."""
    yield tmp_path / "runs.ds"
    if (tmp_path / "runs.ds").exists():
        with deltastore.open(tmp_path / "runs.ds") as store:
            report = deltastore.check(store)
        assert report.ok, report.problems


@pytest.fixture
def run(path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the test's store; it must end well unless another code is expected."""

    def run_(command: str, *arguments: str, code: int = 0) -> Ran:
        capsys.readouterr()
        ended = main([command, str(path), *arguments])
        ran = Ran(ended, *capsys.readouterr())
        assert ended == code, ran
        return ran

    return run_


@pytest.fixture
def branched(path: Path) -> dict[str, str]:
    """A thread that branches twice; the ids of its checkpoints by name."""
    with deltastore.open(path) as store:
        thread = store.thread("user-42")
        first = thread.append({"messages": [{"role": "user", "content": "hi"}]})
        second = thread.append({"messages": [{"role": "assistant", "content": "hello"}], "n": 1}, metadata={"k": "v"})
        other = thread.append({"messages": [{"role": "assistant", "content": "good day"}]}, at=first)
        last = thread.append({"n": 3}, at=second)
        thread.tag("before-deploy", at=second)
        thread.put_writes(last, {"n": 4}, task="work")
    return {"first": first.id, "second": second.id, "other": other.id, "last": last.id}
