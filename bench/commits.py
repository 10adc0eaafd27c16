"""Measure puts per second by how many threads put at the same time, each to a conversation of its own.

    python -m bench.commits                     1 and 64 threads, deltastore and SqliteSaver, durable on return
    python -m bench.commits --slow-ms 5         each commit of deltastore takes 5 ms longer, as on a slow disk
    python -m bench.commits --json commits      writes bench/results/commits.json, both ways

Rounds alternate between savers and numbers of threads, so that what else the machine does falls on all alike; each
round begins with a new store. Only figures of one run are comparable.
"""

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bench.machine import write_result
from bench.savers import SAVERS
from bench.text import prose

THREADS = (1, 64)
PUTS = 1_280
"""In a round, over all threads."""
STEPS = 10
"""Puts of a conversation, made by one thread, one after the other; the one that begins it isn't measured."""
LOADS = {"short": 0, "typical": 40}
"""Messages of 500 characters that a conversation has before."""
SEED = 1


@cache
def message(number: int) -> Any:
    return {"role": "user" if number % 2 else "assistant", "content": prose(random.Random(f"commits {number}"), 500)}


def one_put(
    put: Callable[..., Any], config: dict[str, Any], step: int, earlier: int = 0, say: Callable[[int], Any] = message
) -> Any:
    """Put a checkpoint as a chat makes them, and return what the saver's `put` or `aput` gives: where the next goes.

    `say` gives the messages of a conversation by their numbers, each time the same.
    """
    version = f"{step + 1:032}.0.5"
    checkpoint = {
        "v": 4,
        "id": f"1f0{step:05x}-0000-6000-8000-{step:012x}",
        "ts": "2026-11-29T00:00:00+00:00",
        "channel_values": {"messages": [say(number) for number in range(earlier + step + 1)], "n": step},
        "channel_versions": {"messages": version, "n": version},
        "versions_seen": {"agent": {"messages": version}},
        "updated_channels": ["messages", "n"],
    }
    metadata = {"source": "loop", "step": step, "parents": {}}
    return put(config, checkpoint, metadata, {"messages": version, "n": version})


@contextmanager
def slow_commits(seconds: float) -> Iterator[None]:
    """Let every commit of deltastore take so much longer, through the storage's port."""
    from deltastore.storage.writing import LmdbWriteTransaction

    leave = LmdbWriteTransaction.__exit__

    def slow(self: Any, *failure: Any) -> Any:
        if seconds:
            time.sleep(seconds)
        return leave(self, *failure)

    LmdbWriteTransaction.__exit__ = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        LmdbWriteTransaction.__exit__ = leave  # type: ignore[method-assign]


def per_second(saver: Any, threads: int, puts: int, earlier: int = 0, say: Callable[[int], Any] = message) -> float:
    """Return the puts per second of so many threads on a new store, in conversations that have `earlier` messages."""
    starts = []
    for number in range(puts // STEPS):
        config: dict[str, Any] = {"configurable": {"thread_id": f"thread {number}", "checkpoint_ns": ""}}
        starts.append(one_put(saver.put, config, 0, earlier, say))
    waiting = iter(starts)
    ready, lock = threading.Barrier(threads + 1), threading.Lock()

    def work() -> None:
        ready.wait()
        while True:
            with lock:
                config = next(waiting, None)
            if config is None:
                return
            for step in range(1, 1 + STEPS):
                config = one_put(saver.put, config, step, earlier, say)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    return len(starts) * STEPS / (time.perf_counter() - started)


def on_a_new_store(name: str, threads: int, puts: int, earlier: int) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="deltastore-bench-") as folder,
        SAVERS[name].open(Path(folder)) as (saver, _),
    ):
        return per_second(saver, threads, puts, earlier)


def measure(rounds: int, puts: int, slow_s: float, earlier: int) -> dict[str, Any]:
    """Return medians and spreads of puts per second, by saver and threads, and their ratios."""
    found: dict[str, dict[int, list[float]]] = {
        name: {count: [] for count in THREADS} for name in ("deltastore", "sqlite")
    }
    with slow_commits(slow_s):
        for _ in range(rounds):
            for name, by_threads in found.items():
                if slow_s and name != "deltastore":
                    continue
                for threads, rates in by_threads.items():
                    rates.append(on_a_new_store(name, threads, puts // 8 if slow_s and threads == 1 else puts, earlier))
    result: dict[str, Any] = {
        name: {
            str(threads): {
                "median": round(statistics.median(rates), 1),
                "least": round(min(rates), 1),
                "most": round(max(rates), 1),
            }
            for threads, rates in by_threads.items()
            if rates
        }
        for name, by_threads in found.items()
    }
    ours, theirs = result["deltastore"], result["sqlite"]
    most = str(THREADS[-1])
    result["ratio_to_one_thread"] = round(ours[most]["median"] / ours["1"]["median"], 2)
    if theirs:
        result["ratio_to_sqlite"] = round(ours[most]["median"] / theirs[most]["median"], 2)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--puts", type=int, default=PUTS, help="in a round, over all threads")
    parser.add_argument("--slow-ms", type=float, default=0.0, help="how much longer each commit takes")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json: as it is, and with 5 ms more")
    options = parser.parse_args()
    slow = [0.0, 5.0] if options.json else [options.slow_ms]
    found = {
        f"{load} chats, {ms:g} ms more a commit" if ms else f"{load} chats": measure(
            options.rounds, options.puts, ms / 1000, earlier
        )
        for load, earlier in LOADS.items()
        for ms in slow
    }
    for label, result in found.items():
        print(label)
        for name in ("deltastore", "sqlite"):
            for threads, rates in result[name].items():
                spread = f"({rates['least']:,.0f} to {rates['most']:,.0f})"
                print(f"  {name:<11}{threads:>3} threads {rates['median']:>8,.0f} puts/s {spread}")
        print(f"  64 threads to one: {result['ratio_to_one_thread']}, to SqliteSaver: {result.get('ratio_to_sqlite')}")
    if options.json:
        write_result(options.json, "bench.commits", {"commits": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
