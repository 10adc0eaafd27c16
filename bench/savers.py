"""The savers that are measured, by name: how each is opened with its own defaults, and the bytes that it stores.

A saver's package is imported only when that saver is opened, so that the others can be measured without it.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from bench.services import SERVERS

PRODUCT = "deltastore"
REFERENCE = "inmemory"
"""The saver whose answers are right by definition."""

MAP_BYTES = 64 << 30
"""How far LMDBSaver's file may grow, which its user has to say; only what is used takes disk."""


class Opened(NamedTuple):
    saver: BaseCheckpointSaver
    measure_bytes: Callable[[], int] | None
    """For a saver without files of its own. The others are measured by their directory."""


@contextmanager
def _open_deltastore(directory: Path, _address: str = "") -> Iterator[Opened]:
    from deltastore.langgraph import DeltaSaver

    with DeltaSaver.from_path(directory / "store") as saver:
        yield Opened(saver, None)


@contextmanager
def _open_sqlite(directory: Path, _address: str = "") -> Iterator[Opened]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(directory / "checkpoints.sqlite")) as saver:
        yield Opened(saver, None)


@contextmanager
def _open_postgres(_directory: Path, address: str) -> Iterator[Opened]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(address) as saver:
        saver.setup()

        def table_bytes() -> int:
            """Return the size of tables with their indexes and long values, without the write-ahead log."""
            with saver.conn.cursor() as cursor:
                cursor.execute(
                    "SELECT sum(pg_total_relation_size(oid))::bigint AS size FROM pg_class"
                    " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
                )
                return int(cursor.fetchone()["size"])

        yield Opened(saver, table_bytes)


@contextmanager
def _open_lmdb(directory: Path, _address: str = "") -> Iterator[Opened]:
    import lmdb
    from langgraph_checkpoint_lmdb import LMDBSaver

    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=4) as environment:
        yield Opened(LMDBSaver(environment), None)


@contextmanager
def _open_objectstorage(directory: Path, _address: str = "") -> Iterator[Opened]:
    from langgraph_checkpoint_objectstorage import ObjectStorageSaver

    yield Opened(ObjectStorageSaver.from_conn_string(directory.as_uri()), None)


@contextmanager
def _open_inmemory(_directory: Path, _address: str = "") -> Iterator[Opened]:
    saver = InMemorySaver()

    def held_bytes() -> int:
        """Return the size of the serialised values that the saver holds."""
        blobs = sum(len(data) for _, data in saver.blobs.values())
        writes = sum(len(data) for task in saver.writes.values() for _, _, (_, data), _ in task.values())
        frames = sum(
            len(checkpoint) + len(metadata)
            for namespaces in saver.storage.values()
            for checkpoints in namespaces.values()
            for (_, checkpoint), (_, metadata), _ in checkpoints.values()
        )
        return blobs + writes + frames

    yield Opened(saver, held_bytes)


class Contender(NamedTuple):
    label: str
    """What tables call it."""
    open: Callable[..., AbstractContextManager[Opened]]
    """With a directory of its own, and the address of its server where it needs one."""
    distribution: str
    """The distribution whose version goes into the report."""
    survives: str
    """What a put that returned has survived, with the saver's defaults."""
    modules: tuple[str, ...] = ()
    """What opening it imports, so that this can be done before opening is timed."""
    persistent: bool = True
    server: str | None = None

    def load(self) -> None:
        for module in self.modules:
            importlib.import_module(module)

    def missing(self) -> str | None:
        """Return what keeps this saver from being measured here."""
        if any(importlib.util.find_spec(module.partition(".")[0]) is None for module in self.modules):
            return f"{self.distribution} isn't installed"
        if self.server and not SERVERS[self.server].found():
            return f"{self.server} isn't installed"
        return None


SAVERS = {
    PRODUCT: Contender(
        "deltastore",
        _open_deltastore,
        "deltastore",
        "power loss",
        ("deltastore.langgraph", "deltastore.storage.lmdb"),
    ),
    "sqlite": Contender(
        "SqliteSaver",
        _open_sqlite,
        "langgraph-checkpoint-sqlite",
        "power loss",
        ("langgraph.checkpoint.sqlite",),
    ),
    "postgres": Contender(
        "PostgresSaver",
        _open_postgres,
        "langgraph-checkpoint-postgres",
        "power loss",
        ("psycopg", "langgraph.checkpoint.postgres"),
        server="postgres",
    ),
    "lmdb": Contender(
        "LMDBSaver",
        _open_lmdb,
        "langgraph-checkpoint-lmdb",
        "power loss",
        ("langgraph_checkpoint_lmdb",),
    ),
    "objectstorage": Contender(
        "ObjectStorageSaver",
        _open_objectstorage,
        "langgraph-checkpoint-objectstorage",
        "the end of the process",
        ("langgraph_checkpoint_objectstorage",),
    ),
    REFERENCE: Contender(
        "InMemorySaver", _open_inmemory, "langgraph-checkpoint", "nothing: it keeps none", persistent=False
    ),
}
