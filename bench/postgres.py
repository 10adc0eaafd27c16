"""Compare deltastore on PostgreSQL with LangGraph's PostgresSaver and AsyncPostgresSaver, on servers as installed.

    python -m bench.postgres                    all parts, below
    python -m bench.postgres --json postgres    writes bench/results/postgres.json

1. Puts per second of one thread, and of 64 at the same time with a conversation each: as threads with the synchronous
savers, as tasks with the asynchronous ones; as threads whose conversations have 40 messages of 500 characters before;
and as threads in conversations like chat500's, after 100 turns of it. LangGraph's have a pool of 16 connections; ours
has its default.
2. What a put takes of client and server, where 64 threads put: processor time, log, tables.
3. A server whose answers come 1 ms later: single puts, and reads of the latest checkpoint of a conversation of 400
messages, by the handle that put it and by a new one.

Sizes and recorded calls: `python -m bench.compare chat500 --saver deltastore_postgres --saver postgres`.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from bench.apart import preload
from bench.commits import LOADS, STEPS, one_put, per_second
from bench.far import HOST, far_away
from bench.machine import distribution_versions, write_result
from bench.savers import ON_POSTGRES
from bench.services import serving
from bench.timing import spread_ms
from bench.workloads import AI_SIZE, HUMAN_SIZE, ai_message, human_message
from deltastore.langgraph import DeltaSaver

PEER = "postgres"
POOL = 16
CONNECTING: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""What LangGraph asks of connections that it is given."""
COUNTS = (1, 64)
PUTS = 1_280
"""In a round, over all threads or tasks."""
CHAT_TURNS = 100
CHAT_PUTS = 640
"""The same of puts in conversations like chat500's, each of which has 200 messages then, 1.6 MB."""
LATER_S = 0.001
LONG = 400
"""Messages of the conversation that is put to and read from afar."""
CALLS = 20


@contextmanager
def ours(address: str) -> Iterator[DeltaSaver]:
    with DeltaSaver.from_url(address) as saver:
        yield saver


@contextmanager
def theirs(address: str) -> Iterator[PostgresSaver]:
    with ConnectionPool(address, min_size=1, max_size=POOL, kwargs=CONNECTING) as pool:
        saver = PostgresSaver(pool)  # type: ignore[arg-type]
        saver.setup()
        yield saver


@asynccontextmanager
async def ours_async(address: str) -> AsyncIterator[DeltaSaver]:
    async with DeltaSaver.from_url(address) as saver:
        yield saver


@asynccontextmanager
async def theirs_async(address: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncConnectionPool(address, min_size=1, max_size=POOL, kwargs=CONNECTING) as pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        yield saver


SYNC: dict[str, Callable[[str], AbstractContextManager[Any]]] = {ON_POSTGRES: ours, PEER: theirs}
ASYNC: dict[str, Callable[[str], Any]] = {ON_POSTGRES: ours_async, PEER: theirs_async}


class Databases:
    """Databases of one server, a new one for each use, so that nobody finds what others left."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._made = 0

    def new(self, port: int | None = None) -> str:
        """Make a database, and return its address, perhaps by another port."""
        self._made += 1
        name = f"made_{self._made}"
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        parts = urlsplit(self._address)
        return parts._replace(path=f"/{name}", netloc=f"{parts.username}@{HOST}:{port or parts.port}").geturl()


# --- many at the same time --------------------------------------------------------------------


@cache
def chat_message(number: int) -> Any:
    """Return a message of chat500: a user's or an answer."""
    turn, answers = divmod(number, 2)
    return ai_message(f"chat {turn}", AI_SIZE) if answers else human_message(f"chat {turn}", HUMAN_SIZE)


async def per_second_async(saver: Any, tasks: int, puts: int) -> float:
    """Return the puts per second of so many tasks, each with a conversation at a time."""
    starts = []
    for number in range(puts // STEPS):
        config = {"configurable": {"thread_id": f"thread {number}", "checkpoint_ns": ""}}
        starts.append(await one_put(saver.aput, config, 0))
    waiting = iter(starts)

    async def work() -> None:
        for config in waiting:
            for step in range(1, 1 + STEPS):
                config = await one_put(saver.aput, config, step)  # noqa: PLW2901 - where the next one goes

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return len(starts) * STEPS / (time.perf_counter() - started)


def together(databases: Databases, rounds: int, puts: int) -> dict[str, Any]:
    """Return puts per second, by way, saver and number: median, least and most of the rounds, which alternate."""

    async def of_tasks(name: str, count: int) -> float:
        async with ASYNC[name](databases.new()) as saver:
            return await per_second_async(saver, count, puts)

    def of_threads(name: str, count: int, earlier: int = 0) -> float:
        with SYNC[name](databases.new()) as saver:
            return per_second(saver, count, puts, earlier)

    def of_chats(name: str, count: int) -> float:
        with SYNC[name](databases.new()) as saver:
            return per_second(saver, count, puts * CHAT_PUTS // PUTS, 2 * CHAT_TURNS, chat_message)

    ways: dict[str, Callable[[str, int], float]] = {
        "threads": of_threads,
        "tasks": lambda name, count: asyncio.run(of_tasks(name, count)),
        "threads, longer": lambda name, count: of_threads(name, count, LOADS["typical"]),
        "threads, chat500": of_chats,
    }
    rates: dict[str, dict[str, dict[int, list[float]]]] = {
        way: {name: {count: [] for count in COUNTS} for name in SYNC} for way in ways
    }
    for _ in range(rounds):
        for way, by_saver in rates.items():
            for name, by_count in by_saver.items():
                for count, found in by_count.items():
                    found.append(ways[way](name, count))
    return {
        way: {name: {str(count): spread(found) for count, found in by_count.items()} for name, by_count in each.items()}
        for way, each in rates.items()
    }


def spread(rates: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(rates), 1),
        "least": round(min(rates), 1),
        "most": round(max(rates), 1),
    }


# --- what a put takes -------------------------------------------------------------------------


def taken(databases: Databases, puts: int) -> dict[str, dict[str, float]]:
    """Return what a put takes, by saver: milliseconds of the processor, and bytes."""
    found: dict[str, dict[str, float]] = {}
    for name, opening in SYNC.items():
        address = databases.new()
        with opening(address) as saver, psycopg.connect(address, autocommit=True) as looking:
            per_second(saver, COUNTS[-1], STEPS)  # connections are there, and the first pages
            before, ours_s = look(looking), time.process_time()
            per_second(Renamed(saver), COUNTS[-1], puts)
            ours_s, after = time.process_time() - ours_s, look(looking)
        made = puts // STEPS * (1 + STEPS)
        each = {what: (after[what] - before[what]) / made for what in after}
        found[name] = {
            "client_ms": round(ours_s / made * 1e3, 3),
            "server_ms": round(each["busy_s"] * 1e3, 3),
            "log_bytes": round(each["log_bytes"]),
            "table_bytes": round(each["table_bytes"]),
        }
    return found


class Renamed:
    """A saver to whose thread ids something is added, so that they are new ones."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def put(self, config: dict[str, Any], *arguments: Any) -> Any:
        names = config["configurable"]
        thread = names["thread_id"].removesuffix(" again") + " again"
        return self._saver.put({"configurable": names | {"thread_id": thread}}, *arguments)


def look(connection: "psycopg.Connection[Any]") -> dict[str, float]:
    """Return how much the server has done by now: seconds that its processes were busy, bytes of log and tables."""
    row = connection.execute(
        "SELECT pg_backend_pid(), pg_current_wal_lsn() - '0/0'::pg_lsn, coalesce(sum(pg_total_relation_size(oid)), 0)"
        " FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text IN ('public', 'deltastore')"
    ).fetchone()
    assert row is not None
    postmaster = parent_of(row[0])
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    ticks = sum(busy_ticks(pid) for pid in pids if parent_of(pid) == postmaster)
    return {"busy_s": ticks / os.sysconf("SC_CLK_TCK"), "log_bytes": float(row[1]), "table_bytes": float(row[2])}


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def busy_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12])


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name; of one that ended meanwhile, zeros."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ["0"] * 20


# --- far away ---------------------------------------------------------------------------------


def from_afar(databases: Databases, port: int) -> dict[str, Any]:
    """Return how long single calls take, by delay and saver, in milliseconds."""
    found: dict[str, Any] = {}
    for later_s in (0.0, LATER_S):
        with far_away(port, later_s) as through:
            found[f"{later_s * 1e3:g} ms"] = {
                name: {what: spread_ms(took) for what, took in calls(opening, databases.new(through)).items()}
                for name, opening in SYNC.items()
            }
    return found


def calls(opening: Callable[[str], AbstractContextManager[Any]], address: str) -> dict[str, list[float]]:
    """Return the seconds of puts and reads."""
    thread: dict[str, Any] = {"configurable": {"thread_id": "far", "checkpoint_ns": ""}}
    puts, reads, first = [], [], []
    with opening(address) as saver:
        config = one_put(saver.put, thread, 0, LONG)
        for step in range(1, 1 + CALLS):
            started = time.perf_counter()
            config = one_put(saver.put, config, step, LONG)
            puts.append(time.perf_counter() - started)
        for _ in range(CALLS):
            started = time.perf_counter()
            saver.get_tuple(thread)
            reads.append(time.perf_counter() - started)
    for _ in range(CALLS):
        with opening(address) as saver:
            saver.get_tuple({"configurable": {"thread_id": "none", "checkpoint_ns": ""}})  # it is connected then
            started = time.perf_counter()
            saver.get_tuple(thread)
            first.append(time.perf_counter() - started)
    return {"put": puts, "latest": reads, "latest, new handle": first}


# --- all parts --------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of puts at the same time")
    parser.add_argument("--puts", type=int, default=PUTS, help="in a round")
    parser.add_argument("--directory", type=Path, help="where the servers keep their data; open to all as root")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    return parser.parse_args()


def show(found: dict[str, Any]) -> None:
    for way, by_saver in found["together"].items():
        for name, by_count in by_saver.items():
            for count, rate in by_count.items():
                between = f"({rate['least']:,.0f} to {rate['most']:,.0f})"
                print(f"{count:>3} {way:<16}{name:<20}{rate['median']:>8,.0f} puts/s {between}")
    for name, each in found["taken"].items():
        print(f"a put of {name} takes " + ", ".join(f"{what} {figure:,}" for what, figure in each.items()))
    for later, by_saver in found["afar"].items():
        for name, by_call in by_saver.items():
            figures = ", ".join(f"{what} {each['p50_ms']:.2f} ms" for what, each in by_call.items())
            print(f"answers {later} later, {name}: {figures}", flush=True)


def main() -> int:
    options = parse_arguments()
    preload("bench.far")
    with serving("postgres", options.directory) as address:
        databases = Databases(address)
        found: dict[str, Any] = {
            "together": together(databases, options.rounds, options.puts),
            "taken": taken(databases, options.puts),
            "afar": from_afar(databases, urlsplit(address).port or 0),
        }
    show(found)
    if options.json:
        peers = ("langgraph-checkpoint-postgres", "psycopg")
        write_result(options.json, "bench.postgres", {"versions": distribution_versions(peers), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
