"""Every call that an operation makes of LMDB and of the file system, counted, and death at each of them.

An operation works in a directory, its site, where the store is `store.ds`. One forked child runs it through, and keeps
a copy of the site before each call, where it differs from the one before: that is what death at this call leaves, for
what a process gave to the system outlives it. Then children are really killed, at some calls or at each; what one
leaves has to be what was kept for its call, byte for byte, or is looked at by itself.
"""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltastore
from deltastore import Store
from deltastore.storage import engine

STORE = "store.ds"
LOCK_FILE = "lock.mdb"
FILE_CALLS = ("unlink", "rmdir", "rename", "replace", "fsync", "mkdir", "pwrite")

QUICK_KILLS = 4
"""Real kills of an operation in the quick profile; the others kill at every call."""

Count = Callable[[str], None]


class Proxy:
    """Hands everything on, and counts the calls that are named; what they return is wrapped alike."""

    def __init__(self, inner: Any, count: Count) -> None:
        self._inner = inner
        self._count = count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self.counted:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._count(self.label(name, options))
            return self.made(found(*arguments, **options))

        return call

    counted: frozenset[str] = frozenset()

    def label(self, name: str, options: dict[str, Any]) -> str:
        return name

    def made(self, result: Any) -> Any:
        return result


class Cursor(Proxy):
    counted = frozenset({"set_range", "next", "prev", "last", "delete", "putmulti"})

    def _steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        for step in steps:
            self._count("step")
            yield step

    def iternext(self, *arguments: Any) -> Iterator[Any]:
        return self._steps(self._inner.iternext(*arguments))

    def iterprev(self, *arguments: Any) -> Iterator[Any]:
        return self._steps(self._inner.iterprev(*arguments))


class Transaction(Proxy):
    counted = frozenset({"get", "put", "delete", "commit", "cursor"})

    def made(self, result: Any) -> Any:
        return Cursor(result, self._count) if type(result).__name__ == "Cursor" else result


class Environment(Proxy):
    counted = frozenset({"begin", "sync"})

    def label(self, name: str, options: dict[str, Any]) -> str:
        return "write begin" if name == "begin" and options.get("write") else name

    def made(self, result: Any) -> Any:
        return None if result is None else Transaction(result, self._count)


def counted(count: Count) -> None:
    """Let this process count all calls of environments that it opens from now on, and of the file system."""
    open_environment = _counting("open environment", engine.open_environment, count)
    vars(engine)["open_environment"] = lambda *a, **o: Environment(open_environment(*a, **o), count)
    for name in FILE_CALLS:
        setattr(os, name, _counting(name, getattr(os, name), count))


def _counting(name: str, inner: Any, count: Count) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        count(name)
        return inner(*arguments, **options)

    return call


def started(work: Callable[[], object], closing: int | None = None) -> int:
    """Run work in a forked child, without a descriptor that is the parent's; return its number."""
    child = os.fork()
    if child == 0:
        try:
            if closing is not None:
                os.close(closing)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def ended(child: int) -> int:
    """Wait for a forked child; return its exit code, -9 where it was killed."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def in_child(work: Callable[[], object]) -> int:
    """Run work in a forked child; return its exit code, -9 where it was killed."""
    return ended(started(work))


Operation = Callable[[Any], object]
Begin = Callable[[Path], Any]
"""What is done before the first call that counts, on a site; the operation gets what it gives."""


def opened(site: Path) -> Store:
    return deltastore.open(site / STORE, sync="none")


@dataclass(frozen=True)
class Stop:
    """What death at a call left: the call's number, from 1 on, what it was, and the site, to be changed freely."""

    number: int
    call: str
    site: Path


class Stops:
    """Iterates over what death at each call leaves of a site; in the quick profile few deaths are real.

    A site that is the same before several calls comes once, with the first of them.
    """

    def __init__(self, site: Path, operation: Operation, scratch: Path, *, profile: str, begin: Begin = opened) -> None:
        self._site = site
        self._operation = operation
        self._scratch = scratch
        self._begin = begin
        self._real = profile != "quick"
        self._kills = self._sites = 0
        self.calls: list[str] = []

    def __str__(self) -> str:
        return f"{len(self.calls)} calls, {self._kills} kills, {self._sites} sites"

    def __iter__(self) -> Iterator[Stop]:
        left = self._record()
        last = len(self.calls)
        expected = [(first, _print_of(copy)) for first, copy in left]
        numbers = range(1, last + 1)
        if not self._real:
            numbers = sorted({1 + n * (last - 1) // (QUICK_KILLS - 1) for n in range(QUICK_KILLS)})
        copy = self._scratch / "killed"
        for number in numbers:
            shutil.copytree(self._site, copy)
            outcome = killed_at(copy, self._operation, number, self._begin)
            assert outcome == -signal.SIGKILL, (number, self.calls[number - 1])
            self._kills += 1
            if _print_of(copy) != next(found for first, found in reversed(expected) if first <= number):
                yield self._stop(number, copy)
            shutil.rmtree(copy)
        for first, copy in left:
            yield self._stop(first, copy)
            shutil.rmtree(copy)

    def _stop(self, number: int, copy: Path) -> Stop:
        self._sites += 1
        return Stop(number, [*self.calls, "end"][number - 1], copy)

    def _record(self) -> list[tuple[int, Path]]:
        """Run the operation through; note its calls, and return copies of the site, each with its first call."""
        site, told = self._scratch / "recorded", self._scratch / "calls.json"
        shutil.copytree(self._site, site)

        def work() -> None:
            calls: list[str] = []
            firsts: list[int] = []
            last = b""
            counting = False

            def count(call: str) -> None:
                nonlocal last, counting
                if not counting:
                    return
                counting = False  # what is done here isn't the operation's
                calls.append(call)
                found = _print_of(site)
                if found != last:
                    last = found
                    firsts.append(len(calls))
                    shutil.copytree(site, self._left(len(calls)), copy_function=_copy)
                counting = True

            counted(count)
            begun = self._begin(site)
            counting = True
            self._operation(begun)
            count("end")
            counting = False
            told.write_text(json.dumps([calls[:-1], firsts]))

        assert in_child(work) == 0
        shutil.rmtree(site)
        self.calls, firsts = json.loads(told.read_text())
        return [(first, self._left(first)) for first in firsts]

    def _left(self, first: int) -> Path:
        return self._scratch / f"left {first}"


def _copy(source: str, target: str) -> None:
    """Copy a file; of a lock file its name only, for closing it would drop the locks that this process has by it."""
    if Path(source).name == LOCK_FILE:
        Path(target).touch()
    else:
        shutil.copyfile(source, target)


def _print_of(site: Path) -> bytes:
    """Return what tells two sites apart: names and bytes of files; of lock files, whose bytes outlive nobody, names."""
    found = hashlib.blake2b()
    for path in sorted(site.rglob("*")):
        content = path.read_bytes() if path.is_file() and path.name != LOCK_FILE else b""
        found.update(f"{path.relative_to(site)}\0{len(content)}\0".encode())
        found.update(content)
    return found.digest()


def killed_at(site: Path, operation: Operation, number: int, begin: Begin = opened) -> int:
    """Run an operation in a child that is killed before its call of this number, from 1 on."""

    def work() -> None:
        left: list[int] = []

        def count(_: str) -> None:
            if left:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        counted(count)
        begun = begin(site)
        left.append(number)
        operation(begun)

    return in_child(work)
