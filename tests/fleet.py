"""Processes that work on one store, the one that starts and kills them, and the judgement of what they leave.

Each is forked by a server that holds the imports, so that a hundred of them are cheap. `Fleet` keeps what was
acknowledged; `judge` compares the store with it.
"""

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import deltastore
from deltastore import check
from deltastore.langgraph import DeltaSaver
from tests import workers
from tests.workers import Job

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.workers"])
TIMEOUT = 120
"""Seconds without a word after which a process counts as hanging: far more than any needs, on a busy machine too."""


def spawn(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Start a process that is given one end of a pipe as its last argument; return it with the other end."""
    mine, its = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(*arguments, its), daemon=True)
    process.start()
    its.close()
    return process, mine


def hear(pipe: Connection) -> Any:
    """Return what a process says next; it must say something."""
    assert pipe.poll(TIMEOUT), "a process hangs"
    return pipe.recv()


@dataclass
class Crew:
    """One process of a fleet."""

    job: Job
    process: Any
    pipe: Connection
    killed: bool = False
    acknowledged: int = 0


@dataclass
class Fleet:
    """Some processes on one store; a context manager that leaves none behind."""

    acknowledged: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """What was put: conversation, id, process, writer and which of its puts."""
    crews: list[Crew] = field(default_factory=list)
    unfinished: int = 0
    """Puts at most that killed processes may have stored without a word."""
    reads: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for crew in self.crews:
            crew.process.kill()
            crew.process.join()
            crew.process.close()
            crew.pipe.close()

    def launch(self, *jobs: Job) -> None:
        """Start processes, and let them go once all have opened the store."""
        new = []
        for job in jobs:
            crew = Crew(job, *spawn(workers.work, job))
            self.crews.append(crew)
            new.append(crew)
        for crew in new:
            assert hear(crew.pipe) == ("ready",)
        for crew in new:
            crew.pipe.send("go")

    def listen(self) -> Crew | None:
        """Hear one word of any process; None when all have ended."""
        left = [crew.pipe for crew in self.crews if not crew.pipe.closed]
        if not left:
            return None
        ready = wait(left, TIMEOUT)
        assert ready, "no process says anything any more"
        crew = next(crew for crew in self.crews if crew.pipe is ready[0])
        self._hear(crew)
        return crew

    def _hear(self, crew: Crew) -> None:
        try:
            match crew.pipe.recv():
                case ("put", *found):
                    self.acknowledged.append(tuple(found))
                    crew.acknowledged += 1
                case ("end", failed, reads):
                    assert failed == []
                    self.reads += reads
                    self._bury(crew, 0)
        except (EOFError, ConnectionResetError):  # the second: killed before it read what it was told
            assert crew.killed, f"process {crew.job.process} ended without a word"
            self._bury(crew, -signal.SIGKILL)

    def _bury(self, crew: Crew, code: int) -> None:
        crew.pipe.close()
        crew.process.join(TIMEOUT)
        assert crew.process.exitcode == code

    def kill(self, crew: Crew) -> None:
        """Kill a process at whatever it does, and take note of what it said before."""
        crew.killed = True
        crew.process.kill()
        self.unfinished += crew.job.writers
        while not crew.pipe.closed:
            self._hear(crew)

    def finish(self) -> None:
        """Let all end, those that go on for ever by a word."""
        for crew in self.crews:
            if not crew.pipe.closed and crew.job.puts is None:
                crew.pipe.send("end")
        while self.listen() is not None:
            pass

    @property
    def alive(self) -> list[Crew]:
        return [crew for crew in self.crews if not crew.pipe.closed]


def run_all(*jobs: Job) -> Fleet:
    """Run processes to their ends."""
    with Fleet() as fleet:
        fleet.launch(*jobs)
        fleet.finish()
    return fleet


def crews(path: Path | str, front: str, *, processes: int, **options: Any) -> list[Job]:
    return [Job(str(path), front, process, **options) for process in range(processes)]


# --- the judgement ----------------------------------------------------------------------------


def judge(path: Path | str, front: str, fleet: Fleet) -> int:
    """Compare all that the store holds with what was acknowledged; return how many checkpoints there are."""
    count = _judge_native(path, fleet) if front == "native" else _judge_saver(path, fleet)
    assert len(fleet.acknowledged) <= count <= len(fleet.acknowledged) + fleet.unfinished
    return count


def _judge_native(path: Path | str, fleet: Fleet) -> int:
    with deltastore.open(path, create=False) as store:
        assert check(store).ok
        assert store.info().readers == 0
        last: dict[str, Any] = {}
        count = 0
        for found in store.threads():
            thread = store.thread(found.name)
            history = list(thread.history())
            assert [one.parent_id for one in history] == [*(one.id for one in history[1:]), None]
            items = thread.state()["items"]
            workers.check_items(items)
            assert len(items) == len(history) == found.checkpoints
            for place, one in enumerate(reversed(history), 1):
                assert thread.state(at=one) == {"items": items[:place]}
                last[one.id] = (found.name, items[place - 1]["by"])
            count += len(history)
        for name, id_, *by in fleet.acknowledged:
            assert last[id_] == (name, by)
            written = [(write.task, write.channel, write.value) for write in store.thread(name).writes(id_)]
            assert written == [(workers.task_of(by[0], by[1]), "items", [by[2]])]
        return count


def _judge_saver(path: Path | str, fleet: Fleet) -> int:
    with DeltaSaver.from_path(path) as saver:
        assert check(saver.store).ok
        assert saver.store.info().readers == 0
        acknowledged = {(name, id_) for name, id_, *_ in fleet.acknowledged}
        assert len(acknowledged) == len(fleet.acknowledged)
        count = 0
        for found in saver.list(None):
            key = (found.config["configurable"]["thread_id"], found.checkpoint["id"])
            workers.check_tuple(found, written=key in acknowledged)
            acknowledged.discard(key)
            count += 1
        assert not acknowledged
        return count
