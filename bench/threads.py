"""Measure how long it takes to list one user's threads among many others'.

    python -m bench.threads                       u1 and u2 with two threads each, among 10,000 of others
    python -m bench.threads --json threads        writes bench/results/threads.json

Each thread has three checkpoints with messages. Times are the best of five, in this process, on a warm file.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

import deltastore
from bench.machine import write_result
from deltastore.langgraph import DeltaSaver

RESULTS = Path(__file__).with_name("results")
CHECKPOINTS = 3
REPEATS = 5
TEXT = "word " * 40


def fill(saver: DeltaSaver, thread: str, user: str) -> None:
    """Put a thread whose runs were given a user."""
    parent: dict[str, Any] = {}
    for number in range(CHECKPOINTS):
        id_ = f"{number:04}"
        made: Any = {
            "v": 4,
            "id": id_,
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"messages": [HumanMessage(TEXT, id=str(place)) for place in range(number + 1)]},
            "channel_versions": {"messages": id_},
            "versions_seen": {"model": {"messages": id_}},
        }
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "user_id": user, **parent}}
        saver.put(config, made, {"source": "loop", "step": number, "parents": {}}, {"messages": id_})
        parent = {"checkpoint_id": id_}


def best_ms(call: Callable[[], Iterator[Any]], expected: int) -> float:
    """Return the shortest time that a listing took, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = sum(1 for _ in call())
        times.append(time.perf_counter() - started)
        assert found == expected
    return round(min(times) * 1000, 1)


def run(others: int, path: Path) -> dict[str, float]:
    """Fill a store and time listings of it."""
    with deltastore.open(path, sync="none") as store:
        saver = DeltaSaver(store)
        for name in ("u1-a", "u2-a", "u1-b", "u2-b"):
            fill(saver, name, name[:2])
        for number in range(others):
            fill(saver, f"t{number}", f"other-{number}")
        every = others + 4
        return {
            "u1's threads": best_ms(lambda: saver.threads(filter={"user_id": "u1"}), 2),
            "all threads": best_ms(saver.threads, every),
            "the newest 20": best_ms(lambda: saver.threads(limit=20), min(20, every)),
            "all threads, Store.threads": best_ms(store.threads, every),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", type=int, default=10_000, help="threads of other users")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        times = run(options.others, Path(directory) / "store.ds")
    result = {"threads": options.others + 4, "checkpoints_each": CHECKPOINTS, "ms": times}
    for what, took in times.items():
        print(f"{what:28} {took:8.1f} ms")
    if options.json:
        write_result(options.json, "bench.threads", result)


if __name__ == "__main__":
    main()
