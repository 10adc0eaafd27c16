"""Every call that an operation makes of LMDB and of the file system, counted, and death at one of them.

A forked child opens the store through `counted` and runs the operation; the parent looks at what it left.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltastore
from deltastore import Store
from deltastore.storage import engine

WRITING = {"write begin", "put", "delete", "commit", "putmulti", "sync"}
FILE_CALLS = ("unlink", "rmdir", "rename", "replace", "fsync", "mkdir")

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
    open_environment = engine.open_environment
    vars(engine)["open_environment"] = lambda *a, **o: Environment(open_environment(*a, **o), count)
    for name in FILE_CALLS:
        setattr(os, name, _counting(name, getattr(os, name), count))


def _counting(name: str, inner: Any, count: Count) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        count(name)
        return inner(*arguments, **options)

    return call


def in_child(work: Callable[[], object]) -> int:
    """Run work in a forked child; return its exit code, -9 where it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


Operation = Callable[[Store], object]


def calls_of(path: Path, operation: Operation) -> list[str]:
    """Return the calls that an operation makes of a copy of a store, once the store is open."""
    copy, told = path.with_name("dry.ds"), path.with_name("calls.json")
    shutil.copytree(path, copy)

    def work() -> None:
        made: list[str] = []
        counted(made.append)
        store = deltastore.open(copy, sync="none")
        made.clear()
        operation(store)
        told.write_text(json.dumps(made))

    assert in_child(work) == 0
    shutil.rmtree(copy)
    return json.loads(told.read_text())


def killed_at(path: Path, operation: Operation, number: int) -> int:
    """Run an operation in a child that is killed before its call of this number, from 1 on."""

    def work() -> None:
        left: list[int] = []

        def count(_: str) -> None:
            if left:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        counted(count)
        store = deltastore.open(path, sync="none")
        left.append(number)
        operation(store)

    return in_child(work)


def places(calls: list[str], every: int) -> list[int]:
    """Return the numbers of all calls that write, and of each `every`th that reads."""
    writing = WRITING | set(FILE_CALLS)
    return [number for number, call in enumerate(calls, 1) if call in writing or number % every == 0]
