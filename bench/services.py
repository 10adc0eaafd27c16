"""Servers that some savers need: a new one for each store, as it is installed, on loopback only."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

HOST = "127.0.0.1"
OWNER = "bench"
UNPRIVILEGED = "nobody"
"""Whom a server runs as when root started the bench: PostgreSQL refuses root."""
POSTGRES_BINARIES = Path("/usr/lib/postgresql")
"""Where Debian keeps each version's binaries, off PATH."""
START_S, STOP_S = 60, 120
"""How long a server may take to answer, and to end."""
RETRY_S = 0.1


class Server(NamedTuple):
    found: Callable[[], bool]
    """Whether its binaries are on this machine."""
    run: Callable[[Path | None], AbstractContextManager[str]]
    """Runs it with its data below a directory (None: the temporary one); gives the address that savers connect to."""


def serving(server: str | None, below: Path | None) -> AbstractContextManager[str]:
    """Run a server by its name, and give its address; without name there is none."""
    return SERVERS[server].run(below) if server else nullcontext("")


@contextmanager
def _run_postgres(below: Path | None) -> Iterator[str]:
    with _data_directory(below) as directory:
        data, port = directory / "data", _free_port()
        create = [_program("initdb"), "-D", data, "-U", OWNER, "--auth=trust", "--encoding=UTF8", "--locale=C"]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL, cwd=directory, **_privileges())
        command = [_program("postgres"), "-D", data, "-p", str(port), "-h", HOST, "-k", ""]
        with (directory / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, **_privileges())
        try:
            address = f"postgresql://{OWNER}@{HOST}:{port}/postgres"
            _await_postgres(address, server, directory / "log")
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # its fast shutdown: doesn't wait for clients
            server.wait(STOP_S)


def _await_postgres(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Try to connect until the server answers. Raises RuntimeError with its log where it doesn't."""
    import psycopg

    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            time.sleep(RETRY_S)
        else:
            return
    raise RuntimeError(f"PostgreSQL doesn't answer at {address}; its log:\n{log.read_text()}")


def _find(name: str) -> str | None:
    """Return a PostgreSQL program on PATH, else that of the newest version installed."""
    installed = sorted(POSTGRES_BINARIES.glob(f"*/bin/{name}"), key=lambda path: path.parts[-3])
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def _program(name: str) -> str:
    if found := _find(name):
        return found
    raise FileNotFoundError(f"{name} is neither on PATH nor below {POSTGRES_BINARIES}")


def _privileges() -> dict[str, Any]:
    """Return the subprocess arguments that drop root's."""
    if os.geteuid():
        return {}
    return {"user": UNPRIVILEGED, "group": pwd.getpwnam(UNPRIVILEGED).pw_gid, "extra_groups": []}


@contextmanager
def _data_directory(below: Path | None) -> Iterator[Path]:
    """Make a directory for a server; where that isn't root, every user must be able to reach its parent."""
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-server-", dir=below) as made:
        if not os.geteuid():
            user = pwd.getpwnam(UNPRIVILEGED)
            os.chown(made, user.pw_uid, user.pw_gid)
        yield Path(made)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


SERVERS = {"postgres": Server(lambda: None not in (_find("initdb"), _find("postgres")), _run_postgres)}
