"""Tools as a run sees them: how their calls are recorded, decorators that say so, and the call under way.

Imports journal and errors. The invariant: a decorated function outside of a run is the function itself.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast, overload

from deltastore.agent.effects import is_asynchronous
from deltastore.agent.preconditions import Condition
from deltastore.errors import InvalidInputError

if TYPE_CHECKING:
    from deltastore.agent.run import Run

Function = TypeVar("Function", bound=Callable[..., Any])
Holds = Sequence[Condition] | Callable[[Any], Sequence[Condition]]
"""What a result rests on, or a function of the result that says so."""

KEY_PARAMETER: Final = "idempotency_key"
"""A tool with a parameter of this name is given the call's key."""
_OPTIONS: Final = "__deltastore_options__"


@dataclass(frozen=True, slots=True)
class Done:
    """What a look-up returns that found the effect of a call in doubt: the call isn't made again."""

    result: Any


class NotDone:
    """What a look-up returns that found no effect: the call is made."""

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = NotDone()


@dataclass(slots=True)
class Inner:
    """What the calls that a call makes come to: the tokens they took, the preconditions of their results."""

    usage: dict[str, int] = field(default_factory=dict)
    holds: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """The call under way: `idempotency_key` is the same at every attempt, in every process."""

    run_id: str
    name: str
    idempotency_key: str
    attempt: int
    inner: "Inner" = field(repr=False, compare=False)
    _read: Callable[[], dict[str, Any]] = field(repr=False, compare=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """The recorded arguments by name, as fresh objects."""
        return self._read()


InDoubt = str | Callable[[CurrentCall], Any]
"""What is done about a call in doubt: "retry", "raise", or a look-up that returns Done or NOT_DONE."""


class Options(NamedTuple):
    """How the calls of a function are recorded; None: as the manager says."""

    in_doubt: InDoubt | None = None
    ignore: tuple[str, ...] = ()
    holds: Holds = ()
    name: str | None = None


RUN: Final[ContextVar["Run | None"]] = ContextVar("deltastore_run", default=None)
CALL: Final[ContextVar[CurrentCall | None]] = ContextVar("deltastore_call", default=None)
"""The run and the call that code is in: of a task and what it starts, or of a thread."""


def current_run() -> "Run | None":
    """Return the run that this code is in, if any."""
    return RUN.get()


def current_call() -> CurrentCall | None:
    """Return the call that this code is in, if any."""
    return CALL.get()


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *, in_doubt: InDoubt | None = None, ignore: Iterable[str] = (), holds: Holds = (), name: str | None = None
) -> Callable[[Function], Function]: ...


def tool(
    function: Any = None,
    /,
    *,
    in_doubt: InDoubt | None = None,
    ignore: Iterable[str] = (),
    holds: Holds = (),
    name: str | None = None,
) -> Any:
    """Have the calls of a function recorded, by the run they are made in: `@tool`, or `@tool(…)` with options.

    `ignore`: arguments that are no part of the call, such as clients. `holds`: what its results rest on. A thread of
    the program's own isn't in the run, unless it is started in a copy of the context, as asyncio.to_thread does: calls
    there are made and not recorded. Raises InvalidInputError.
    """
    decorate = _decorator("tool", Options(check_in_doubt(in_doubt), tuple(ignore), holds, name))
    return decorate if function is None else decorate(function)


@overload
def model(function: Function, /) -> Function: ...


@overload
def model(*, ignore: Iterable[str] = (), name: str | None = None) -> Callable[[Function], Function]: ...


def model(function: Any = None, /, *, ignore: Iterable[str] = (), name: str | None = None) -> Any:
    """Have the calls of a function that asks a model recorded, by the run they are made in. As `tool`."""
    decorate = _decorator("model", Options(None, tuple(ignore), (), name))
    return decorate if function is None else decorate(function)


def _decorator(kind: str, options: Options) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            run = current_run()
            return function(*args, **kwargs) if run is None else run.perform(kind, recorded, args, kwargs)

        @functools.wraps(function)
        async def arecorded(*args: Any, **kwargs: Any) -> Any:
            run = current_run()
            if run is None:
                return await function(*args, **kwargs)
            return await run.aperform(kind, arecorded, args, kwargs)

        made = arecorded if is_asynchronous(function) else recorded
        setattr(made, _OPTIONS, options)
        return cast(Function, made)

    return decorate


def recorded_by(run: "Run", name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool whose calls this run records under a name; an asynchronous one stays so."""

    async def arecorded(*args: Any, **kwargs: Any) -> Any:
        return await run.aperform("tool", function, args, kwargs, Options(name=name))

    def recorded(*args: Any, **kwargs: Any) -> Any:
        return run.perform("tool", function, args, kwargs, Options(name=name))

    return arecorded if is_asynchronous(unwrapped(function)[0]) else recorded


def unwrapped(function: Callable[..., Any]) -> tuple[Callable[..., Any], Options]:
    """Return a function without our decorator, and its options."""
    options = getattr(function, _OPTIONS, None)
    return (function.__wrapped__, options) if options is not None else (function, Options())  # type: ignore[attr-defined]


def check_in_doubt(value: Any) -> Any:
    """Return what is done about a call in doubt. Raises InvalidInputError unless it is something."""
    if value is None or value in ("retry", "raise") or callable(value):
        return value
    raise InvalidInputError(f"in_doubt={value!r}; expected 'retry', 'raise' or a function that looks the effect up")


def takes_key(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a function is to be given the call's key."""
    if KEY_PARAMETER in kwargs:
        return False
    try:
        return KEY_PARAMETER in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
