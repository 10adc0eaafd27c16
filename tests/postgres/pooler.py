"""pgbouncer before a PostgreSQL server, lending its few connections for one transaction at a time."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.postgres_server import HOST, OWNER, PostgresServer, drop_privileges, free_port, give_away

START_S = 30
RETRY_S = 0.05
CONNECTIONS = 3
"""What it has to the server: fewer than its clients, so that they get each other's."""


def find() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def pooling(server: PostgresServer) -> Iterator[int]:
    """Run pgbouncer for a server; give its port."""
    program = find()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="deltastore-pgbouncer-") as made:
        give_away(Path(made))
        port = free_port()
        settings = Path(made) / "pgbouncer.ini"
        settings.write_text(
            f"""[databases]
postgres = host={HOST} port={server.port} user={OWNER}
[pgbouncer]
listen_addr = {HOST}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {CONNECTIONS}
max_client_conn = 200
"""
        )
        log = Path(made) / "log"
        with log.open("ab") as out:
            process = subprocess.Popen([program, str(settings)], stdout=out, stderr=out, cwd=made, **drop_privileges())
        try:
            _wait(process, port, log)
            yield port
        finally:
            process.terminate()
            process.wait(START_S)


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(host=HOST, port=port, dbname="postgres", user=OWNER).close()
        except psycopg.OperationalError:
            time.sleep(RETRY_S)
        else:
            return
    raise RuntimeError(f"pgbouncer doesn't answer on port {port}; its log:\n{log.read_text()}")
