"""kill -9 at any moment of several processes that put, write, delete, compact and shrink beside each other.

Two writers have threads of their own, one of each API; a keeper compacts the store and moves it to smaller files. One
of the three dies first, as a rule in the middle of something, while the others go on; then the others die. Each says
what it is about to do before, and what came of it after, in one write to a pipe; nothing waits for a clock. What was
acknowledged is there and equal, what wasn't is there whole or not at all.
"""

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

import deltastore
from deltastore import Store, check
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import config
from tests.langgraph.deleting import put, say
from tests.test_kill import digest, message
from tests.upkeep.both_fronts import small_packs
from tests.upkeep.stopping import ended, started

ROUNDS = {"quick": 12, "ci": 200, "deep": 3_000}
FREQUENCY = 5
WRITERS = 2
KEEPER = WRITERS
WORKERS = WRITERS + 1
MAX_CHECKPOINTS = 60
"""With more a thread is ended by its writer, so that rounds stay short."""


def is_graph(name: str) -> bool:
    return name.startswith("graph")


def ids_of(store: Store, name: str) -> list[str]:
    """Return a thread's checkpoints, the oldest first."""
    if is_graph(name):
        return [found.checkpoint["id"] for found in DeltaSaver(store).list(config(name))][::-1]
    return [found.id for found in store.thread(name).history()][::-1]


def state_of(store: Store, name: str, id_: str) -> Any:
    if not is_graph(name):
        return store.thread(name).state(at=id_)
    found = DeltaSaver(store).get_tuple(config(name, id_))
    assert found is not None
    return found.checkpoint["channel_values"]


def writes_of(store: Store, name: str, id_: str) -> Any:
    if not is_graph(name):
        return [[write.task, write.channel, write.value] for write in store.thread(name).writes(id_)]
    found = DeltaSaver(store).get_tuple(config(name, id_))
    assert found is not None
    return [list(write) for write in found.pending_writes or ()]


# --- the workers ----------------------------------------------------------------------------


class Worker:
    """What a forked process does until it is killed."""

    def __init__(self, number: int, news: int, path: Path, chance: random.Random) -> None:
        self.number = number
        self.news = news
        self.chance = chance
        self.store = deltastore.open(path, snapshot_frequency=FREQUENCY, sync="none")

    def tell(self, *what: Any) -> None:
        os.write(self.news, json.dumps([self.number, *what]).encode() + b"\n")

    def run(self) -> None:
        self.tell("begins")
        with small_packs():
            while True:
                self.keep() if self.number == KEEPER else self.write()

    def keep(self) -> None:
        what = self.chance.choice(["compact", "compact", "shrink", "collect"])
        self.tell("will", what)
        if what == "compact":
            report = deltastore.compact(self.store, level=1, erase=self.chance.random() < 0.5)
            assert not report.damaged
        elif what == "shrink":
            deltastore.shrink(self.store)
        else:
            self.store.collect()
        self.tell("did", what)

    def write(self) -> None:
        name = f"{self.chance.choice(['graph', 'log'])} {self.number}"
        ids = ids_of(self.store, name)
        what = self.chance.random()
        if len(ids) > MAX_CHECKPOINTS or (ids and what < 0.02):
            self.tell("will end", name)
            self.store.delete(name)
            self.tell("ended", name)
        elif len(ids) > 3 and what < 0.15:
            self.delete(name, self.chance.choice(ids[-12:]))
        elif ids and what < 0.35:
            self.put_writes(name, self.chance.choice(ids[-3:]))
        else:
            at = self.chance.choice(ids[-6:]) if ids and self.chance.random() < 0.2 else (ids or [None])[-1]
            self.put(name, ids, at)

    def delete(self, name: str, id_: str) -> None:
        self.tell("will delete", name, id_)
        if is_graph(name):
            DeltaSaver(self.store).delete_for_runs([f"{name} {id_}"])
        else:
            self.store.thread(name).delete(id_)
        self.tell("deleted", name, id_)

    def put_writes(self, name: str, id_: str) -> None:
        task, text = f"task {self.chance.randrange(10**9)}", message(self.chance)["text"]
        made = [[f"task {text}", "log", [text]]] if is_graph(name) else [[task, "messages", [text]], [task, "n", 1]]
        before = writes_of(self.store, name, id_)
        known = {written[0] for written in before}
        after = sorted([*before, *(written for written in made if written[0] not in known)], key=lambda one: one[0])
        self.tell("will write", name, id_, digest(after))
        if is_graph(name):
            say(DeltaSaver(self.store), id_, text, thread=name)
        else:
            self.store.thread(name).put_writes(id_, [(channel, value) for _, channel, value in made], task=task)
        self.tell("wrote", name, id_, digest(after))

    def put(self, name: str, ids: list[str], at: str | None) -> None:
        state = state_of(self.store, name, at) if at is not None else {}
        added = [message(self.chance) for _ in range(self.chance.randint(0, 3))]
        expected = {"messages": [*state.get("messages", []), *added], "count": state.get("count", 0) + 1}
        if self.chance.random() < 0.2:
            expected["messages"] = expected["messages"][self.chance.randint(0, 3) :]
        self.tell("will put", name, digest(expected))
        if is_graph(name):
            # An id that was never used: what is left of a deleted one belongs to it.
            id_ = f"{self.chance.randrange(10**6) + 10**6 * (1 + int((ids or ['0'])[-1]) // 10**6):012}"
            put(DeltaSaver(self.store), id_, at, run=f"{name} {id_}", thread=name, **expected)
        else:
            id_ = self.store.thread(name).put_state(expected, at=at).id
        self.tell("put", name, id_, digest(expected))


# --- the judge ------------------------------------------------------------------------------


@dataclass
class Model:
    """What was acknowledged: digests of states and of writes by thread and checkpoint; what each worker is at."""

    states: dict[str, dict[str, str]] = field(default_factory=dict)
    writes: dict[tuple[str, str], str] = field(default_factory=dict)
    pending: dict[int, list[Any]] = field(default_factory=dict)

    def hear(self, worker: int, what: list[Any]) -> None:
        self.pending.pop(worker, None)
        match what:
            case ["put", name, id_, found]:
                self.states.setdefault(name, {})[id_] = found
            case ["deleted", name, id_]:
                del self.states[name][id_]
                self.writes.pop((name, id_), None)
            case ["wrote", name, id_, found]:
                self.writes[name, id_] = found
            case ["ended", name]:
                self.writes = {key: found for key, found in self.writes.items() if key[0] != name}
                del self.states[name]
            case ["begins"] | ["did", _]:
                pass
            case _:
                self.pending[worker] = what

    def settle(self, store: Store) -> None:
        """Look how what was under way came out: wholly or not at all."""
        for worker, what in list(self.pending.items()):
            match what:
                case ["will put", name, found]:
                    new = [id_ for id_ in ids_of(store, name) if id_ not in self.states.get(name, {})]
                    assert len(new) <= 1
                    for id_ in new:
                        assert digest(state_of(store, name, id_)) == found
                        self.hear(worker, ["put", name, id_, found])
                case ["will delete", name, id_] if id_ not in ids_of(store, name):
                    self.hear(worker, ["deleted", name, id_])
                case ["will end", name] if not ids_of(store, name):
                    self.hear(worker, ["ended", name])
                case ["will write", name, id_, found] if digest(sorted_writes(store, name, id_)) == found:
                    self.hear(worker, ["wrote", name, id_, found])
        self.pending = {}

    def compare(self, store: Store, chance: random.Random | None) -> None:
        """Compare the store with the model: every id, and states and writes of all or of some checkpoints."""
        for name in [f"{kind} {number}" for kind in ("graph", "log") for number in range(WRITERS)]:
            states = self.states.get(name, {})
            assert ids_of(store, name) == sorted(states)
            chosen = list(states) if chance is None else chance.sample(list(states), min(8, len(states)))
            for id_ in chosen:
                assert digest(state_of(store, name, id_)) == states[id_]
                assert digest(sorted_writes(store, name, id_)) == self.writes.get((name, id_), digest([]))


def sorted_writes(store: Store, name: str, id_: str) -> Any:
    return sorted(writes_of(store, name, id_), key=lambda one: one[0])


class Round:
    """Workers on one store, until all of them are killed."""

    def __init__(self, path: Path, chance: random.Random, model: Model) -> None:
        reading, self._writing = os.pipe()
        self._news: IO[str] = os.fdopen(reading)
        self._model = model
        self.alive: dict[int, int] = {}
        for number in range(WORKERS):
            self.alive[number] = started(self._work(number, path, chance.randrange(2**32)), closing=reading)
        os.close(self._writing)

    def _work(self, number: int, path: Path, seed: int) -> Callable[[], None]:
        return lambda: Worker(number, self._writing, path, random.Random(seed)).run()

    def hear(self, lines: int) -> None:
        """Hear some lines; only living workers speak, for ever."""
        for _ in range(lines):
            line = self._news.readline()
            assert line, "all workers ended by themselves"
            worker, *what = json.loads(line)
            self._model.hear(worker, what)

    def kill(self, numbers: list[int]) -> None:
        children = [self.alive.pop(number) for number in numbers]
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert [ended(child) for child in children] == [-signal.SIGKILL] * len(children)

    def finish(self) -> None:
        """Hear what was said before the last one died."""
        for line in self._news:
            worker, *what = json.loads(line)
            self._model.hear(worker, what)
        self._news.close()


def test_kills_of_writers_and_a_keeper_beside_each_other(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "store.ds"
    model = Model()
    cut_short: dict[str, int] = {}
    for number in range(ROUNDS[request.config.getoption("--profile")]):
        running = Round(path, chance, model)
        running.hear(chance.randint(10, 60) if chance.random() < 0.9 else 0)  # 0: while the store is opened
        first = chance.randrange(WORKERS)
        running.kill([first])
        running.hear(chance.randint(10, 60))  # the others go on, whatever it held
        running.kill(list(running.alive))
        running.finish()
        for what in model.pending.values():
            kind = " ".join(what[:2]) if what[0] == "will" else what[0]
            cut_short[kind] = cut_short.get(kind, 0) + 1
        with deltastore.open(path, snapshot_frequency=FREQUENCY, sync="none") as store:
            model.settle(store)
            model.compare(store, chance)
            if number % 3 == 2:
                report = check(store)
                assert report.ok, report.problems
    with deltastore.open(path, sync="none") as store:
        model.compare(store, None)
        deltastore.compact(store, erase=True, level=1)
        deltastore.shrink(store)
        model.compare(store, None)
        report = check(store)
        assert report.ok, report.problems
        assert report.queued_threads == report.garbage_chunks == 0
    print(f"{sum(map(len, model.states.values()))} checkpoints; cut short: {cut_short}")
    assert cut_short
