"""A check in a process of its own, for the storage engine may take the process down on a damaged file.

The child is a fresh interpreter, never a fork: it has no threads, locks or environments of its parent's. It tells a
line of JSON for each thing, read here as it comes. Imports check's report and below. The invariant: however the child
ends, its parent gets a report or a typed error, and no child outlives the call.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any

from deltastore.errors import DeltastoreError, StorageError
from deltastore.upkeep.progress import Progress
from deltastore.upkeep.report import CheckReport, Problem, Tally

_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"}
"""What the engine dies of on a damaged file. Other signals come from outside."""
_WINDOWS_CRASHES = {0xC0000005, 0xC0000006, 0xC0000409, 3}
"""The same there: an access violation, an error of a mapped page, a failed assertion, an abort."""

_PROGRAM = """
import json, sys
path, sys.path[:] = json.loads(sys.stdin.readline())
from deltastore.upkeep.isolated import tell
tell(path)
"""
_MAX_STDERR_BYTES = 64 * 1024


def check_isolated(path: str, progress: Progress | None) -> CheckReport:
    """Check the store at a path in a child. Raises what check does; StorageError where somebody ended the child."""
    where = "the store was opened"
    with tempfile.TemporaryFile() as complaints, _child(path, complaints) as child:
        for line in _lines(child):
            if "report" in line:
                return _report(line["report"])
            if "error" in line:
                code, text = line["error"]
                raise _class_of(code)(text)
            if "stage" in line:
                where = line["stage"]
            else:
                done, total = line["progress"]
                where = f"thread {done + 1} of {total} was read"
                if progress is not None:
                    progress(done, total)
        code = child.wait()
        complaints.seek(0)
        said = complaints.read(_MAX_STDERR_BYTES).decode("utf-8", "replace").strip().rpartition("\n")[2]
    how = _how(code)
    if how is None:
        raise StorageError(
            f"{path}: the process of the check ended with code {code} while {where}, not by a fault of the store's "
            f"({said or 'it said nothing'}); try again, with more memory if it was killed"
        )
    tally = Tally(file_damaged=True)
    tally.problem(
        "file",
        f"the storage engine crashed ({how}) while {where}: the file's tree is damaged; restore from a backup"
        + (f" ({said})" if said else ""),
    )
    return tally.report()


def tell(path: str) -> None:
    """Check a store, and tell on standard output how far it is and what it found: what the child does."""
    from deltastore.upkeep.check import check

    out = sys.stdout
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interruption is the parent's to tell

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    try:
        report = check(
            path, progress=lambda done, total: say(progress=(done, total)), stage=lambda what: say(stage=what)
        )
    except DeltastoreError as error:
        say(error=(error.code, str(error)))
    else:
        say(report=asdict(report))


class _child:  # noqa: N801 - reads as the function that it would be
    """The running child; it is ended and waited for when the block ends, however it does."""

    def __init__(self, path: str, complaints: IO[bytes]) -> None:
        if not sys.executable:
            raise StorageError(f"{path}: this interpreter doesn't know its own program; check without isolation")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a program of ours
                [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints
            )
        except OSError as error:
            raise StorageError(f"{path}: no process for the check can be started: {error}") from error
        try:
            assert self._process.stdin is not None
            with self._process.stdin as file:
                file.write(json.dumps([os.path.abspath(path), sys.path]).encode() + b"\n")  # noqa: PTH100
        except BrokenPipeError:
            pass  # it died already, as its end tells

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self._process

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _lines(child: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith(b"\n"):  # else it died in the middle of it
            yield json.loads(line)


def _report(told: dict[str, Any]) -> CheckReport:
    problems = tuple(Problem(**problem) for problem in told.pop("problems"))
    return CheckReport(**told, problems=problems)


def _how(code: int) -> str | None:
    """Return what the engine died of; None where it wasn't the engine."""
    if os.name != "posix":
        return f"{code:#x}" if code & 0xFFFFFFFF in _WINDOWS_CRASHES else None
    name = signal.Signals(-code).name if code < 0 else ""
    return name if name in _CRASHES else None


def _class_of(code: str) -> type[DeltastoreError]:
    known = [DeltastoreError]
    for kind in known:
        known += kind.__subclasses__()
    return next(kind for kind in known if kind.code == code)
