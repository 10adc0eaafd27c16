"""Record the saver calls of a graph run, so that savers can be driven without the graph."""

import pickle
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from bench.workloads import Workload

Config = dict[str, Any]

SEED = 0
"""Of LangGraph's channel versions, which have a random part. The workloads' own seeds are in their text."""


PUT_OF_MESSAGES = "put of messages"
"""Those puts that change the conversation, told apart: others cost less."""


class Call(NamedTuple):
    """One call of a saver's method, with positional arguments."""

    method: str
    arguments: tuple[Any, ...]


class Record(NamedTuple):
    """The calls of one run, in order. Unchanged messages are shared, not copied."""

    calls: list[Call]

    def puts(self) -> Iterator[tuple[Config, dict, dict, dict]]:
        return (call.arguments for call in self.calls if call.method == "put")

    def counts(self) -> dict[str, int]:
        """Return how often each method is called."""
        return dict(Counter(call.method for call in self.calls))

    def checkpoints(self) -> list[Config]:
        """Return the config of every checkpoint put, oldest first."""
        return [checkpoint_config(config, checkpoint["id"]) for config, checkpoint, *_ in self.puts()]

    def threads(self) -> list[Config]:
        """Return a config for every thread, without checkpoint id."""
        ids = dict.fromkeys(config["configurable"]["thread_id"] for config, *_ in self.puts())
        return [{"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}} for thread_id in ids]

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


def load_record(path: Path) -> Record:
    """Load what `Record.save` wrote (a pickle: only ever load your own)."""
    with path.open("rb") as file:
        return pickle.load(file)


def checkpoint_config(config: Config, checkpoint_id: str) -> Config:
    configurable = config["configurable"]
    return {
        "configurable": {
            "thread_id": configurable["thread_id"],
            "checkpoint_ns": configurable.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint_id,
        }
    }


def record(workload: Workload, turns: int) -> Record:
    """Run the workload's graph with a saver that keeps objects, and return its calls."""
    random.seed(SEED)
    saver = RecordingSaver()
    graph = workload.build().compile(checkpointer=saver)
    for config, values in workload.invocations(turns):
        graph.invoke(values, config, durability="sync")
    return Record(saver.calls)


def replay(
    trace: Record, saver: Any, after_put: Callable[[int, bool, float], None] | None = None
) -> dict[str, list[float]]:
    """Make every call of a record, and return the seconds that each took, by method.

    `after_put` is told how many puts there were, whether the last changed messages, and its seconds.
    """
    durations: dict[str, list[float]] = {}
    for method, arguments in trace.calls:
        function = getattr(saver, method)
        start = time.perf_counter()
        if method == "get_delta_channel_history":
            function(config=arguments[0], channels=arguments[1])
        else:
            function(*arguments)
        took = time.perf_counter() - start
        durations.setdefault(method, []).append(took)
        if method == "put":
            of_messages = "messages" in arguments[3]
            if of_messages:
                durations.setdefault(PUT_OF_MESSAGES, []).append(took)
            if after_put:
                after_put(len(durations["put"]), of_messages, took)
    return durations


def detach(value: Any) -> Any:
    """Copy the containers of a value, but not its leaves, against later changes in place."""
    if isinstance(value, _DeltaSnapshot):
        return _DeltaSnapshot(detach(value.value))
    if type(value) in (list, tuple, deque, set):
        return type(value)(detach(item) for item in value)
    if type(value) is dict:
        return {key: detach(item) for key, item in value.items()}
    return value


class _ByReference:
    """A serializer that keeps the object itself."""

    def dumps_typed(self, value: Any) -> tuple[str, Any]:
        return "reference", detach(value)

    def loads_typed(self, typed: tuple[str, Any]) -> Any:
        return detach(typed[1])


class RecordingSaver(InMemorySaver):
    """An InMemorySaver that serializes nothing and notes the calls made to it."""

    def __init__(self) -> None:
        super().__init__(serde=_ByReference())
        self.calls: list[Call] = []
        self.lock = threading.Lock()

    def _note(self, method: str, config: Config, *arguments: Any) -> None:
        with self.lock:
            self.calls.append(Call(method, (_plain(config), *detach(arguments))))

    def put(self, config, checkpoint, metadata, new_versions):
        self._note("put", config, checkpoint, metadata, new_versions)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config, writes, task_id, task_path=""):
        self._note("put_writes", config, list(writes), task_id, task_path)
        return super().put_writes(config, writes, task_id, task_path)

    def get_tuple(self, config):
        self._note("get_tuple", config)
        return super().get_tuple(config)

    def get_delta_channel_history(self, *, config, channels):
        self._note("get_delta_channel_history", config, list(channels))
        return super().get_delta_channel_history(config=config, channels=channels)


def _plain(config: Config) -> Config:
    """Leave out what the graph runtime hangs on a config for itself."""

    def scalars(mapping: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value
            for key, value in mapping.items()
            if not key.startswith("__") and isinstance(value, (str, int, float, bool))
        }

    plain = {"configurable": {"checkpoint_ns": ""} | scalars(config["configurable"])}
    return plain | ({"metadata": scalars(config["metadata"])} if config.get("metadata") else {})
