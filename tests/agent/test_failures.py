"""Failures are raised again as they were, and what ended a run is tried again."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from deltastore import Store
from deltastore.agent import CallFailedError, CheckpointManager, Run
from deltastore.store import Thread


class Crash(BaseException):
    """Ends a program as a kill would."""


class RateLimitError(Exception):
    """As an SDK's: its constructor takes more than its arguments, and holds what can't be stored."""

    def __init__(self, message: str, *, response: object, status_code: int) -> None:
        super().__init__(message)
        self.response = response
        self.status_code = status_code


class LostFileError(FileNotFoundError):
    pass


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store, on_changed_path="raise")


def failing(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


def raised_again(manager: CheckpointManager, error: Exception) -> Exception:
    run = manager.run("r")
    with pytest.raises(type(error)):
        run.call(failing(error))
    run.call(int)
    with pytest.raises(Exception) as found:  # noqa: PT011
        manager.restore("r").call(failing(Crash()))
    return found.value


def test_an_error_of_an_sdk_is_caught_again_as_such(manager: CheckpointManager) -> None:
    error = raised_again(manager, RateLimitError("slow down", response=object(), status_code=429))
    assert type(error) is RateLimitError
    assert (error.args, error.status_code, str(error)) == (("slow down",), 429, "slow down")
    assert not hasattr(error, "response")


def test_an_error_with_what_cant_be_stored_keeps_its_class(manager: CheckpointManager) -> None:
    error = raised_again(manager, ValueError("so", Path("x"), threading.Lock()))
    assert type(error) is ValueError
    assert error.args[:2] == ("so", Path("x"))


@pytest.mark.parametrize("kind", [FileNotFoundError, LostFileError])
def test_an_error_of_the_system_keeps_its_number_and_file(manager: CheckpointManager, kind: type[OSError]) -> None:
    error = raised_again(manager, kind(2, "No such file", "x.txt"))
    assert isinstance(error, kind)
    assert (error.errno, error.filename, error.strerror) == (2, "x.txt", "No such file")


def test_what_cant_be_built_is_told(manager: CheckpointManager) -> None:
    error = raised_again(manager, ExceptionGroup("all", [ValueError("one")]))
    assert isinstance(error, CallFailedError)
    assert "all (1 sub-exception)" in str(error)


class TestTheEndOfARun:
    """A failure that ended the run is tried again, though something was begun after it."""

    def test_with_a_tidying_up(self, manager: CheckpointManager) -> None:
        done: list[str] = []

        def work() -> str:
            done.append("work")
            if len(done) == 1:
                raise OSError("for once")
            return "worked"

        def program() -> str:
            with manager.run("r") as run:
                try:
                    return str(run.call(work))
                finally:
                    run.call(done.append, "tidy")

        with pytest.raises(OSError, match="for once"):
            program()
        assert program() == "worked"
        assert done == ["work", "tidy", "work"]

    def test_with_others_that_went_on(self, manager: CheckpointManager) -> None:
        done: list[str] = []
        broken = True

        async def flaky() -> str:
            if broken:
                raise ValueError("for once")
            return "worked"

        async def other(run: Run, failed: asyncio.Event) -> None:
            await failed.wait()
            await run.acall(done.append, "other")

        async def first(run: Run, failed: asyncio.Event) -> str:
            try:
                return str(await run.acall(flaky))
            finally:
                failed.set()

        async def main() -> list[Any]:
            async with await manager.arun("r") as run:
                failed = asyncio.Event()
                found = await asyncio.gather(first(run, failed), other(run, failed), return_exceptions=True)
                if broken:
                    raise RuntimeError("gave up") from found[0]
                return found

        for _ in range(2):
            with pytest.raises(RuntimeError):
                asyncio.run(main())
        broken = False
        assert asyncio.run(main()) == ["worked", None]
        assert done == ["other"]

    def test_the_program_may_leave_out_what_it_did_about_it(self, manager: CheckpointManager) -> None:
        done: list[str] = []

        def work() -> str:
            done.append("work")
            if len(done) == 1:
                raise OSError("for once")
            return "worked"

        def program() -> None:
            with manager.run("r") as run:
                try:
                    run.call(work)
                except OSError:
                    run.call(done.append, "tell somebody")
                    raise
                run.call(done.append, "next")
                if done.count("next") == 1 and not done.count("died"):
                    done.append("died")
                    raise Crash
                run.step()

        with pytest.raises(OSError, match="for once"):
            program()
        with pytest.raises(Crash):
            program()
        program()
        assert done == ["work", "tell somebody", "work", "next", "died"]


class TestCancellation:
    """What is known of a call when its task is cancelled is recorded."""

    def program(self, manager: CheckpointManager, tool: Any, when: threading.Event, go_on: threading.Event) -> None:
        async def agent() -> None:
            async with await manager.arun("r") as run:
                await run.acall(tool, call_name="tool")
                await run.acall(int, call_name="next")

        async def main() -> None:
            task = asyncio.create_task(agent())
            await asyncio.to_thread(when.wait)
            task.cancel()
            go_on.set()
            await task

        asyncio.run(main())

    def test_a_synchronous_tool_ends_and_its_result_is_kept(self, manager: CheckpointManager) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def slow() -> str:
            begun.set()
            go_on.wait()
            return "done"

        with pytest.raises(asyncio.CancelledError):
            self.program(manager, slow, begun, go_on)
        assert [(call.name, call.state, call.result) for call in manager.list_calls("r")] == [("tool", "done", "done")]
        assert manager.list_checkpoints("r")[0].status == "cancelled"
        assert len(manager.list_checkpoints("r")[0].tool_results) == 1

    def test_a_call_that_was_cut_off_before_it_ran_isnt_in_doubt(
        self, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recording, go_on, put = threading.Event(), threading.Event(), Thread.put_writes

        def slowly(*args: Any, **kwargs: Any) -> None:
            recording.set()
            put(*args, **kwargs)
            go_on.wait()

        monkeypatch.setattr(Thread, "put_writes", slowly)
        done: list[str] = []
        with pytest.raises(asyncio.CancelledError):
            self.program(manager, lambda: done.append("ran"), recording, go_on)
        monkeypatch.undo()
        assert done == []
        assert [call.state for call in manager.list_calls("r")] == ["failed"]
        assert manager.restore("r").call(lambda: "ran", call_name="tool") == "ran"
