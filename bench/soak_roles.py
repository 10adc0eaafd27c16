"""What the processes of a soak do: write, read, keep the store small, and stay for the whole time.

Every state carries a digest of the rest of itself in its channel `check`, so each process can judge what any other one
put. Conversations are named `<front>.<process>.<serial>`. A process tells of what it did through a pipe, of deletions
before it makes them too; an error that isn't part of the game ends it, and is told.
"""

import hashlib
import json
import random
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import deltastore
from bench.text import prose
from deltastore import NotFoundError, Retention, Store, apply_retention, compact, shrink
from deltastore.langgraph import DeltaSaver

KEEP_LAST = 30
RULES = Retention(keep_last=KEEP_LAST)
NATIVE, GRAPH = "native", "graph"
CONVERSATIONS = 3
"""How many a writer has under way."""
LONGEST = 150
"""Puts after which a conversation is ended, by deleting it."""
MESSAGES = 40
"""The most messages that a state holds; earlier ones are cut off, as agents trim their context."""
CACHE_BYTES = 1 << 19
"""The cache of the process that stays: so small that it is full within a minute, and growth after that is a leak."""
SAMPLE_EVERY = 25
"""Steps of the process that stays from one look at its memory to the next."""

State = dict[str, Any]
META: Any = {"source": "loop", "step": 1, "parents": {}}


def digest(state: State) -> str:
    rest = {key: value for key, value in state.items() if key != "check"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=12).hexdigest()


class WrongError(Exception):
    """Something was read that nobody put."""


def check_state(state: State, what: Any) -> State:
    if state.get("check") != digest(state):
        raise WrongError(f"{what}: the digest is {state.get('check')}, of the rest it is {digest(state)}")
    return state


@dataclass
class Step:
    """One put: after the latest checkpoint, or after an older one, which begins a branch."""

    state: State
    before: State
    latest: str | None
    at: str | None
    serial: int
    versions: dict[str, str]
    """Of the channels before; after a put by a saver, of those that it put."""


# --- the two fronts, alike --------------------------------------------------------------------


class Native:
    def __init__(self, store: Store) -> None:
        self.store = store

    def put(self, name: str, made: "Step") -> str:
        thread = self.store.thread(name)
        kept = made.before.get("messages", [])
        grown = made.state["messages"][: len(kept)] == kept and made.state["doc"] == made.before.get("doc")
        if made.at is None and grown:
            added = {"count": made.state["count"], "check": made.state["check"]}
            return thread.append(added | {"messages": made.state["messages"][len(kept) :]}).id
        return thread.put_state(made.state, at=made.at).id

    def put_writes(self, name: str, id_: str) -> None:
        self.store.thread(name).put_writes(id_, {"messages": [id_]}, task=f"task-{id_}")

    def read(self, name: str, id_: str | None) -> State | None:
        """Return a state, None where there is none; raise where it, or its writes, are wrong."""
        thread = self.store.thread(name)
        try:
            state = check_state(thread.state(at=id_), (name, id_))
            if id_ is not None:
                for write in thread.writes(id_):
                    if (write.task, write.value) != (f"task-{id_}", [id_]):
                        raise WrongError(f"{name}, {id_}: the write {write}")
        except NotFoundError:
            return None
        return state

    def ids(self, name: str, limit: int | None = None) -> list[str]:
        return [found.id for found in self.store.thread(name).history(limit=limit)]

    def delete(self, name: str, id_: str) -> None:
        self.store.thread(name).delete(id_)


class Graph:
    def __init__(self, saver: DeltaSaver) -> None:
        self.saver = saver
        self.store = saver.store

    def put(self, name: str, made: "Step") -> str:
        id_ = f"{made.serial:08}"
        versions = {
            key: made.versions[key] if key in made.versions and made.before[key] == value else id_
            for key, value in made.state.items()
        }
        checkpoint: Any = {
            "v": 4,
            "id": id_,
            "ts": "",
            "channel_values": made.state,
            "channel_versions": versions,
            "versions_seen": {"node": versions},
        }
        self.saver.put(config(name, made.at or made.latest), checkpoint, META, {})
        made.versions = versions
        return id_

    def put_writes(self, name: str, id_: str) -> None:
        self.saver.put_writes(config(name, id_), [("messages", [id_])], f"task-{id_}")

    def read(self, name: str, id_: str | None) -> State | None:
        found = self.saver.get_tuple(config(name, id_))
        return None if found is None else self.judged(name, found)

    @staticmethod
    def judged(name: str, found: Any) -> State:
        id_ = found.checkpoint["id"]
        for write in found.pending_writes:
            if write != (f"task-{id_}", "messages", [id_]):
                raise WrongError(f"{name}, {id_}: the write {write}")
        return check_state(found.checkpoint["channel_values"], (name, id_))

    def ids(self, name: str, limit: int | None = None) -> list[str]:
        found = list(self.saver.list(config(name), limit=limit))
        for one in found:
            self.judged(name, one)
        return [one.checkpoint["id"] for one in found]

    def delete(self, name: str, id_: str) -> None:
        self.store.thread(name).delete(id_)


def config(name: str, id_: str | None = None) -> Any:
    where = {"thread_id": name, "checkpoint_ns": ""}
    return {"configurable": where if id_ is None else where | {"checkpoint_id": id_}}


Front = Native | Graph


def front_of(name: str, store: Store) -> Front:
    return Native(store) if name.startswith(NATIVE) else Graph(DeltaSaver(store))


# --- a writer ---------------------------------------------------------------------------------


@dataclass
class Conversation:
    """One that this process writes, with all it knows of it."""

    name: str
    state: State = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    serial: int = 0

    @property
    def latest(self) -> str | None:
        return max(self.digests, default=None)


class Writer:
    """Does one thing after the other to its own conversations, and looks at everybody's."""

    def __init__(self, front: Front, part: "Part", pipe: Connection) -> None:
        self.front = front
        self.prefix = f"{part.kind}.{part.number}."
        self.chance = random.Random(part.seed)
        self.pipe = pipe
        self.begun = 0
        self.open: list[Conversation] = []

    def step(self) -> None:
        if len(self.open) < CONVERSATIONS:
            self.begun += 1
            self.open.append(Conversation(f"{self.prefix}{self.begun}"))
        one = self.chance.choice(self.open)
        roll = self.chance.random()
        if one.serial >= LONGEST:
            self.end(one)
        elif roll < 0.6 or not one.digests:
            self.put(one, None)
        elif roll < 0.68:
            self.put(one, self.chance.choice(sorted(one.digests)[-KEEP_LAST:]))
        elif roll < 0.76 and one.latest is not None:
            with suppress(NotFoundError):  # retention keeps the latest, but another branch may have it
                self.front.put_writes(one.name, one.latest)
            self.pipe.send(("did", "writes"))
        elif roll < 0.8:
            self.delete(one, self.chance.choice(sorted(one.digests)))
        elif roll < 0.82:
            self.copy(one)
        else:
            look(self.front.store, self.chance)
            self.look_at(one)
            self.pipe.send(("did", "reads"))

    def put(self, one: Conversation, at: str | None) -> None:
        before, versions = one.state, one.versions
        if at is not None:
            found = self.front.read(one.name, at)
            if found is None:
                return  # retention took it
            before, versions = found, {}
        state = self.next_state(before, at is not None)
        one.serial += 1
        made = Step(state, before, one.latest, at, one.serial, versions)
        try:
            id_ = self.front.put(one.name, made)
        except NotFoundError:
            if at is None:
                raise
            return
        one.state, one.versions = state, made.versions
        one.digests[id_] = state["check"]
        self.pipe.send(("put", one.name, id_, state["check"]))

    def next_state(self, before: State, forked: bool) -> State:
        chance = self.chance
        messages = list(before.get("messages", []))
        doc = before.get("doc", "")
        roll = chance.random()
        if len(messages) > MESSAGES:
            messages = messages[-MESSAGES // 2 :]
        elif roll < 0.1 and messages:
            messages[chance.randrange(len(messages))] = {"edited": prose(chance, 60)}
        elif roll < 0.2:
            lines = doc.splitlines() or [prose(chance, 60).replace("\n", " ") for _ in range(200)]
            lines[chance.randrange(len(lines))] = prose(chance, 60).replace("\n", " ")
            doc = "\n".join(lines)
        messages.append({"id": chance.randrange(10**9), "text": prose(chance, chance.choice([20, 200, 200, 1500]))})
        state = {"messages": messages, "doc": doc, "count": before.get("count", 0) + 1}
        return state | {"check": digest(state)}

    def delete(self, one: Conversation, id_: str) -> None:
        if id_ == one.latest:
            return  # what is put next would follow another one
        self.pipe.send(("deleting", one.name, id_))
        with suppress(NotFoundError):
            self.front.delete(one.name, id_)
        one.digests.pop(id_)
        self.pipe.send(("did", "deletions"))

    def copy(self, one: Conversation) -> None:
        target = f"{one.name}.copy"
        self.front.store.copy(one.name, target)
        state = self.front.read(target, one.latest)
        if state != one.state:
            raise WrongError(f"{target}: not as its original's latest checkpoint")
        self.front.store.delete(target)
        self.pipe.send(("did", "copies"))

    def end(self, one: Conversation) -> None:
        self.pipe.send(("deleting", one.name, None))
        self.front.store.delete(one.name)
        self.open.remove(one)
        self.pipe.send(("gone", one.name))

    def look_at(self, one: Conversation) -> None:
        """The latest is what was put last; an old one is as it was put, or gone."""
        if one.digests and self.front.read(one.name, None) != one.state:
            raise WrongError(f"{one.name}: the latest isn't what was put last")
        if one.digests:
            id_ = self.chance.choice(sorted(one.digests))
            state = self.front.read(one.name, id_)
            if state is not None and state["check"] != one.digests[id_]:
                raise WrongError(f"{one.name}, {id_}: another state than was put")


def look(store: Store, chance: random.Random) -> None:
    """Read of anybody's conversations the latest state, some old one and the list."""
    names = [found.name for found in store.threads(limit=30)]
    if not names:
        return
    name = chance.choice(names)
    front = front_of(name, store)
    front.read(name, None)
    ids = front.ids(name, limit=KEEP_LAST)
    if ids != sorted(ids, reverse=True):
        raise WrongError(f"{name}: listed as {ids}")
    if ids:
        front.read(name, chance.choice(ids))


# --- the processes ----------------------------------------------------------------------------


def told_to_end(pipe: Connection) -> bool:
    return pipe.poll() and pipe.recv() == "end"


@dataclass(frozen=True)
class Part:
    """What a process is given."""

    path: str
    sync: Any
    kind: str
    number: int
    seed: int

    def open(self, **options: Any) -> Store:
        return deltastore.open(self.path, sync=self.sync, **options)


def write(part: Part, pipe: Connection) -> None:
    with part.open(snapshot_frequency=7) as store:
        writer = Writer(front_of(part.kind, store), part, pipe)
        while not told_to_end(pipe):
            writer.step()


def read(part: Part, pipe: Connection) -> None:
    chance = random.Random(part.seed)
    with part.open() as store:
        while not told_to_end(pipe):
            look(store, chance)
            pipe.send(("did", "reads"))


def keep_small(part: Part, pipe: Connection) -> None:
    chance = random.Random(part.seed)
    with part.open() as store:
        while not told_to_end(pipe):
            match chance.choice(["retention", "retention", "retention", "compact", "shrink"]):
                case "retention":
                    report = apply_retention(store, RULES)
                    if report.damaged:
                        raise WrongError(f"damaged: {report.damaged}")
                case "compact":
                    compact(store, level=3)
                case "shrink":
                    shrink(store)
            pipe.send(("did", "sweeps"))


def stay(part: Part, pipe: Connection) -> None:
    """Write and read for the whole time, with retention in the background, and tell what memory that takes."""
    with part.open(cache_bytes=CACHE_BYTES) as store, DeltaSaver(store, retention=RULES) as saver:
        writer = Writer(Graph(saver), part, pipe)
        steps = 0
        while not told_to_end(pipe):
            writer.step()
            steps += 1
            if steps % SAMPLE_EVERY == 0:
                pipe.send(("memory", *memory()))


def memory() -> tuple[int, int]:
    """Return this process's own memory, and all that is resident, pages of the store's file too; in KB. Linux only."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]), int(lines["VmRSS"].split()[0])
