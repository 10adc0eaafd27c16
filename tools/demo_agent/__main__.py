"""Run an agent on deltastore, kill its process half-way, resume it in a new one, and compare with a run left alone.

The agent is a LangGraph graph with a scripted model; its tools search and read the Python standard library.
A step is one super-step of the graph: the model answers or a tool is called, and a checkpoint of the whole state
is stored. The run left alone is kept by LangGraph's own SQLite saver.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_agent.agent import rounds_for, steps_of
from demo_agent.comparison import differing_channels, read_history
from demo_agent.stores import executions, stored_bytes

KILL_WINDOW = (0.45, 0.55)
"""The share of the steps after which the kill comes."""
KILL_DELAY_STEPS = 2.0
"""Within so many average steps from there, so that it hits any point of a step."""
LEAST_STEPS = 20
SEEDS = 10_000
SAME, DIFFERENT, NOT_RUN = 0, 1, 2


class DemoError(Exception):
    """The demo couldn't be carried through."""


def start_worker(mode: str, kind: str, directory: Path, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "demo_agent.worker", mode, kind, str(directory), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def reports(worker: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    """Yield what a worker says, and the number that it says it of."""
    assert worker.stdout
    for line in worker.stdout:
        word, _, number = line.strip().partition(" ")
        yield word, int(number or 0)


def run_to_end(mode: str, kind: str, directory: Path, steps: int) -> dict[str, int]:
    """Wait for a worker to end, and return the last number that it said with each word."""
    with start_worker(mode, kind, directory, steps) as worker:
        said = dict(reports(worker))
    if worker.returncode or "done" not in said:
        raise DemoError(f"the process that was to {mode} the agent ended with exit status {worker.returncode}")
    return said


def run_and_kill(directory: Path, steps: int, rng: random.Random) -> int:
    """Start the agent, kill it in the middle, and return the last step that it had said to have done."""
    kill_after = round(steps * rng.uniform(*KILL_WINDOW))
    done = 0
    with start_worker("run", "deltastore", directory, steps) as worker:
        first_said = time.monotonic()
        for word, number in reports(worker):
            if word != "step":
                continue
            done = number
            if number == 1:
                first_said = time.monotonic()
            if number == kill_after:
                average_s = (time.monotonic() - first_said) / number
                time.sleep(rng.uniform(0, KILL_DELAY_STEPS) * average_s)
                worker.kill()
    if worker.returncode >= 0:
        raise DemoError(f"the agent ended (exit status {worker.returncode}) before it could be killed")
    return done


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="deltastore-demo-") as made:
            yield Path(made)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise DemoError(f"{keep} is not empty; --keep takes a new or empty directory")
    yield keep


def line(label: str, text: str) -> None:
    print(f"{label:<26}{text}", flush=True)


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


def run_agents(place: Path, steps: int, seed: int) -> tuple[Path, Path]:
    """Run the agent twice: killed and resumed on deltastore, and left alone on SQLite."""
    ours, theirs = place / "deltastore", place / "sqlite"
    ours.mkdir()
    theirs.mkdir()
    done = run_and_kill(ours, steps, random.Random(seed))
    line("run on deltastore", f"killed (SIGKILL) after it had done {done} of {steps} steps; seed {seed}")
    found = run_to_end("resume", "deltastore", ours, steps)["found"]
    line("resumed, new process", f"found step {found} in the store, went on to step {steps}")
    run_to_end("run", "sqlite", theirs, steps)
    line("run on SQLite", f"left alone for all {steps} steps")
    print()
    return ours, theirs


def compare(ours: Path, theirs: Path, steps: int) -> bool:
    """Print what the two runs have in common and what they cost, and return whether the states are the same."""
    resumed, alone = (read_history(kind, place, steps) for kind, place in (("deltastore", ours), ("sqlite", theirs)))
    differing = differing_channels(resumed[0], alone[0])
    sizes = ", ".join(f"{len(value)} {name}" for name, value in alone[0].items() if not isinstance(value, str))
    line("final state", f"differs in {', '.join(differing)}" if differing else f"the same: {sizes}, report")
    unlike = sum(bool(differing_channels(*pair)) for pair in zip(resumed, alone, strict=False))
    if len(resumed) != len(alone):
        line("history", f"differs: {len(resumed)} checkpoints instead of {len(alone)}")
    elif unlike:
        line("history", f"differs in {unlike} of {len(alone)} checkpoints")
    else:
        line("history", f"the same in each of {len(alone)} checkpoints")
    counts = executions(ours)
    line("tool calls", f"{len(counts)} needed; run twice because of the kill: {counts.total() - len(counts)}")
    small, large = stored_bytes(ours), stored_bytes(theirs)
    line("on disk", f"deltastore {megabytes(small)}, SQLite {megabytes(large)} ({large / small:.1f} times as much)")
    print()
    return not differing and not unlike and len(resumed) == len(alone)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="of the agent (default: 100)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave both stores there, to look at")
    parser.add_argument("--seed", type=int, help="of the moment of the kill (default: another one each time)")
    options = parser.parse_args()
    if options.steps < LEAST_STEPS:
        parser.error(f"--steps must be at least {LEAST_STEPS}, or there is no middle to kill the agent in")
    return options


def main() -> int:
    options = parse_arguments()
    # Whatever the caller's environment says, a demo sends no traces anywhere.
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")
    steps = steps_of(rounds_for(options.steps))
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    print(f"An agent studies the Python standard library in {steps} steps. After each one its whole state is stored.\n")
    try:
        with workplace(options.keep) as place:
            same = compare(*run_agents(place, steps, seed), steps)
    except DemoError as error:
        print(f"tools/demo: {error}", file=sys.stderr)
        return NOT_RUN
    print(
        "The resumed agent ended where the other did." if same else "The resumed agent did NOT end where the other did."
    )
    return SAME if same else DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
