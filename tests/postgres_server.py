"""A PostgreSQL server of one's own: made of the installed binaries, on loopback only, with its data in a directory.

For tests and benches. As root it runs as somebody without privileges, for PostgreSQL refuses root.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

HOST = "127.0.0.1"
OWNER = "owner"
UNPRIVILEGED = "nobody"
BINARIES = Path("/usr/lib/postgresql")
"""Where Debian keeps each version's binaries, off PATH."""
START_S, STOP_S = 60, 120
"""How long a server may take to answer, and to end."""
RETRY_S = 0.05


def find(name: str) -> str | None:
    """Return a PostgreSQL program on PATH, else that of the newest version installed."""
    installed = sorted(BINARIES.glob(f"*/bin/{name}"), key=lambda path: path.parts[-3])
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def is_installed() -> bool:
    return None not in (find("initdb"), find("postgres"))


class PostgresServer:
    """A server with its data in a directory; it may be started, ended and killed in turn."""

    def __init__(self, directory: Path, settings: Sequence[str] = ()) -> None:
        """Make a cluster. `settings`: as `name=value`, for the server's command line."""
        self._directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        create = [_program("initdb"), "-D", directory / "data", "-U", OWNER, "--auth=trust", "-E", "UTF8", "--locale=C"]
        subprocess.run(
            [*create, "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=directory,
            env=_environment(),
            **drop_privileges(),
        )

    @property
    def url(self) -> str:
        return f"postgresql://{OWNER}@{HOST}:{self.port}/postgres"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            process = self._process = self._launch()
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    psycopg.connect(self.url).close()
                except psycopg.OperationalError:
                    time.sleep(RETRY_S)
                else:
                    return
            time.sleep(RETRY_S)  # children of one that was killed may still have its memory
        raise RuntimeError(f"PostgreSQL doesn't answer at {self.url}; its log:\n{self._log.read_text()}")

    def _launch(self) -> "subprocess.Popen[bytes]":
        options = [option for setting in self._settings for option in ("-c", setting)]
        command = [_program("postgres"), "-D", self._directory / "data", "-p", str(self.port), "-h", HOST, "-k", ""]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, *options],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=_environment(),
                **drop_privileges(),
            )

    def stop(self) -> None:
        """End it in its fast way, which doesn't wait for clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the postmaster, as a crash of the machine would; its children end when they notice."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(STOP_S)


@contextmanager
def running(below: Path | None = None, settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """Run a server with its data below a directory (None: the temporary one)."""
    with tempfile.TemporaryDirectory(prefix="deltastore-postgres-", dir=below) as made:
        give_away(Path(made))
        server = PostgresServer(Path(made), settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _program(name: str) -> str:
    if found := find(name):
        return found
    raise FileNotFoundError(f"{name} is neither on PATH nor below {BINARIES}")


def _environment() -> dict[str, str]:
    """Return the environment without what would lead programs to another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def give_away(directory: Path) -> None:
    """Make a directory that of whom servers run as."""
    if not os.geteuid():
        user = pwd.getpwnam(UNPRIVILEGED)
        os.chown(directory, user.pw_uid, user.pw_gid)


def drop_privileges() -> dict[str, Any]:
    """Return the subprocess arguments that drop root's privileges."""
    if os.geteuid():
        return {}
    return {"user": UNPRIVILEGED, "group": pwd.getpwnam(UNPRIVILEGED).pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
