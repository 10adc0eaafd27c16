"""Run an agent on two checkpoint savers, kill it half-way, resume it, go back, fork, and compare.

The agent is a LangGraph graph with a scripted model; its tools search and read the Python standard library.
A step is one super-step of the graph: the model answers or a tool is called, and a checkpoint of the whole state
is stored. The savers are deltastore's DeltaSaver, which stores what changed, and LangGraph's own SqliteSaver.

Exit status: 0 when all states are as they should be, 1 when any differs, 2 when the demo couldn't be carried through.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from demo_agent.agent import rounds_for, steps_of
from demo_agent.processes import DemoError
from demo_agent.story import Story
from demo_agent.telling import Teller

LEAST_STEPS = 20
SEEDS = 10_000
SAME, DIFFERENT, NOT_RUN, INTERRUPTED = 0, 1, 2, 130
PACKAGES = ("deltastore", "langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite")


@contextmanager
def work_folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="deltastore-demo-") as made:
            yield Path(made)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise DemoError(f"{keep} is not empty; --keep takes a new or empty directory")
    yield keep


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="of the agent (default: 100)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the stores there, to look at")
    parser.add_argument("--seed", type=int, help="of the moment of the kill (default: another one each time)")
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON; the story goes to standard error"
    )
    options = parser.parse_args()
    if options.steps < LEAST_STEPS:
        parser.error(f"--steps must be at least {LEAST_STEPS}, or there is no middle to kill the agent in")
    return options


def run(options: argparse.Namespace) -> int:
    steps = steps_of(rounds_for(options.steps))
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    teller = Teller(to_stderr=options.json)
    teller.say(
        f"An agent studies the Python standard library in {steps} steps (seed of the kill: {seed}). "
        "After each step its whole state is stored, by deltastore's DeltaSaver and by LangGraph's SqliteSaver."
    )
    with work_folder(options.keep) as place:
        story = Story(teller, place, steps, seed)
        story.tell()
    teller.say()
    if story.differences:
        teller.say("States are DIFFERENT from what they should be, see above.", "bold red")
    else:
        teller.say("All states are as they should be.", "bold green")
    if options.json:
        versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
        print(json.dumps({"versions": versions, **story.results}, indent=2))
    return DIFFERENT if story.differences else SAME


def main() -> int:
    options = parse_arguments()
    # Whatever the caller's environment says, a demo sends no traces anywhere.
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")
    try:
        return run(options)
    except DemoError as error:
        print(f"tools/demo: {error}", file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
