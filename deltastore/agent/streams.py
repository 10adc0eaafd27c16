"""Streams: the tokens of a model's reply, each kept before it is shown, so that none is shown and then lost.

Imports calls and journal. The invariant: what the caller was handed is durable; a run that starts again is handed the
same tokens first, and the model is asked for what comes after them.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Any

from deltastore.agent import journal as jn
from deltastore.agent.calls import Calls, Making
from deltastore.agent.effects import adrive, drive
from deltastore.agent.messages import sum_of, text_of, usage_of_tokens
from deltastore.agent.requests import Request
from deltastore.agent.tools import CALL
from deltastore.errors import EncodeError, InvalidInputError

_WEIGHT = 16
"""What a token that is no text counts for, in bytes."""


class _Stream:
    """What both kinds of stream have in common. Not thread-safe; to be iterated once."""

    def __init__(self, calls: Calls, request: Request) -> None:
        self.tokens: list[Any] = []
        """All tokens handed on so far."""
        self.replayed = 0
        """How many of them were shown in an earlier life of the run, at the front."""
        calls.go_on()
        self._calls = calls
        self._request = request
        self._place = calls.place
        self._making = Making(calls.place, request, 0, CALL.get())
        self._asked = calls.ask(self._place, request)
        self._entry: jn.Entry = self._asked.entry
        self._flushes = self._entry.flushes
        recorded = self._entry if self._asked.recorded else None
        self._since = self._flushes if request.fresh else recorded.last.since if recorded else 0
        self._verdict = jn.judge(recorded, last_began=self._place.last_began, fresh=request.fresh)
        self._shown = [] if request.fresh else calls.rules.values.decode(list(self._entry.tokens))
        self._held: list[Any] = []
        self._size = 0

    @property
    def text(self) -> str:
        """The tokens so far, joined: those that are text, and the text of chunks of OpenAI's and Anthropic's SDKs."""
        return "".join(map(text_of, self.tokens))

    @property
    def _goes_on(self) -> bool:
        return self._verdict.action not in (jn.Action.ANSWER, jn.Action.FAIL)

    def _replay(self) -> Iterator[Any]:
        for token in self._shown:
            self.replayed += 1
            self.tokens.append(token)
            yield token
        if not self._goes_on:
            self._calls.end(self._making, self._entry.last)
        if self._verdict.action is jn.Action.FAIL:
            raise self._calls.failure(self._place, self._entry)

    def _open(self) -> Any:
        """Record the start of what is to be asked for."""
        yield from self._calls.before_execution(self._place, self._entry, recorded=self._asked.recorded)
        self._entry, start = self._calls.begin(self._place, self._entry, since=self._since)
        self._place.in_flight[self._entry.key] = str(self._entry)
        yield start

    def _ask(self) -> Any:
        return self._request.function(list(self._shown), *self._request.args, **self._request.kwargs)

    def _source(self, made: Any, kind: Any, twin: str) -> Any:
        """Return what gives the tokens. Raises InvalidInputError where that is another kind of iterable, or none."""
        if isinstance(made, kind):
            return made
        if inspect.iscoroutine(made):
            made.close()
        raise InvalidInputError(
            f"{self._entry.name!r} returned a value of type {type(made).__name__}; "
            f"expected {kind.__name__} of tokens. For the other "
            f"kind there is run.{twin}"
        )

    def _hold(self, token: Any) -> bool:
        """Take a token; tell whether there are enough to be kept now."""
        self._held.append(token)
        self._size += len(token) if isinstance(token, (str, bytes)) else _WEIGHT
        return self._size >= self._calls.rules.flush_bytes

    def _flush(self) -> Any:
        """Keep what is held."""
        if self._held:
            tokens = self._calls.rules.values.encode(self._held, f"token of {self._entry.name!r}")
            task = jn.tokens_task(self._entry.key, self._flushes)
            self._flushes += 1
            yield self._calls.put(self._place, task, [(jn.TOKENS, tokens)])

    def _release(self) -> Iterator[Any]:
        """Hand on what is kept now, one by one."""
        released, self._held, self._size = self._held, [], 0
        for token in released:
            self.tokens.append(token)
            yield token

    def _end(self) -> Any:
        facts = {"ended": self._place.tick(), "usage": self._usage(), "shown": len(self.tokens)}
        yield from self._calls.record_end(self._making, self._entry, jn.DONE, facts, None)

    def _fail(self, error: Exception) -> Any:
        yield from self._calls.record_failure(self._making, self._entry, error, usage=self._usage())

    def _usage(self) -> dict[str, int]:
        """What the tokens say that they took, those of earlier lives on their own."""
        earlier = len(self._shown)
        return sum_of(usage_of_tokens(self.tokens[:earlier]), usage_of_tokens(self.tokens[earlier:]))

    def _close(self) -> None:
        self._place.in_flight.pop(self._entry.key, None)


class TokenStream(_Stream):
    """The tokens of a reply, those shown before first. Tokens that come within `flush_s` of the last are kept together.

    Iterating raises what the function raises, EncodeError, RunError, InvalidInputError.
    """

    def __init__(self, calls: Calls, request: Request, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(calls, request)
        self._clock = clock
        self._iterator = self._run()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def close(self) -> None:
        """Stop here: what was handed on is the whole reply, now and on resume."""
        under_way = self._entry.key in self._place.in_flight
        self._iterator.close()
        if under_way:
            drive(self._end())

    def _run(self) -> Generator[Any, None, None]:
        yield from self._replay()
        if not self._goes_on:
            return
        drive(self._open())
        flush_s = self._calls.rules.flush_s
        kept = self._clock() - flush_s
        try:
            for token in self._source(self._ask(), Iterable, "astream"):
                if self._hold(token) or self._clock() - kept >= flush_s:
                    drive(self._flush())
                    kept = self._clock()
                    yield from self._release()
            drive(self._flush())
            yield from self._release()
            drive(self._end())
        except EncodeError:
            raise
        except Exception as error:
            drive(self._flush())
            yield from self._release()
            drive(self._fail(error))
            raise
        finally:
            self._close()


class AsyncTokenStream(_Stream):
    """As TokenStream, to be iterated with `async for`; no token is held longer than `flush_s`."""

    def __init__(self, calls: Calls, request: Request) -> None:
        super().__init__(calls, request)
        self._iterator = self._run()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._iterator)

    async def aclose(self) -> None:
        """Stop here: what was handed on is the whole reply, now and on resume."""
        under_way = self._entry.key in self._place.in_flight
        await self._iterator.aclose()
        if under_way:
            await adrive(self._end())

    async def _run(self) -> AsyncGenerator[Any, None]:
        for token in self._replay():
            yield token
        if not self._goes_on:
            return
        await adrive(self._open())
        try:
            async with aclosing(self._batches()) as batches:
                async for batch in batches:
                    for token in batch:
                        yield token
            await adrive(self._end())
        except EncodeError:
            raise
        except Exception as error:
            await adrive(self._flush())
            for token in self._release():
                yield token
            await adrive(self._fail(error))
            raise
        finally:
            self._close()

    async def _batches(self) -> AsyncGenerator[Iterator[Any], None]:
        loop, flush_s = asyncio.get_running_loop(), self._calls.rules.flush_s
        made = self._ask()
        made = await made if inspect.isawaitable(made) else made
        source = aiter(self._source(made, AsyncIterable, "stream"))
        due = 0.0
        coming: asyncio.Future[Any] = asyncio.ensure_future(_next(source))
        try:
            while True:
                wait = max(0.0, due - loop.time()) if self._held else None
                done, _ = await asyncio.wait({coming}, timeout=wait)
                if done:
                    more, token = coming.result()
                    if not more:
                        break
                    coming = asyncio.ensure_future(_next(source))
                    due = due if self._held else loop.time() + flush_s
                    if not self._hold(token) and loop.time() < due:
                        continue
                await adrive(self._flush())
                yield self._release()
            await adrive(self._flush())
            yield self._release()
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await coming
            if isinstance(source, AsyncGenerator):
                await source.aclose()


async def _next(source: AsyncIterator[Any]) -> tuple[bool, Any]:
    try:
        return True, await anext(source)
    except StopAsyncIteration:
        return False, None
