"""Runs through the public API: calls are answered from the journal, whatever the program's life was like."""

import asyncio
import dataclasses
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import deltastore
from deltastore import ConflictError, EncodeError, InvalidInputError, Store, ThreadExistsError, ThreadNotFoundError
from deltastore.agent import (
    AFTER_INTERRUPTS,
    AFTER_MESSAGES,
    AFTER_NODES,
    AFTER_TOOLS,
    NOT_DONE,
    CallFailedError,
    ChangedPathError,
    ChangedPathWarning,
    CheckpointManager,
    Done,
    InDoubtError,
    Paused,
    Run,
    current_call,
    current_run,
    every,
    model,
    tool,
)
from deltastore.store import Thread

pydantic = pytest.importorskip("pydantic")


class Crash(BaseException):
    """Ends a program at a chosen place, as a kill would: nothing catches it, and nothing is saved after it."""


def crash(*_: Any, **__: Any) -> Any:
    raise Crash


@dataclasses.dataclass
class Said:
    role: str
    content: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    role: str
    content: Any = None


class Log:
    """A tool that counts what it did."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, line: str) -> str:
        self.done.append(line)
        return f"wrote {line}"

    async def awrite(self, line: str, turns: int = 0) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.done.append(line)
        return f"wrote {line}"

    def fail(self, line: str) -> str:
        self.done.append(line)
        raise ValueError(line, 7)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store)


class TestCalls:
    def test_a_completed_call_is_answered_and_not_made_again(self, manager: CheckpointManager, log: Log) -> None:
        def program(run: Run) -> list[str]:
            return [run.call(log.write, "a"), run.call(log.write, line="b"), run.call(log.write, "a")]

        first = manager.run("r")
        assert program(first) == ["wrote a", "wrote b", "wrote a"]
        again = manager.restore("r")
        assert program(again) == ["wrote a", "wrote b", "wrote a"]
        assert log.done == ["a", "b", "a"]
        assert again.tool_calls == first.tool_calls
        assert again.tool_results == first.tool_results
        assert [record["arguments"] for record in again.tool_calls] == [{"line": "a"}, {"line": "b"}, {"line": "a"}]
        assert len({record["id"] for record in again.tool_calls}) == 3

    def test_the_order_of_keywords_and_keys_makes_no_other_call(self, manager: CheckpointManager) -> None:
        made = []

        def search(query: dict[str, int], **more: int) -> int:
            made.append(query)
            return len(made)

        manager.run("r").call(search, {"a": 1, "b": 2}, x=1, y=2)
        assert manager.restore("r").call(search, y=2, x=1, query={"b": 2, "a": 1}) == 1

    def test_results_of_any_class_come_back_as_they_were(self, manager: CheckpointManager) -> None:
        found = {"when": (1, {2}), "path": Path("x")}
        manager.run("r").call(lambda: found)
        assert manager.restore("r").call(lambda: None) == found

    def test_an_argument_that_cant_be_stored_is_refused_before_anything_happens(
        self, manager: CheckpointManager, log: Log
    ) -> None:
        def post(client: object, line: str) -> str:
            return log.write(line)

        run = manager.run("r")
        with pytest.raises(EncodeError, match=r"ignore=\('client',\)"):
            run.call(post, object(), "a")
        assert run.call(post, object(), "a", ignore=("client",)) == "wrote a"
        assert manager.restore("r").call(post, object(), "a", ignore=("client",)) == "wrote a"
        assert log.done == ["a"]

    def test_a_tool_is_given_its_key_the_same_at_every_attempt(self, manager: CheckpointManager) -> None:
        keys = []

        def pay(amount: int, idempotency_key: str = "") -> None:
            call = current_call()
            assert call is not None
            assert call.arguments == {"amount": amount}
            keys.append((idempotency_key, call.idempotency_key, call.attempt))
            if len(keys) == 1:
                raise Crash

        with pytest.raises(Crash):
            manager.run("r").call(pay, 3, in_doubt="retry")
        manager.restore("r").call(pay, 3, in_doubt="retry")
        assert keys == [(keys[0][0], keys[0][0], 0), (keys[0][0], keys[0][0], 1)]
        assert current_call() is None

    def test_decorated_functions_are_recorded_by_the_run_they_are_called_in(
        self, manager: CheckpointManager, log: Log
    ) -> None:
        @tool(name="note")
        def write(line: str) -> str:
            return log.write(line)

        @model()
        def ask(messages: list[Any]) -> dict[str, Any]:
            return {"role": "assistant", "content": write("inner"), "usage": {"prompt_tokens": 3}}

        assert write("outside") == "wrote outside"
        for _ in range(2):
            with pytest.raises(Crash), manager.run("r") as run:  # noqa: PT012
                assert current_run() is run
                assert write("a") == "wrote a"
                assert ask([])["content"] == "wrote inner"
                assert [record["name"] for record in run.tool_calls] == ["note"]
                raise Crash
        assert log.done == ["outside", "a", "inner"]
        assert current_run() is None

    def test_a_tool_may_have_parameters_of_any_name(self, manager: CheckpointManager, log: Log) -> None:
        @tool()
        def create(name: str, holds: int, in_doubt: str = "", fresh: bool = True) -> str:
            return log.write(f"{name} {holds}")

        run = manager.run("r")
        with run:
            assert create(name="Bob", holds=3, fresh=True) == "wrote Bob 3"
            assert run.tools({"make": create})["make"](name="Eve", holds=4) == "wrote Eve 4"
        assert [record["arguments"].get("name") for record in run.tool_calls] == ["Bob", "Eve"]

    def test_a_dict_of_tools_is_wrapped(self, manager: CheckpointManager, log: Log) -> None:
        for _ in range(2):
            tools = manager.run("r").tools({"one": log.write, "two": log.awrite})
            assert tools["one"]("a") == "wrote a"
            assert asyncio.run(tools["two"]("b")) == "wrote b"
        assert log.done == ["a", "b"]

    def test_asynchronous_tools_are_awaited_by_the_twin_alone(self, manager: CheckpointManager, log: Log) -> None:
        run = manager.run("r")
        with pytest.raises(InvalidInputError, match="twin"):
            run.call(log.awrite, "a")
        assert run.tool_calls == []

    def test_calls_of_threads_are_all_recorded(self, manager: CheckpointManager, log: Log) -> None:
        def work(run: Run) -> None:
            threads = [threading.Thread(target=run.call, args=(log.write, str(number % 4))) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        work(manager.run("r"))
        again = manager.restore("r")
        work(again)
        again.step()
        assert len(log.done) == len(again.tool_results) == 8


class TestGather:
    @staticmethod
    async def program(run: Run, log: Log) -> list[Any]:
        async def flow(name: str, turns: int) -> list[str]:
            return [await run.acall(log.awrite, f"{name}{part}", turns) for part in range(2)]

        return await asyncio.gather(flow("a", 9), flow("b", 0), flow("c", 4))

    def test_concurrent_calls_keep_the_order_in_which_they_began(self, manager: CheckpointManager, log: Log) -> None:
        run = manager.run("r")
        found = asyncio.run(self.program(run, log))
        assert found == [[f"wrote {name}{part}" for part in range(2)] for name in "abc"]
        assert [record["arguments"]["line"] for record in run.tool_calls][:3] == ["a0", "b0", "c0"]
        assert [record["id"] for record in run.tool_results] == [record["id"] for record in run.tool_calls]

    def test_after_a_crash_each_is_done_once(self, store: Store, log: Log) -> None:
        """Killed after every number of completed calls: the program, run again, completes without a repetition."""
        for survivors in range(6):
            log.done.clear()

            def look(call: Any) -> Any:
                line = call.arguments["line"]
                return Done(f"wrote {line}") if line in log.done else NOT_DONE

            manager = CheckpointManager(store, on_changed_path="raise", in_doubt=look)
            run = manager.run(f"r{survivors}")
            left = iter([None] * survivors)

            class Dying(Log):
                async def awrite(self, line: str, turns: int = 0, left: Iterator[None] = left) -> str:
                    if next(left, 0) == 0:
                        raise Crash
                    return await Log.awrite(log, line, turns)

            with pytest.raises((Crash, BaseExceptionGroup)):
                asyncio.run(self.program(run, Dying()))
            run = manager.restore(f"r{survivors}")
            asyncio.run(self.program(run, log))
            run.step()
            assert sorted(log.done) == ["a0", "a1", "b0", "b1", "c0", "c1"]


class TestFailures:
    def program(self, run: Run, log: Log) -> str:
        try:
            run.call(log.fail, "bad")
        except ValueError as error:
            return str(run.call(log.write, f"after {error.args}"))
        raise AssertionError

    def test_a_failure_that_was_handled_is_raised_again(self, manager: CheckpointManager, log: Log) -> None:
        assert self.program(manager.run("r"), log) == self.program(manager.restore("r"), log)
        assert log.done == ["bad", "after ('bad', 7)"]

    def test_the_last_failure_is_tried_again(self, manager: CheckpointManager, log: Log) -> None:
        run = manager.run("r")
        with pytest.raises(ValueError, match="bad"):
            run.call(log.fail, "bad")
        assert run.tool_results[0]["error"]["type"] == "ValueError"
        run = manager.restore("r")
        with pytest.raises(ValueError, match="bad"):
            run.call(log.fail, "bad")
        assert log.done == ["bad", "bad"]
        assert manager.list_calls("r")[0].attempts == 2

    def test_an_error_of_another_class_is_told(self, manager: CheckpointManager, log: Log) -> None:
        class OddError(Exception):
            pass

        def odd() -> None:
            log.done.append("odd")
            raise OddError("so")

        run = manager.run("r")
        with pytest.raises(OddError):
            run.call(odd)
        run.call(log.write, "b")
        with pytest.raises(CallFailedError, match="OddError: so"):
            manager.restore("r").call(odd)
        assert log.done == ["odd", "b"]


class TestInDoubt:
    def begun(self, manager: CheckpointManager, log: Log) -> None:
        def dies(line: str) -> str:
            log.write(line)
            raise Crash

        with pytest.raises(Crash):
            manager.run("r").call(dies, "a", call_name="write")

    def test_it_is_raised_with_the_key(self, manager: CheckpointManager, log: Log) -> None:
        self.begun(manager, log)
        with pytest.raises(InDoubtError) as raised:
            manager.restore("r").call(log.write, "a")
        assert (raised.value.name, raised.value.run_id) == ("write", "r")
        assert raised.value.key == manager.list_calls("r")[0].idempotency_key
        assert log.done == ["a"]

    def test_it_is_made_again_where_that_does_no_harm(self, manager: CheckpointManager, log: Log) -> None:
        self.begun(manager, log)
        assert manager.restore("r").call(log.write, "a", in_doubt="retry") == "wrote a"
        assert manager.restore("r").call(log.write, "a") == "wrote a"
        assert log.done == ["a", "a"]

    def test_a_look_up_that_finds_the_effect_gives_the_result(self, manager: CheckpointManager, log: Log) -> None:
        self.begun(manager, log)
        seen = []

        def look(call: Any) -> Any:
            seen.append((call.name, call.arguments))
            return Done("found")

        assert manager.restore("r").call(log.write, "a", in_doubt=look) == "found"
        assert manager.restore("r").call(log.write, "a") == "found"
        assert seen == [("write", {"line": "a"})]
        assert log.done == ["a"]

    def test_a_look_up_that_finds_nothing_has_it_made(self, store: Store, manager: CheckpointManager, log: Log) -> None:
        self.begun(manager, log)

        async def look(call: Any) -> Any:
            return NOT_DONE

        asking = CheckpointManager(store, in_doubt=look)
        assert asyncio.run(asking.restore("r").acall(log.write, "a")) == "wrote a"
        assert log.done == ["a", "a"]

    def test_a_model_is_simply_asked_again(self, manager: CheckpointManager) -> None:
        with pytest.raises(Crash):
            manager.run("r").model(crash, model="m")
        assert manager.restore("r").model(lambda model: "reply", call_name="crash", model="m") == "reply"

    def test_a_result_that_cant_be_stored_leaves_the_call_in_doubt(self, manager: CheckpointManager) -> None:
        with pytest.raises(EncodeError, match="result of"):
            manager.run("r").call(object, call_name="make")
        with pytest.raises(InDoubtError):
            manager.restore("r").call(int, call_name="make")


class TestChangedPath:
    def record(self, manager: CheckpointManager, log: Log) -> None:
        run = manager.run("r")
        run.call(log.write, "a")
        run.call(log.write, "b")

    def test_it_is_told_of_before_another_call_is_made(self, manager: CheckpointManager, log: Log) -> None:
        self.record(manager, log)
        run = manager.restore("r")
        run.call(log.write, "a")
        with pytest.warns(ChangedPathWarning, match="recorded here is tool 'write' at step 0"):
            run.call(log.write, "changed")
        run.step()
        assert log.done == ["a", "b", "changed"]

    def test_it_is_refused_where_that_is_asked_for(self, store: Store, manager: CheckpointManager, log: Log) -> None:
        self.record(manager, log)
        run = CheckpointManager(store, on_changed_path="raise").restore("r")
        run.call(log.write, "a")
        with pytest.raises(ChangedPathError):
            run.call(log.write, "changed")
        assert log.done == ["a", "b"]

    def test_a_call_that_is_left_out_is_told_of_when_the_step_ends(
        self, store: Store, manager: CheckpointManager, log: Log
    ) -> None:
        self.record(manager, log)
        run = CheckpointManager(store, on_changed_path="raise").restore("r")
        run.call(log.write, "a")
        with pytest.raises(ChangedPathError, match="came to a step"):
            run.step()
        assert len(manager.list_checkpoints("r")) == 1


class TestModels:
    REPLY: ClassVar = {"role": "assistant", "content": "hi", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}

    def test_the_stored_reply_is_used_and_its_parameters_are_kept(self, manager: CheckpointManager) -> None:
        made = []

        def ask(**params: Any) -> Any:
            made.append(params)
            return {**self.REPLY, "content": f"reply {len(made)}"}

        params: dict[str, Any] = {"model": "m", "temperature": 0.7, "seed": 4, "messages": [{"role": "user"}]}
        for _ in range(2):
            run = manager.run("r")
            assert run.model(ask, **params)["content"] == "reply 1"
            assert run.token_usage == {"input_tokens": 5, "output_tokens": 2}
        (kept,) = manager.list_calls("r")
        assert kept.arguments == params
        assert kept.usage == {"input_tokens": 5, "output_tokens": 2}
        assert manager.run("r").model(ask, fresh=True, **params)["content"] == "reply 2"
        assert manager.run("r").model(ask, **params)["content"] == "reply 2"
        assert len(made) == 2

    def test_a_prompt_shares_its_chunks_with_the_messages(self, store: Store, manager: CheckpointManager) -> None:
        chance = random.Random(3)
        messages = [{"role": "user", "content": chance.randbytes(20_000).hex()} for _ in range(5)]
        run = manager.run("r", messages=messages)
        before = next(store.threads()).bytes
        assert before > 100_000
        reply = run.model(lambda messages: {"role": "assistant", "content": chance.randbytes(20_000).hex()}, messages)
        run.add(reply)
        run.step()
        assert next(store.threads()).bytes - before < 30_000  # the reply, once
        assert manager.list_calls("r", manager.list_checkpoints("r")[1])[0].arguments["messages"] == messages


class TestCheckpoints:
    def test_they_hold_what_the_run_held(self, manager: CheckpointManager, log: Log) -> None:
        with manager.run("r", state={"goal": "x", "seen": {1, 2}}, metadata={"user": "u1"}) as run:
            for turn in range(3):
                run.add(run.model(lambda turn: {"role": "assistant", "content": str(turn)}, turn=turn))
                run.call(log.write, str(turn))
                run.state["turn"] = (turn,)
                run.step(f"node {turn}")
        last, *_, first = manager.list_checkpoints("r")
        assert [found.kind for found in manager.list_checkpoints("r")] == ["end", "step", "step", "step", "begin"]
        assert (last.status, last.step_index, last.node_name) == ("done", 3, "node 2")
        assert last.state == {"goal": "x", "seen": {1, 2}, "turn": (2,)}
        assert [message["content"] for message in last.messages] == ["0", "1", "2"]
        assert [record["result"] for record in last.tool_results] == ["wrote 0", "wrote 1", "wrote 2"]
        assert [record["id"] for record in last.tool_calls] == [record["id"] for record in last.tool_results]
        assert dict(last.metadata) == {"user": "u1"}
        assert (first.messages, first.state) == ([], {"goal": "x", "seen": {1, 2}})
        assert len(last.checkpoint_id) == 26
        assert last.created_at >= first.created_at
        assert last.run_id == "r"
        with pytest.raises(dataclasses.FrozenInstanceError):
            last.status = "x"  # type: ignore[misc]

    def test_messages_of_any_shape_come_back_as_they_were(self, store: Store) -> None:
        manager = CheckpointManager(store, types=[Said, Model])
        messages = [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": b"x"}]},
            Said("assistant", [("a", 1)]),
            Model(role="assistant", content=None, refusal="no"),
        ]
        with manager.run("r") as run:
            for message in messages:
                run.add(message)
            reply = run.model(lambda: Model(role="assistant", usage={"input_tokens": 4}))
            run.add(reply)
        for found in (manager.restore("r").messages, manager.list_checkpoints("r")[0].messages):
            assert found == [*messages, reply]
            assert [type(message) for message in found] == [dict, Said, Model, Model]
            assert found[2].model_fields_set == {"role", "content", "refusal"}
        assert manager.restore("r").token_usage == {"input_tokens": 4}

    def test_a_restored_run_goes_on(self, manager: CheckpointManager) -> None:
        run = manager.run("r")
        run.state["x"] = [1]
        run.messages.append("plain text")
        manager.save(run)
        run.state["x"].append(2)
        back = manager.restore("r")
        assert (back.state, back.messages) == ({"x": [1]}, ["plain text"])
        del back.state["x"]
        back.save()
        assert manager.restore("r").state == {}
        older = manager.list_checkpoints("r")[1]
        assert manager.restore("r", at=older).state == {"x": [1]}
        assert manager.restore("r", older.checkpoint_id).state == {"x": [1]}

    def test_asynchronous_twins_do_the_same(self, manager: CheckpointManager) -> None:
        async def main() -> None:
            async with await manager.arun("r") as run:
                await run.aadd({"role": "user", "content": "hi"})
                await run.amodel(lambda messages: "x", messages=run.messages)
                await run.astep()
                await manager.asave(run)
                async with run.node("n", 1) as node:
                    node.outputs = 2
                await run.acheck()
            back = await manager.arestore("r")
            assert (back.messages, back.status) == ([{"role": "user", "content": "hi"}], "done")
            assert [found.kind for found in await manager.alist_checkpoints("r")] == ["end", "save", "step", "begin"]
            assert (await manager.afork("r", as_="s")).messages == back.messages

        asyncio.run(main())

    def test_what_isnt_there_or_no_run_is_told(self, store: Store, manager: CheckpointManager) -> None:
        with pytest.raises(ThreadNotFoundError):
            manager.restore("nobody")
        assert manager.list_checkpoints("nobody") == []
        store.thread("native").append({"x": 1})
        with pytest.raises(InvalidInputError, match="isn't a run"):
            manager.restore("native")

    def test_saving_costs_the_change(self, tmp_path: Path) -> None:
        """Twice as many steps take about twice the room, not four times."""
        sizes = []
        for steps in (100, 200):
            with deltastore.open(tmp_path / f"{steps}.ds") as store:
                run = CheckpointManager(store).run("r")
                for step in range(steps):
                    run.add({"role": "assistant", "content": f"{step} " * 300})
                    run.call(lambda step: f"{step} found " * 200, step)
                    run.step()
                sizes.append(next(store.threads()).bytes)
        assert sizes[1] < 2.5 * sizes[0]


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "kinds"),
        [
            (every(1), "step step"),
            (every(2), "step"),
            (AFTER_MESSAGES, "message tool step message tool step"),
            (AFTER_TOOLS, "tool step tool step"),
            (AFTER_INTERRUPTS, ""),
            (AFTER_NODES, "node step node step"),
        ],
    )
    def test_checkpoints_are_put_where_the_policy_asks(self, store: Store, log: Log, policy: Any, kinds: str) -> None:
        manager = CheckpointManager(store, policy)
        with manager.run("r") as run:
            for turn in range(2):
                with run.node("work", turn) as node:
                    run.add({"role": "assistant", "content": "call"})
                    node.outputs = run.call(log.write, str(turn))
                    run.add({"role": "tool", "content": node.outputs})
                run.step()
        found = [checkpoint.kind for checkpoint in reversed(manager.list_checkpoints("r"))]
        assert found == ["begin", *kinds.split(), "end"]

    def test_edges_have_inputs_and_outputs(self, store: Store) -> None:
        manager = CheckpointManager(store, AFTER_NODES)
        run = manager.run("r")
        for name in ("plan", "act"):
            with run.node(name, {"in": name}) as node:
                node.outputs = name.upper()
        last = manager.list_checkpoints("r")[0]
        assert last.node_name == "act"
        assert [(edge["from"], edge["to"], edge["inputs"], edge["outputs"]) for edge in last.edges] == [
            (None, "plan", {"in": "plan"}, "PLAN"),
            ("plan", "act", {"in": "act"}, "ACT"),
        ]
        assert last.resumes_at != last.checkpoint_id

    def test_looks_into_a_step_lose_nothing_of_its_journal(self, store: Store, log: Log) -> None:
        """A loop that starts each turn anew resumes in the middle of a turn without doing anything twice."""
        manager = CheckpointManager(store, AFTER_MESSAGES, on_changed_path="raise")

        def program(run: Run, dies: bool) -> None:
            for line in ("a", "b"):
                run.add({"role": "tool", "content": run.call(log.write, line)})
            if dies:
                raise Crash
            run.step()

        with pytest.raises(Crash):
            program(manager.run("r"), True)
        looks = manager.list_checkpoints("r")
        assert [len(look.messages) for look in looks] == [2, 1, 0]
        program(manager.restore("r"), False)
        assert log.done == ["a", "b"]
        assert [message["content"] for message in manager.restore("r").messages] == ["wrote a", "wrote b"]
        assert len(manager.restore("r", looks[0]).messages) == 2


class TestLeaving:
    @pytest.mark.parametrize(
        ("error", "status"),
        [(RuntimeError("x"), "failed"), (KeyboardInterrupt(), "cancelled"), (asyncio.CancelledError(), "cancelled")],
    )
    def test_how_a_run_broke_off_is_kept_and_it_goes_on(
        self, manager: CheckpointManager, log: Log, error: BaseException, status: str
    ) -> None:
        with pytest.raises(type(error)), manager.run("r") as run:  # noqa: PT012
            run.add({"role": "user", "content": "hi"})
            run.call(log.write, "a")
            raise error
        last = manager.list_checkpoints("r")[0]
        assert (last.status, len(last.messages)) == (status, 1)
        assert last.error is not None
        back = manager.restore("r")
        assert (back.status, back.messages) == (status, [])
        with back:
            assert back.call(log.write, "a") == "wrote a"
        assert manager.restore("r").status == "done"
        assert log.done == ["a"]

    def test_cancelling_a_task_leaves_a_run_that_goes_on(self, manager: CheckpointManager, log: Log) -> None:
        async def main() -> None:
            begun = asyncio.Event()

            async def waits() -> str:
                begun.set()
                await asyncio.Event().wait()
                return ""

            async def agent() -> None:
                async with await manager.arun("r") as run:
                    await run.acall(log.write, "a")
                    await run.acall(waits)

            task = asyncio.create_task(agent())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert manager.list_checkpoints("r")[0].status == "cancelled"
        assert manager.restore("r").call(log.write, "a") == "wrote a"
        assert [call.state for call in manager.list_calls("r")] == ["done", "started"]
        assert log.done == ["a"]

    def test_a_state_that_cant_be_saved_hides_no_error(self, manager: CheckpointManager) -> None:
        with pytest.raises(RuntimeError, match="x") as raised, manager.run("r") as run:  # noqa: PT012
            run.state["client"] = object()
            raise RuntimeError("x")
        assert "wasn't saved: state['client']" in raised.value.__notes__[0]

    def test_a_step_cant_end_while_calls_are_under_way(self, manager: CheckpointManager) -> None:
        run = manager.run("r")
        with pytest.raises(InvalidInputError, match="still under way"):
            run.call(run.step)


class TestPausing:
    def program(self, run: Run, log: Log) -> str:
        run.add({"role": "user", "content": "buy"})
        run.call(log.write, "before")
        if run.pause({"approve": run.call(log.write, "price")}) == "yes":
            return str(run.call(log.write, "bought"))
        return "refused"

    def test_a_decision_is_given_to_another_life_of_the_run(self, manager: CheckpointManager, log: Log) -> None:
        for _ in range(2):  # unanswered it pauses again
            with pytest.raises(Paused) as raised, manager.run("r") as run:
                self.program(run, log)
            assert (raised.value.question, raised.value.run_id) == ({"approve": "wrote price"}, "r")
        last = manager.list_checkpoints("r")[0]
        assert (last.kind, last.status, last.question) == ("interrupt", "paused", {"approve": "wrote price"})
        assert len(last.messages) == 1
        manager.restore("r").resume("yes")
        with manager.run("r") as run:
            assert self.program(run, log) == "wrote bought"
            assert len(run.messages) == 1
        assert log.done == ["before", "price", "bought"]
        assert manager.restore("r").status == "done"

    def test_one_decision_stands(self, manager: CheckpointManager, log: Log) -> None:
        with pytest.raises(InvalidInputError, match="waits for no decision"):
            manager.run("r").resume("yes")
        with pytest.raises(Paused):
            self.program(manager.run("r"), log)
        one, other = manager.restore("r"), manager.restore("r")
        one.resume("no")
        with pytest.raises(ConflictError, match="'no'; that stands"):
            other.resume("yes")
        assert self.program(manager.restore("r"), log) == "refused"

    def test_the_same_run_may_be_answered(self, manager: CheckpointManager, log: Log) -> None:
        run = manager.run("r")
        with pytest.raises(Paused):
            self.program(run, log)
        run.resume("yes")
        assert self.program(manager.restore("r"), log) == "wrote bought"

    def test_a_tool_may_ask(self, manager: CheckpointManager, log: Log) -> None:
        def buy(run: Run) -> str:
            return log.write(f"bought: {run.pause('sure?')}")

        async def program(run: Run) -> str:
            return str(await run.acall(buy, run, ignore=("run",)))

        with pytest.raises(Paused):
            asyncio.run(program(manager.run("r")))
        manager.restore("r").resume("yes")
        assert asyncio.run(program(manager.restore("r"))) == "wrote bought: yes"


class TestBranches:
    def steps(self, run: Run, log: Log, prompts: list[str]) -> None:
        for prompt in prompts[run.step_index :]:
            run.add({"role": "assistant", "content": run.call(log.write, prompt)})
            run.call(log.write, "common")
            run.step()

    def test_a_fork_runs_the_changed_tail_alone(self, manager: CheckpointManager, log: Log) -> None:
        first = manager.run("r")
        self.steps(first, log, ["one", "two", "three"])
        at = manager.list_checkpoints("r")[2]
        assert at.step_index == 1
        log.done.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fork = manager.fork("r", at, as_="s")
            self.steps(fork, log, ["one", "TWO", "three"])
        assert log.done == ["TWO", "three", "common"]  # the step's own common call was done for it already
        assert [message["content"] for message in fork.messages] == ["wrote one", "wrote TWO", "wrote three"]
        origin = manager.list_checkpoints("s")[-1]
        assert origin.forked_from == {"run_id": "r", "checkpoint_id": at.checkpoint_id}
        assert [message["content"] for message in manager.restore("r").messages][1] == "wrote two"
        with pytest.raises(ThreadExistsError):
            manager.fork("r", as_="s")

    def test_a_fork_that_was_broken_off_is_completed_before_it_runs(
        self, manager: CheckpointManager, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.steps(manager.run("r"), log, ["one"])
        at = manager.list_checkpoints("r")[-1]
        put = Thread.put_writes
        left = iter([None, None])

        def dies(*args: Any, **kwargs: Any) -> None:
            if next(left, 0) == 0:
                raise Crash
            put(*args, **kwargs)

        monkeypatch.setattr(Thread, "put_writes", dies)
        with pytest.raises(Crash):
            manager.fork("r", at, as_="s")
        monkeypatch.undo()
        with pytest.raises(InvalidInputError, match=r"broken off; complete it with manager.fork\('r'"):
            manager.run("s")
        log.done.clear()
        fork = manager.fork("r", at, as_="s")
        self.steps(fork, log, ["one"])
        assert log.done == []
        assert manager.run("s").step_index == 1

    def test_going_back_continues_on_a_branch(self, manager: CheckpointManager, store: Store, log: Log) -> None:
        self.steps(manager.run("r"), log, ["one", "two"])
        at = manager.list_checkpoints("r")[1]
        self.steps(manager.restore("r", at), log, ["one", "TWO"])
        assert log.done == ["one", "common", "two", "common", "TWO"]
        assert [message["content"] for message in manager.restore("r").messages] == ["wrote one", "wrote TWO"]
        assert len(store.thread("r").forks()) == 1

    def test_a_copy_of_a_thread_is_a_run_with_its_journal(
        self, manager: CheckpointManager, store: Store, log: Log
    ) -> None:
        def dies() -> None:
            raise Crash

        run = manager.run("r")
        run.call(log.write, "a")
        with pytest.raises(Crash):
            run.call(dies)
        store.copy("r", "copy")
        for _ in range(2):
            run = manager.restore("copy")
            assert run.call(log.write, "a") == "wrote a"
            assert run.call(int, call_name="dies", in_doubt=lambda call: Done(5)) == 5
        assert log.done == ["a"]

    def test_retention_leaves_the_place_that_a_run_starts_again_from(
        self, manager: CheckpointManager, store: Store, log: Log
    ) -> None:
        for last in range(3):
            with pytest.raises(RuntimeError), manager.run("r") as run:  # noqa: PT012
                while True:
                    run.call(log.write, f"step {run.step_index}")
                    if run.step_index == last:
                        raise RuntimeError
                    run.step()
            store.retention = deltastore.Retention(keep_last=1)
            deltastore.apply_retention(store)
            assert len(manager.list_checkpoints("r")) == 2
            assert (manager.restore("r").step_index, manager.restore("r").status) == (last, "failed")
        assert log.done == ["step 0", "step 1", "step 2"]

    def test_a_call_that_another_process_began_just_now_isnt_made(self, manager: CheckpointManager, log: Log) -> None:
        manager.run("r")
        one, other = manager.restore("r"), manager.restore("r")
        assert one.call(log.write, "a") == "wrote a"
        assert other.model(lambda: "harmless") == "harmless"
        with pytest.raises(ConflictError, match="another process"):
            other.call(log.write, "a")
        assert log.done == ["a"]

    def test_the_second_of_two_writers_is_stopped(self, manager: CheckpointManager) -> None:
        manager.run("r")
        one, other = manager.restore("r"), manager.restore("r")
        one.step()
        with pytest.raises(ConflictError), other:
            other.step()
        assert len(manager.list_checkpoints("r")) == 2


@pytest.mark.parametrize("message", [None, 5, "hello", b"hello"])
def test_what_is_no_message_isnt_added(store: Store, message: Any) -> None:
    with CheckpointManager(store).run("r") as run:
        with pytest.raises(InvalidInputError, match=f"a message of type {type(message).__name__}; expected"):
            run.add(message)
        assert run.messages == []
        run.step()


def test_a_run_that_another_api_wrote_to_says_the_way_out(store: Store) -> None:
    manager = CheckpointManager(store)
    with manager.run("r") as run:
        run.step()
    put = store.thread("r").append({"x": 1})
    for call in (manager.restore, manager.run, manager.list_checkpoints):
        with pytest.raises(InvalidInputError, match=rf"store\.thread\('r'\)\.delete\('{put.id}'\)"):
            call("r")
    store.thread("r").delete(put)
    assert manager.restore("r").status == "done"
