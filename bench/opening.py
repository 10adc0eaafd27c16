"""Measure how long opening a store takes by how many checkpoints it holds.

    python -m bench.opening                       1,000, 10,000, 100,000 and 1,000,000 checkpoints
    python -m bench.opening --largest 10000       no more than that
    python -m bench.opening --json opening        writes bench/results/opening.json

One store grows without flushes: a thread of 1,000 checkpoints through the native API, and copies of it. It is opened by
fresh processes, whose imports aren't counted, and each then reads the state of the thread that was made last.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltastore
from bench.apart import ERROR, Limits, call_apart, preload
from bench.disk import allocated_bytes
from bench.machine import write_result
from bench.savers import PRODUCT, SAVERS
from bench.text import prose
from bench.timing import spread_ms

SIZES = (1_000, 10_000, 100_000, 1_000_000)
A_THREAD = 1_000
"""Checkpoints of each thread."""
TEXT_BYTES = 60
PROCESSES = 9
"""Which open the store of each size."""
LIMITS = Limits(seconds=600, rss_gib=4)


def grow(path: Path, threads: int) -> None:
    """Let a store have so many threads."""
    with deltastore.open(path, sync="none") as store:
        chance, first = random.Random("opening"), store.thread(name_of(0))
        there = sum(1 for _ in store.threads())
        if not there:
            for number in range(A_THREAD):
                first.append({"notes": [prose(chance, TEXT_BYTES)], "count": number})
        for number in range(max(there, 1), threads):
            store.copy(first.name, name_of(number))


def name_of(thread: int) -> str:
    return f"thread {thread}"


def open_once(path: Path, thread: str) -> Iterator[tuple[str, float]]:
    """Yield the seconds that opening took, and those until the thread's state was there as well."""
    SAVERS[PRODUCT].load()
    started = time.perf_counter()
    with deltastore.open(path, create=False) as store:
        yield "open", time.perf_counter() - started
        store.thread(thread).state()
        yield "open and read", time.perf_counter() - started


def measure(path: Path, checkpoints: int) -> dict[str, Any]:
    runs = [call_apart(open_once, path, name_of(checkpoints // A_THREAD - 1), limits=LIMITS) for _ in range(PROCESSES)]
    if failed := next((run[ERROR] for run in runs if ERROR in run), None):
        raise SystemExit(f"opening {checkpoints:,} checkpoints failed: {failed}")
    times = {what: spread_ms([run[what] for run in runs]) for what in runs[0]}
    return {"checkpoints": checkpoints, "stored_bytes": allocated_bytes(path), **times}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="checkpoints; larger sizes are left out")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    preload()
    found = []
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as folder:
        path = Path(folder, "store.ds")
        for checkpoints in (size for size in SIZES if size <= options.largest):
            started = time.perf_counter()
            grow(path, checkpoints // A_THREAD)
            took = time.perf_counter() - started
            each = measure(path, checkpoints)
            found.append(each)
            print(
                f"{checkpoints:9,} checkpoints, {each['stored_bytes'] / 1e6:8.2f} MB (grown in {took:.0f} s): "
                f"open {each['open']['p50_ms']:.2f} ms, and read {each['open and read']['p50_ms']:.2f} ms",
                flush=True,
            )
    if options.json:
        write_result(options.json, "bench.opening", {"checkpoints_a_thread": A_THREAD, "sizes": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
