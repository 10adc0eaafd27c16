"""Run: what an agent's loop holds.

Imports calls, saving, pausing, streams, nodes, tools. Each method has an asynchronous twin whose name begins with `a`.
The invariant: leaving a run, however it ends, loses neither its state nor the journal of its present place.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import Any, Final, Self

from deltastore.agent import journal as jn
from deltastore.agent import messages, pausing, policies
from deltastore.agent import progress as pg
from deltastore.agent.calls import Calls
from deltastore.agent.checkpoints import Checkpoint
from deltastore.agent.effects import Steps, adrive, drive
from deltastore.agent.nodes import Node
from deltastore.agent.requests import Request, request
from deltastore.agent.saving import Saves
from deltastore.agent.streams import AsyncTokenStream, TokenStream
from deltastore.agent.tools import RUN, Holds, InDoubt, Options, recorded_by
from deltastore.errors import ConflictError, DeltastoreError, InvalidInputError, Paused

_THE_OPEN_ONE: Final = object()
_CANCELLED = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


class Run(pg.Progress):
    """A run, begun or restored: its state, and what its program calls. A context manager, sync and async.

    Calls may be concurrent, from tasks and from threads; everything else belongs to the program's main line. Leaving it
    puts a checkpoint that tells how it ended. Once it was stopped (by Paused, ConflictError, InDoubtError,
    ChangedPathError, RottenResultError), calls, steps, saves and leaving it raise that error again: a program that
    caught it does no harm.
    """

    __slots__ = ("_calls", "_entered", "_saves")

    def __init__(self, progress: pg.Progress, calls: Calls, saves: Saves) -> None:
        """Made by a manager, which hands over the fields of `progress`."""
        for name in pg.Progress.__slots__:
            setattr(self, name, getattr(progress, name))
        calls.progress = self
        self._calls = calls
        self._saves = saves
        self._entered: Token[Run | None] | None = None

    # --- calls

    def call(
        self,
        tool: Callable[..., Any],
        /,
        *args: Any,
        in_doubt: InDoubt | None = None,
        ignore: Iterable[str] = (),
        holds: Holds = (),
        call_name: str | None = None,
        fresh: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call a tool, once: what is recorded as done is returned, not done again.

        `in_doubt`: what is done where it was begun and no end is recorded: "raise", "retry", or a function of the
        CurrentCall that looks the effect up and returns Done(result) or NOT_DONE. `ignore`: arguments that aren't part
        of what is asked for. `holds`: preconditions of the result. `call_name`: what it is recorded as, in place of
        the tool's name. `fresh`: call it again. A tool with parameters of these names is to be decorated, or wrapped by
        `tools`.

        Raises what the tool raises, EncodeError, InDoubtError, ChangedPathError, RottenResultError, CallFailedError.
        """
        options = Options(in_doubt, tuple(ignore), holds, call_name)
        return self.perform(jn.TOOL, tool, args, kwargs, options, fresh=fresh)

    async def acall(
        self,
        tool: Callable[..., Any],
        /,
        *args: Any,
        in_doubt: InDoubt | None = None,
        ignore: Iterable[str] = (),
        holds: Holds = (),
        call_name: str | None = None,
        fresh: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As `call`; the tool may be asynchronous, else it runs in a thread."""
        options = Options(in_doubt, tuple(ignore), holds, call_name)
        return await self.aperform(jn.TOOL, tool, args, kwargs, options, fresh=fresh)

    def model(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        ignore: Iterable[str] = (),
        call_name: str | None = None,
        fresh: bool = False,
        **params: Any,
    ) -> Any:
        """Ask a model: its reply is recorded with all parameters, and returned again on resume. `fresh` asks anew.

        What the reply says that it took is added to `token_usage`. A call in doubt is made again. Raises as `call`.
        """
        options = Options(None, tuple(ignore), (), call_name)
        return self.perform(jn.MODEL, function, args, params, options, fresh=fresh)

    async def amodel(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        ignore: Iterable[str] = (),
        call_name: str | None = None,
        fresh: bool = False,
        **params: Any,
    ) -> Any:
        """As `model`; the function may be asynchronous, else it runs in a thread."""
        options = Options(None, tuple(ignore), (), call_name)
        return await self.aperform(jn.MODEL, function, args, params, options, fresh=fresh)

    def stream(
        self,
        function: Callable[..., Any],
        /,
        *,
        ignore: Iterable[str] = (),
        call_name: str | None = None,
        fresh: bool = False,
        **params: Any,
    ) -> TokenStream:
        """Ask a model for a reply in tokens: `function(shown, **params)` returns those that come after the shown ones.

        Each token is kept before it is handed on. After a crash the kept ones come first. Raises as `call`, in part
        when it is iterated.
        """
        options = Options(None, tuple(ignore), (), call_name)
        return TokenStream(self._calls, self._stream_request(function, params, options, fresh))

    def astream(
        self,
        function: Callable[..., Any],
        /,
        *,
        ignore: Iterable[str] = (),
        call_name: str | None = None,
        fresh: bool = False,
        **params: Any,
    ) -> AsyncTokenStream:
        """As `stream`, for a function that returns an asynchronous iterator."""
        options = Options(None, tuple(ignore), (), call_name)
        return AsyncTokenStream(self._calls, self._stream_request(function, params, options, fresh))

    def perform(
        self,
        kind: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options = Options(),  # noqa: B008 - it is immutable
        *,
        fresh: bool = False,
    ) -> Any:
        """Make a call ("tool" or "model") whose arguments are given as such, whatever their names. Raises as `call`."""
        made = request(self._calls.rules.values, kind, function, args, kwargs, options, fresh=fresh, waits=True)
        return drive(self._calls.make(made))

    async def aperform(
        self,
        kind: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options = Options(),  # noqa: B008 - it is immutable
        *,
        fresh: bool = False,
    ) -> Any:
        """As `perform`."""
        made = request(self._calls.rules.values, kind, function, args, kwargs, options, fresh=fresh, waits=False)
        return await adrive(self._calls.make(made))

    def tools(self, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Return tools of the same names whose calls are recorded here; asynchronous ones stay so."""
        return {name: recorded_by(self, name, function) for name, function in functions.items()}

    def check(self) -> None:
        """Look whether what stored results rest on still is so. Raises RottenResultError, InvalidInputError."""
        self._calls.check()

    async def acheck(self) -> None:
        """As `check`."""
        await asyncio.to_thread(self._calls.check)

    # --- boundaries

    def add(self, message: Any) -> None:
        """Append a message; a checkpoint is put if the policy asks for it.

        Raises InvalidInputError, EncodeError, ConflictError.
        """
        drive(self._add(message))

    async def aadd(self, message: Any) -> None:
        """As `add`."""
        await adrive(self._add(message))

    def step(self, node_name: str | None = None) -> None:
        """End a turn of the loop: where the policy asks for a checkpoint here, a restored run starts again from it.

        Raises EncodeError, ConflictError, ChangedPathError, InvalidInputError while calls are under way.
        """
        drive(self._step(node_name))

    async def astep(self, node_name: str | None = None) -> None:
        """As `step`."""
        await adrive(self._step(node_name))

    def save(self) -> Checkpoint:
        """Put a checkpoint here, from which a restored run starts again. Raises as `step`."""
        return drive(self._saves.put("save", "it was asked for", restart=True))

    async def asave(self) -> Checkpoint:
        """As `save`."""
        return await adrive(self._saves.put("save", "it was asked for", restart=True))

    def node(self, name: str, inputs: Any = None) -> Node:
        """Return a node to be in, for `with` or `async with`: the edge to it is recorded, with inputs and outputs."""
        return Node(self, self._saves, name, inputs)

    def pause(self, question: Any) -> Any:
        """Return the decision on a question; where there is none yet, put a checkpoint and raise Paused."""
        return drive(pausing.pause(self._calls, self._saves, question))

    async def apause(self, question: Any) -> Any:
        """As `pause`."""
        return await adrive(pausing.pause(self._calls, self._saves, question))

    def resume(self, decision: Any, *, question: Any = _THE_OPEN_ONE) -> None:
        """Give the decision on the open question, or on this one of several.

        Raises InvalidInputError, EncodeError, ConflictError.
        """
        drive(pausing.resume(self._calls, decision, () if question is _THE_OPEN_ONE else (question,)))

    async def aresume(self, decision: Any, *, question: Any = _THE_OPEN_ONE) -> None:
        """As `resume`."""
        await adrive(pausing.resume(self._calls, decision, () if question is _THE_OPEN_ONE else (question,)))

    # --- as a context

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise InvalidInputError(f"run {self.run_id!r} was entered before; restore it to go on")
        self._entered = RUN.set(self)
        self._calls.place.enter()
        self.status = pg.RUNNING
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._leave(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await adrive(self._leave(error))

    # --- helpers

    def _stream_request(
        self, function: Callable[..., Any], params: Mapping[str, Any], options: Options, fresh: bool
    ) -> Request:
        values = self._calls.rules.values
        return request(values, jn.STREAM, function, (), params, options, fresh=fresh, waits=False)

    def _add(self, message: Any) -> Steps[None]:
        if message is None or isinstance(message, (str, bytes, int, float)):
            raise InvalidInputError(
                f"a message of type {type(message).__name__}; expected one as SDKs have them, "
                'for example {"role": "user", "content": "hi"}'
            )
        self.messages.append(message)
        yield from self._saves.boundary(messages.kind_of(message))

    def _step(self, node_name: str | None) -> Steps[None]:
        if node_name is not None:
            self.node_name = node_name
        yield from self._saves.boundary(policies.STEP)

    def _leave(self, error: BaseException | None) -> Steps[None]:
        if self._entered is not None:
            with suppress(ValueError):  # left in another context than it was entered in, where it wasn't known
                RUN.reset(self._entered)
        swallowed = self._calls.stopped if error is None else None
        yield from self._close(error or swallowed)
        if swallowed is not None:
            raise swallowed

    def _close(self, error: BaseException | None) -> Steps[None]:
        if error is None:
            self.status = pg.DONE
            yield from self._saves.put(policies.END, "the run ended", restart=True)
            return
        if _consists_of(error, (Paused, ConflictError)):
            return  # its state is saved, or somebody else has it
        self.status = pg.CANCELLED if _consists_of(error, _CANCELLED) else pg.FAILED
        text = f"{type(error).__name__}: {error}"
        try:
            yield from self._calls.not_final(error)
            yield from self._saves.put(policies.END, "the run broke off", restart=False, error=text)
        except DeltastoreError as second:
            error.add_note(f"deltastore: the run's state at its end wasn't saved: {second}")


def _consists_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Tell whether an error is of these kinds, or a group of such alone."""
    if isinstance(error, BaseExceptionGroup):
        return all(_consists_of(one, kinds) for one in error.exceptions)
    return isinstance(error, kinds)
