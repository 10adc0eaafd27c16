"""Measure what the resume of a killed agent costs, and whether its result is that of a run that nothing happened to.

    python -m bench.agent_resume                        both parts, below
    python -m bench.agent_resume --json agent_resume    writes bench/results/agent_resume.json

1. Five rounds of a model and three tools: search, extract, summarise, send mail. The run is killed with kill -9 at each
moment after its third reply was recorded: before and after each write to the store, each reply of the model, each
effect of a tool. A fresh process resumes it. Messages, state, tools' results, token counts and mails must be those of
a run that wasn't killed. The prompt is the whole conversation, or the system's and the last message. Tokens, a quarter
of the characters of prompt and reply, are counted where the model is asked.
2. A run of 500 steps, each with a model's call, a tool's and a checkpoint, is killed within a tool's call. Fresh
processes, which have imported all, each open a copy of the store: seconds until the next call is made.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import deltastore
from bench.apart import ERROR, Limits, call_apart
from bench.disk import allocated_bytes
from bench.killing import KILLED, NEVER, Moments, after, live, note, notes, preload
from bench.machine import write_result
from bench.text import prose
from bench.timing import spread_ms
from deltastore.agent import NOT_DONE, CheckpointManager, CurrentCall, Done, Run

Message = dict[str, Any]

RUN_ID = "research"
SYSTEM_CHARACTERS = 3_000
"""Of a system prompt with the schemas of a few tools."""
RESULTS, RESULT_CHARACTERS, FACTS_CHARACTERS = 5, 1_200, 1_500
ROUNDS: list[tuple[int, str | None]] = [
    (120, "search"),
    (240, "extract"),
    (2_400, None),
    (160, "send_mail"),
    (240, None),
]
"""How many characters each reply of the model has, and which tool it calls."""
KILLED_FROM_REPLY = 3
PROMPTS: dict[str, Callable[[list[Message]], list[Message]]] = {
    "the conversation": list,
    "the last message": lambda messages: [messages[0], messages[-1]],
}
STEPS = 500
TOOL_CHARACTERS, REPLY_CHARACTERS = 1_000, 300
PROCESSES = 15
"""Which resume the long run."""
TIMES = ("open", "restored", "next step", "processor")
LIMITS = Limits(seconds=600, rss_gib=4)
REPLIED = "reply"
IMPORTED = ("deltastore.agent", "deltastore.storage.lmdb")
"""What a program that resumes a run has imported."""
IMPORTING = (
    f"import time; begun = time.perf_counter(); import {', '.join(IMPORTED)}; print(time.perf_counter() - begun)"
)


def tokens(text: Any) -> int:
    return len(json.dumps(text)) // 4


# --- five rounds, killed ----------------------------------------------------------------------


class World:
    """What the agent of one life acts on: a model and three tools, and the files in which their acts are seen."""

    def __init__(self, folder: Path, moment: Moments) -> None:
        self.moment = moment
        self.asked, self.outbox = folder / "asked", folder / "outbox"
        self.opened = time.perf_counter()
        self.next_step_s: float | None = None

    def acts(self) -> None:
        """Note when this life first does something that isn't answered from the journal."""
        if self.next_step_s is None:
            self.next_step_s = time.perf_counter() - self.opened

    def reply(self, messages: list[Message], model: str, temperature: float, seed: int, step: int) -> Message:
        """Answer in a way that depends on every character of the prompt."""
        self.acts()
        size, tool = ROUNDS[step]
        chance = random.Random(f"{seed} {json.dumps(messages)}")
        made: Message = {"role": "assistant", "content": prose(chance, size)}
        if tool:
            made["tool_calls"] = [{"name": tool, "arguments": {"text": prose(chance, size)}}]
        usage = {"prompt_tokens": tokens(messages), "completion_tokens": tokens(made)}
        note(self.asked, usage)
        self.moment(REPLIED)
        return made | {"usage": usage}

    def search(self, text: str) -> str:
        self.acts()
        found = [prose(random.Random(f"{text} {place}"), RESULT_CHARACTERS) for place in range(RESULTS)]
        self.moment("search")
        return "\n\n".join(found)

    def extract(self, text: str) -> str:
        self.acts()
        self.moment("extract")
        return prose(random.Random(text), FACTS_CHARACTERS)

    def send_mail(self, text: str, idempotency_key: str) -> str:
        self.acts()
        self.moment("before the mail")
        note(self.outbox, [idempotency_key, text])
        self.moment("after the mail")
        return "sent"

    def look(self, call: CurrentCall) -> Any:
        """Say whether a mail whose sending is in doubt was sent."""
        return Done("sent") if any(key == call.idempotency_key for key, _ in notes(self.outbox)) else NOT_DONE


def agent(run: Run, world: World, prompt: Callable[[list[Message]], list[Message]]) -> None:
    """Go through the rounds, as an agent's own loop does."""
    tools = run.tools({"search": world.search, "extract": world.extract, "send_mail": world.send_mail})
    while run.step_index < len(ROUNDS):
        settings: dict[str, Any] = {"model": "scripted", "temperature": 0.2, "seed": 7, "step": run.step_index}
        reply = run.model(world.reply, messages=prompt(run.messages), **settings)
        run.add(reply)
        for call in reply.get("tool_calls", ()):
            run.add({"role": "tool", "name": call["name"], "content": tools[call["name"]](**call["arguments"])})
        run.state["done"] = [*run.state.get("done", []), len(reply["content"])]
        run.step()


def first_messages() -> list[Message]:
    chance = random.Random("task")
    return [
        {"role": "system", "content": prose(chance, SYSTEM_CHARACTERS)},
        {"role": "user", "content": prose(chance, 400)},
    ]


def life(folder: Path, fatal: int, prompt: str) -> None:
    """Begin or resume the run, in a process of its own; killed at the `fatal`-th moment."""
    messages, moment = first_messages(), Moments(fatal)
    moment.watch_writes()
    world = World(folder, moment)
    with deltastore.open(folder / "store.ds") as store:
        manager = CheckpointManager(store, in_doubt=world.look, on_changed_path="raise")
        with manager.run(RUN_ID, messages=messages) as run:
            agent(run, world, PROMPTS[prompt])
        last = manager.list_checkpoints(RUN_ID)[0]
        result = {
            "status": last.status,
            "messages": last.messages,
            "state": last.state,
            "results": [[record["name"], record["result"]] for record in last.tool_results],
            "usage": dict(last.token_usage),
            "mails": [text for _, text in notes(world.outbox)],
        }
    note(folder / "result", result | {"moments": moment.seen, "next_step_s": world.next_step_s})


def killed_at_each_moment(prompt: str, every: int) -> dict[str, Any]:
    """Kill the run at every `every`-th moment after the third reply was recorded, and say what its resumes came to."""
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as made:
        whole, spent = lived(Path(made, "whole"), NEVER, prompt)
        moments = whole.pop("moments")
        whole.pop("next_step_s")
        third = [place for place, what in enumerate(moments) if what == REPLIED][KILLED_FROM_REPLY - 1]
        first = moments.index(after("put_writes"), third)
        points = []
        for fatal in range(first, len(moments), every):
            result, asked = lived(Path(made, str(fatal)), fatal, prompt)
            result.pop("moments")
            resumed_s = result.pop("next_step_s")
            saved = 1 - asked / spent
            points.append({"at": moments[fatal], "identical": result == whole, "saved": saved, "resume_s": resumed_s})
    shares = [point["saved"] for point in points]
    return {
        "kill_points": len(points),
        "identical": sum(point["identical"] for point in points),
        "tokens": spent,
        "saved": {
            what: round(share(shares), 3)
            for what, share in (("least", min), ("median", statistics.median), ("most", max))
        },
        "resume": spread_ms([point["resume_s"] for point in points if point["resume_s"] is not None]),
        "points": [[point["at"], point["identical"], round(point["saved"], 3)] for point in points],
    }


def lived(folder: Path, fatal: int, prompt: str) -> tuple[dict[str, Any], int]:
    """Return the result of a run that was killed at a moment and resumed, and the tokens that its last life took."""
    folder.mkdir()
    if fatal != NEVER and (code := live(life, folder, fatal, prompt)) != KILLED:
        raise SystemExit(f"a life that was to be killed at moment {fatal} ended with exit code {code}")
    before = len(notes(folder / "asked"))
    if code := live(life, folder, NEVER, prompt):
        raise SystemExit(f"the resume after a kill at moment {fatal} ended with exit code {code}")
    (result,) = notes(folder / "result")
    return result, sum(sum(each.values()) for each in notes(folder / "asked")[before:])


# --- a long run, resumed ----------------------------------------------------------------------


def long_agent(run: Run, steps: int, act: Callable[[int], None]) -> None:
    """Go through the steps; `act` is called within each tool's call."""

    def reply(messages: list[Message], model: str, temperature: float) -> Message:
        made = prose(random.Random(f"{model} {temperature} {len(messages)}"), REPLY_CHARACTERS)
        return {"role": "assistant", "content": made}

    def look_into(number: int) -> str:
        act(number)
        return prose(random.Random(f"tool {number}"), TOOL_CHARACTERS)

    while run.step_index < steps:
        run.add(run.model(reply, messages=run.messages, model="scripted", temperature=0.2))
        result = run.call(look_into, run.step_index, in_doubt="retry")
        run.add({"role": "tool", "content": result})
        run.state["last"] = len(result)
        run.step()


def grow(path: Path, steps: int) -> None:
    """Let a store have the run, killed within the tool's call of the step after the last."""

    def act(number: int) -> None:
        if number == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    with deltastore.open(path) as store, CheckpointManager(store).run(RUN_ID) as run:
        long_agent(run, steps + 1, act)


class _Acting(BaseException):
    """The resumed run came to its next call."""


def resume_once(path: Path, steps: int) -> Iterator[tuple[str, float]]:
    """Yield the seconds until the store was open, the run restored, its next call made; and the processor's for all."""

    def act(_: int) -> None:
        raise _Acting

    for module in IMPORTED:
        importlib.import_module(module)
    started, started_cpu = time.perf_counter(), time.process_time()
    store = deltastore.open(path, create=False)
    yield "open", time.perf_counter() - started
    run = CheckpointManager(store).run(RUN_ID)
    yield "restored", time.perf_counter() - started
    try:
        long_agent(run, steps + 1, act)
    except _Acting:
        yield "next step", time.perf_counter() - started
        yield "processor", time.process_time() - started_cpu


def resumed(steps: int, processes: int) -> dict[str, Any]:
    """Return what the resumes of the long run took, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as made:
        path = Path(made, "store.ds")
        if (code := live(grow, path, steps)) != KILLED:
            raise SystemExit(f"the long run ended with exit code {code} before it was killed")
        size, runs = allocated_bytes(path), []
        for number in range(processes):
            shutil.copytree(path, copy := path.with_name(f"{number}.ds"))
            runs.append(call_apart(resume_once, copy, steps, limits=LIMITS))
            shutil.rmtree(copy)
    if failed := next((run[ERROR] for run in runs if ERROR in run), None):
        raise SystemExit(f"a resume failed: {failed}")
    return {
        "steps": steps,
        "processes": processes,
        "stored_bytes": size,
        "ms": {what: spread_ms([run[what] for run in runs]) for what in TIMES},
    }


def imports(processes: int) -> dict[str, float]:
    """Return what importing all takes in a fresh interpreter, in milliseconds."""
    command = [sys.executable, "-c", IMPORTING]
    said = partial(subprocess.run, command, capture_output=True, text=True, check=True)
    return spread_ms([float(said().stdout) for _ in range(processes)])


def measure(every: int = 1, steps: int = STEPS, processes: int = PROCESSES) -> dict[str, Any]:
    """Return the figures of both parts."""
    return {
        "rounds": {prompt: killed_at_each_moment(prompt, every) for prompt in PROMPTS},
        "long": resumed(steps, processes),
        "import": imports(processes),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="kill at every so many moments alone")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the long run")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="which resume the long run")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    preload(*IMPORTED)
    found = measure(options.every, options.steps, options.processes)
    for prompt, each in found["rounds"].items():
        saved, resume = each["saved"], each["resume"]
        print(
            f"prompt {prompt}: {each['identical']} of {each['kill_points']} resumes identical; tokens saved "
            f"{saved['median']:.0%} ({saved['least']:.0%} to {saved['most']:.0%}); resume {resume['p50_ms']:.1f} ms "
            f"({resume['least_ms']:.1f} to {resume['most_ms']:.1f})"
        )
    for what, each in [*found["long"]["ms"].items(), ("import", found["import"])]:
        spread = f"{each['p50_ms']:.1f} ms ({each['least_ms']:.1f} to {each['most_ms']:.1f})"
        print(f"{options.steps} steps, {what}: {spread}")
    if options.json:
        write_result(options.json, "bench.agent_resume", found)
    wrong = any(each["identical"] != each["kill_points"] for each in found["rounds"].values())
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
