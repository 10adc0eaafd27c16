"""Measure what retention in the background costs the puts of a saver.

    python -m bench.background                        200 puts to each of two threads a round, with and without it
    python -m bench.background --json background      writes bench/results/background.json

One OS thread puts by turns to a thread that is pruned (`keep_last=20`) and to one beside it, whose own rules keep all.
Both grow by a message of about 1 KB a put. Puts come back to back, or in turns: ten to each thread, then a pause as
for a model's answer. Rounds without and with retention alternate, each in a store of its own, durable on return; the
first round of either isn't counted. Times are of the calls of `put` alone.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from bench.machine import write_result
from bench.text import prose
from deltastore import Retention
from deltastore.langgraph import DeltaSaver

RESULTS = Path(__file__).with_name("results")
RULES = Retention(keep_last=20)
PRUNED, BESIDE = "pruned", "beside"
MESSAGE_BYTES = 1_000
WITHOUT, WITH = "without", "with"
PUTS_A_TURN, PAUSE_S = 10, 0.3
MODES = {"back to back": 0.0, "in turns": PAUSE_S}
"""How puts come, and how long the pause after a turn is, in seconds."""


def put(saver: DeltaSaver, thread: str, number: int, messages: list[HumanMessage]) -> float:
    """Put a checkpoint, and return how long that took, in milliseconds."""
    id_ = f"{number:06}"
    made: Any = {
        "v": 4,
        "id": id_,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"messages": messages, "count": number},
        "channel_versions": {"messages": id_, "count": id_},
        "versions_seen": {"model": {"messages": id_}},
    }
    parent = {"checkpoint_id": f"{number - 1:06}"} if number else {}
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", **parent}}
    started = time.perf_counter()
    saver.put(config, made, {"source": "loop", "step": number, "parents": {}}, {})
    return (time.perf_counter() - started) * 1000


def round_of(
    puts: int, pause_s: float, seed: int, retention: Retention | None
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Fill a store; return the times of puts, and the checkpoints that are left, by thread."""
    chance = random.Random(seed)
    times: dict[str, list[float]] = {PRUNED: [], BESIDE: []}
    messages: dict[str, list[HumanMessage]] = {PRUNED: [], BESIDE: []}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.ds"
        with DeltaSaver.from_path(path, retention=retention) as saver:
            for number in range(puts):
                for thread in (PRUNED, BESIDE):
                    messages[thread].append(HumanMessage(prose(chance, MESSAGE_BYTES), id=f"{number}"))
                    times[thread].append(put(saver, thread, number, messages[thread]))
                if number % PUTS_A_TURN == PUTS_A_TURN - 1 and pause_s:
                    time.sleep(pause_s)
                if not number:
                    saver.store.thread(BESIDE).retention = Retention()
        with DeltaSaver.from_path(path) as saver:
            left = {found.name: found.checkpoints for found in saver.threads()}
    return times, left


def summary(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {name: round(value, 3) for name, value in (("p50", cuts[49]), ("p90", cuts[89]), ("p99", cuts[98]))}


def run(puts: int, rounds: int, pause_s: float, seed: int) -> dict[str, Any]:
    """Alternate rounds of either kind; return the quantiles of all puts, and what was left of the threads."""
    found: dict[str, dict[str, list[float]]] = {kind: {PRUNED: [], BESIDE: []} for kind in (WITHOUT, WITH)}
    left: dict[str, dict[str, int]] = {}
    for number in range(rounds + 1):
        for kind, rules in ((WITHOUT, None), (WITH, RULES)):
            times, left[kind] = round_of(puts, pause_s, seed + number, rules)
            if number:
                for thread, some in times.items():
                    found[kind][thread] += some
    return {
        kind: {thread: summary(times) | {"left": left[kind][thread]} for thread, times in found[kind].items()}
        for kind in found
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--puts", type=int, default=200, help="to each thread in a round")
    parser.add_argument("--rounds", type=int, default=6, help="of either kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for mode, pause_s in MODES.items():
        found[mode] = run(options.puts, options.rounds, pause_s, options.seed)
        for thread in (BESIDE, PRUNED):
            for kind in (WITHOUT, WITH):
                each = found[mode][kind][thread]
                print(
                    f"{mode:12}, thread {thread:6}, {kind:7} retention: median {each['p50']:6.2f} ms, "
                    f"p90 {each['p90']:6.2f}, p99 {each['p99']:6.2f}; {each['left']} checkpoints left"
                )
    if options.json:
        facts = {"seed": options.seed, "puts_each": options.puts, "rounds": options.rounds, "ms": found}
        write_result(options.json, "bench.background", facts)


if __name__ == "__main__":
    main()
