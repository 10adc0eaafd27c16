"""Ways to save an agent's state, for bench.agent_rounds: our runs, SqliteSaver, and a JSON file for each checkpoint.

What the peers save is the messages and the state alone; our runs hold the records of all calls as well, and their
journal. The program is the same: where it has no journal, calls are just made. Each way lives in a directory of its
own, and gives back every state that it saved.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import deltastore
from bench.recording import Config
from deltastore.agent import AFTER_TOOLS, EVERY_STEP, Boundary, CheckpointManager, Decision, SavePolicy, every
from deltastore.agent.messages import kind_of
from deltastore.agent.policies import STEP

State = dict[str, Any]
"""The messages and the state of a run, under these names."""

RUN_ID = "talk"
POLICIES: dict[str, SavePolicy] = {"every round": EVERY_STEP, "every third": every(3), "after tools": AFTER_TOOLS}


class Watched:
    """A policy that remembers what it decided last."""

    def __init__(self, policy: SavePolicy) -> None:
        self.policy = policy
        self.saved = False

    def decide(self, boundary: Boundary) -> Decision:
        decision = self.policy.decide(boundary)
        self.saved = decision.save
        return decision


class Plain:
    """A run without a journal, whose state is saved as a whole where the policy asks for a checkpoint."""

    def __init__(self, policy: SavePolicy, save: Callable[[State], None]) -> None:
        self.messages: list[Any] = []
        self.state: dict[str, Any] = {}
        self._policy = policy
        self._save = save
        self._steps = self._calls = 0

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        self._calls += 1
        return function(**arguments)

    def model(self, function: Callable[..., Any], **arguments: Any) -> Any:
        return function(**arguments)

    def add(self, message: Any) -> None:
        self.messages.append(message)
        self._come_to(kind_of(message))

    def step(self) -> None:
        self._steps += 1
        self._come_to(STEP)

    def _come_to(self, kind: str) -> None:
        if self._policy.decide(Boundary(kind, self._steps, self._calls)).save:
            self._save({"messages": self.messages, "state": self.state})
            if kind == STEP:
                self._steps = self._calls = 0


class Opened(NamedTuple):
    """A run under way; `last_bytes` gives what its last save added."""

    run: Any
    last_bytes: Callable[[], int]


class Way(NamedTuple):
    label: str
    open: Callable[[Path, SavePolicy], AbstractContextManager[Opened]]
    states: Callable[[Path], Iterator[State]]
    """Of all saves, the oldest first."""
    latest: Callable[[Path], State]
    """Opens what is there, too."""


# --- our runs ---------------------------------------------------------------------------------


@contextmanager
def _open_run(directory: Path, policy: SavePolicy) -> Iterator[Opened]:
    with deltastore.open(directory / "store.ds") as store:
        run = CheckpointManager(store, policy).run(RUN_ID)
        before = put_bytes = store.stats().activity.put_bytes

        def last_bytes() -> int:
            nonlocal before, put_bytes
            before, put_bytes = put_bytes, store.stats().activity.put_bytes
            return put_bytes - before

        yield Opened(run, last_bytes)


def _run_states(directory: Path) -> Iterator[State]:
    with deltastore.open(directory / "store.ds") as store:
        for found in CheckpointManager(store).list_checkpoints(RUN_ID)[::-1]:
            if found.kind != "begin":
                yield {"messages": found.messages, "state": found.state}


def _latest_run(directory: Path) -> State:
    with deltastore.open(directory / "store.ds", create=False) as store:
        run = CheckpointManager(store).restore(RUN_ID)
        return {"messages": run.messages, "state": run.state}


# --- peers ------------------------------------------------------------------------------------

CONFIG: Config = {"configurable": {"thread_id": RUN_ID, "checkpoint_ns": ""}}


def _saver(directory: Path) -> Any:
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(str(directory / "checkpoints.sqlite"))


@contextmanager
def _open_sqlite(directory: Path, policy: SavePolicy) -> Iterator[Opened]:
    config, number = CONFIG, 0

    def save(state: State) -> None:
        nonlocal config, number
        number += 1
        id_ = f"{number:06}"
        values = {"messages": state["messages"], **state["state"]}
        versions = dict.fromkeys(values, id_)
        frame = {"v": 4, "id": id_, "ts": "2026-01-01T00:00:00+00:00", "versions_seen": {}}
        checkpoint = frame | {"channel_values": values, "channel_versions": versions}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, versions)

    def last_bytes() -> int:
        lengths = "SELECT length(checkpoint) + length(metadata) FROM checkpoints ORDER BY checkpoint_id DESC LIMIT 1"
        return saver.conn.execute(lengths).fetchone()[0]

    with _saver(directory) as saver:
        saver.setup()
        yield Opened(Plain(policy, save), last_bytes)


def _state_of(values: dict[str, Any]) -> State:
    return {"messages": values["messages"], "state": {name: values[name] for name in values if name != "messages"}}


def _sqlite_states(directory: Path) -> Iterator[State]:
    with _saver(directory) as saver:
        ids = [found.checkpoint["id"] for found in saver.list(CONFIG)][::-1]
        for id_ in ids:
            found = saver.get_tuple({"configurable": {**CONFIG["configurable"], "checkpoint_id": id_}})
            yield _state_of(found.checkpoint["channel_values"])


def _latest_sqlite(directory: Path) -> State:
    with _saver(directory) as saver:
        return _state_of(saver.get_tuple(CONFIG).checkpoint["channel_values"])


@contextmanager
def _open_files(directory: Path, policy: SavePolicy) -> Iterator[Opened]:
    last, number = directory, 0

    def save(state: State) -> None:
        nonlocal last, number
        number += 1
        last = directory / f"{number:06}.json"
        with last.open("w") as out:
            out.write(json.dumps(state))  # `json.dump` takes several times as long
            out.flush()
            os.fsync(out.fileno())

    yield Opened(Plain(policy, save), lambda: last.stat().st_size)


def _file_states(directory: Path) -> Iterator[State]:
    for path in sorted(directory.glob("*.json")):
        yield json.loads(path.read_text())


def _latest_file(directory: Path) -> State:
    return json.loads(max(directory.glob("*.json")).read_text())


PRODUCT = "deltastore"
WAYS = {
    PRODUCT: Way("deltastore", _open_run, _run_states, _latest_run),
    "sqlite": Way("SqliteSaver", _open_sqlite, _sqlite_states, _latest_sqlite),
    "json": Way("JSON files", _open_files, _file_states, _latest_file),
}
MODULES = ("deltastore.agent", "deltastore.storage.lmdb", "langgraph.checkpoint.sqlite")
"""What the ways import, so that this can be done before anything is timed."""
