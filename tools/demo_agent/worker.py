"""One process that runs or resumes the agent, saying on its standard output which step it has done.

Lines: `found N` (resuming: the last step that is stored), `step N`, `done`.
"""

import sys
from pathlib import Path

from demo_agent.agent import CONFIG, build_agent, first_input, rounds_for, run_config
from demo_agent.stores import call_log, open_saver


def say(*words: object) -> None:
    print(*words, flush=True)


def main(mode: str, kind: str, directory: Path, steps: int) -> None:
    rounds = rounds_for(steps)
    with open_saver(kind, directory) as saver:
        agent = build_agent(saver, rounds, call_log(directory))
        if mode == "resume":
            say("found", agent.get_state(CONFIG).metadata["step"])
            agent.invoke(None, run_config(steps), durability="sync")
        else:
            # Sync: a step begins when the one before it is stored, so a kill can cost the step in flight alone.
            updates = agent.stream(first_input(rounds), run_config(steps), stream_mode="updates", durability="sync")
            for number, _ in enumerate(updates, 1):
                say("step", number)
    say("done")


if __name__ == "__main__":
    mode, kind, directory, steps = sys.argv[1:]
    main(mode, kind, Path(directory), int(steps))
