"""Servers that some savers need: a new one for each store, as it is installed, on loopback only."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tests import postgres_server


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
    with postgres_server.running(below) as server:
        yield server.url


SERVERS = {"postgres": Server(postgres_server.is_installed, _run_postgres)}
