"""A connection that sends many statements at once and waits once for all their answers (libpq's pipeline mode).

Imports psycopg, whose connection it opens and whose binding of libpq it drives. The invariant: what was sent last
needn't be waited for: the next exchange takes its answer in first, so that a transaction's end costs no trip.
"""

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import psycopg
from psycopg import pq
from xxhash import xxh3_64_hexdigest

from deltastore.errors import StorageError
from deltastore.storage.postgres.address import Address

_BINARY = 1
NAMED_FOR_S = 10.0
"""How long a connection uses the plans of statements that it named. The server keeps a plan that it made while a table
was small until it counts rows again, a minute later or never; what was right for ten rows is slow for a million."""
_FORGET: Final = b"DEALLOCATE ALL"
NAME_UNKNOWN, NAME_TAKEN = "26000", "42P05"
"""What is refused where a pooler lends another session than that in which a statement was named."""
_inherited: list[object] = []
"""Connections of the parent process: to be kept, for freeing them would use its sockets."""


class Statement(NamedTuple):
    """A statement and its parameters, in binary form. `often`: the server shall remember it, not parse it again."""

    sql: bytes
    parameters: tuple[bytes | None, ...] = ()
    often: bool = False


Result = list[tuple[bytes | None, ...]]
"""The rows that a statement gave."""


class ServerError(Exception):
    """The server refused a statement: `state` is its SQLSTATE."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class LostError(Exception):
    """The connection broke; what was sent and not answered may have been done or not."""


@dataclass(slots=True)
class Naming:
    """Whether statements are given names, for all connections of a handle; once refused, never again."""

    works: bool = True


class Connection:
    """One connection. Used by one thread at a time."""

    def __init__(self, address: Address, naming: Naming) -> None:
        """Connect. Raises psycopg.OperationalError."""
        # autocommit, so that psycopg itself sends nothing
        self._psycopg = psycopg.connect(**address.parameters, autocommit=True)  # type: ignore[arg-type]
        self._libpq = self._psycopg.pgconn
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._poll = select.poll()
        self._socket = self._libpq.socket
        self._naming = naming
        self._named: set[bytes] = set()
        self._named_at = time.monotonic()
        self._awaited: deque[list[bytes]] = deque()
        """For each synchronization that wasn't answered, what was sent before it: the name that it gives, or none."""
        self._pid = os.getpid()
        self.session = self._libpq.backend_pid
        """The process of the server's that greeted."""
        self.broken = False
        """To be thrown away: it was lost, or left in the middle of an exchange."""

    def exchange(self, statements: Sequence[Statement]) -> list[Result]:
        """Send statements, wait, and return the rows of each: one trip to the server.

        The first that fails ends all: those after it aren't run. Raises ServerError, LostError, StorageError.
        """
        if self._pid != os.getpid():
            raise StorageError("this process was forked inside a transaction, which only its parent has")
        self.broken = True  # unless all is well in the end
        try:
            self._forget_old_names()
            self._send(statements)
            while len(self._awaited) > 1:
                self._receive_posted()
            results = self._receive()
        except psycopg.OperationalError as error:
            raise LostError(_text(error)) from error
        except ServerError as error:
            self.broken = self._libpq.status != pq.ConnStatus.OK
            if error.state in (NAME_UNKNOWN, NAME_TAKEN):  # for good
                self._naming.works = False
            raise
        self.broken = False
        return results

    def post(self, statement: Statement) -> None:
        """Send a statement without waiting for its answer, which nobody needs. Raises nothing."""
        try:
            self._send([statement])
        except (psycopg.OperationalError, LostError):
            self.broken = True

    def is_alive(self) -> bool:
        """Tell whether nothing came that says that the connection was ended. Waits for nothing."""
        self._poll.register(self._socket, select.POLLIN)
        try:
            while self._poll.poll(0):
                self._libpq.consume_input()
        except psycopg.OperationalError:
            return False
        return self._libpq.status == pq.ConnStatus.OK

    def close(self) -> None:
        """End the connection; a forked child only forgets it."""
        if self._pid == os.getpid():
            self._psycopg.close()
        else:
            _inherited.append(self._psycopg)

    def _forget_old_names(self) -> None:
        """Have plans made anew after a while. Not along with what is posted: where a transaction failed, the server
        would refuse to forget, and the names be taken.
        """
        if self._named and time.monotonic() - self._named_at > NAMED_FOR_S:
            self._named.clear()
            self._send([Statement(_FORGET)])  # by itself: it must not begin the transaction that comes

    def _send(self, statements: Sequence[Statement]) -> None:
        sent: list[bytes] = []
        for sql, given, often in statements:
            parameters = [*given]  # psycopg's oldest binding takes no other sequence
            formats = [_BINARY] * len(parameters)
            if often and self._naming.works:
                name = _name_of(sql)
                if name not in self._named and name not in sent:
                    if not self._named:
                        self._named_at = time.monotonic()
                    self._libpq.send_prepare(name, sql)
                    sent.append(name)
                self._libpq.send_query_prepared(name, parameters, formats, _BINARY)
            else:
                self._libpq.send_query_params(sql, parameters, None, formats, _BINARY)
            sent.append(b"")
        self._libpq.pipeline_sync()
        self._awaited.append(sent)
        while self._libpq.flush():
            self._wait(select.POLLIN | select.POLLOUT)

    def _receive_posted(self) -> None:
        """Take in the answer to what was posted; a refusal says nothing of what came after it."""
        try:
            self._receive()
        except ServerError:
            if self._libpq.status != pq.ConnStatus.OK:
                raise

    def _receive(self) -> list[Result]:
        """Take in the answers up to the next synchronization."""
        awaited = iter(self._awaited.popleft())
        results: list[Result] = []
        failure: Exception | None = None
        while True:
            while self._libpq.is_busy():
                self._wait(select.POLLIN)
            found = self._libpq.get_result()
            if found is None:  # stands after each statement's result
                if self._libpq.status != pq.ConnStatus.OK:
                    raise failure or LostError(_message(self._libpq.error_message))
                continue
            match found.status:
                case pq.ExecStatus.PIPELINE_SYNC:
                    if failure is not None:
                        raise failure
                    return results
                case pq.ExecStatus.TUPLES_OK | pq.ExecStatus.COMMAND_OK:
                    name = next(awaited)
                    if not name:
                        columns = range(found.nfields)
                        results.append(
                            [tuple(found.get_value(row, column) for column in columns) for row in range(found.ntuples)]
                        )
                    else:
                        self._named.add(name)
                case pq.ExecStatus.PIPELINE_ABORTED:
                    pass  # the one before it failed
                case _:
                    failure = failure or _failure(found)

    def _wait(self, events: int) -> None:
        self._poll.register(self._socket, events)
        if any(event & ~select.POLLOUT for _, event in self._poll.poll()):
            self._libpq.consume_input()


@cache
def _name_of(sql: bytes) -> bytes:
    """Return a statement's name: the same for all who share a session behind a pooler."""
    return b"deltastore %s %s" % (sql.partition(b" ")[0], xxh3_64_hexdigest(sql).encode())


def _failure(result: pq.abc.PGresult) -> Exception:
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    if state is None:
        return LostError(_message(result.error_message))
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
    hint = result.error_field(pq.DiagnosticField.MESSAGE_HINT)
    return ServerError(state.decode(), _message(message) + (f" ({_message(hint)})" if hint else ""))


def _message(data: bytes) -> str:
    return " ".join(data.decode("utf-8", "replace").split())


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
