"""The story: run and kill, resume, compare, list, go back, fork, and what it cost.

Each chapter tells what it does and adds what it measured to the results. Whatever isn't as it should be is added to
the differences.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from langgraph.types import StateSnapshot

from demo_agent.agent import OTHER_TOPICS, build_agent
from demo_agent.history import Seen, Travel, differences, id_of, read_history, travel
from demo_agent.processes import run_and_kill, run_to_end
from demo_agent.stores import KINDS, METHODS, call_log, call_times, executions, open_timed, stored_bytes
from demo_agent.telling import Teller

OURS, THEIRS = KINDS
REFERENCE = "left alone"
RECENT = 6
"""Checkpoints that are listed."""
LOOKS = 5
"""Fresh processes that read the latest state of each store."""
TOLD_DIFFERENCES = 5

Results = dict[str, Any]


class Story:
    """Tells the chapters in their order and gathers `results` and `differences`."""

    def __init__(self, teller: Teller, place: Path, steps: int, seed: int) -> None:
        self._tell = teller
        self._steps = steps
        self._seed = seed
        self._places = {name: place / name.lower().replace(" ", "-") for name in (*KINDS, REFERENCE)}
        for directory in self._places.values():
            directory.mkdir()
        self.savers: dict[str, Results] = {kind: {} for kind in KINDS}
        self.results: Results = {"steps": steps, "seed": seed, "savers": self.savers}
        self.differences: list[str] = []

    def tell(self) -> None:
        self._kill()
        self._resume()
        histories = self._compare()
        self._look()
        travels = {kind: self._travel(kind, histories[kind]) for kind in KINDS}
        self._list(travels[OURS])
        self._go_back(travels[OURS])
        self._fork(travels)
        self._costs()
        self.results |= {"differences": self.differences, "same": not self.differences}

    def _kill(self) -> None:
        self._tell.section(
            "Run and kill",
            "The agent runs once on each saver, and its process gets SIGKILL in the middle, as in a crash: "
            "what isn't in the store by then is lost.",
        )
        for kind in KINDS:
            with self._tell.progress(kind, self._steps) as on_step:
                done = run_and_kill(kind, self._places[kind], self._steps, self._seed, on_step)
            self.savers[kind]["killed_after"] = done
            self._tell.line(kind, f"killed after it had reported step {done} of {self._steps}")

    def _resume(self) -> None:
        self._tell.section(
            "Resume",
            "A new process opens each store and goes on from the last checkpoint there: "
            "a crash should cost the step in flight, not the run.",
        )
        for kind in KINDS:
            with self._tell.progress(kind, self._steps) as on_step:
                found = run_to_end("resume", kind, self._places[kind], self._steps, on_step)["found"]
            calls = executions(self._places[kind])
            again = calls.total() - len(calls)
            self.savers[kind] |= {"resumed_from": found, "tool_calls": len(calls), "tool_calls_run_twice": again}
            text = f"found step {found}, went on to step {self._steps}; {again} of {len(calls)} tool calls ran twice"
            self._tell.line(kind, text)

    def _compare(self) -> dict[str, list[Seen]]:
        self._tell.section(
            "Compare",
            "The same agent runs without being killed (kept by SqliteSaver), and the state at every checkpoint "
            "is compared: a resumed run must be the run that nobody interrupted.",
        )
        with self._tell.progress(REFERENCE, self._steps) as on_step:
            run_to_end("run", THEIRS, self._places[REFERENCE], self._steps, on_step)
        histories = {}
        for name, directory in self._places.items():
            with open_timed(THEIRS if name == REFERENCE else name, directory) as saver:
                histories[name] = read_history(build_agent(saver, call_log(directory)))
        alone = histories[REFERENCE]
        for kind in KINDS:
            text = f"the same in each of {len(alone)} checkpoints as the run left alone"
            self._judge(kind, text, differences(histories[kind], alone))
        return histories

    def _look(self) -> None:
        """Time the opening and reading of each store in fresh processes, while the run's last state is the latest."""
        for kind in KINDS:
            self.savers[kind]["resume_ms"] = []
        with self._tell.progress("opening in fresh processes", LOOKS) as on_look:
            for number in range(LOOKS):
                for kind in KINDS:
                    said = run_to_end("look", kind, self._places[kind], self._steps)
                    self.savers[kind]["resume_ms"].append(said["latest_us"] / 1000)
                on_look(number + 1)

    def _travel(self, kind: str, before: Sequence[Seen]) -> Travel:
        with open_timed(kind, self._places[kind]) as saver:
            return travel(build_agent(saver, call_log(self._places[kind])), before, RECENT)

    def _list(self, on_ours: Travel) -> None:
        self._tell.section(
            "History",
            f"get_state_history lists what {OURS} has, newest first: every step left a whole state behind, "
            "not only the last.",
        )
        for snapshot, parent in zip(on_ours.recent, on_ours.recent[1:], strict=False):
            step = snapshot.metadata["step"]
            ran = _what_ran(parent) if snapshot.metadata["source"] == "loop" else "update_state"
            self._tell.say(f"   {id_of(snapshot.config)}  step {step:>4}  {ran}")

    def _go_back(self, on_ours: Travel) -> None:
        self._tell.section(
            "Go back",
            "get_state with an earlier id gives the state of that moment: to see what the agent knew when it decided.",
        )
        self._tell.line("id", str(id_of(on_ours.old.config)))
        self._tell.line("then", _describe(on_ours.old))
        self._tell.line("at the end", _describe(on_ours.head))

    def _fork(self, travels: dict[str, Travel]) -> None:
        self._tell.section(
            "Fork",
            f"From there update_state tells the agent to look at {' and '.join(OTHER_TOPICS)} instead, and invoke goes "
            "on: another attempt costs only its own steps, and the first one stays.",
        )
        ours = travels[OURS]
        shared = len(ours.fork) - ours.own
        self._tell.line("old branch's head", f"{id_of(ours.head.config)}  {_describe(ours.head)}")
        self._tell.line("fork's head", f"{id_of(ours.fork_head.config)}  {_describe(ours.fork_head)}")
        self._tell.line("fork", f"{shared} checkpoints shared with the old branch, {ours.own} of its own")
        for kind, done in travels.items():
            self.savers[kind]["checkpoints"] = len(done.main) + done.own
            self.savers[kind]["fork"] = {"from_step": done.old.metadata["step"], "own_checkpoints": done.own}
            self._judge(kind, f"old branch unchanged in each of {len(done.main)} checkpoints", done.problems)
        self._judge("both", "the forks are the same on both savers", differences(ours.fork, travels[THEIRS].fork))

    def _judge(self, label: str, text: str, found: Sequence[str]) -> None:
        """Tell that something is as it should be, or what isn't."""
        if not found:
            self._tell.line(label, text)
            return
        self.differences += [f"{label}: {item}" for item in found]
        more = len(found) - TOLD_DIFFERENCES
        told = "; ".join(found[:TOLD_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        self._tell.line(label, f"DIFFERENT: {told}", "bold red")

    def _costs(self) -> None:
        self._tell.section(
            "What it cost",
            "Both savers did all of the above with their default settings, each checkpoint stored before the next step "
            "began: this is what an agent pays for being able to resume.",
        )
        for kind, saver in self.savers.items():
            times = call_times(self._places[kind])
            saver |= {
                "bytes_on_disk": stored_bytes(self._places[kind]),
                "calls": {method: _summary(times[method]) for method in METHODS},
                "calls_total_ms": round(1000 * sum(map(sum, times.values())), 3),
            }
        table = _Table(self.savers[OURS], self.savers[THEIRS])
        self.results["ratios"] = table.ratios
        self._tell.table(("", OURS, THEIRS, "ratio"), table.sections)
        self._tell.say(
            f"Ratio: {THEIRS} to {OURS}; below 1, {OURS} takes more. On disk: the blocks of the whole directory. "
            "A call of list: one checkpoint that it returned. Resume: a fresh process opens the store and reads the "
            f"state of step {self._steps}, imports not counted, median of {LOOKS}. "
            "Times depend on what else the machine did.",
            "dim",
        )


def _summary(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(seconds),
        "total_ms": round(1000 * sum(seconds), 3),
        "median_ms": round(1000 * median(seconds), 3) if seconds else 0.0,
    }


class _Table:
    """Lines up two savers' measurements; `ratios` is theirs to ours, `sections` the rows as text."""

    def __init__(self, ours: Results, theirs: Results) -> None:
        self._both = ours, theirs
        self.ratios: dict[str, float] = {}
        of = {
            "all calls, total": lambda saver: saver["calls_total_ms"],
            "resume": lambda saver: median(saver["resume_ms"]),
        }
        self.sections = [
            [
                self._row("on disk", lambda saver: saver["bytes_on_disk"], _megabytes),
                self._row("checkpoints", lambda saver: saver["checkpoints"], str, ratio=False),
            ],
            *([*self._method(method)] for method in METHODS),
            [self._row(label, value, _milliseconds) for label, value in of.items()],
        ]

    def _method(self, method: str) -> list[tuple[str, ...]]:
        return [
            self._row(f"{method}, calls", lambda saver: saver["calls"][method]["count"], str, ratio=False),
            self._row(f"{method}, total", lambda saver: saver["calls"][method]["total_ms"], _milliseconds),
            self._row(f"{method}, median", lambda saver: saver["calls"][method]["median_ms"], _milliseconds),
        ]

    def _row(
        self, label: str, value: Callable[[Results], float], form: Callable[[Any], str], *, ratio: bool = True
    ) -> tuple[str, ...]:
        ours, theirs = map(value, self._both)
        if not ratio or not ours:
            return label, form(ours), form(theirs), ""
        self.ratios[label.replace(", ", "_").replace(" ", "_")] = round(theirs / ours, 3)
        return label, form(ours), form(theirs), f"{theirs / ours:.1f}x" if theirs >= ours else f"{theirs / ours:.2f}x"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.2f} MB"


def _milliseconds(duration: float) -> str:
    return f"{duration:.2f} ms" if duration < 10 else f"{duration:,.0f} ms"


def _what_ran(before: StateSnapshot) -> str:
    """Say what led from a checkpoint to the next one."""
    calls = getattr(before.values["messages"][-1], "tool_calls", None)
    if before.next != ("act",) or not calls:
        return " and ".join(before.next)
    return f"act: {calls[0]['name']}({', '.join(map(repr, calls[0]['args'].values()))})"


def _describe(snapshot: StateSnapshot) -> str:
    values = snapshot.values
    parts = [f"{len(values[name])} {name}" for name in ("messages", "findings", "files")]
    report = "with report" if values["report"] else "no report yet"
    return f"step {snapshot.metadata['step']}: {', '.join(parts)}, {report}"
