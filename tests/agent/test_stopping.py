"""A program that catches too much does no harm: what stopped the run stops all that would go on."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from deltastore import ConflictError, InvalidInputError, Store
from deltastore.agent import (
    ChangedPathError,
    CheckpointManager,
    FileIs,
    InDoubtError,
    Paused,
    Registered,
    RottenResultError,
    Run,
)


class Crash(BaseException):
    """Ends a program as a kill would."""


def crash(*_: Any) -> None:
    raise Crash


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store, on_changed_path="raise")


def doubtful(manager: CheckpointManager) -> tuple[Run, Callable[[Run], Any]]:
    with pytest.raises(Crash):
        manager.run("r").call(crash, call_name="send")
    return manager.restore("r"), lambda run: run.call(int, call_name="send")


def asking(manager: CheckpointManager) -> tuple[Run, Callable[[Run], Any]]:
    return manager.run("r"), lambda run: run.pause("sure?")


def overtaken(manager: CheckpointManager) -> tuple[Run, Callable[[Run], Any]]:
    first = manager.run("r")
    second = manager.restore("r")
    first.call(int, call_name="send")
    return second, lambda run: run.call(int, call_name="send")


def changed(manager: CheckpointManager) -> tuple[Run, Callable[[Run], Any]]:
    manager.run("r").call(int, call_name="send")
    return manager.restore("r"), lambda run: run.call(int, call_name="other")


def rotten(manager: CheckpointManager) -> tuple[Run, Callable[[Run], Any]]:
    stamp = iter(range(9))
    manager.precondition("stamp")(lambda _: next(stamp))
    manager.run("r").call(int, call_name="read", holds=[Registered("stamp")])
    run = manager.restore("r")
    run.call(int, call_name="read")
    return run, lambda run: run.call(int, call_name="send")


CASES = [
    (doubtful, InDoubtError),
    (asking, Paused),
    (overtaken, ConflictError),
    (changed, ChangedPathError),
    (rotten, RottenResultError),
]


@pytest.mark.parametrize(("case", "error"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_an_error_that_was_caught_comes_again(
    manager: CheckpointManager, case: Callable[..., Any], error: type[Exception]
) -> None:
    done: list[str] = []
    run, stops = case(manager)
    with pytest.raises(error), run:  # noqa: PT012
        with pytest.raises(error):
            stops(run)
        with pytest.raises(error):  # as a model would that is told of the error, and asks for the tool again
            run.call(done.append, "again")
        with pytest.raises(error):
            run.model(done.append, "again")
        with pytest.raises(error):
            run.stream(lambda shown: done)
        with pytest.raises(error):
            run.pause("what now?")
        with pytest.raises(error):
            run.step()
        with pytest.raises(error):
            run.save()
    assert done == []
    assert manager.list_checkpoints("r")[0].status != "done"


def test_concurrent_calls_begin_nothing_once_the_run_pauses(manager: CheckpointManager) -> None:
    done: list[str] = []

    async def worker(run: Run, asked: asyncio.Event) -> None:
        await run.acall(done.append, "before")
        await asked.wait()
        await run.acall(done.append, "after")

    async def asks(run: Run, asked: asyncio.Event) -> None:
        try:
            await run.apause("sure?")
        finally:
            asked.set()

    async def main() -> None:
        async with await manager.arun("r") as run:
            asked = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(worker(run, asked))
                group.create_task(asks(run, asked))

    with pytest.raises(ExceptionGroup):
        asyncio.run(main())
    assert "after" not in done
    last = manager.list_checkpoints("r")[0]
    assert (last.status, last.question) == ("paused", "sure?")
    manager.restore("r").resume("yes")
    asyncio.run(main())
    assert done == ["before", "after"]


def test_of_several_open_questions_one_is_named(manager: CheckpointManager) -> None:
    async def main() -> list[Any]:
        async with await manager.arun("r") as run:
            return await asyncio.gather(run.apause("one?"), run.apause("two?"))

    with pytest.raises(Paused):
        asyncio.run(main())
    with pytest.raises(InvalidInputError, match=r"\['one\?', 'two\?'\]"):
        manager.restore("r").resume("yes")
    with pytest.raises(InvalidInputError, match="doesn't wait"):
        manager.restore("r").resume("yes", question="three?")
    manager.restore("r").resume(1, question="one?")
    manager.restore("r").resume(2)
    assert asyncio.run(main()) == [1, 2]


def test_a_run_that_was_answered_is_to_be_begun_again(manager: CheckpointManager) -> None:
    run = manager.run("r")
    with pytest.raises(Paused):
        run.pause("sure?")
    run.resume("yes")
    with pytest.raises(InvalidInputError, match="restore it"):
        run.pause("sure?")
    assert manager.restore("r").pause("sure?") == "yes"


def test_a_precondition_that_cant_be_taken_is_refused_before_the_effect(manager: CheckpointManager) -> None:
    done: list[str] = []
    wrong: list[Any] = [Registered("nobody")], ["a file"]
    for holds in wrong:
        with pytest.raises(InvalidInputError, match=r"registered|FileIs"):
            manager.run("r").call(done.append, "a", holds=holds)
    manager.run("r").call(done.append, "a", holds=[FileIs("absent")])
    assert done == ["a"]


def test_two_processes_that_only_ask_models_meet(manager: CheckpointManager) -> None:
    manager.run("r")
    first, second, third = (manager.restore("r") for _ in range(3))
    assert first.model(lambda: "one", call_name="ask") == "one"
    with pytest.raises(ConflictError, match="another process"):
        second.model(lambda: "two", call_name="ask")
    assert list(first.stream(lambda shown: ["a", "b"], call_name="tell")) == ["a", "b"]
    with pytest.raises(ConflictError, match="another process"):
        next(third.stream(lambda shown: ["x", "y"], call_name="tell"))
    again = manager.restore("r")
    assert again.model(lambda: "three", call_name="ask") == "one"
    assert list(again.stream(lambda shown: ["z"], call_name="tell")) == ["a", "b"]


def test_leaving_a_run_in_another_context_saves_it(manager: CheckpointManager) -> None:
    run = manager.run("r")
    contextvars.copy_context().run(run.__enter__)
    run.state["x"] = 1
    run.__exit__(None, None, None)
    assert manager.list_checkpoints("r")[0].state == {"x": 1}
