"""Measure what is left of a store after compaction, and after retention and compaction.

    python -m bench.compaction                              chat500, agent50, edit200, many, short, transcripts
    python -m bench.compaction chat500 --json compaction    writes bench/results/compaction.json

Recorded calls are replayed on a new store, and on SqliteSaver where the workload has many threads (`--peer`: always);
every checkpoint is hashed before and after. The *floor* is what
`zstd -19 --long` makes of every distinct message or other leaf of the state that is larger than 100 bytes, once.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import deltastore
from bench.digests import hash_answers
from bench.disk import allocated_bytes
from bench.machine import write_result
from bench.recording import SEED, Record, record, replay
from bench.savers import SAVERS
from bench.transcripts import missing
from bench.workloads import WORKLOADS
from deltastore.langgraph import DeltaSaver

DEFAULT = ("chat500", "agent50", "edit200", "many", "short", "transcripts")
THREADS = ("many", "short", "transcripts")
PEER = "sqlite"
SMALL_LEAF_BYTES = 100
"""Leaves that are smaller are left out of the floor, as counters and names are."""


def measure(name: str, turns: int | None, *, peer: bool) -> dict[str, Any]:
    """Return sizes in bytes, and how many checkpoints read otherwise after compaction."""
    workload = WORKLOADS[name]
    trace = record(workload, turns or workload.turns)
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as folder:
        path = Path(folder, "store.ds")
        with DeltaSaver.from_path(path) as saver:
            replay(trace, saver)
            before = hash_answers(trace, saver, name)
        result: dict[str, Any] = {"checkpoints": len(before), "live_bytes": allocated_bytes(path)}
        if peer or name in THREADS:
            with SAVERS[PEER].open(Path(folder)) as (saver, _):
                replay(trace, saver)
            result["peer_bytes"] = allocated_bytes(Path(folder)) - allocated_bytes(path)
        if name in THREADS:
            result["content_bytes"] = with_content_dictionary(path)
        with deltastore.open(path) as store:
            started = time.perf_counter()
            report = deltastore.compact(store)
            deltastore.shrink(store)
            result["compact_s"] = round(time.perf_counter() - started, 2)
            result["dictionary"] = report.dictionary
        result["compacted_bytes"] = allocated_bytes(path)
        with DeltaSaver.from_path(path) as saver:
            after = hash_answers(trace, saver, name)
        result["differing"] = sum(before[key] != after[key] for key in before)
        result["floor_bytes"] = floor(leaves_of(trace))
        with deltastore.open(path) as store:
            deltastore.maintain(store, deltastore.Retention(keep_last=1), shrink=True)
        result["latest_bytes"] = allocated_bytes(path)
        with DeltaSaver.from_path(path) as saver:
            latest = [saver.get_tuple({"configurable": {"thread_id": info.name}}) for info in saver.threads()]
            result["latest_floor_bytes"] = floor(
                leaf for found in latest if found for leaf in _leaves(found.checkpoint["channel_values"])
            )
    return result


def with_content_dictionary(path: Path) -> int:
    """Return what a copy takes once it is compacted with a dictionary of its content."""
    copy = path.with_name("copy.ds")
    with deltastore.open(path) as store:
        deltastore.backup(store, copy)
    with deltastore.open(copy) as store:
        deltastore.compact(store, dictionary="content")
        deltastore.shrink(store)
    size = allocated_bytes(copy)
    shutil.rmtree(copy)
    return size


def leaves_of(trace: Record) -> Iterator[Any]:
    """Iterate over what puts and writes stated, taken apart."""
    for method, arguments in trace.calls:
        if method == "put":
            yield from _leaves(arguments[1]["channel_values"])
        elif method == "put_writes":
            for _, value in arguments[1]:
                yield from _leaves(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def floor(leaves: Iterator[Any]) -> int:
    """Return what `zstd -19 --long` makes of the distinct leaves."""
    serde = JsonPlusSerializer()
    encoded: dict[bytes, None] = {}
    seen: set[int] = set()
    kept: list[Any] = []
    for leaf in leaves:
        if id(leaf) in seen:
            continue
        seen.add(id(leaf))
        kept.append(leaf)  # so that no other object gets its id
        data = serde.dumps_typed(leaf)[1]
        if len(data) > SMALL_LEAF_BYTES:
            encoded[data] = None
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27, enable_ldm=True)
    return len(zstandard.ZstdCompressor(compression_params=parameters).compress(b"".join(encoded)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=DEFAULT, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--turns", type=int, help="of each workload; its own number by default")
    parser.add_argument("--peer", action="store_true", help="beside SqliteSaver always; chat500 then takes 6.3 GB")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    for name in options.workloads:
        if reason := missing(name):
            print(f"{name} is left out: {reason}")
    found = {
        name: measure(name, options.turns, peer=options.peer) for name in options.workloads if missing(name) is None
    }
    for name, result in found.items():
        compacted, least = result["compacted_bytes"], result["floor_bytes"]
        print(
            f"{name}: {result['checkpoints']} checkpoints, live {result['live_bytes'] / 1e6:.2f} MB, "
            f"compacted {compacted / 1e6:.3f} MB ({compacted / least:.3f} x floor), {result['differing']} differ; "
            f"latest only {result['latest_bytes'] / 1e6:.3f} MB "
            f"({result['latest_bytes'] / result['latest_floor_bytes']:.2f} x its floor); {result['dictionary']}"
        )
        if "peer_bytes" in result:
            print(f"  SqliteSaver {result['peer_bytes'] / 1e6:.1f} MB: 1/{result['peer_bytes'] / compacted:.1f}")
        if "content_bytes" in result:
            print(f"  with a dictionary of content {result['content_bytes'] / 1e6:.2f} MB")
    if options.json:
        write_result(options.json, "bench.compaction", {"seed": SEED, "workloads": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
