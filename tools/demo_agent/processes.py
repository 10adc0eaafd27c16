"""The processes that the agent runs in: started, listened to, killed."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

KILL_WINDOW = (0.45, 0.55)
"""The share of the steps after which the kill comes."""
KILL_DELAY_STEPS = 2.0
"""Within so many average steps from there, so that it hits any point of a step."""
HOLD_STEPS = 3
"""So many steps from there the agent waits: where this process gets no turn for a while, it must not end before."""

OnStep = Callable[[int], None]


class DemoError(Exception):
    """The demo couldn't be carried through."""


def _start(mode: str, kind: str, directory: Path, steps: int, hold_at: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "demo_agent.worker", mode, kind, str(directory), str(steps), str(hold_at)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _reports(worker: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    """Yield what a worker says, and the number that it says it of."""
    assert worker.stdout
    for line in worker.stdout:
        word, _, number = line.strip().partition(" ")
        yield word, int(number or 0)


def run_to_end(mode: str, kind: str, directory: Path, steps: int, on_step: OnStep = lambda _: None) -> dict[str, int]:
    """Wait for a worker to end, and return the last number that it said with each word."""
    said = {}
    with _start(mode, kind, directory, steps) as worker:
        for word, number in _reports(worker):
            said[word] = number
            if word in {"found", "step"}:
                on_step(number)
    if worker.returncode or "done" not in said:
        raise DemoError(f"the process that was to {mode} the agent on {kind} ended with status {worker.returncode}")
    return said


def run_and_kill(kind: str, directory: Path, steps: int, seed: int, on_step: OnStep) -> int:
    """Start the agent, kill it in the middle, and return the last step that it had said to have done.

    The same seed gives the same moment, in steps.
    """
    rng = random.Random(seed)
    kill_after = round(steps * rng.uniform(*KILL_WINDOW))
    delay_steps = rng.uniform(0, KILL_DELAY_STEPS)
    done = 0
    with _start("run", kind, directory, steps, kill_after + HOLD_STEPS) as worker:
        first_said = time.monotonic()
        for word, number in _reports(worker):
            if word != "step":
                continue
            done = number
            on_step(number)
            if number == 1:
                first_said = time.monotonic()
            if number == kill_after:
                time.sleep(delay_steps * (time.monotonic() - first_said) / number)
                worker.kill()
    if worker.returncode >= 0:
        raise DemoError(f"the agent ended (exit status {worker.returncode}) before it could be killed")
    return done
