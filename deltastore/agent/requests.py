"""Requests: what a program asks a run to call, as it is recorded.

Imports journal, tools and values. Pure. The invariant: a request that can't be recorded is refused before anything
runs.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from deltastore.agent import journal as jn
from deltastore.agent.effects import is_asynchronous
from deltastore.agent.tools import KEY_PARAMETER, Options, check_in_doubt, unwrapped
from deltastore.agent.values import Values
from deltastore.errors import EncodeError, InvalidInputError


class Request(NamedTuple):
    """A call that the program asks for; `arguments` are encoded. `fresh`: make it, whatever is recorded."""

    kind: str
    name: str
    arguments: Mapping[str, Any]
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    options: Options = Options()
    fresh: bool = False


def request(
    values: Values,
    kind: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    given: Options,
    *,
    fresh: bool,
    waits: bool,
) -> Request:
    """Return a call as it is asked for, with the options given here before the function's own.

    `waits`: the caller does, so the function can't be asynchronous. Raises EncodeError, InvalidInputError.
    """
    inner, own = unwrapped(function)
    ignore = (*own.ignore, *given.ignore)
    options = Options(check_in_doubt(given.in_doubt) or own.in_doubt, ignore, given.holds or own.holds)
    name = given.name or own.name or name_of(inner)
    if waits and is_asynchronous(inner):
        raise InvalidInputError(f"{name!r} is asynchronous; await the asynchronous twin of this call")
    given_args = ([], *args) if kind == jn.STREAM else args
    arguments = recorded_arguments(inner, name, given_args, kwargs, ignore, values)
    if kind == jn.STREAM:
        arguments.pop(next(iter(arguments)))  # what was shown is no part of what is asked for
    return Request(kind, name, arguments, inner, args, kwargs, options, fresh)


def name_of(function: Callable[..., Any]) -> str:
    """Return what the calls of a function are recorded as."""
    inner = getattr(function, "func", function)  # a partial has its function's name
    return str(getattr(inner, "__name__", type(inner).__name__))


def recorded_arguments(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    ignore: Iterable[str],
    values: Values,
) -> dict[str, Any]:
    """Return the arguments of a call by name, encoded. Raises EncodeError, which names the argument."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        given = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
    except (TypeError, ValueError):  # built in, or called wrongly, which it will say itself
        given = {**({"*": list(args)} if args else {}), **kwargs}
    made = {}
    for argument, value in given.items():
        if argument in ignore or argument == KEY_PARAMETER:
            continue
        try:
            made[argument] = values.encode(value, argument)
        except EncodeError as error:
            raise EncodeError(
                f"call of {name!r}: argument {error}. If it is no part of what is asked for, leave it out: "
                f"ignore=({argument!r},)",
                path=argument,
            ) from None
    return made
