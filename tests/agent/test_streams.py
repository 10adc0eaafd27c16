"""Tokens are kept before they are shown, and shown again before new ones are asked for."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from deltastore import Store
from deltastore.agent import CheckpointManager, Run
from deltastore.agent.streams import TokenStream

TOKENS = ["a", "b", "c", "d"]


class Crash(BaseException):
    pass


class Model:
    """Gives tokens after those shown; dies before one of them."""

    def __init__(self, dies_at: int | None = None, error: type[BaseException] = Crash) -> None:
        self.dies_at = dies_at
        self.error = error
        self.asked: list[list[str]] = []

    def tokens(self, shown: list[str], prompt: str = "p") -> Iterator[str]:
        self.asked.append(shown)
        for place in range(len(shown), len(TOKENS)):
            if place == self.dies_at:
                raise self.error("broken")
            yield TOKENS[place]

    async def atokens(self, shown: list[str], prompt: str = "p") -> AsyncIterator[str]:
        for token in self.tokens(shown, prompt):
            await asyncio.sleep(0)
            yield token


@pytest.fixture
def manager(store: Store) -> CheckpointManager:
    return CheckpointManager(store, flush_s=0.0)


def show(stream: TokenStream, count: int = 99) -> list[str]:
    return [token for token, _ in zip(stream, range(count), strict=False)]


@pytest.mark.parametrize("dies_at", range(len(TOKENS)))
def test_what_was_shown_comes_first_then_the_rest_is_asked_for(manager: CheckpointManager, dies_at: int) -> None:
    with pytest.raises(Crash):
        show(manager.run("r").stream(Model(dies_at).tokens))
    shown = list(manager.list_calls("r")[0].tokens)
    assert shown == TOKENS[:dies_at]
    model = Model()
    stream = manager.restore("r").stream(model.tokens)
    assert show(stream) == TOKENS
    assert stream.replayed == dies_at
    assert model.asked == [shown]
    again = manager.restore("r").stream(model.tokens)
    assert show(again) == TOKENS
    assert (again.replayed, again.text, len(model.asked)) == (4, "abcd", 1)


def test_a_reader_that_stops_is_gone_on_with(manager: CheckpointManager) -> None:
    stream = manager.run("r").stream(Model().tokens)
    assert [next(stream), next(stream)] == ["a", "b"]
    kept = list(manager.list_calls("r")[0].tokens)
    assert kept == ["a", "b"]
    model = Model()
    assert show(manager.restore("r").stream(model.tokens)) == TOKENS
    assert model.asked == [["a", "b"]]


def test_a_stream_that_is_closed_is_whole(manager: CheckpointManager) -> None:
    run = manager.run("r")
    stream = run.stream(Model().tokens)
    assert [next(stream), next(stream)] == ["a", "b"]
    stream.close()
    stream.close()
    again = manager.restore("r").stream(Model(0).tokens)
    assert show(again) == ["a", "b"]
    run.step()


def test_tokens_that_come_fast_are_kept_together(store: Store) -> None:
    manager = CheckpointManager(store, flush_s=1.0, flush_bytes=3)
    run = manager.run("r")
    before = store.log.activity().put_writes.count
    stream = run.stream(Model().tokens)
    assert show(stream) == TOKENS
    assert store.log.activity().put_writes.count - before == 4  # start, "a" at once, "bcd", end


def test_an_error_is_recorded_and_the_rest_is_asked_for_again(manager: CheckpointManager) -> None:
    with pytest.raises(ValueError, match="broken"):
        show(manager.run("r").stream(Model(2, ValueError).tokens))
    assert manager.list_calls("r")[0].state == "failed"
    model = Model()
    assert show(manager.restore("r").stream(model.tokens)) == TOKENS
    assert model.asked == [["a", "b"]]


def test_an_error_that_was_handled_comes_again_after_its_tokens(manager: CheckpointManager) -> None:
    for _ in range(2):
        run = manager.run("r")
        shown = []
        with pytest.raises(ValueError, match="broken"):
            shown.extend(token for token in run.stream(Model(2, ValueError).tokens))
        stream = run.stream(Model().tokens)
        assert show(stream) == TOKENS
    assert stream.replayed == 4


def test_a_stream_asked_for_anew_replaces_what_was_kept(manager: CheckpointManager) -> None:
    assert show(manager.run("r").stream(Model().tokens)) == TOKENS

    def other(shown: list[str], prompt: str = "p") -> Iterator[str]:
        assert shown == []
        yield "x"

    assert show(manager.restore("r").stream(other, call_name="tokens", fresh=True)) == ["x"]
    assert show(manager.restore("r").stream(Model().tokens)) == ["x"]
    with pytest.raises(Crash):
        show(manager.restore("r").stream(Model(2).tokens, fresh=True))
    for _ in range(2):
        stream = manager.restore("r").stream(Model().tokens)
        assert show(stream) == TOKENS
    assert stream.replayed == 4


def test_the_prompt_tells_streams_apart(manager: CheckpointManager) -> None:
    run = manager.run("r")
    assert show(run.stream(Model().tokens, prompt="one"), 1) == ["a"]
    model = Model()
    assert show(run.stream(model.tokens, prompt="two")) == TOKENS
    assert model.asked == [[]]
    assert [call.arguments for call in manager.list_calls("r")] == [{"prompt": "one"}, {"prompt": "two"}]


class TestAsynchronous:
    async def show(self, run: Run, function: Any) -> tuple[list[str], int]:
        stream = run.astream(function)
        return [token async for token in stream], stream.replayed

    def test_it_does_the_same(self, store: Store) -> None:
        manager = CheckpointManager(store, flush_bytes=1)
        with pytest.raises(Crash):
            asyncio.run(self.show(manager.run("r"), Model(2).atokens))
        shown = list(manager.list_calls("r")[0].tokens)
        assert shown == TOKENS[:2]
        model = Model()
        assert asyncio.run(self.show(manager.restore("r"), model.atokens)) == (TOKENS, 2)
        assert model.asked == [shown]
        assert asyncio.run(self.show(manager.restore("r"), model.atokens)) == (TOKENS, 4)

    def test_a_token_before_a_silence_isnt_held(self, store: Store) -> None:
        """The model waits for its first token to be shown: held until the next one, it would wait for ever."""

        async def main() -> list[str]:
            seen = asyncio.Event()

            async def waits(shown: list[str]) -> AsyncIterator[str]:
                yield "first"
                await seen.wait()
                yield "second"

            found = []
            async for token in CheckpointManager(store).run("r").astream(waits):
                found.append(token)
                seen.set()
            return found

        assert asyncio.run(asyncio.wait_for(main(), 60)) == ["first", "second"]

    def test_an_error_is_recorded_after_its_tokens_were_shown(self, store: Store) -> None:
        manager = CheckpointManager(store)
        with pytest.raises(ValueError, match="broken"):
            asyncio.run(self.show(manager.run("r"), Model(2, ValueError).atokens))
        (call,) = manager.list_calls("r")
        assert (call.state, call.tokens) == ("failed", ("a", "b"))
