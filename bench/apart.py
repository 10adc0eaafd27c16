"""Calls in a fresh process, ended when it takes too much time or memory.

The process is forked from a server that has imported what `preload` was told, and holds nothing else.
"""

import multiprocessing
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

POLL_S = 0.2
ERROR = "error"
ERROR_CHARACTERS = 160
"""Of an exception's first line, in a result."""
PRELOADED = "bench.phases"


class Limits(NamedTuple):
    """What a process may take before it is ended."""

    seconds: float
    rss_gib: float

    def exceeded(self, pid: int, started: float) -> str | None:
        if time.monotonic() - started > self.seconds:
            return f"ended after {self.seconds:,.0f} s"
        if _rss_gib(pid) > self.rss_gib:
            return f"ended at {self.rss_gib:g} GiB of memory"
        return None


def _rss_gib(pid: int) -> float:
    """Return a process's resident memory; 0 where the system doesn't say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def preload(*modules: str) -> None:
    """Let fresh processes have the workloads imported, and these modules; before the first of them only."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED, *modules])


def call_apart(call: Callable[..., Iterator[tuple[str, Any]]], *arguments: Any, limits: Limits) -> dict[str, Any]:
    """Make a call in a fresh process, and return what it yields by name.

    Where it fails or is ended, what it yielded until then is there, and `error` says why.
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_all, args=(sender, call, arguments))
    process.start()
    sender.close()  # so that its end is the end of what is received
    found = _received(receiver, process.pid or 0, limits)
    if ERROR in found:
        process.kill()
    process.join()
    if process.exitcode and ERROR not in found:
        found[ERROR] = f"exit status {process.exitcode}"
    return found


def _received(receiver: Connection, pid: int, limits: Limits) -> dict[str, Any]:
    found: dict[str, Any] = {}
    started = time.monotonic()
    while ERROR not in found:
        try:
            if receiver.poll(POLL_S):
                name, value = receiver.recv()
                found[name] = value
            elif reason := limits.exceeded(pid, started):
                found[ERROR] = reason
        except EOFError:
            break
    return found


def _send_all(sender: Connection, call: Callable[..., Iterator[tuple[str, Any]]], arguments: tuple[Any, ...]) -> None:
    try:
        for item in call(*arguments):
            sender.send(item)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        sender.send((ERROR, textwrap.shorten(reason, ERROR_CHARACTERS)))
        raise
