"""Retention in the background of a process: threads that were put to are looked at now and then, by one OS thread.

Imports store and retention. The invariant: a put only notes a name; whatever happens in the background, no put fails or
waits for it.
"""

import logging
import os
import threading
from collections import OrderedDict

from deltastore.errors import ClosedError
from deltastore.log.retention import Retention
from deltastore.store import Store
from deltastore.upkeep.retention import apply

EVERY_PUTS = 16
"""Puts to a thread from one look at it to the next, at least."""
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
        self._due: OrderedDict[str, None] = OrderedDict()
        self._worker: threading.Thread | None = None
        self._closed = False

    def note(self, thread: str) -> None:
        """Note a put to a thread. Never waits for work under way."""
        if self._pid != os.getpid():
            self._begin()
        with self._turn:
            if self._closed:
                return
            count = self._counts.pop(thread, 0) + 1
            if count >= self._every:
                count = 0
                self._due[thread] = None
                if self._worker is None:
                    self._worker = threading.Thread(target=self._run, name="deltastore-retention", daemon=True)
                    self._worker.start()
                self._turn.notify()
            self._counts[thread] = count
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
            with self._turn:
                while not self._due and not self._closed:
                    self._turn.wait()
                if not self._due:
                    return
                thread, _ = self._due.popitem(last=False)
            try:
                report = apply(self._store, self._retention, threads=[thread])
                for name, problem in report.damaged:
                    _logger.warning("retention left thread %r alone: %s", name, problem)
            except ClosedError:
                return
            except Exception:
                _logger.exception("retention of thread %r failed; its puts go on", thread)
