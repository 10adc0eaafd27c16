"""Lives of a program that a kill -9 ends: from within at a chosen moment, or from outside at any.

Moments are counted: before and after each write to a store, and wherever the program says. A life is a fresh process,
forked from a server that holds the imports and nothing else.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deltastore.store import Thread

NEVER = -1
"""The moment of a life that isn't killed."""
KILLED = -signal.SIGKILL
"""The exit code of one that is."""
WRITES = ("put_state", "put_writes")


class Moments:
    """Counts this process's moments, and kills it at the chosen one."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.seen: list[str] = []
        """What those were that it outlived."""

    def __call__(self, what: str) -> None:
        if len(self.seen) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(what)

    def watch_writes(self) -> None:
        """Let there be a moment before and after each of this process's writes to a store, from now on."""
        for name in WRITES:
            setattr(Thread, name, self._between(name, getattr(Thread, name)))

    def _between(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            self(before(name))
            done = write(*arguments, **options)
            self(after(name))
            return done

        return watched


def preload(*modules: str) -> None:
    """Let the processes of `live` have these modules imported, and nothing else; before the first of them only."""
    multiprocessing.set_forkserver_preload([*modules])


def before(what: str) -> str:
    """Return what the moment before something is called."""
    return f"before {what}"


def after(what: str) -> str:
    """Return what the moment after something is called."""
    return f"after {what}"


def live(program: Callable[..., None], *arguments: Any, kill_after_s: float | None = None) -> int:
    """Run a program in a fresh process, and return the exit code; kill it so many seconds after it began."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_begin, args=(sender, program, arguments))
    process.start()
    sender.close()
    receiver.poll(None)  # until the process closes its end, too
    process.join(kill_after_s)
    process.kill()
    process.join()
    receiver.close()
    return process.exitcode


def _begin(begun: Connection, program: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    begun.close()
    program(*arguments)


def note(file: Path, what: Any) -> None:
    """Append a line at once: an effect that can't be undone, and that a kill leaves whole or not begun."""
    with file.open("ab", buffering=0) as out:
        out.write(json.dumps(what).encode() + b"\n")


def notes(file: Path) -> list[Any]:
    """Return what was noted in a file; nothing where there is none."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
