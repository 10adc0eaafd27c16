"""kill -9 at any moment: what was acknowledged is there and equal, what wasn't is there whole or not at all.

A child process holds the interpreter and the imports; each round it forks a worker, which opens the store and writes
until this process has read a random number of its acknowledgements and kills it. The worker says what it is about to
do before it does it, and what came of it after, each in one write to the pipe. Nothing waits for a clock.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import deltastore
from deltastore import Store, check

ROUNDS = 50
FREQUENCY = 7
THREADS = ("log", "state", "forks")


def digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def digest_writes(store: Store, name: str, id_: str) -> str:
    return digest([[write.task, write.channel, write.value] for write in store.thread(name).writes(id_)])


# --- the child ------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Fork a worker for each line read, and tell when it has ended."""
    for line in sys.stdin:
        worker = os.fork()
        if worker == 0:
            try:
                work(path, random.Random(int(line)))
            finally:
                os._exit(1)
        _, status = os.waitpid(worker, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def say(*what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def work(path: str, chance: random.Random) -> None:
    say("worker", os.getpid())
    store = deltastore.open(path, snapshot_frequency=FREQUENCY)
    known = {name: [c.id for c in store.thread(name).history()][::-1] for name in THREADS}
    while True:
        name = chance.choice(THREADS)
        thread = store.thread(name)
        ids = known[name]
        step = chance.random()
        if len(ids) > 3 and step < 0.12:
            id_ = chance.choice(ids[-12:])
            say("will delete", name, id_)
            thread.delete(id_)
            ids.remove(id_)
            say("deleted", name, id_)
        elif ids and step < 0.3:
            id_ = chance.choice(ids[-3:])
            task = f"task {chance.randrange(10**9)}"
            writes = [["messages", [message(chance)]], ["flag", chance.random()], ["messages", [message(chance)]]]
            before = [[write.task, write.channel, write.value] for write in thread.writes(id_)]
            after = sorted([*before, *([task, *write] for write in writes)], key=lambda write: write[0])
            say("will write", name, id_, digest(after))
            thread.put_writes(id_, [(channel, value) for channel, value in writes], task=task)
            say("wrote", name, id_, digest(after))
        else:
            at = chance.choice(ids[-8:]) if ids and name == "forks" and chance.random() < 0.5 else None
            state = thread.state(at=at) if ids else {}
            added = [message(chance) for _ in range(chance.randint(0, 3))]
            expected = state | {"messages": [*state.get("messages", []), *added], "count": state.get("count", 0) + 1}
            if name == "state":
                expected["messages"] = expected["messages"][chance.randint(0, 1) :][-40:]
                expected["document"] = chance.choice(
                    ["short", "".join(f"line {n} {chance.randrange(9)}\n" for n in range(900))]
                )
            say("will put", name, digest(expected))
            if name == "state":
                made = thread.put_state(expected)
            else:
                made = thread.append({"messages": added, "count": expected["count"]}, at=at)
            ids.append(made.id)
            say("put", name, made.id, digest(expected))


def message(chance: random.Random) -> dict[str, Any]:
    return {
        "id": chance.randrange(10**9),
        "text": " ".join(chance.choice(["ask", "tool", "é", "x" * 40]) for _ in range(chance.randint(0, 60))),
    }


# --- the judge ------------------------------------------------------------------------------


@dataclass
class Model:
    """What was acknowledged: digests of the states, by thread and checkpoint, and of writes; and what is under way."""

    states: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in THREADS})
    writes: dict[tuple[str, str], str] = field(default_factory=dict)
    pending: list[Any] = field(default_factory=list)

    def hear(self, what: list[Any]) -> None:
        match what:
            case ["put", name, id_, found]:
                self.states[name][id_] = found
            case ["deleted", name, id_]:
                del self.states[name][id_]
                self.writes.pop((name, id_), None)
            case ["wrote", name, id_, found]:
                self.writes[name, id_] = found
            case _:
                self.pending = what
                return
        self.pending = []

    def settle(self, store: Store) -> None:
        """Look how what was under way came out: wholly or not at all."""
        match self.pending:
            case ["will put", name, found]:
                new = [c.id for c in store.thread(name).history() if c.id not in self.states[name]]
                assert len(new) <= 1
                if new:
                    assert digest(store.thread(name).state(at=new[0])) == found
                    self.states[name][new[0]] = found
            case ["will delete", name, id_]:
                if id_ not in {c.id for c in store.thread(name).history()}:
                    self.hear(["deleted", name, id_])
            case ["will write", name, id_, found]:
                if digest_writes(store, name, id_) != self.writes.get((name, id_), digest([])):
                    self.writes[name, id_] = found
        self.pending = []

    def compare(self, store: Store, chance: random.Random | None) -> None:
        """Compare the store with the model: every id, and states and writes of all or of some checkpoints."""
        for name, states in self.states.items():
            thread = store.thread(name)
            assert [c.id for c in thread.history()] == sorted(states, reverse=True)
            ids = (
                list(states)
                if chance is None
                else [*list(states)[-12:], *chance.sample(list(states), min(3, len(states)))]
            )
            for id_ in ids:
                assert digest(thread.state(at=id_)) == states[id_]
                assert digest_writes(store, name, id_) == self.writes.get((name, id_), digest([]))


@contextmanager
def child(path: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    command = [
        sys.executable,
        "-c",
        "import sys; from tests.test_kill import serve; serve(sys.argv[1])",
        os.fspath(path),
    ]
    root = os.fspath(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdin, process.stdout
        finally:
            process.kill()


def test_fifty_kills_of_one_store(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "store.ds"
    model = Model()
    cut_short = 0
    with child(path) as (orders, news):
        for number in range(ROUNDS):
            orders.write(f"{chance.randrange(2**32)}\n")
            orders.flush()
            kind, worker = json.loads(news.readline())
            assert kind == "worker"
            left = (
                chance.randint(5, 60) if chance.random() < 0.9 else 0
            )  # lines: two a step; 0: while the store is opened
            ended = False
            while not ended:
                if left == 0:
                    for _ in range(chance.randrange(40_000)):  # up to about the time that a put takes
                        pass
                    os.kill(worker, signal.SIGKILL)
                what = json.loads(news.readline())
                ended = what[0] == "ended"
                if not ended:
                    model.hear(what)
                left -= 1
            assert what == ["ended", -signal.SIGKILL]
            cut_short += bool(model.pending)
            with deltastore.open(path, snapshot_frequency=FREQUENCY) as store:
                model.settle(store)
                model.compare(store, chance)
                if number % 10 == 9:
                    report = check(store)
                    assert report.ok, report.problems
                    assert report.max_depth < FREQUENCY
    with deltastore.open(path) as store:
        model.compare(store, None)
        assert check(store).ok
        counted = sum(map(len, model.states.values()))
        print(
            f"{counted} checkpoints, {len(model.writes)} with writes, {cut_short} of {ROUNDS} kills cut something short"
        )
        assert sum(info.checkpoints for info in store.threads()) == counted > ROUNDS
        assert cut_short > 0
