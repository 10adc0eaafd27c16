"""Where an agent's state is kept: a saver and a log of tool calls, each pair in a directory of its own."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own block is."""


@contextmanager
def open_saver(kind: str, directory: Path) -> Iterator[BaseCheckpointSaver]:
    if kind == "deltastore":
        from deltastore.langgraph import DeltaSaver

        with DeltaSaver.from_path(directory / "store") as saver:
            yield saver
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        store = directory / "store"
        store.mkdir(exist_ok=True)
        with SqliteSaver.from_conn_string(str(store / "checkpoints.sqlite")) as saver:
            yield saver


def stored_bytes(directory: Path) -> int:
    """Return what the store takes on disk."""
    store = directory / "store"
    return sum(path.stat().st_blocks * BLOCK_BYTES for path in (store, *store.rglob("*")))


def call_log(directory: Path) -> Path:
    return directory / "tool-calls.txt"


def executions(directory: Path) -> Counter[str]:
    """Count how often each tool call was executed."""
    return Counter(call_log(directory).read_text().split())
