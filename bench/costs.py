"""Measure what a put of messages is made of, beside the least that it could be: the change serialised, and one commit.

    python -m bench.costs                       short threads, and a conversation of 500 turns
    python -m bench.costs --json costs          writes bench/results/costs.json

The recorded puts of the last tenth that change messages; medians. Parts are timed in place, which adds to the whole.
Beside them, SqliteSaver's put of the same, and a commit of LMDB's own, which flushes twice, or once (`metasync=False`):
by itself the last one of these doesn't survive a power cut.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.machine import write_result
from bench.recording import PUT_OF_MESSAGES, SEED, Call, Record, record, replay
from bench.timing import WINDOW, ms, percentile
from bench.workloads import WORKLOADS
from deltastore.langgraph import DeltaSaver
from deltastore.langgraph.saving import SavingSaver
from deltastore.log import putting
from deltastore.storage.writing import LmdbWriteTransaction

MEASURED = ("many", "short", "chat500")
PARTS: dict[str, list[tuple[Any, str]]] = {
    "values taken apart": [(SavingSaver, "_make_put")],
    "change found": [(putting, "prepare_remembered"), (putting, "prepare")],
    "rows made": [(putting, "apply")],
    "begun and committed": [(LmdbWriteTransaction, "__enter__"), (LmdbWriteTransaction, "__exit__")],
}
"""What is timed, by the part of a put that it makes up."""
SMALL_ROW_BYTES = 300


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of each part, until the block ends."""
    originals = [(owner, name, getattr(owner, name)) for found in PARTS.values() for owner, name in found]

    def timing(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                spent[part] = spent.get(part, 0.0) + time.perf_counter() - started

        return run

    try:
        for part, found in PARTS.items():
            for owner, name in found:
                setattr(owner, name, timing(part, getattr(owner, name)))
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def parts(trace: Record, path: Path) -> dict[str, float]:
    """Replay a record, and return the median seconds of the last puts' parts, of all of it and of what is left."""
    found: list[dict[str, float]] = []
    first = len(trace.calls) - round(WINDOW * len(trace.calls))
    with DeltaSaver.from_path(path) as saver:
        for place, call in enumerate(trace.calls):
            spent: dict[str, float] = {}
            if place < first or not _changes_messages(call):
                getattr(saver, call.method)(*call.arguments)
                continue
            with timed(spent):
                started = time.perf_counter()
                saver.put(*call.arguments)
                spent["all"] = time.perf_counter() - started
            found.append(spent)
    medians = {part: percentile([each.get(part, 0.0) for each in found], 0.5) for part in (*PARTS, "all")}
    return medians | {"rest": medians["all"] - sum(medians[part] for part in PARTS)}


def _changes_messages(call: Call) -> bool:
    return call.method == "put" and "messages" in call.arguments[3]


def serialised(trace: Record) -> float:
    """Return the median seconds that LangGraph's serializer takes for the messages that a put has anew."""
    serde, durations, seen = JsonPlusSerializer(), [], set()
    for call in trace.calls:
        if not _changes_messages(call):
            continue
        new = [message for message in call.arguments[1]["channel_values"]["messages"] if id(message) not in seen]
        started = time.perf_counter()
        serde.dumps_typed(new)
        durations.append(time.perf_counter() - started)
        seen.update(map(id, new))
    return _end(durations)


def committed(path: Path, commits: int = 300, **options: Any) -> float:
    """Return the median seconds that LMDB takes to commit three small rows, durably unless options say otherwise."""
    durations = []
    with lmdb.open(str(path), map_size=1 << 30, **options) as environment:
        for number in range(commits):
            started = time.perf_counter()
            with environment.begin(write=True) as transaction:
                for row in range(3):
                    transaction.put(b"%d %06d" % (row, number), b"x" * SMALL_ROW_BYTES)
            durations.append(time.perf_counter() - started)
    return _end(durations)


def put_by_sqlite(trace: Record, path: Path) -> float:
    """Return the median seconds of SqliteSaver's last puts of messages."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        return _end(replay(trace, saver)[PUT_OF_MESSAGES])


def _end(durations: Sequence[float]) -> float:
    return percentile(durations[-max(1, round(WINDOW * len(durations))) :], 0.5)


def measure(name: str, turns: int | None) -> dict[str, Any]:
    """Return the parts and the floors of a workload's last puts, in milliseconds."""
    trace = record(WORKLOADS[name], turns or WORKLOADS[name].turns)
    gc.collect()
    gc.freeze()  # or collections during a put go through the whole record
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as folder:
        found = parts(trace, Path(folder, "store.ds"))
        floors = {
            "change serialised": serialised(trace),
            "one commit": committed(Path(folder, "bare")),
            "the same, one flush": committed(Path(folder, "once"), metasync=False),
            "SqliteSaver's put": put_by_sqlite(trace, Path(folder, "sqlite.db")),
        }
    return {
        "parts_ms": {part: ms(seconds) for part, seconds in found.items()},
        "floors_ms": {floor: ms(seconds) for floor, seconds in floors.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, help="of each workload")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    found = {name: measure(name, options.turns) for name in MEASURED}
    for name, each in found.items():
        for what in ("parts_ms", "floors_ms"):
            figures = ", ".join(f"{part} {figure:.3f}" for part, figure in each[what].items())
            print(f"{name}, {what.removesuffix('_ms')}, ms: {figures}")
    if options.json:
        write_result(options.json, "bench.costs", {"seed": SEED, "workloads": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
