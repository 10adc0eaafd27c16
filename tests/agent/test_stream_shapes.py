"""Streams of whole chunks, as SDKs give them: their text and usage are read, and what was handed on is the record."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from deltastore import InvalidInputError, Store
from deltastore.agent import CheckpointManager

OPENAI: list[Any] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "Hel"}}]},
    {
        "choices": [
            {"index": 0, "delta": {"content": "lo", "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}
        ]
    },
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}},
]
ANTHROPIC: list[Any] = [
    {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
]
RESPONSES: list[Any] = [
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_text.delta", "delta": "Hel"},
    {"type": "response.output_text.delta", "delta": "lo"},
    {"type": "response.function_call_arguments.delta", "delta": "{"},
    {"type": "response.completed", "response": {"usage": {"input_tokens": 9, "output_tokens": 2}}},
]
SHAPES = pytest.mark.parametrize("chunks", [OPENAI, ANTHROPIC, RESPONSES], ids=["openai", "anthropic", "responses"])
TOOK = {"input_tokens": 9, "output_tokens": 2}


class Crash(BaseException):
    """Ends a program as a kill would."""


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store, flush_s=0.0)


@SHAPES
def test_text_and_usage_of_chunks_are_read(manager: CheckpointManager, chunks: list[Any]) -> None:
    for _ in range(2):
        run = manager.run("r")
        stream = run.stream(lambda shown: iter(chunks), call_name="ask")
        assert list(stream) == chunks
        assert (stream.text, run.token_usage) == ("Hello", TOOK)
    assert manager.list_calls("r")[0].usage == TOOK


@SHAPES
def test_what_both_lives_took_is_counted(manager: CheckpointManager, chunks: list[Any]) -> None:
    def dies(shown: list[Any]) -> Iterator[Any]:
        yield from chunks[:2]
        raise Crash

    with pytest.raises(Crash):
        list(manager.run("r").stream(dies, call_name="ask"))
    run = manager.restore("r")
    stream = run.stream(lambda shown: iter([chunks[0], *chunks[len(shown) :]]), call_name="ask")
    assert len(list(stream)) == len(chunks) + 1
    twice = 9 if chunks is ANTHROPIC else 0  # it says at the beginning what the prompt took
    assert run.token_usage["input_tokens"] == 9 + twice
    again = manager.restore("r")
    list(again.stream(lambda shown: iter([]), call_name="ask"))
    assert again.token_usage == run.token_usage


def test_chunks_may_be_objects(manager: CheckpointManager) -> None:
    from deltastore.agent.messages import text_of, usage_of_tokens

    delta = SimpleNamespace(content="Hi")
    chunk = SimpleNamespace(choices=[SimpleNamespace(delta=delta)], usage=SimpleNamespace(prompt_tokens=3))
    assert text_of(chunk) == "Hi"
    assert usage_of_tokens([chunk]) == {"input_tokens": 3}


def test_a_stream_closed_within_a_batch_is_what_was_handed_on(store: Store) -> None:
    manager = CheckpointManager(store, flush_s=60.0)
    run = manager.run("r")
    stream = run.stream(lambda shown: iter("abcd"), call_name="ask")
    assert [next(stream), next(stream)] == ["a", "b"]  # the others are kept with it
    assert stream.text == "ab"
    stream.close()
    assert list(manager.restore("r").stream(lambda shown: iter("x"), call_name="ask")) == ["a", "b"]
    assert manager.list_calls("r")[0].tokens == ("a", "b")
    run.step()


def test_an_asynchronous_stream_that_is_left_closes_its_source(store: Store) -> None:
    closed = []

    async def source(shown: list[str]) -> AsyncIterator[str]:
        try:
            for letter in "abcd":
                yield letter
        finally:
            closed.append(True)

    async def main() -> str:
        stream = CheckpointManager(store, flush_s=0.0).run("r").astream(source)
        async for _ in stream:
            break
        await stream.aclose()
        assert closed == [True]
        return stream.text

    assert asyncio.run(main()) == "a"


def test_the_other_kind_of_iterable_is_told(manager: CheckpointManager) -> None:
    async def atokens(shown: list[str]) -> AsyncIterator[str]:
        yield "a"

    async def later(shown: list[str]) -> list[str]:
        return ["a"]

    async def main(function: Any) -> None:
        async for _ in manager.run("r").astream(function):
            pass

    for wrong in (atokens, later):
        with pytest.raises(InvalidInputError, match=r"run\.astream"):
            list(manager.run("r").stream(wrong))
    for function in (later, lambda shown: iter("a")):
        with pytest.raises(InvalidInputError, match=r"run\.stream"):
            asyncio.run(main(function))


def test_a_stream_that_isnt_closed_is_named_when_the_step_ends(manager: CheckpointManager) -> None:
    run = manager.run("r")
    stream = run.stream(lambda shown: iter("ab"), call_name="ask")
    next(stream)
    with pytest.raises(InvalidInputError, match=r"stream 'ask'.*close streams"):
        run.step()
