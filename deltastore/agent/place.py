"""Place: where a run is between two checkpoints that it could start again from, with the journal kept there.

Imports journal, requests and fingerprints. Thread-safe. The invariant: calls are numbered in the order in which the
program makes them, whatever order they end in.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from deltastore.agent import journal as jn
from deltastore.agent.fingerprints import Position, fingerprint
from deltastore.agent.requests import Request


class Asked(NamedTuple):
    """A call as the program makes it now: its entry, and whether that was recorded before."""

    entry: jn.Entry
    recorded: bool


class Place:
    """A place of a run. `branch`: the program is expected to call otherwise than recorded, so nothing is reported.

    `entries`: what was recorded, by what it is found by.
    """

    def __init__(
        self, run_id: str, checkpoint_id: str, entries: Iterable[jn.Entry] = (), *, branch: bool = False
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.entries = {_fingerprint(run_id, checkpoint_id, entry): entry for entry in entries}
        self.branch = branch
        self.in_flight: dict[str, str] = {}
        self._main: object = None
        self._expected = {} if branch else jn.expected(self.entries)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        times = [max(attempt.began, attempt.ended) for entry in self.entries.values() for attempt in entry.attempts]
        self._next = max(times, default=-1) + 1
        self.last_began = max(
            (attempt.began for entry in self.entries.values() for attempt in entry.attempts), default=-1
        )

    def enter(self) -> None:
        """Take the caller's task, or thread, for the one that makes the run's calls one after the other."""
        self._main = track()

    def tick(self) -> int:
        """Return the next number in the order of what happens here."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def ask(self, position: Position, request: Request) -> Asked:
        """Take up a call, the next one like it at this position."""
        kind, name, arguments = request.kind, request.name, request.arguments
        first = fingerprint(position, kind, name, arguments, 0)
        here = track()
        with self._lock:
            if self._main is None:
                self._main = here
            occurrence = self._counts[first]
            self._counts[first] += 1
            key = fingerprint(position, kind, name, arguments, occurrence) if occurrence else first
            entry = self.entries.get(key)
            self._expected.pop(key, None)
            if entry is not None:
                return Asked(entry, True)
            sequential = here == self._main and not position.within
            _, _, step, node, within = position
            made = jn.Entry(
                key, kind, name, arguments, request.defaults, occurrence, step, node, sequential, within, ()
            )
            return Asked(made, False)

    def done(self) -> list[jn.Entry]:
        """Return the recorded calls of tools whose results stand here, in the order in which they ended."""
        done = [entry for entry in self.entries.values() if entry.kind == jn.TOOL and entry.last.state == jn.DONE]
        return sorted(done, key=lambda entry: entry.last.ended)

    def overlooked(self, *, sequential: bool) -> list[jn.Entry]:
        """Return the recorded calls that should have come by now, in their order, once: it isn't told again.

        With `sequential`, those that were concurrent may still come.
        """
        with self._lock:
            found = {key: entry for key, entry in self._expected.items() if entry.sequential or not sequential}
            for key in found:
                del self._expected[key]
        return sorted(found.values(), key=lambda entry: entry.attempts[0].began)


def _fingerprint(run_id: str, checkpoint_id: str, entry: jn.Entry) -> str:
    """Return what a recorded call is found by: in a copied or forked run not the key that it was made under."""
    position = Position(run_id, checkpoint_id, entry.step_index, entry.node_name, entry.within)
    return fingerprint(position, entry.kind, entry.name, entry.arguments, entry.occurrence)


def track() -> object:
    """Return what tells the caller from those that run concurrently with it: its task, else its thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return task or threading.get_ident()
