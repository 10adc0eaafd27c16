"""A connection that sends many statements at once and waits once for all their answers (libpq's pipeline mode).

Imports psycopg, whose connection it opens and whose binding of libpq it drives. The invariant: what was sent last
needn't be waited for: the next exchange takes its answer in first, so that a transaction's end costs no trip.
"""

import os
import select
from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from psycopg import pq

from deltastore.errors import StorageError
from deltastore.storage.postgres.address import Address

_BINARY = 1
_inherited: list[object] = []
"""Connections of the parent process: to be kept, for freeing them would use its sockets."""


class Statement(NamedTuple):
    """A statement and its parameters, in binary form."""

    sql: bytes
    parameters: tuple[bytes | None, ...] = ()


Result = list[tuple[bytes | None, ...]]
"""The rows that a statement gave."""


class ServerError(Exception):
    """The server refused a statement: `state` is its SQLSTATE."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class LostError(Exception):
    """The connection broke; what was sent and not answered may have been done or not."""


class Connection:
    """One connection. Used by one thread at a time."""

    def __init__(self, address: Address) -> None:
        """Connect. Raises psycopg.OperationalError."""
        # autocommit, so that psycopg itself sends nothing
        self._psycopg = psycopg.connect(**address.parameters, autocommit=True)  # type: ignore[arg-type]
        self._libpq = self._psycopg.pgconn
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._poll = select.poll()
        self._socket = self._libpq.socket
        self._unanswered = 0
        self._pid = os.getpid()
        self.server_version = self._libpq.server_version
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
            self._send(statements)
            while self._unanswered > 1:
                self._receive_posted()
            results = self._receive()
        except psycopg.OperationalError as error:
            raise LostError(_text(error)) from error
        except ServerError:
            self.broken = self._libpq.status != pq.ConnStatus.OK
            raise
        self.broken = False
        return results

    def post(self, statement: Statement) -> None:
        """Send a statement without waiting for its answer, which nobody needs. Raises nothing."""
        try:
            self._send([statement])
        except (psycopg.OperationalError, LostError):
            self.broken = True

    def close(self) -> None:
        """End the connection; a forked child only forgets it."""
        if self._pid == os.getpid():
            self._psycopg.close()
        else:
            _inherited.append(self._psycopg)

    def _send(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            formats = [_BINARY] * len(statement.parameters)
            parameters = [*statement.parameters]  # psycopg's oldest binding takes no other sequence
            self._libpq.send_query_params(statement.sql, parameters, None, formats, _BINARY)
        self._libpq.pipeline_sync()
        self._unanswered += 1
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
                    self._unanswered -= 1
                    if failure is not None:
                        raise failure
                    return results
                case pq.ExecStatus.TUPLES_OK | pq.ExecStatus.COMMAND_OK:
                    columns = range(found.nfields)
                    results.append(
                        [tuple(found.get_value(row, column) for column in columns) for row in range(found.ntuples)]
                    )
                case pq.ExecStatus.PIPELINE_ABORTED:
                    pass  # the one before it failed
                case _:
                    failure = failure or _failure(found)

    def _wait(self, events: int) -> None:
        self._poll.register(self._socket, events)
        if any(event & ~select.POLLOUT for _, event in self._poll.poll()):
            self._libpq.consume_input()


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
