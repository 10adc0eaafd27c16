"""The savers that are measured, by name, and the bytes that each of them stores."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

REFERENCE = "inmemory"
"""The saver whose answers are right by definition."""

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own block is."""


class Opened(NamedTuple):
    saver: BaseCheckpointSaver
    measure_bytes: Callable[[], int] | None
    """For a saver without files. The others are measured when closed."""


def allocated_bytes(directory: Path) -> int:
    """Return what a directory and all below it take on disk."""
    return sum(path.stat().st_blocks * BLOCK_BYTES for path in (directory, *directory.rglob("*")))


@contextmanager
def _open_deltastore(directory: Path) -> Iterator[Opened]:
    from deltastore.langgraph import DeltaSaver

    with DeltaSaver.from_path(directory / "store") as saver:
        yield Opened(saver, None)


@contextmanager
def _open_sqlite(directory: Path) -> Iterator[Opened]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(directory / "checkpoints.sqlite")) as saver:
        yield Opened(saver, None)


@contextmanager
def _open_inmemory(_directory: Path) -> Iterator[Opened]:
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
    open: Callable[[Path], AbstractContextManager[Opened]]
    distribution: str
    """The distribution whose version goes into the report."""
    persistent: bool = True


SAVERS = {
    "deltastore": Contender(_open_deltastore, "deltastore"),
    "sqlite": Contender(_open_sqlite, "langgraph-checkpoint-sqlite"),
    "inmemory": Contender(_open_inmemory, "langgraph-checkpoint", persistent=False),
}
