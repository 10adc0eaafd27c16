"""A call costs the same, however many were made before it."""

import asyncio
from typing import Any

import pytest

from deltastore import Store
from deltastore.agent import ChangedPathWarning, CheckpointManager, Run
from deltastore.storage.memory import MemoryStorage
from tests.counting import Counting


def test_a_call_reads_no_other_calls_record() -> None:
    counting = Counting(MemoryStorage())
    with Store(counting) as store:
        run = CheckpointManager(store).run("r")
        read = []
        for number in range(60):
            counting.clear()
            run.call(str, number)
            read.append(counting.total)
        assert max(read[30:]) <= max(read[5:20])


def test_one_tasks_writes_are_those_among_all(store: Store) -> None:
    thread = store.thread("t")
    made = thread.append({"x": 1})
    for task in ("", "a", "b"):
        thread.put_writes(made, [("x", task), ("y", [task])], task=task)
    thread.put_writes(made, [("x", "late"), ("y", None), ("z", 3)], task="a")
    every = thread.writes(made)
    for task in ("", "a", "b", "none"):
        assert thread.writes(made, task=task) == [write for write in every if write.task == task]


def changed(run: Run) -> Any:
    return run.call(str)


async def achanged(run: Run) -> Any:
    return await run.acall(str)


@pytest.mark.parametrize("program", [changed, achanged])
def test_a_warning_points_at_the_programs_line(store: Store, program: Any) -> None:
    manager = CheckpointManager(store)
    manager.run("r").call(int)
    run = manager.restore("r")
    with pytest.warns(ChangedPathWarning) as found:
        asyncio.run(program(run)) if program is achanged else program(run)
    assert (found[0].filename, found[0].lineno) == (__file__, program.__code__.co_firstlineno + 1)
