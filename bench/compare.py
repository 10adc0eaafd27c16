"""Compare savers: what they store, how long calls take, how much memory, and whether their answers are right.

    python -m bench.compare chat500                               deltastore, SqliteSaver and InMemorySaver
    python -m bench.compare agent50 --turns 10 --saver postgres   shorter, beside PostgreSQL
    python -m bench.compare chat500 --saver all --repeat 3 --json writes bench/results/chat500.json

deltastore and InMemorySaver are always measured. Phases run one after the other, each in a process of its own:
write (all recorded calls), resume, read, history (a whole thread), verify (every checkpoint, compared with
InMemorySaver's), graph (the compiled graph). A store in memory is written and read by one process. Only figures of one
run are comparable.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.apart import ERROR, Limits, call_apart, preload
from bench.digests import differing_parts
from bench.disk import allocated_bytes
from bench.machine import describe_machine, distribution_versions, write_result
from bench.phases import STORED, Task, latest_of, resume, run_phases
from bench.printing import print_heading, print_saver
from bench.recording import SEED, Config, record
from bench.savers import PRODUCT, REFERENCE, SAVERS
from bench.services import serving
from bench.timing import percentile, spread_ms
from bench.transcripts import missing
from bench.workloads import WORKLOADS

DEFAULT = ("chat500",)
DEFAULT_PEERS = ("sqlite",)
ALL = "all"
RESUMES = 5
"""Fresh processes that open each store."""
MAX_RSS_GIB, TIMEOUT_S = 16.0, 3_600.0


class Run:
    """One workload's recorded calls, and the savers that are measured with them."""

    def __init__(self, workload: str, turns: int, directory: Path, servers_below: Path | None, limits: Limits) -> None:
        self.workload = workload
        self.turns = turns
        self.directory = directory
        self.servers_below = servers_below
        self.limits = limits
        trace = record(WORKLOADS[workload], turns)
        self.record = directory / "record"
        trace.save(self.record)
        self.counts = trace.counts()
        self.latest: Config = latest_of(trace)

    @contextmanager
    def place(self, saver: str) -> Iterator[Task]:
        """Make an empty place for a saver, with a new server where it needs one."""
        with (
            tempfile.TemporaryDirectory(prefix=f"{saver}-", dir=self.directory) as made,
            serving(SAVERS[saver].server, self.servers_below) as address,
        ):
            yield Task(saver, Path(made), address, self.workload, self.turns, self.record)

    def write(self, saver: str) -> dict[str, Any]:
        """Write a store that is thrown away, and return what that took."""
        with self.place(saver) as task:
            return call_apart(run_phases, task, ("write",), limits=self.limits)

    def measure(self, saver: str) -> dict[str, Any]:
        """Return what each phase found, or why it has no result under `errors`."""
        errors: dict[str, str] = {}
        found: dict[str, Any] = {"errors": errors}

        def take(*phases: str) -> None:
            new = call_apart(run_phases, task, phases, limits=self.limits)
            error = new.pop(ERROR, "")
            errors.update({phase: error for phase in phases if phase not in new})
            found.update(new)

        with self.place(saver) as task:
            if not SAVERS[saver].persistent:
                take("write", *STORED)
            else:
                take("write")
                if not errors:
                    # of savers with files, once they are closed
                    found["write"].setdefault("stored_bytes", allocated_bytes(task.directory))
                    found |= self._resume(task, errors)
                    for phase in STORED:
                        take(phase)
        if "write" not in errors:
            with self.place(saver) as task:
                take("graph")
        return found

    def _resume(self, task: Task, errors: dict[str, str]) -> dict[str, Any]:
        runs = [call_apart(resume, task, self.latest, limits=self.limits) for _ in range(RESUMES)]
        if failed := next((run[ERROR] for run in runs if ERROR in run), None):
            errors["resume"] = failed
            return {}
        return {"resume": {what: spread_ms([run[what] for run in runs]) for what in runs[0]}}


def compare(
    workload: str, turns: int, savers: list[str], repeat: int, directory: Path | None, limits: Limits
) -> dict[str, Any]:
    """Measure the savers with a workload, alternating where writes are repeated, and compare their answers."""
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-", dir=directory) as made:
        run = Run(workload, turns, Path(made), directory, limits)
        writes = [{saver: run.write(saver).get("write") for saver in savers} for _ in range(repeat - 1)]
        found: dict[str, Any] = {}
        for saver in savers:
            found[saver] = run.measure(saver)
            if "write" in found[saver]:
                found[saver]["write"] = median_of([each[saver] for each in writes], found[saver]["write"])
            print_saver(saver, found[saver])
    replace_digests(found)
    return {"workload": workload, "turns": turns, "seed": SEED, "recorded": run.counts, "savers": found}


def median_of(earlier: list[dict[str, Any] | None], last: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the run whose total is the median, with all totals; the stored bytes are of the last."""
    runs = [run for run in earlier if run is not None] + [last]
    totals = [run["total_s"] for run in runs]
    middle = runs[totals.index(percentile(totals, 0.5))]
    return middle | {"totals_s": totals, "stored_bytes": last["stored_bytes"]}


def replace_digests(found: dict[str, Any]) -> None:
    """Put in place of hashes how many differ from the reference's."""
    digests = {saver: each.pop("verify") for saver, each in found.items() if "verify" in each}
    listed = {saver: each["history"].pop("listed") for saver, each in found.items() if "history" in each}
    states = {saver: each["graph"].pop("states") for saver, each in found.items() if "graph" in each}
    for saver, answers in digests.items():
        if REFERENCE not in digests:
            found[saver]["errors"]["verify"] = "nothing to compare with"
            continue
        differing = differing_parts(digests[REFERENCE], answers)
        if saver in listed and REFERENCE in listed and listed[saver] != listed[REFERENCE]:
            differing["list"] = 1
        pairs = zip(states.get(REFERENCE, ()), states.get(saver, ()), strict=saver in states and REFERENCE in states)
        if wrong := sum(one != other for one, other in pairs):
            differing["graph state"] = wrong
        found[saver]["differing"] = differing


def chosen(names: list[str]) -> list[str]:
    """Return the savers of a run, the product first; `all` stands for those that can be measured here."""
    wanted = list(SAVERS) if ALL in names else [PRODUCT, *(names or DEFAULT_PEERS), REFERENCE]
    savers = []
    for name in dict.fromkeys(wanted):
        reason = SAVERS[name].missing()
        if reason and ALL not in names:
            raise SystemExit(f"{name} can't be measured: {reason}")
        if reason:
            print(f"{name} is left out: {reason}")
        else:
            savers.append(name)
    return savers


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=DEFAULT, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--turns", type=int, help="default: the workload's own number")
    parser.add_argument(
        "--saver",
        choices=[ALL, *SAVERS],
        action="append",
        default=[],
        help="another saver to measure; chat500 needs 6.3 GB of disk for sqlite, 4.2 GB of memory for inmemory",
    )
    parser.add_argument("--repeat", type=int, default=1, help="writes by each saver; the median is reported")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds after which a process is ended")
    parser.add_argument("--max-rss-gib", type=float, default=MAX_RSS_GIB, help="memory at which a process is ended")
    parser.add_argument(
        "--directory", type=Path, help="where to make the stores; default: the temporary directory. Open to all as root"
    )
    parser.add_argument("--json", action="store_true", help="write bench/results/WORKLOAD.json of each workload")
    options = parser.parse_args()
    if unknown := [name for name in options.workloads if name not in WORKLOADS]:
        parser.error(f"no workload {unknown[0]}: one of {', '.join(WORKLOADS)}")
    if min(options.turns or 1, options.repeat) < 1:
        parser.error("--turns and --repeat must be at least 1")
    return options


def main() -> int:
    options = parse_arguments()
    savers = chosen(options.saver)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers and stores go as well
    preload()
    versions = distribution_versions([SAVERS[name].distribution for name in savers])
    print_heading(describe_machine(), versions)
    wrong = False
    for workload in options.workloads:
        if reason := missing(workload):
            print(f"\n{workload} is left out: {reason}")
            continue
        turns = options.turns or WORKLOADS[workload].turns
        print(f"\n{workload}, {turns:,} turns, seed {SEED}: {WORKLOADS[workload].summary}", flush=True)
        limits = Limits(options.timeout, options.max_rss_gib)
        found = compare(workload, turns, savers, options.repeat, options.directory, limits)
        for saver, each in found["savers"].items():
            verdict = (each["differing"] or "nothing") if "differing" in each else "not known"
            print(f"{saver}: differing from {REFERENCE}: {verdict}")
        wrong |= bool(found["savers"][PRODUCT].get("differing", True))
        if options.json:
            write_result(workload, "bench.compare", {"versions": versions, **found})
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
