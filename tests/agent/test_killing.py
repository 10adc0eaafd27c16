"""kill -9 around every effect and every write of a run: nothing is done twice, and nothing is lost.

A host process holds the imports; for each line it reads it forks a worker, which runs the program and kills itself at
the moment that the line names. Moments are counted: before and after each write to the store, each effect of the tool,
and each token shown. Nothing waits for a clock.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltastore
from deltastore import check
from deltastore.agent import AFTER_MESSAGES, NOT_DONE, CheckpointManager, CurrentCall, Done, Run
from deltastore.store import Thread

STEPS, PARTS, TOKENS = 2, "ab", ["one ", "two ", "three ", "four"]
LINES = [f"{step}{part}" for step in range(STEPS) for part in PARTS]


class Moments:
    """Counts moments, and kills this process at the one chosen."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.seen = 0

    def __call__(self) -> None:
        if self.seen == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1


# --- the child ------------------------------------------------------------------------------


def serve() -> None:
    for line in sys.stdin:
        worker = os.fork()
        if worker == 0:
            try:
                folder, fatal = json.loads(line)
                work(Path(folder), fatal)
            finally:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(worker, 0)
        os.write(1, json.dumps(os.waitstatus_to_exitcode(status)).encode() + b"\n")


def work(folder: Path, fatal: int) -> None:
    moment = Moments(fatal)
    for name in ("put_state", "put_writes"):
        setattr(Thread, name, between(moment, getattr(Thread, name)))
    store = deltastore.open(folder / "store.ds", sync="none")
    program(store, folder, moment)
    (folder / "moments").write_text(str(moment.seen))
    store.close()
    os._exit(0)


def between(moment: Moments, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        moment()
        done = function(*args, **kwargs)
        moment()
        return done

    return watched


def program(store: deltastore.Store, folder: Path, moment: Moments) -> None:
    effects, shown = folder / "effects", folder / "shown"

    def append(line: str, idempotency_key: str) -> str:
        moment()
        note(effects, [line, idempotency_key])
        moment()
        return f"wrote {line}"

    def look(call: CurrentCall) -> Any:
        found = [line for line, key in read(effects) if key == call.idempotency_key]
        return Done(f"wrote {found[0]}") if found else NOT_DONE

    def tokens(before: list[str], step: int) -> Iterator[str]:
        note(shown, ["asked", step, before])
        yield from TOKENS[len(before) :]

    def life(run: Run) -> None:
        while run.step_index < STEPS:
            step = run.step_index
            run.add(run.model(lambda step: {"role": "assistant", "content": f"reply {step}"}, step=step))
            for part in PARTS:
                run.add({"role": "tool", "content": run.call(append, f"{step}{part}")})
            stream = run.stream(tokens, step=step)
            for token in stream:
                note(shown, ["token", step, token, stream.replayed == len(stream.tokens)])
                moment()
            run.add({"role": "assistant", "content": stream.text})
            run.step()

    manager = CheckpointManager(
        store, AFTER_MESSAGES, in_doubt=look, on_changed_path="raise", flush_s=0.0, flush_bytes=8
    )
    note(shown, ["life"])
    with manager.run("r") as run:
        life(run)


def note(file: Path, what: list[Any]) -> None:
    """Append a line at once: an effect that can't be undone."""
    with file.open("a") as out:
        out.write(json.dumps(what) + "\n")
        out.flush()


def read(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# --- the judge ------------------------------------------------------------------------------


@contextmanager
def host() -> Iterator[Callable[[Path, int], int]]:
    """Give a function that runs the program in a folder until a moment, and returns the exit code."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(folder: Path, fatal: int) -> int:
        folder.mkdir(exist_ok=True)
        process.stdin.write(json.dumps([str(folder), fatal]) + "\n")
        process.stdin.flush()
        return int(json.loads(process.stdout.readline()))

    with process:
        yield run
        process.stdin.close()


def judge(folder: Path) -> None:
    assert [line for line, _ in read(folder / "effects")] == LINES
    with deltastore.open(folder / "store.ds") as store:
        manager = CheckpointManager(store)
        last = manager.list_checkpoints("r")[0]
        assert last.status == "done"
        assert [message["content"] for message in last.messages] == [
            content
            for step in range(STEPS)
            for content in (f"reply {step}", f"wrote {step}a", f"wrote {step}b", "".join(TOKENS))
        ]
        assert [record["result"] for record in last.tool_results] == [f"wrote {line}" for line in LINES]
        report = check(store)
        assert report.ok, report.problems
    judge_shown(read(folder / "shown"))


def judge_shown(events: list[Any]) -> None:
    """What was shown is shown again first, and the model is asked for the rest."""
    durable: dict[int, list[str]] = {}
    lives: list[list[Any]] = []
    for event in events:
        lives.append([]) if event == ["life"] else lives[-1].append(event)
    for life in lives:
        now: dict[int, list[str]] = {}
        for kind, step, what, *replayed in life:
            if kind == "asked":
                assert what[: len(durable.get(step, []))] == durable.get(step, [])
                assert what == now.get(step, [])  # all of it was replayed to the user before
            else:
                now.setdefault(step, []).append(what)
                assert replayed[0] or now[step] != durable.get(step, [])[: len(now[step])]
        for step, tokens in now.items():
            assert tokens[: len(durable.get(step, []))] == durable.get(step, [])[: len(tokens)]
            durable[step] = max(durable.get(step, []), tokens, key=len)
    assert durable == dict.fromkeys(range(STEPS), TOKENS)


def test_a_kill_at_any_moment_repeats_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with host() as run:
        whole = tmp_path / "whole"
        assert run(whole, -1) == 0
        judge(whole)
        moments = int((whole / "moments").read_text())
        assert moments > 60
        for fatal in range(moments):
            folder = tmp_path / str(fatal)
            assert run(folder, fatal) == -signal.SIGKILL
            if fatal % 3 == 0:  # and in its second life again, if it lives that long
                run(folder, fatal * 7 % moments)
            assert run(folder, -1) == 0, fatal
            judge(folder)


if __name__ == "__main__":
    serve()
