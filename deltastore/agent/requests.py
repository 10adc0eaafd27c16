"""Requests: what a program asks a run to call, as it is recorded.

Imports journal, tools and values. Pure. The invariant: a request that can't be recorded is refused before anything
runs.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from deltastore.agent import journal as jn
from deltastore.agent.effects import is_asynchronous
from deltastore.agent.tools import KEY_PARAMETER, Options, check_in_doubt, unwrapped
from deltastore.agent.values import Values
from deltastore.errors import EncodeError, InvalidInputError


class Request(NamedTuple):
    """A call that the program asks for; `arguments` are encoded. `fresh`: make it, whatever is recorded.

    `defaults`: what a model's function takes for parameters that weren't given. They are recorded, and no part of what
    makes two calls the same: a parameter that is new in the program makes no other call.
    """

    kind: str
    name: str
    arguments: Mapping[str, Any]
    function: Callable[..., Any]
    defaults: Mapping[str, Any] = {}
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
    arguments, defaults = recorded_arguments(inner, name, given_args, kwargs, ignore, values)
    if kind == jn.STREAM:
        arguments.pop(next(iter(arguments)))  # what was shown is no part of what is asked for
    return Request(kind, name, arguments, inner, defaults if kind != jn.TOOL else {}, args, kwargs, options, fresh)


def name_of(function: Callable[..., Any]) -> str:
    """Return what the calls of a function are recorded as."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def recorded_arguments(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    ignore: Iterable[str],
    values: Values,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a call by name, and the defaults of those not given, encoded.

    What a partial holds are arguments too. Raises EncodeError, which names the argument.
    """
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    given: dict[str, Any]
    absent: dict[str, Any] = {}
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # built in, or called wrongly, which it will say itself
        given = {**({"*": list(args)} if args else {}), **kwargs}
    else:
        given = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                more = given.pop(parameter.name, {})
                given |= {"**": more} if given.keys() & more else more
            elif parameter.default is not parameter.empty and parameter.name not in given:
                absent[parameter.name] = parameter.default
    left_out = {*ignore, KEY_PARAMETER}
    made, defaults = {}, {}
    for argument, value in given.items():
        if argument in left_out:
            continue
        try:
            made[argument] = values.encode(value, argument)
        except EncodeError as error:
            raise EncodeError(
                f"call of {name!r}: argument {error}. If it is no part of what is asked for, leave it out: "
                f"ignore=({argument!r},)",
                path=argument,
            ) from None
    for argument in absent.keys() - left_out:
        with suppress(EncodeError):  # it wasn't given, and mustn't be refused
            defaults[argument] = values.encode(absent[argument], argument)
    return made, defaults
