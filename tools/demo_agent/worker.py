"""One process that runs or resumes the agent, or only looks, saying on its standard output what it has done.

Lines: `found N` (resuming: the last step that is stored), `step N`, `latest_us N` (looking), `done`. After the step
that it is told to hold at, it waits for the end of its standard input.
"""

import gc
import sys
import tempfile
import time
from pathlib import Path

from demo_agent.agent import CONFIG, build_agent, first_input, rounds_for, run_config
from demo_agent.stores import call_log, open_saver, open_timed


def say(*words: object) -> None:
    print(*words, flush=True)


def run(mode: str, kind: str, directory: Path, steps: int, hold_at: int) -> None:
    with open_timed(kind, directory) as saver:
        agent = build_agent(saver, call_log(directory))
        given, found = first_input(rounds_for(steps)), 0
        if mode == "resume":
            given, found = None, agent.get_state(CONFIG).metadata["step"]
            say("found", found)
        # Sync: a step begins when the one before it is stored, so a kill can cost the step in flight alone.
        updates = agent.stream(given, run_config(steps), stream_mode="updates", durability="sync")
        for number, _ in enumerate(updates, found + 1):
            say("step", number)
            if number == hold_at:
                sys.stdin.read()


def look(kind: str, directory: Path) -> None:
    """Time how long it takes from nothing open to the latest state."""
    with tempfile.TemporaryDirectory() as scratch, open_saver(kind, Path(scratch)) as saver:
        saver.get_tuple(CONFIG)  # an empty store: imports what the saver imports late
    gc.collect()  # what the imports left behind, or it is collected at some moment of the reading
    began = time.perf_counter()
    with open_saver(kind, directory) as saver:
        latest = saver.get_tuple(CONFIG)
        took = time.perf_counter() - began
    assert latest
    say("latest_us", round(took * 1e6))


def main(mode: str, kind: str, directory: Path, steps: int, hold_at: int) -> None:
    if mode == "look":
        look(kind, directory)
    else:
        run(mode, kind, directory, steps, hold_at)
    say("done")


if __name__ == "__main__":
    mode, kind, directory, steps, hold_at = sys.argv[1:]
    main(mode, kind, Path(directory), int(steps), int(hold_at))
