"""Measure what importing the saver adds to what LangGraph's own imports cost, and what its first calls cost.

    python -m bench.importing                      30 processes with the saver, 30 without, taking turns
    python -m bench.importing --json importing     writes bench/results/importing.json

Each figure comes of processes of their own, which find compiled modules. "steps" are a put, its writes, a read and a
list: the second one imports nothing any more, so what the first takes longer is what the import left for later.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from bench.machine import write_result

PROCESSES = 30

LANGGRAPH = (
    "import langgraph.graph, langgraph.checkpoint.base, langgraph.checkpoint.serde.jsonplus, langchain_core.messages"
)
"""What a program that has a graph and a saver of LangGraph's own has imported."""

CHILD = f"""
import json, sys, time
started = time.perf_counter()
{LANGGRAPH}
found = {{"langgraph": time.perf_counter() - started}}

def step(saver, config, number):
    checkpoint = langgraph.checkpoint.base.empty_checkpoint()
    messages = [langchain_core.messages.HumanMessage("hello", id="1")]
    checkpoint["channel_values"] = {{"messages": messages, "n": number}}
    checkpoint["channel_versions"] = versions = {{"messages": "1", "n": str(number)}}
    config = saver.put(config, checkpoint, {{"source": "loop", "step": number}}, versions)
    saver.put_writes(config, [("n", number)], "task")
    assert saver.get_tuple(config) is not None
    assert list(saver.list(config))
    return config

if len(sys.argv) > 1:
    started = time.perf_counter()
    import deltastore.langgraph
    found["import"] = time.perf_counter() - started
    started = time.perf_counter()
    with deltastore.langgraph.DeltaSaver.from_path(sys.argv[1]) as saver:
        found["open"] = time.perf_counter() - started
        config = {{"configurable": {{"thread_id": "1", "checkpoint_ns": ""}}}}
        for number, name in enumerate(("first steps", "second steps"), 1):
            started = time.perf_counter()
            config = step(saver, config, number)
            found[name] = time.perf_counter() - started
print(json.dumps(found))
"""


def run(environment: Mapping[str, str], *arguments: str) -> dict[str, float]:
    """Return what a process of its own measured, in milliseconds."""
    command = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {name: seconds * 1e3 for name, seconds in json.loads(done.stdout).items()}


def measure(processes: int) -> dict[str, Any]:
    """Return medians and least of the durations, in milliseconds, with the saver and without."""
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        for turn in range(processes + 1):
            pair = {"without": run(environment), "with": run(environment, f"{folder}/{turn}.ds")}
            if turn:  # the first ones compile
                for name, durations in pair.items():
                    found[name].append(durations)
    return {
        name: {
            what: {
                "median": round(statistics.median(each[what] for each in series), 2),
                "least": round(min(each[what] for each in series), 2),
            }
            for what in series[0]
        }
        for name, series in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of each kind")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    found = measure(options.processes)
    for name, durations in found.items():
        print(f"{name} the saver, milliseconds")
        for what, spread in durations.items():
            print(f"  {what:<13}{spread['median']:>8.1f} (least {spread['least']:.1f})")
    if options.json:
        write_result(options.json, "bench.importing", {"processes": options.processes, "milliseconds": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
