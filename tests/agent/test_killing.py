"""kill -9 around every effect and every write of a run: nothing is done twice, and nothing is lost.

A host process holds the imports; for each line it reads it forks a worker, which runs a program and kills itself at
the moment that the line names. Moments are counted: before and after each write to the store, each effect of the tool,
and each token shown. Nothing waits for a clock.
"""

import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import deltastore
from bench.killing import KILLED, NEVER, Moments, note, notes
from deltastore import check
from deltastore.agent import AFTER_MESSAGES, NOT_DONE, CheckpointManager, CurrentCall, Done, Run

STEPS, PARTS, TOKENS = 2, "ab", ["one ", "two ", "three ", "four"]
LINES = [f"{step}{part}" for step in range(STEPS) for part in PARTS]
WORDS = 6


# --- the child ------------------------------------------------------------------------------


def serve() -> None:
    for line in sys.stdin:
        worker = os.fork()
        if worker == 0:
            try:
                name, folder, fatal = json.loads(line)
                work(PROGRAMS[name], Path(folder), fatal)
            finally:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(worker, 0)
        os.write(1, json.dumps(os.waitstatus_to_exitcode(status)).encode() + b"\n")


def work(program: Callable[..., None], folder: Path, fatal: int) -> None:
    moment = Moments(fatal)
    moment.watch_writes()
    store = deltastore.open(folder / "store.ds", sync="none")
    program(store, folder, moment)
    (folder / "moments").write_text(str(len(moment.seen)))
    store.close()
    os._exit(0)


def act(store: deltastore.Store, folder: Path, moment: Moments) -> None:
    effects, shown = folder / "effects", folder / "shown"

    def append(line: str, idempotency_key: str) -> str:
        moment("before the effect")
        note(effects, [line, idempotency_key])
        moment("after the effect")
        return f"wrote {line}"

    def look(call: CurrentCall) -> Any:
        found = [line for line, key in notes(effects) if key == call.idempotency_key]
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
                moment("a token is shown")
            run.add({"role": "assistant", "content": stream.text})
            run.step()

    manager = CheckpointManager(
        store, AFTER_MESSAGES, in_doubt=look, on_changed_path="raise", flush_s=0.0, flush_bytes=8
    )
    note(shown, ["life"])
    with manager.run("r") as run:
        life(run)


class Screen:
    """What the user sees, in a file that outlives the program: only what isn't there yet is shown."""

    def __init__(self, folder: Path, moment: Moments) -> None:
        self.file = folder / "screen"
        self.before = len(notes(self.file))
        self.moment = moment

    def show(self, place: int, word: str) -> None:
        if place >= self.before:
            self.moment("before a word is shown")
            note(self.file, word)
            self.moment("after a word is shown")


def words(shown: list[str], life: int) -> Iterator[str]:
    """Say something else in each life, as a model does."""
    yield from (f"{place}.{life} " for place in range(len(shown), WORDS))


def talk(store: deltastore.Store, folder: Path, moment: Moments) -> None:
    screen, life = Screen(folder, moment), begin_life(folder)
    with CheckpointManager(store, flush_s=0.0).run("r") as run:
        if "text" not in run.state:
            stream = run.stream(words, life=life, ignore=("life",))
            for place, word in enumerate(stream):
                screen.show(place, word)
            run.state["text"] = stream.text


def talk_asynchronously(store: deltastore.Store, folder: Path, moment: Moments) -> None:
    screen, life = Screen(folder, moment), begin_life(folder)

    async def awords(shown: list[str], life: int) -> AsyncIterator[str]:
        for word in words(shown, life):
            yield word

    async def main() -> None:
        async with await CheckpointManager(store, flush_s=0.0).arun("r") as run:
            if "text" not in run.state:
                stream, place = run.astream(awords, life=life, ignore=("life",)), 0
                async for word in stream:
                    screen.show(place, word)
                    place += 1
                run.state["text"] = stream.text

    asyncio.run(main())


def begin_life(folder: Path) -> int:
    note(folder / "lives", "began")
    return len(notes(folder / "lives"))


PROGRAMS = {"act": act, "talk": talk, "talk asynchronously": talk_asynchronously}


# --- the judge ------------------------------------------------------------------------------


@contextmanager
def host(program: str) -> Iterator[Callable[[Path, int], int]]:
    """Give a function that runs a program in a folder until a moment, and returns the exit code."""
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
        process.stdin.write(json.dumps([program, str(folder), fatal]) + "\n")
        process.stdin.flush()
        return int(json.loads(process.stdout.readline()))

    with process:
        yield run
        process.stdin.close()


def judge(folder: Path) -> None:
    assert [line for line, _ in notes(folder / "effects")] == LINES
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
    judge_shown(notes(folder / "shown"))


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
    with host("act") as run:
        whole = tmp_path / "whole"
        assert run(whole, NEVER) == 0
        judge(whole)
        moments = int((whole / "moments").read_text())
        assert moments > 60
        for fatal in range(moments):
            folder = tmp_path / str(fatal)
            assert run(folder, fatal) == KILLED
            if fatal % 3 == 0:  # and in its second life again, if it lives that long
                run(folder, fatal * 7 % moments)
            assert run(folder, NEVER) == 0, fatal
            judge(folder)


@pytest.mark.parametrize("program", ["talk", "talk asynchronously"])
def test_the_user_sees_every_word_once_whenever_the_stream_is_killed(tmp_path: Path, program: str) -> None:
    """Each life's words tell it, so a word that was seen and then lost would come back as another."""
    with host(program) as run:
        whole = tmp_path / "whole"
        assert run(whole, NEVER) == 0
        moments = int((whole / "moments").read_text())
        assert moments > 4 * WORDS
        for fatal in range(moments):
            folder = tmp_path / str(fatal)
            assert run(folder, fatal) == KILLED
            if fatal % 3 == 0:
                run(folder, fatal * 7 % moments)
            assert run(folder, NEVER) == 0, fatal
            seen = notes(folder / "screen")
            assert [int(word.partition(".")[0]) for word in seen] == list(range(WORDS)), fatal
            with deltastore.open(folder / "store.ds") as store:
                assert CheckpointManager(store).restore("r").state["text"] == "".join(seen)


if __name__ == "__main__":
    serve()
