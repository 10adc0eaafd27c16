"""The phases of a comparison: what is done with one saver, each in a process that does nothing else.

A phase is given the open saver and the task, and returns what stands in the result. Imports of a saver are made before
anything is timed.
"""

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.digests import digest, fields_digest, hash_answers, state_values
from bench.disk import allocated_bytes
from bench.memory import peak_bytes, restart_peak
from bench.recording import PUT_OF_MESSAGES, Config, Record, load_record, replay
from bench.savers import PRODUCT, SAVERS, Opened
from bench.timing import POINTS, curve_ms, ms, spread_ms, summarise
from bench.workloads import WORKLOADS, Workload, delta_channels

READS = {"latest": 20, "historic": 40, "list of 10": 5}
"""How often each read is measured."""
METADATA_READS = 5
GRAPH_STATES = 12
"""States that the graph phase hashes, over all threads that it looks at."""


class Task(NamedTuple):
    """One saver, its place, and what it is driven with."""

    saver: str
    directory: Path
    address: str
    workload: str
    turns: int
    record: Path

    def open(self) -> contextlib.AbstractContextManager[Opened]:
        return SAVERS[self.saver].open(self.directory, self.address)


def run_phases(task: Task, phases: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield what each phase found, with one open saver."""
    SAVERS[task.saver].load()
    with task.open() as opened:
        for phase in phases:
            yield phase, PHASES[phase](task, opened)


def resume(task: Task, latest: Config) -> Iterator[tuple[str, float]]:
    """Yield the seconds that opening took, and those until the latest state of a thread was there as well."""
    SAVERS[task.saver].load()
    channels = delta_channels(WORKLOADS[task.workload])
    gc.collect()
    started = time.perf_counter()
    with task.open() as opened:
        yield "open", time.perf_counter() - started
        state_values(opened.saver, latest, channels)
        yield "open and read", time.perf_counter() - started


def write(task: Task, opened: Opened) -> dict[str, Any]:
    """Make all recorded calls, and look on from time to time at what is stored."""
    trace = _trace(task.record)
    every = max(1, trace.counts()["put"] // POINTS)
    growth: list[tuple[int, int]] = []
    puts: list[tuple[int, bool, float]] = []

    def stored() -> int:
        return opened.measure_bytes() if opened.measure_bytes else allocated_bytes(task.directory)

    def after_put(number: int, of_messages: bool, took: float) -> None:
        puts.append((number, of_messages, took))
        if number % every == 0:
            growth.append((number, stored()))

    before = restart_peak()
    durations = replay(trace, opened.saver, after_put)
    peak = peak_bytes() - before
    # workloads whose puts never change messages, if any, have the curve of all puts
    shown = [(number, took) for number, of_messages, took in puts if of_messages or PUT_OF_MESSAGES not in durations]
    return {
        "total_s": round(sum(sum(series) for name, series in durations.items() if name != PUT_OF_MESSAGES), 3),
        "calls": {method: summarise(series) for method, series in durations.items()},
        "peak_bytes": peak,
        "growth_bytes": growth,
        "put_curve_ms": curve_ms(shown),
        **({"stored_bytes": opened.measure_bytes()} if opened.measure_bytes else {}),
    }


def read(task: Task, opened: Opened) -> dict[str, Any]:
    """Read the last thread's latest checkpoint, random ones of all threads, and the latest ten."""
    saver, checkpoints = opened.saver, _trace(task.record).checkpoints()
    chance, thread = random.Random("reads"), latest_of(_trace(task.record))
    calls: dict[str, Callable[[], Any]] = {
        "latest": lambda: saver.get_tuple(thread),
        "historic": lambda: saver.get_tuple(chance.choice(checkpoints)),
        "list of 10": lambda: list(saver.list(thread, limit=10)),
    }
    saver.get_tuple(thread)  # the latest is measured warm
    return {what: summarise([_timed(call) for _ in range(READS[what])]) for what, call in calls.items()}


def history(task: Task, opened: Opened) -> dict[str, Any]:
    """Go through the last thread without a look at values; where there is a way to leave them out, so as well."""
    thread = latest_of(_trace(task.record))
    listed: list[str] = []
    took = _timed(lambda: listed.extend(found.checkpoint["id"] for found in opened.saver.list(thread)))
    result = {"n": len(listed), "list_ms": ms(took), "listed": digest(listed)}
    if task.saver == PRODUCT:
        saver: Any = opened.saver
        result["metadata"] = spread_ms([_timed(lambda: list(saver.history(thread))) for _ in range(METADATA_READS)])
    return result


def verify(task: Task, opened: Opened) -> dict[str, dict[str, str]]:
    """Hash every checkpoint."""
    return hash_answers(_trace(task.record), opened.saver, task.workload)


def run_graph(task: Task, opened: Opened) -> dict[str, Any]:
    """Invoke the compiled graph with the saver, with LangGraph's default durability, and hash states of it."""
    workload = WORKLOADS[task.workload]
    puts: list[float] = []
    saver: Any = opened.saver
    put = saver.put

    def timed_put(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        stored = put(*arguments, **options)
        puts.append(time.perf_counter() - started)
        return stored

    saver.put = timed_put
    graph = workload.build().compile(checkpointer=saver)
    invocations = list(workload.invocations(task.turns))
    gc.collect()
    durations = [_timed(partial(graph.invoke, values, config)) for config, values in invocations]
    return {
        "total_s": round(sum(durations), 3),
        "calls": {"invoke": summarise(durations), "put": summarise(puts)},
        "states": list(_states(graph, workload, task.turns)),
    }


def _states(graph: Any, workload: Workload, turns: int) -> Iterator[str]:
    """Hash the newest states of some threads."""
    threads = list(dict.fromkeys(config["configurable"]["thread_id"] for config, _ in workload.invocations(turns)))
    looked_at = threads[:: -(-len(threads) // GRAPH_STATES)]
    for thread in looked_at:
        limit = max(1, GRAPH_STATES // len(looked_at))
        for state in graph.get_state_history({"configurable": {"thread_id": thread}}, limit=limit):
            yield digest([fields_digest(state.values), list(state.next)])


PHASES: dict[str, Callable[[Task, Opened], Any]] = {
    "write": write,
    "read": read,
    "history": history,
    "verify": verify,
    "graph": run_graph,
}
STORED = ("read", "history", "verify")
"""Phases of a store that is written, and not changed by them."""


def latest_of(trace: Record) -> Config:
    """Return a config for the latest checkpoint of the thread that was put to last."""
    last = trace.checkpoints()[-1]["configurable"]
    return {"configurable": {key: last[key] for key in ("thread_id", "checkpoint_ns")}}


@cache
def _trace(path: Path) -> Record:
    trace = load_record(path)
    gc.collect()
    gc.freeze()  # or every collection during a call goes through the whole record, which no user has in memory
    return trace


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
