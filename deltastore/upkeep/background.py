"""Retention in the background of a process: threads that were put to are looked at now and then, by one OS thread.

It waits for a pause, as agents make them while a model answers: puts would wait for its transactions, and for Python's
lock. Imports store and retention. The invariant: a put only notes a name; whatever happens in the background, no put
fails.
"""

import logging
import os
import threading
import time
from collections import OrderedDict

from deltastore.errors import ClosedError
from deltastore.log.retention import Retention
from deltastore.store import Store
from deltastore.upkeep.retention import apply

EVERY_PUTS = 16
"""Puts to a thread from one look at it to the next, at least."""
PAUSE_S = 0.05
"""How long nothing was put, to any thread, for it to be a pause, in seconds: longer than a look at a thread takes."""
PATIENCE = 8
"""Without a pause, a thread is looked at after so many times as many puts: about one put in a hundred waits for it."""
MAX_WAIT_S = 10.0
"""How long a thread that is due waits for a pause at most, in seconds: where many are put to, there may be none."""
MAX_NOTED = 10_000
"""Threads whose puts are counted; those put to longest ago are forgotten, and counted anew."""

_logger = logging.getLogger("deltastore")


class Tidier:
    """Applies retention rules to the threads that it is told of. Thread-safe; a forked child begins anew."""

    def __init__(self, store: Store, retention: Retention) -> None:
        """Take the rules for threads that have none of their own. Nothing is started before there is work."""
        self._store = store
        self._retention = retention
        self._every = max(EVERY_PUTS, retention.keep_last // 4)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._turn = threading.Condition()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._due: OrderedDict[str, float] = OrderedDict()
        """When threads became due, those that wait longest first."""
        self._urgent: OrderedDict[str, None] = OrderedDict()
        self._last = 0.0
        self._worker: threading.Thread | None = None
        self._closed = False

    def note(self, thread: str) -> None:
        """Note a put to a thread. Never waits for work under way."""
        if self._pid != os.getpid():
            self._begin()
        with self._turn:
            if self._closed:
                return
            self._last = time.monotonic()
            count = self._counts.pop(thread, 0) + 1
            self._counts[thread] = count
            if count == self._every:
                self._due.setdefault(thread, self._last)
                if self._worker is None:
                    self._worker = threading.Thread(target=self._run, name="deltastore-retention", daemon=True)
                    self._worker.start()
                self._turn.notify()
            elif count == self._every * PATIENCE and thread in self._due:
                self._urgent[thread] = None
                self._turn.notify()
            if len(self._counts) > MAX_NOTED:
                self._counts.popitem(last=False)

    def close(self) -> None:
        """Do what is due, and end. Closing twice is harmless."""
        if self._pid != os.getpid():
            return
        with self._turn:
            self._closed = True
            worker = self._worker
            self._turn.notify()
        if worker is not None:
            worker.join()

    def _run(self) -> None:
        while True:
            thread = self._next()
            if thread is None:
                return
            try:
                report = apply(self._store, self._retention, threads=[thread])
                for name, problem in report.damaged:
                    _logger.warning("retention left thread %r alone: %s", name, problem)
            except ClosedError:
                return
            except Exception:
                _logger.exception("retention of thread %r failed; its puts go on", thread)

    def _next(self) -> str | None:
        """Wait for a thread that is to be looked at now, and return it; None where all is done and it was closed."""
        with self._turn:
            while not (self._closed or self._urgent):
                rest = self._rest()
                if rest is not None and rest <= 0:
                    break
                self._turn.wait(rest)
            if not self._due:
                return None
            thread = next(iter(self._urgent or self._due))
            self._urgent.pop(thread, None)
            del self._due[thread]
            self._counts.pop(thread, None)
            return thread

    def _rest(self) -> float | None:
        """Return for how long to wait, in seconds, if nothing more is put; None: for ever."""
        if not self._due:
            return None
        longest = next(iter(self._due.values()))
        return min(self._last + PAUSE_S, longest + MAX_WAIT_S) - time.monotonic()
