"""Measure what the checkpoints of a long dialogue cost an agent, by its save policy, beside saving the whole state.

    python -m bench.agent_rounds                        50 rounds, three times
    python -m bench.agent_rounds --json agent_rounds    writes bench/results/agent_rounds.json
    python -m bench.agent_rounds --rounds 5 --repeat 1

A round is a question of 400 characters, three replies of a model of 200, 200 and 1,500, four tool results of 1 to 3 KB,
and a change of the plan, the scratchpad and, each fifth time, of 24 KB of documents; in the end messages and state are
0.7 MB. The same program runs with `deltastore.agent`, and with its messages and state saved by SqliteSaver, or as a
file of JSON that is flushed to disk; each in a process of its own. A save is the call at whose end the checkpoint is
durable, serialisation and finding out what changed included. Of our runs, what the journal adds to each call is timed
as well, and its bytes count. Every saved state is read after reopening and compared with a list of full states that the
same program made in memory.
"""

import argparse
import functools
import gc
import importlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.agent_savers import MODULES, POLICIES, PRODUCT, WAYS, Plain, Watched
from bench.apart import ERROR, Limits, call_apart, preload
from bench.digests import digest
from bench.disk import allocated_bytes
from bench.machine import distribution_versions, write_result
from bench.memory import peak_bytes, restart_peak
from bench.text import prose
from bench.timing import ms, percentile, spread_ms
from bench.workloads import retrieve, revise_plan, tool_result

ROUNDS, REPEAT, RESUMES = 50, 3, 5
TURNS = 2
"""Replies of a round that call two tools each; one more ends it."""
QUESTION_CHARACTERS, REPLY_CHARACTERS, ANSWER_CHARACTERS, RESULT_CHARACTERS = 400, 200, 1_500, (1_000, 3_000)
ROUNDS_PER_RETRIEVAL, DOCUMENTS = 5, 8
LIMITS = Limits(seconds=600, rss_gib=8)


def reply(messages: list[Any], model: str, temperature: float, seed: int) -> dict[str, Any]:
    """Answer as a model does: two turns with calls of tools, then a text."""
    chance = random.Random(f"{model} {temperature} {seed} {len(messages)}")
    content = prose(chance, ANSWER_CHARACTERS if seed % (TURNS + 1) == TURNS else REPLY_CHARACTERS)
    usage = {"prompt_tokens": chance.randint(500, 90_000), "completion_tokens": len(content) // 4}
    made: dict[str, Any] = {"role": "assistant", "content": content, "usage": usage}
    if seed % (TURNS + 1) < TURNS:
        made["tool_calls"] = [
            {"id": f"call_{chance.getrandbits(96):024x}", "name": name, "arguments": {"query": prose(chance, 80)}}
            for name in ("search", "lookup")
        ]
    return made


def search(query: str) -> str:
    return tool_result(random.Random(f"search {query}"), *RESULT_CHARACTERS)


def lookup(query: str) -> str:
    return tool_result(random.Random(f"lookup {query}"), *RESULT_CHARACTERS)


TOOLS: dict[str, Callable[[str], str]] = {"search": search, "lookup": lookup}


def dialogue(run: Any, rounds: int, after_round: Callable[[int], None] = lambda _: None) -> None:
    """Talk for some rounds, as an agent's own loop does."""
    for round_ in range(rounds):
        chance = random.Random(f"round {round_}")
        run.add({"role": "user", "content": prose(chance, QUESTION_CHARACTERS)})
        for turn in range(TURNS + 1):
            seed = round_ * (TURNS + 1) + turn
            answer = run.model(reply, messages=run.messages, model="scripted", temperature=0.2, seed=seed)
            run.add(answer)
            for call in answer.get("tool_calls", ()):
                result = run.call(TOOLS[call["name"]], **call["arguments"])
                run.add({"role": "tool", "tool_call_id": call["id"], "content": result})
        run.state["plan"] = revise_plan(run.state.get("plan", []), chance)
        run.state["scratchpad"] = run.state.get("scratchpad", {}) | {f"note {round_ % 8}": prose(chance, 200)}
        if round_ % ROUNDS_PER_RETRIEVAL == 0:
            run.state["documents"] = retrieve(round_)[:DOCUMENTS]
        run.step()
        after_round(round_ + 1)


class Timed:
    """A run whose saves are timed, and of whose calls what they take beside the function itself."""

    def __init__(self, run: Any, policy: Watched, last_bytes: Callable[[], int]) -> None:
        self.run = run
        self.messages, self.state = run.messages, run.state
        self.saves: list[float] = []
        self.processor: list[float] = []
        self.bytes: list[int] = []
        self.calls: list[float] = []
        self._policy = policy
        self._last_bytes = last_bytes

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        return self._call(self.run.call, function, arguments)

    def model(self, function: Callable[..., Any], **arguments: Any) -> Any:
        return self._call(self.run.model, function, arguments)

    def add(self, message: Any) -> None:
        self._come_to(lambda: self.run.add(message))

    def step(self) -> None:
        self._come_to(self.run.step)

    def _call(self, call: Callable[..., Any], function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        within = 0.0

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal within
            started = time.perf_counter()
            found = function(*args, **kwargs)
            within = time.perf_counter() - started
            return found

        started = time.perf_counter()
        found = call(timed, **arguments)
        self.calls.append(time.perf_counter() - started - within)
        return found

    def _come_to(self, boundary: Callable[[], None]) -> None:
        self._policy.saved = False
        started, started_cpu = time.perf_counter(), time.process_time()
        boundary()
        took, busy = time.perf_counter() - started, time.process_time() - started_cpu
        if self._policy.saved:
            self.saves.append(took)
            self.processor.append(busy)
            self.bytes.append(self._last_bytes())


def write(way: str, policy: str, directory: Path, rounds: int) -> Iterator[tuple[str, Any]]:
    """Yield what the dialogue took."""
    load()
    watched, growth = Watched(POLICIES[policy]), []
    prose(random.Random(0), 1)  # its vocabulary is made
    with WAYS[way].open(directory, watched) as opened:
        run = Timed(opened.run, watched, opened.last_bytes)
        before = restart_peak()
        dialogue(run, rounds, lambda round_: growth.append((round_, allocated_bytes(directory))))
        yield "peak_bytes", peak_bytes() - before
    yield "save_s", run.saves
    yield "processor_s", run.processor
    yield "save_bytes", run.bytes
    yield "call_s", run.calls
    yield "growth_bytes", growth


def resume(way: str, directory: Path) -> Iterator[tuple[str, float]]:
    """Yield the seconds until what is there was opened, and its latest state read."""
    load()
    started = time.perf_counter()
    WAYS[way].latest(directory)
    yield "resume_s", time.perf_counter() - started


def verify(way: str, policy: str, directory: Path, rounds: int) -> Iterator[tuple[str, int]]:
    """Yield how many states were saved, and how many of them aren't those of the model."""
    model: list[str] = []
    dialogue(Plain(POLICIES[policy], lambda state: model.append(digest(state))), rounds)
    found = [digest(state) for state in WAYS[way].states(directory)]
    yield "checkpoints", len(found)
    yield (
        "differing",
        abs(len(model) - len(found)) + sum(one != other for one, other in zip(model, found, strict=False)),
    )


def load() -> None:
    """Import what any way needs, and keep it out of collections: the three together are more than any user has."""
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def once(way: str, policy: str, rounds: int, resumes: int) -> dict[str, Any]:
    """Return what one run with a way and a policy found, each part by a process of its own."""
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as made:
        directory = Path(made)
        found = call_apart(write, way, policy, directory, rounds, limits=LIMITS)
        found["stored_bytes"] = allocated_bytes(directory)
        found |= call_apart(verify, way, policy, directory, rounds, limits=LIMITS)
        times = [call_apart(resume, way, directory, limits=LIMITS) for _ in range(resumes)]
    if reason := next((each[ERROR] for each in (found, *times) if ERROR in each), None):
        raise SystemExit(f"{way}, {policy}: {reason}")
    return found | {"resume_s": [each["resume_s"] for each in times]}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of several runs: times of all of them together, sizes of the last."""
    last = runs[-1]
    return {
        "checkpoints": last["checkpoints"],
        "differing": sum(run["differing"] for run in runs),
        "largest_bytes": max(size for run in runs for size in run["save_bytes"]),
        "stored_bytes": last["stored_bytes"],
        "save": tail_ms([took for run in runs for took in run["save_s"]]),
        "processor": tail_ms([took for run in runs for took in run["processor_s"]]),
        "call": tail_ms([took for run in runs for took in run["call_s"]]),
        "resume": spread_ms([took for run in runs for took in run["resume_s"]]),
        "peak_bytes": percentile([run["peak_bytes"] for run in runs], 0.5),
        "growth_bytes": last["growth_bytes"],
    }


def tail_ms(durations: list[float]) -> dict[str, float]:
    return {
        "p50_ms": ms(percentile(durations, 0.5)),
        "p95_ms": ms(percentile(durations, 0.95)),
        "most_ms": ms(max(durations)),
    }


def measure(rounds: int = ROUNDS, repeat: int = REPEAT, resumes: int = RESUMES) -> dict[str, Any]:
    """Return the figures by policy and way; the ways alternate."""
    policies: dict[str, Any] = {}
    for policy in POLICIES:
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(repeat):
            for way in WAYS:
                runs[way].append(once(way, policy, rounds, resumes))
        policies[policy] = {way: summary(each) for way, each in runs.items()}
    return {"rounds": rounds, "repeat": repeat, "policies": policies}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--repeat", type=int, default=REPEAT, help="runs with each policy and way")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    preload(*MODULES)
    found = measure(options.rounds, options.repeat)
    for policy, ways in found["policies"].items():
        for way, each in ways.items():
            save, resumed = each["save"], each["resume"]
            print(
                f"{policy}, {WAYS[way].label}: {each['checkpoints']} checkpoints, {each['differing']} wrong, largest "
                f"{each['largest_bytes'] / 1e3:.1f} KB, all {each['stored_bytes'] / 1e6:.2f} MB; a save "
                f"{save['p50_ms']:.2f} ms, p95 {save['p95_ms']:.2f}, most {save['most_ms']:.2f}, "
                f"processor {each['processor']['p50_ms']:.2f}; beside a call "
                f"{each['call']['p50_ms']:.2f} ms; resume {resumed['p50_ms']:.1f} ms; {each['peak_bytes'] / 1e6:.1f} MB"
            )
    if options.json:
        versions = distribution_versions(["langgraph-checkpoint-sqlite"])
        write_result(options.json, "bench.agent_rounds", {"versions": versions, **found})
    return int(any(ways[PRODUCT]["differing"] for ways in found["policies"].values()))


if __name__ == "__main__":
    sys.exit(main())
