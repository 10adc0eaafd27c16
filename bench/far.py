"""A server that seems to be far away: a proxy on loopback, in a process of its own, whose answers come later."""

import contextlib
import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

HOST = "127.0.0.1"
_SLICE = 1 << 16


@contextlib.contextmanager
def far_away(port: int, seconds: float) -> Iterator[int]:
    """Forward to a port, answers that much later; give the port to connect to. Nothing is later than the delay asks."""
    receiver, sender = multiprocessing.get_context("forkserver").Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(
        target=_serve, args=(port, seconds, sender), daemon=True
    )
    process.start()
    sender.close()
    try:
        yield receiver.recv()
    finally:
        process.kill()
        process.join()


def _serve(port: int, seconds: float, sender: Connection) -> None:
    listener = socket.create_server((HOST, 0))
    sender.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((HOST, port))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        for target, arguments in (
            (_forward, (client, server)),
            (_take, (server, answers, seconds)),
            (_answer, (client, answers)),
        ):
            threading.Thread(target=target, args=arguments, daemon=True).start()


def _forward(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(_SLICE):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _take(server: socket.socket, answers: "queue.SimpleQueue[tuple[float, bytes]]", seconds: float) -> None:
    """Note when each part of an answer is due: parts that follow each other are late together, not by turns."""
    data = b"-"
    while data:
        try:
            data = server.recv(_SLICE)
        except OSError:
            data = b""
        answers.put((time.monotonic() + seconds, data))


def _answer(client: socket.socket, answers: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
    with contextlib.suppress(OSError):
        while True:
            due, data = answers.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                client.shutdown(socket.SHUT_WR)
                return
            client.sendall(data)
