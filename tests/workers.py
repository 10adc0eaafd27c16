"""A process that puts and reads beside others, by either API, and says what was acknowledged.

Runs in processes that `tests.fleet` starts and kills. What a checkpoint must hold follows from its id alone, or from
its place in a chain, so every process can judge what any other one put. Nothing waits for a clock.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import deltastore
from deltastore import Store
from deltastore.langgraph import DeltaSaver
from deltastore.storage import environment
from deltastore.storage.lmdb import LmdbStorage

FRONTS = ("native", "saver", "async")
META: Any = {"source": "loop", "step": 1, "parents": {}}


@dataclass(frozen=True)
class Job:
    """What a process shall do."""

    path: str
    front: str
    process: int
    """No two processes have the same, one killed and the one in its place neither."""
    writers: int = 4
    puts: int | None = None
    """What each writer puts; None: until the process is killed or told to end."""
    shared: bool = False
    """Whether all write one conversation, or each writer one of its own."""
    readers: int = 0
    sync: Any = "full"
    map_bytes: int | None = None
    """First size and step of the map, to see it grow."""
    snapshot_frequency: int = 7


HEAVY = 1000
"""Processes with such a number and higher ones put messages of about 20 KB that don't compress."""


def message(process: int, number: int, nth: int) -> dict[str, Any]:
    size = (nth * 7919 + number * 31 + process) % 60
    text = "words and " * size if nth % 10 else f"{process}.{nth} " * 800
    if process >= HEAVY:
        text = random.Random(f"{process}.{number}.{nth}").randbytes(20_000).decode("latin-1")
    return {"by": [process, number, nth], "text": text}


def messages(process: int, number: int, count: int) -> list[dict[str, Any]]:
    return [message(process, number, nth) for nth in range(count)]


def name_of(job: Job, number: int) -> str:
    return "t" if job.shared else f"t{job.process}.{number}"


def task_of(process: int, number: int) -> str:
    return f"{process}-{number}"


class Front(Protocol):
    """One of the ways to a store. `put` returns the id; `look` reads a conversation and raises where it is wrong."""

    def put(self, name: str, process: int, number: int, nth: int) -> str: ...

    def look(self, name: str, chance: random.Random) -> None: ...


# --- the native API ---------------------------------------------------------------------------


class Native:
    def __init__(self, store: Store) -> None:
        self.store = store

    def put(self, name: str, process: int, number: int, nth: int) -> str:
        thread = self.store.thread(name)
        made = thread.append({"items": [message(process, number, nth)]})
        thread.put_writes(made, {"items": [nth]}, task=task_of(process, number))
        return made.id

    def look(self, name: str, chance: random.Random) -> None:
        thread = self.store.thread(name)
        newest = thread.latest()
        if newest is None:
            return
        listed = [newest, *thread.history(limit=4, before=newest)]
        assert [found.parent_id for found in listed[:-1]] == [found.id for found in listed[1:]]
        old = chance.choice([*thread.history(limit=1 + chance.randrange(200))])
        latest = thread.state()["items"]
        for found in (newest, old):
            items = thread.state(at=found)["items"]
            assert items == latest[: len(items)]
            check_items(items)


def check_items(items: list[dict[str, Any]]) -> None:
    """Every writer's messages are there from its first on, in order, each as it was put."""
    counts: dict[tuple[int, int], int] = {}
    for item in items:
        process, number, nth = item["by"]
        assert nth == counts.get((process, number), 0), (item["by"], counts)
        assert item == message(process, number, nth)
        counts[process, number] = nth + 1


# --- DeltaSaver -------------------------------------------------------------------------------


def config(name: str, id_: str | None = None) -> Any:
    where = {"thread_id": name, "checkpoint_ns": ""}
    return {"configurable": where if id_ is None else where | {"checkpoint_id": id_}}


def id_of(process: int, number: int, nth: int) -> str:
    return f"{nth:05}-{process}-{number}"


def checkpoint(process: int, number: int, nth: int) -> Any:
    id_ = id_of(process, number, nth)
    return {
        "v": 4,
        "id": id_,
        "ts": "",
        "channel_values": {"items": messages(process, number, nth + 1), "count": nth},
        "channel_versions": {"items": id_, "count": id_},
        "versions_seen": {"node": {"items": id_}},
    }


def check_tuple(found: Any, *, written: bool = False) -> None:
    """A checkpoint holds what its id says; its writes too, which may be missing where nobody acknowledged them."""
    nth, process, number = map(int, found.checkpoint["id"].split("-"))
    assert found.checkpoint == checkpoint(process, number, nth)
    assert found.metadata == META
    above = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    assert above == (id_of(process, number, nth - 1) if nth else None)
    expected = [(task_of(process, number), "items", [nth])]
    assert found.pending_writes in ([expected] if written else [expected, []]), found.pending_writes


def put_arguments(name: str, process: int, number: int, nth: int) -> tuple[Any, Any, Any, Any]:
    above = id_of(process, number, nth - 1) if nth else None
    made = checkpoint(process, number, nth)
    return config(name, above), made, META, made["channel_versions"]


class Saver:
    def __init__(self, saver: DeltaSaver) -> None:
        self.saver = saver

    def put(self, name: str, process: int, number: int, nth: int) -> str:
        made = self.saver.put(*put_arguments(name, process, number, nth))
        self.saver.put_writes(made, [("items", [nth])], task_of(process, number))
        return id_of(process, number, nth)

    def look(self, name: str, chance: random.Random) -> None:
        newest = self.saver.get_tuple(config(name))
        if newest is None:
            return
        check_tuple(newest)
        listed = list(self.saver.list(config(name), limit=1 + chance.randrange(8)))
        ids = [found.checkpoint["id"] for found in listed]
        assert ids == sorted(ids, reverse=True)
        assert ids[0] >= newest.checkpoint["id"]
        for found in listed:
            check_tuple(found)
        nth, process, number = map(int, chance.choice(ids).split("-"))
        old = self.saver.get_tuple(config(name, id_of(process, number, chance.randint(0, nth))))
        assert old is not None
        check_tuple(old)


async def aput(saver: DeltaSaver, name: str, process: int, number: int, nth: int) -> str:
    made = await saver.aput(*put_arguments(name, process, number, nth))
    await saver.aput_writes(made, [("items", [nth])], task_of(process, number))
    return id_of(process, number, nth)


async def alook(saver: DeltaSaver, name: str, chance: random.Random) -> None:
    newest = await saver.aget_tuple(config(name))
    if newest is None:
        return
    check_tuple(newest)
    async for found in saver.alist(config(name), limit=1 + chance.randrange(8)):
        check_tuple(found)
    nth, process, number = map(int, newest.checkpoint["id"].split("-"))
    old = await saver.aget_tuple(config(name, id_of(process, number, chance.randint(0, nth))))
    assert old is not None
    check_tuple(old)


# --- the process ------------------------------------------------------------------------------


def work(job: Job, pipe: Connection) -> None:
    """Open the store, wait for a word, put and read, and tell each acknowledgement and how all ended."""
    if job.map_bytes is not None:
        environment.RESERVED_MAP_BYTES = environment.STEP_BYTES = job.map_bytes
    Worker(job, pipe).run()


class Worker:
    def __init__(self, job: Job, pipe: Connection) -> None:
        self.job = job
        self.pipe = pipe
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.failed: list[str] = []
        self.reads = 0

    def run(self) -> None:
        with ExitStack() as stack:
            options: Any = {"sync": self.job.sync, "snapshot_frequency": self.job.snapshot_frequency}
            first: Any
            if self.job.front == "native":
                first = deltastore.open(self.job.path, **options)
            else:
                first = DeltaSaver.from_path(self.job.path, **options)
            stack.enter_context(first)
            self.tell("ready")
            self.pipe.recv()
            if self.job.puts is None:
                threading.Thread(target=self.listen, daemon=True).start()
            if self.job.front == "async":
                asyncio.run(self.run_tasks(first))
                return self.end()

            def front() -> Front:
                if self.job.front == "native":
                    return Native(first)
                # every OS thread with a saver of its own, as web workers have them
                return Saver(stack.enter_context(DeltaSaver.from_path(self.job.path, **options)))

            self.run_threads([front() for _ in range(self.job.writers + self.job.readers)])
        return self.end()

    def tell(self, *what: Any) -> None:
        with self.lock:
            self.pipe.send(what)

    def end(self) -> None:
        self.tell("end", self.failed, self.reads)

    def listen(self) -> None:
        with suppress(EOFError):  # whoever started it is gone
            self.pipe.recv()
        self.stop.set()

    def guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            self.failed.append(repr(error))
            self.stop.set()

    def places(self) -> Iterator[int]:
        nth = 0
        while not self.stop.is_set() and nth != self.job.puts:
            yield nth
            nth += 1

    def acknowledge(self, name: str, id_: str, number: int, nth: int) -> None:
        self.tell("put", name, id_, self.job.process, number, nth)

    def conversation(self, chance: random.Random) -> str:
        return name_of(self.job, chance.randrange(self.job.writers))

    def run_threads(self, fronts: list[Front]) -> None:
        def write(front: Front, number: int) -> None:
            name = name_of(self.job, number)
            for nth in self.places():
                self.acknowledge(name, front.put(name, self.job.process, number, nth), number, nth)

        def read(front: Front, number: int) -> None:
            chance = random.Random(f"{self.job.process}.{number}")
            while True:
                front.look(self.conversation(chance), chance)
                self.reads += 1
                if self.stop.is_set():
                    return

        threads = [
            threading.Thread(
                target=self.guarded, args=(write if number < self.job.writers else read, fronts[number], number)
            )
            for number in range(len(fronts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads[: self.job.writers]:
            thread.join()
        self.stop.set()
        for thread in threads:
            thread.join()

    async def run_tasks(self, saver: DeltaSaver) -> None:
        async def write(number: int) -> None:
            name = name_of(self.job, number)
            for nth in self.places():
                self.acknowledge(name, await aput(saver, name, self.job.process, number, nth), number, nth)

        async def read(number: int) -> None:
            chance = random.Random(f"{self.job.process}.{number}")
            while True:
                await alook(saver, self.conversation(chance), chance)
                self.reads += 1
                if self.stop.is_set():
                    return

        readers = [asyncio.ensure_future(read(number)) for number in range(self.job.readers)]
        try:
            await asyncio.gather(*map(write, range(self.job.writers)))
            self.stop.set()
            await asyncio.gather(*readers)
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            self.failed.append(repr(error))
            self.stop.set()


# --- processes with one thing to do, each with the pipe as last argument ----------------------


def hold_write(path: str, pipe: Connection) -> None:
    """Write a row, and stay inside the transaction."""
    storage = LmdbStorage(path)
    pipe.send("open")
    with storage.write() as transaction:
        transaction.put(b"half", bytes(100_000))
        pipe.send("inside")
        pipe.recv()
        transaction.delete(b"half")
    pipe.send("left")
    storage.close()


def hold_reads(path: str, count: int, pipe: Connection) -> None:
    """Stay inside this many read transactions, each of an OS thread of its own and half through a scan."""
    storage = LmdbStorage(path)
    inside, leave = threading.Barrier(count + 1), threading.Event()

    def read() -> None:
        with storage.read() as transaction:
            rows = transaction.scan(b"", b"\xff" * 8)
            next(rows)
            inside.wait()
            leave.wait()
            assert next(rows)

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    inside.wait()
    pipe.send("inside")
    pipe.recv()
    leave.set()
    for thread in threads:
        thread.join()
    storage.close()
    pipe.send("left")


def open_and_put(path: str, front: str, number: int, pipe: Connection) -> None:
    """Open a path when told to, with a frequency of its own, and put at once."""
    pipe.send("ready")
    pipe.recv()
    with deltastore.open(path, snapshot_frequency=number + 1) as store:
        chosen: Front = Native(store) if front == "native" else Saver(DeltaSaver(store))
        chosen.put("t", number, 0, 0)
        pipe.send("put")


def iterate(path: str, pipe: Connection) -> None:
    """Read everything over and over, as `last` says how much there is; tell how much it was in the end."""
    storage = LmdbStorage(path, sync="none")
    pipe.send("open")
    told = False
    while True:
        told = told or pipe.poll()
        with storage.read() as transaction:
            count = int.from_bytes(transaction.get(b"last") or b"", "big")
            assert sum(1 for _ in transaction.scan(b"row", b"rox")) == count
        if told:
            break
    storage.close()
    pipe.send(("saw", count))
