"""Measure what savers store, and how long calls take, when a workload's recorded calls are replayed on them.

    python -m bench.size                                        chat500 on deltastore: 1,500 checkpoints
    python -m bench.size --turns 50 --peer sqlite --verify      shorter, beside another saver, all answers compared
    python -m bench.size --workload edit200 --json edit200      writes bench/results/edit200.json

Each saver runs in a process of its own, one after the other. Only figures of one run are comparable.
"""

import argparse
import json
import multiprocessing
import random
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.digests import differing_parts, fields_digest, state_values, tuple_digests, tuple_key
from bench.machine import RESULTS, describe_machine, distribution_versions
from bench.recording import SEED, Record, load_record, record
from bench.savers import REFERENCE, SAVERS, allocated_bytes
from bench.workloads import WORKLOADS, delta_channels

PRODUCT = "deltastore"
PERCENTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
WINDOW = 0.1
"""The share of a series that counts as its start, and as its end."""
READS = {"latest": 20, "historic": 40, "list of 10": 5}
"""How often each read is measured, on the store as it is in the end."""
PUT_OF_MESSAGES = "put of messages"
"""Those puts that change the conversation, told apart: others cost less."""
REBUILT_STATES = 60
"""States with delta channels rebuilt that --verify compares: a rebuild may read the whole thread."""


# --- one saver, in its own process --------------------------------------------


def measure(name: str, workload: str, record_path: Path, directory: Path, verify: bool) -> dict[str, Any]:
    """Replay the recorded calls on a new store; with `verify`, then hash every checkpoint, after reopening."""
    trace = load_record(record_path)
    contender = SAVERS[name]
    started = time.perf_counter()
    with contender.open(directory) as (saver, measure_bytes):
        durations = replay(trace, saver)
        wall_s = time.perf_counter() - started
        stored = measure_bytes() if measure_bytes else None
        digests = hash_answers(trace, saver, workload) if verify and not contender.persistent else None
        reads = read(trace, saver)
    result = {
        "wall_s": round(wall_s, 3),
        "stored_bytes": allocated_bytes(directory) if stored is None else stored,
        "calls": {method: summarise(series) for method, series in durations.items()},
        "reads": {what: summarise(series) for what, series in reads.items()},
    }
    if verify and contender.persistent:
        with contender.open(directory) as (saver, _):
            digests = hash_answers(trace, saver, workload)
    return result | ({"digests": digests} if verify else {})


def replay(trace: Record, saver: Any) -> dict[str, list[float]]:
    """Make every call of a record, and return the seconds that each took, by method."""
    durations: dict[str, list[float]] = {}
    for method, arguments in trace.calls:
        function = getattr(saver, method)
        start = time.perf_counter()
        if method == "get_delta_channel_history":
            function(config=arguments[0], channels=arguments[1])
        else:
            function(*arguments)
        took = time.perf_counter() - start
        durations.setdefault(method, []).append(took)
        if method == "put" and "messages" in arguments[3]:
            durations.setdefault(PUT_OF_MESSAGES, []).append(took)
    return durations


def read(trace: Record, saver: Any) -> dict[str, list[float]]:
    """Read the last thread's latest checkpoint, random ones of all threads, and lists; return the seconds of each."""
    checkpoints = trace.checkpoints()
    chance = random.Random("reads")
    thread = {"configurable": {key: checkpoints[-1]["configurable"][key] for key in ("thread_id", "checkpoint_ns")}}
    reads = {
        "latest": lambda: saver.get_tuple(thread),
        "historic": lambda: saver.get_tuple(chance.choice(checkpoints)),
        "list of 10": lambda: list(saver.list(thread, limit=10)),
    }
    found: dict[str, list[float]] = {}
    for what, call in reads.items():
        for _ in range(READS[what]):
            start = time.perf_counter()
            call()
            found.setdefault(what, []).append(time.perf_counter() - start)
    return found


def hash_answers(trace: Record, saver: Any, workload: str) -> dict[str, dict[str, str]]:
    """Hash the tuple of every checkpoint of a record; where there are delta channels, rebuild some states too."""
    checkpoints = trace.checkpoints()
    found = {tuple_key(config): tuple_digests(saver.get_tuple(config)) for config in checkpoints}
    if channels := delta_channels(WORKLOADS[workload]):
        for config in random.Random("states").sample(checkpoints, min(REBUILT_STATES, len(checkpoints))):
            found[tuple_key(config)]["rebuilt state"] = fields_digest(state_values(saver, config, channels))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[round(share * (len(ranked) - 1))]


def summarise(durations: Sequence[float]) -> dict[str, Any]:
    """Give the spread of a series in milliseconds, and the medians of its start and its end."""
    window = max(1, round(len(durations) * WINDOW))

    def ms(share: float, values: Sequence[float]) -> float:
        return round(percentile(values, share) * 1e3, 4)

    return {
        "n": len(durations),
        **{f"{label}_ms": ms(share, durations) for label, share in PERCENTILES.items()},
        "start_p50_ms": ms(0.5, durations[:window]),
        "end_p50_ms": ms(0.5, durations[-window:]),
        "total_s": round(sum(durations), 3),
    }


# --- the run ------------------------------------------------------------------


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Record the workload, measure each saver with it, and compare their answers."""
    names = list(dict.fromkeys([PRODUCT, *options.peer, *([REFERENCE] if options.verify else [])]))
    workload = WORKLOADS[options.workload]
    turns = options.turns or workload.turns
    report: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "bench.size", *sys.argv[1:]]),
        "workload": options.workload,
        "turns": turns,
        "seed": SEED,
        "machine": describe_machine(),
        "versions": distribution_versions([SAVERS[name].distribution for name in names]),
    }
    print_heading(report, workload.summary)
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-", dir=options.directory) as made:
        record_path = Path(made, "record")
        started = time.perf_counter()
        trace = record(workload, turns)
        trace.save(record_path)
        report["recorded"] = trace.counts()
        counts = ", ".join(f"{count:,} {method}" for method, count in report["recorded"].items())
        print(f"recorded   {counts} (in {time.perf_counter() - started:.1f} s)\n")
        report["savers"] = {name: measure_apart(name, options, record_path, Path(made)) for name in names}
    compare(report)
    return report


def measure_apart(name: str, options: argparse.Namespace, record_path: Path, parent: Path) -> dict[str, Any]:
    """Measure one saver in a fresh process, and print its lines."""
    print(f"{name} …", flush=True)
    directory = parent / name
    directory.mkdir()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(measure, name, options.workload, record_path, directory, options.verify).result()
    print_saver(result)
    return result


def compare(report: dict[str, Any]) -> None:
    """Add and print each peer's ratios to the product, and what differs from the reference's answers."""
    savers = report["savers"]
    ours = savers[PRODUCT]
    for name, result in savers.items():
        if name == PRODUCT:
            continue
        result["ratio"] = {
            "stored_bytes": round(result["stored_bytes"] / ours["stored_bytes"], 2),
            "put_p50": round(result["calls"]["put"]["p50_ms"] / ours["calls"]["put"]["p50_ms"], 2),
            "put_end_p50": round(result["calls"]["put"]["end_p50_ms"] / ours["calls"]["put"]["end_p50_ms"], 2),
        }
        ratio = result["ratio"]
        print(
            f"{name} : {PRODUCT}   bytes {ratio['stored_bytes']:g}   median put {ratio['put_p50']:g}"
            f"   median put at the end {ratio['put_end_p50']:g}"
        )
    digests = {name: result.pop("digests") for name, result in savers.items() if "digests" in result}
    for name, found in digests.items():
        if name == REFERENCE:
            continue
        differing = savers[name]["differing"] = differing_parts(digests[REFERENCE], found)
        verdict = ", ".join(f"{part} in {count:,}" for part, count in differing.items()) or "none"
        print(f"{name}: of {len(found):,} checkpoints, differing from {REFERENCE}: {verdict}")


# --- output -------------------------------------------------------------------


def print_heading(report: dict[str, Any], summary: str) -> None:
    print(f"command    {report['command']}")
    print(f"workload   {report['workload']}, {report['turns']:,} turns, seed {report['seed']}: {summary}")
    print("machine    " + ", ".join(str(fact) for fact in report["machine"].values()))
    print("versions   " + ", ".join(f"{name} {version}" for name, version in report["versions"].items()))


def print_saver(result: dict[str, Any]) -> None:
    print(f"  {result['stored_bytes']:,} bytes stored; {result['wall_s']:g} s for all calls")
    columns = [*PERCENTILES, "start_p50", "end_p50"]
    print(f"  {'ms':<27}{'calls':>7}" + "".join(f"{column:>11}" for column in columns))
    for method, summary in (result["calls"] | result["reads"]).items():
        figures = "".join(f"{summary[f'{column}_ms']:>11.3f}" for column in columns)
        print(f"  {method:<27}{summary['n']:>7,}{figures}")
    print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, default="chat500")
    parser.add_argument("--turns", type=int, help="default: the workload's own number")
    parser.add_argument(
        "--peer",
        choices=[name for name in SAVERS if name != PRODUCT],
        action="append",
        default=[],
        help="another saver to measure; chat500 needs 6.3 GB of disk for sqlite, 4.2 GB of memory for inmemory",
    )
    parser.add_argument(
        "--verify", action="store_true", help=f"reopen, and compare every checkpoint with {REFERENCE}'s answer"
    )
    parser.add_argument("--directory", type=Path, help="where to make the stores; default: the temporary directory")
    parser.add_argument("--json", metavar="NAME", help="write the figures to bench/results/NAME.json")
    options = parser.parse_args()
    if options.turns is not None and options.turns < 1:
        parser.error("--turns must be at least 1")
    if options.json is not None and not re.fullmatch(r"[\w-]+", options.json):
        parser.error("--json takes a name of letters, digits, _ and -, not a path")
    return options


def main() -> int:
    options = parse_arguments()
    report = run(options)
    if options.json:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{options.json}.json"
        path.write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {path}")
    return 1 if report["savers"][PRODUCT].get("differing") else 0


if __name__ == "__main__":
    sys.exit(main())
