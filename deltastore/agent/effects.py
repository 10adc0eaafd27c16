"""Effects: what a run's logic asks to be done, and the two ways of doing it, waiting or not.

The logic is written once, as generators that yield effects and are sent what came of them. Imports errors. The
invariant: storage work never runs on an event loop's thread, and what an effect raises is raised where it was asked
for.
"""

import asyncio
import inspect
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from deltastore.errors import InvalidInputError

Result = TypeVar("Result")


class Stored(NamedTuple):
    """Work in the store."""

    do: Callable[[], Any]


class Invoked(NamedTuple):
    """A function of the user's, which may be asynchronous; `name` is what errors call it."""

    do: Callable[[], Any]
    name: str
    asynchronous: bool = False


Steps = Generator[Stored | Invoked, Any, Result]


def drive(steps: Steps[Result]) -> Result:
    """Do what is asked for in this thread. Raises InvalidInputError on what must be awaited."""
    try:
        effect = next(steps)
        while True:
            try:
                done = _do(effect)
            except BaseException as error:  # noqa: BLE001 - handed on to whoever asked, or raised from there
                effect = steps.throw(error)
            else:
                effect = steps.send(done)
    except StopIteration as stop:
        result: Result = stop.value
        return result


async def adrive(steps: Steps[Result]) -> Result:
    """Do what is asked for without blocking the event loop.

    What runs in a thread can't be stopped. So a cancellation waits until that has ended and is recorded, and nothing
    more of the user's is begun.
    """
    cancels: list[asyncio.CancelledError] = []
    try:
        effect = next(steps)
        while True:
            try:
                done = await _ado(effect, cancels)
            except BaseException as error:  # noqa: BLE001 - handed on to whoever asked, or raised from there
                effect = steps.throw(error)
            else:
                effect = steps.send(done)
    except StopIteration as stop:
        if cancels:
            raise cancels[0] from None
        result: Result = stop.value
        return result
    except Exception as error:
        if cancels:
            raise cancels[0] from error
        raise


def is_asynchronous(function: Any) -> bool:
    """Tell whether calling this gives a coroutine."""
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - whether it is asynchronous, not whether it is there
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(by_class)


def _do(effect: Stored | Invoked) -> Any:
    if isinstance(effect, Invoked) and effect.asynchronous:
        raise InvalidInputError(f"{effect.name!r} is asynchronous; await the call's asynchronous twin")
    done = effect.do()
    if isinstance(effect, Invoked) and inspect.isawaitable(done):
        if inspect.iscoroutine(done):
            done.close()
        raise InvalidInputError(f"{effect.name!r} is asynchronous; await the call's asynchronous twin")
    return done


async def _ado(effect: Stored | Invoked, cancels: list[asyncio.CancelledError]) -> Any:
    if isinstance(effect, Stored):
        return await _in_thread(effect.do, cancels)
    if cancels:
        raise cancels[0]
    done = effect.do() if effect.asynchronous else await _in_thread(effect.do, cancels)
    return await done if inspect.isawaitable(done) else done


async def _in_thread(do: Callable[[], Any], cancels: list[asyncio.CancelledError]) -> Any:
    running = asyncio.ensure_future(asyncio.to_thread(do))
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as cancel:
            cancels.append(cancel)
    return running.result()
