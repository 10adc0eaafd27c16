"""Where an agent's state is kept: a saver, a log of tool calls and a log of the saver's times, in one directory."""

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

KINDS = ("DeltaSaver", "SqliteSaver")
METHODS = ("put", "put_writes", "get_tuple", "list")
"""What is timed of a saver; of `list` each checkpoint that it returns."""
BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own block is."""


class Timing:
    """Mixed into a saver's class: adds a line with method and seconds to a log, after each call.

    A log rather than a sum, because the process may be killed at any moment.
    """

    times: TextIO

    def put(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed("put"):
            return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        with self._timed("put_writes"):
            super().put_writes(*args, **kwargs)

    def get_tuple(self, *args: Any, **kwargs: Any) -> CheckpointTuple | None:
        with self._timed("get_tuple"):
            return super().get_tuple(*args, **kwargs)

    def list(self, *args: Any, **kwargs: Any) -> Iterator[CheckpointTuple]:
        with closing(super().list(*args, **kwargs)) as items:
            while True:
                began = time.perf_counter()
                item = next(items, None)
                if item is None:
                    return
                self._log_time("list", began)
                yield item

    @contextmanager
    def _timed(self, method: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._log_time(method, began)

    def _log_time(self, method: str, began: float) -> None:
        self.times.write(f"{method} {time.perf_counter() - began:.9f}\n")


def _saver_class(kind: str) -> type[BaseCheckpointSaver]:
    if kind == "DeltaSaver":
        from deltastore.langgraph import DeltaSaver

        return DeltaSaver
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver


@contextmanager
def open_saver(kind: str, directory: Path) -> Iterator[BaseCheckpointSaver]:
    """Open the store in a directory as it is used everywhere: with the saver's own defaults."""
    with _opened(_saver_class(kind), directory) as saver:
        yield saver


@contextmanager
def open_timed(kind: str, directory: Path) -> Iterator[BaseCheckpointSaver]:
    """Open the store with a saver that logs how long its calls take."""
    timed = type(f"Timed{kind}", (Timing, _saver_class(kind)), {})
    with _times_log(directory).open("a", buffering=1) as times, _opened(timed, directory) as saver:
        saver.times = times
        gc.collect()  # what imports and others left behind, or collecting it is taken for some call's time
        yield saver


@contextmanager
def _opened(made: Any, directory: Path) -> Iterator[BaseCheckpointSaver]:
    store = directory / "store"
    if hasattr(made, "from_path"):
        with made.from_path(store) as saver:
            yield saver
    else:
        store.mkdir(parents=True, exist_ok=True)
        with made.from_conn_string(str(store / "checkpoints.sqlite")) as saver:
            yield saver


def stored_bytes(directory: Path) -> int:
    """Return what the store takes on disk."""
    store = directory / "store"
    return sum(path.stat().st_blocks * BLOCK_BYTES for path in (store, *store.rglob("*")))


def call_times(directory: Path) -> dict[str, list[float]]:
    """Return how many seconds each call took, by method, from all processes that used the store."""
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for line in _times_log(directory).read_text().splitlines():
        method, seconds = line.split()
        times[method].append(float(seconds))
    return times


def _times_log(directory: Path) -> Path:
    return directory / "saver-times.txt"


def call_log(directory: Path) -> Path:
    return directory / "tool-calls.txt"


def executions(directory: Path) -> Counter[str]:
    """Count how often each tool call was executed."""
    return Counter(call_log(directory).read_text().split())
