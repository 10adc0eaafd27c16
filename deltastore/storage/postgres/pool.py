"""The connections of one handle: as many as it needs at a time, up to a number; the last one used goes out first.

psycopg's own pool takes back only connections that wait for nothing; ours may still be owed the answer to the end of a
read, which is how a read does without that trip. Imports wire and failures. Thread-safe; a forked child begins anew.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from deltastore.errors import ClosedError, StorageError
from deltastore.storage.postgres.address import Address
from deltastore.storage.postgres.failures import of_connecting
from deltastore.storage.postgres.wire import Connection, Naming

PATIENCE_S = 10.0
"""How long a handle that was connected before tries to connect again: a restart or a failover takes seconds."""
WAIT_S = 60.0
"""How long a call waits for a connection to become free."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class _Permits:
    """So many at a time, first come, first served: else threads that read without a pause keep a writer out."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout: float) -> bool:
        with self._lock:
            if self._left:
                self._left -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            if turn.acquire(timeout=timeout):
                return True
        except BaseException:  # interrupted
            if not self._leave(turn):
                self.release()
            raise
        return not self._leave(turn)

    def _leave(self, turn: threading.Lock) -> bool:
        """Wait no longer; False where it was given a permit meanwhile."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True

    def release(self) -> None:
        """Give a permit to whoever waits longest, else back."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._left += 1


class Pool:
    """Connections to one server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.naming = Naming()
        self._begin()
        self._was_connected = False
        self._closed = False

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._free = _Permits(self._address.pool_size)
        self._mine = threading.local()

    def take(self, *, fresh: bool = False) -> Connection:
        """Return a connection, waiting for one to become free; `fresh`: not one that lay idle.

        A thread that has one already gets another at once: it can't give back the first before.
        Raises ClosedError, StorageError, StorePathError.
        """
        if self._pid != os.getpid():
            for inherited in self._idle:
                inherited.close()
            self._begin()
        if self._closed:
            raise self.closed_error()
        held: int = getattr(self._mine, "held", 0)
        if not held and not self._free.acquire(timeout=WAIT_S):
            raise StorageError(
                f"{self._address.location}: all {self._address.pool_size} connections of this handle are in use since "
                f"{WAIT_S:.0f} s; raise pool_size, or use fewer threads"
            )
        try:
            connection = None if fresh else self._pop()
            if connection is None:
                connection = self._connect()
        except BaseException:
            if not held:
                self._free.release()
            raise
        self._mine.held = held + 1
        return connection

    def give(self, connection: Connection) -> None:
        """Take a connection back, in the thread that took it."""
        self._mine.held -= 1
        if connection.broken or self._closed:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        if not self._mine.held:
            self._free.release()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Take a connection for the length of a block."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give(connection)

    def forget_idle(self) -> None:
        """Close the idle connections: one of them turned out to be lost, so the others are too."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._closed = True
        self.forget_idle()

    def check_open(self) -> None:
        """Raise ClosedError where the pool was closed."""
        if self._closed:
            raise self.closed_error()

    def closed_error(self) -> ClosedError:
        """Return the error for a handle that was closed."""
        return ClosedError(f"{self._address.location} was closed; open it again")

    def _pop(self) -> Connection | None:
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is None or found.is_alive():
            return found
        found.close()
        self.forget_idle()
        return None

    def _connect(self) -> Connection:
        deadline = time.monotonic() + PATIENCE_S
        pause = FIRST_PAUSE_S
        while True:
            try:
                connection = Connection(self._address, self.naming)
            except psycopg.OperationalError as error:
                if not self._was_connected or time.monotonic() + pause > deadline:
                    raise of_connecting(error, self._address.location) from error
            else:
                self._was_connected = True
                return connection
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
