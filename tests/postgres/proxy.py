"""A proxy between client and server, on loopback, that breaks connections at chosen moments."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Literal, Self

from tests.postgres_server import HOST

Moment = Literal["before", "after", "late"]
"""Break when a commit is about to reach the server; or when its answer is about to reach the client. `late`: the client
is cut off, and the server gets the commit when `deliver` is called.
"""
_COMMIT = b"COMMIT\0"
_SLICE = 1 << 16


class Proxy:
    """Forwards to a port. `breaks`: when to break the connections of the next commits; `read_breaks`: of how many
    transactions to break the connection when they look at something for the second time.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.breaks: list[Moment] = []
        self.read_breaks = 0
        self.broken = 0
        self.late: tuple[socket.socket, bytes, threading.Thread] | None = None
        """What a server is still to get, and who waits for its answer."""
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _shut(end)
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()

    def deliver(self) -> None:
        """Let the server have what is late, if there is any, and do it."""
        late, self.late = self.late, None
        if late is not None:
            server, data, waiting = late
            assert _send(server, data)
            waiting.join()

    def _start(self, target: "object", *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self._target))
            self._open |= {client, server}
            answers_are_kept = threading.Event()
            answering = self._start(self._answer, server, client, answers_are_kept)
            self._start(self._forward, client, server, answers_are_kept, answering)

    def _forward(
        self, client: socket.socket, server: socket.socket, keeps: threading.Event, answering: threading.Thread
    ) -> None:
        while data := _receive(client):
            if _COMMIT in data and b"INSERT" in data and self.breaks:
                self.broken += 1
                moment = self.breaks.pop(0)
                if moment == "late":
                    self.late = server, data, answering
                    _shut(client)
                    return
                if moment == "before":
                    break
                keeps.set()
            if self.read_breaks and b"SELECT" in data and b"BEGIN" not in data and b"INSERT" not in data:
                self.read_breaks -= 1
                break
            if not _send(server, data):
                break
        _shut(client)
        if not keeps.is_set():
            _shut(server)

    def _answer(self, server: socket.socket, client: socket.socket, keeps: threading.Event) -> None:
        while data := _receive(server):
            if keeps.is_set():  # it has committed
                break
            if not _send(client, data):
                break
        _shut(client)
        _shut(server)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(_SLICE)
    except OSError:
        return b""


def _send(end: socket.socket, data: bytes) -> bool:
    try:
        end.sendall(data)
    except OSError:
        return False
    return True


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
