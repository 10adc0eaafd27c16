"""A stored result may rest on something; a restored run executes nothing before that was looked at."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deltastore import InvalidInputError, Store
from deltastore.agent import CheckpointManager, FileIs, Registered, RottenResultError, Run, ValidUntil, tool


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store)


def program(run: Run, file: Path, done: list[str]) -> None:
    def read(path: str) -> str:
        return Path(path).read_text()

    def act(step: str) -> None:
        done.append(step)

    run.call(read, str(file), holds=[FileIs(file)])
    run.call(act, "first")
    if len(done) < 2:
        return
    run.call(act, "second")


def test_a_changed_file_stops_the_run_before_it_acts(manager: CheckpointManager, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("one")
    done: list[str] = []
    program(manager.run("r"), file, done)
    file.write_text("two")
    program(manager.restore("r"), file, done)  # answers from the journal look at nothing
    done.append("")
    with pytest.raises(RottenResultError) as raised:
        program(manager.restore("r"), file, done)
    error = raised.value
    assert error.condition == f"file {file}"
    assert error.expected != error.found
    assert error.run_id == "r"
    assert done == ["first", ""]
    file.unlink()
    with pytest.raises(RottenResultError) as raised:
        program(manager.restore("r"), file, done)
    assert raised.value.found == "missing"
    program(manager.restore("r", check=False), file, done)
    assert done == ["first", "", "second"]


def test_a_call_made_anew_isnt_stopped_by_its_own_old_result(manager: CheckpointManager, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("one")
    run = manager.run("r")
    run.call(file.read_text, call_name="read", holds=[FileIs(file)])
    file.write_text("two")
    run = manager.restore("r")
    assert run.call(file.read_text, call_name="read", holds=[FileIs(file)], fresh=True) == "two"
    assert run.call(str.upper, "x") == "X"
    run = manager.restore("r")
    assert run.call(file.read_text, call_name="read", holds=[FileIs(file)]) == "two"
    assert run.call(str.upper, "x") == "X"
    run.check()


def test_results_of_earlier_steps_count_too(manager: CheckpointManager, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("one")
    run = manager.run("r")
    run.call(str.upper, "x", holds=[FileIs(file)])
    run.step()
    file.write_text("two")
    run = manager.restore("r")
    with pytest.raises(RottenResultError):
        run.call(str.lower, "x")
    with pytest.raises(RottenResultError):
        run.check()


def test_of_one_file_what_was_found_last_counts(manager: CheckpointManager, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("one")

    def edit(text: str) -> int:
        return file.write_text(text)

    run = manager.run("r")
    for text in ("two", "three"):
        run.call(edit, text, holds=[FileIs(file)])
        run.step()
    assert manager.restore("r").call(str.upper, "x") == "X"


def test_a_time_limit_may_depend_on_the_result(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)

    @tool(holds=lambda result: [ValidUntil(result["expires"])])
    def log_in() -> dict[str, Any]:
        return {"token": "t", "expires": expires}

    manager.run("r").call(log_in)
    run = manager.restore("r")
    assert run.call(log_in)["expires"] == expires
    run.call(str.upper, "x")
    later = expires.timestamp() + 1
    monkeypatch.setattr(time, "time", lambda: later)
    run = manager.restore("r")
    run.call(log_in)
    run.call(str.upper, "x")
    with pytest.raises(RottenResultError, match="time limit") as raised:
        run.call(str.upper, "y")
    assert "past since" in raised.value.found


def test_a_registered_function_is_asked_again(store: Store) -> None:
    versions: Iterator[str] = iter(["v1", "v1", "v2"])

    def managed() -> CheckpointManager:
        manager = CheckpointManager(store)

        @manager.precondition("page version")
        def version(page: str) -> str:
            assert page == "home"
            return next(versions)

        return manager

    managed().run("r").call(str.upper, "x", holds=[Registered("page version", "home")])
    managed().restore("r").check()
    with pytest.raises(RottenResultError) as raised:
        managed().restore("r").check()
    assert (raised.value.expected, raised.value.found) == ("v1", "v2")
    with pytest.raises(InvalidInputError, match="no precondition 'page version' is registered"):
        CheckpointManager(store).restore("r").check()


def test_a_token_that_was_taken_anew_stands_in_place_of_the_old_one(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("deltastore.agent.preconditions.time.time", lambda: now[0])

    def login(user: str) -> float:
        return now[0] + 100

    run = manager.run("r")
    for _ in range(2):
        run.call(login, "ann", holds=lambda until: [ValidUntil(until)])
        run.step()
        now[0] += 90
    manager.restore("r").call(int)  # the first token is past
    now[0] += 90
    run = manager.restore("r")
    run.call(int)
    with pytest.raises(RottenResultError):
        run.call(int, call_name="next")


def test_a_function_may_return_what_isnt_plain(manager: CheckpointManager) -> None:
    manager.precondition("size")(lambda argument: (argument, {1}))
    manager.run("r").call(int, holds=[Registered("size", (1, 2))])
    run = manager.restore("r")
    run.call(int)
    run.call(str)
    run.step()
    manager.restore("r").call(float)
