"""Measure what `snapshot_frequency` costs: bytes, puts, and reads of any checkpoint.

    python -m bench.frequency                          chat500 at 125 turns and agent50 at 25
    python -m bench.frequency --json frequency         writes bench/results/frequency.json

A workload's calls are recorded once and replayed on a new store for each frequency, all in this process. Random
checkpoints are read after reopening, so that none is in memory.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.disk import allocated_bytes
from bench.machine import write_result
from bench.recording import SEED, Record, record, replay
from bench.timing import summarise
from bench.workloads import WORKLOADS
from deltastore.langgraph import DeltaSaver

FREQUENCIES = (1, 5, 10, 25, 50, 100, 500)
TURNS = {"chat500": 125, "agent50": 25}
READS = 60


def measure(trace: Record, frequency: int) -> dict[str, Any]:
    """Return the bytes of a store with this frequency, and the times of its puts and reads."""
    chance, checkpoints = random.Random("frequency"), trace.checkpoints()
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as folder:
        path = Path(folder, "store.ds")
        with DeltaSaver.from_path(path, snapshot_frequency=frequency) as saver:
            puts = replay(trace, saver)["put"]
        reads = []
        with DeltaSaver.from_path(path, cache_bytes=0) as saver:
            for config in chance.choices(checkpoints, k=READS):
                started = time.perf_counter()
                saver.get_tuple(config)
                reads.append(time.perf_counter() - started)
        return {"stored_bytes": allocated_bytes(path), "put": summarise(puts), "historic": summarise(reads)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, help="of each workload")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name, turns in TURNS.items():
        trace = record(WORKLOADS[name], options.turns or turns)
        by_frequency: dict[str, Any] = {}
        found[name] = {"turns": options.turns or turns, "frequencies": by_frequency}
        for frequency in FREQUENCIES:
            each = by_frequency[str(frequency)] = measure(trace, frequency)
            put, read = each["put"]["p50_ms"], each["historic"]["p50_ms"]
            print(
                f"{name}, every {frequency:3}: {each['stored_bytes'] / 1e6:7.3f} MB, put {put:6.2f} ms, "
                f"any checkpoint {read:7.2f} ms",
                flush=True,
            )
    if options.json:
        write_result(options.json, "bench.frequency", {"seed": SEED, "workloads": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
