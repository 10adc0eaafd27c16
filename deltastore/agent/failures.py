"""Failures of calls, as they are recorded, and as they are raised again.

Imports values and errors. The invariant: what is built from what is stored is an exception of a class that the process
has, and its constructor doesn't run unless it is Python's own.
"""

import builtins
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from deltastore.agent.values import Values, name_of
from deltastore.errors import CallFailedError, EncodeError, TypeLostError

_MARKS: Final = "__deltastore_calls__"
"""The attribute of an error that names the calls which failed with it."""


def record(error: BaseException, values: Values) -> dict[str, Any]:
    """Return what is kept of an error: arguments that can't be stored as their text, such attributes not at all."""
    kind = type(error)
    args: tuple[Any, ...] = error.args
    if isinstance(error, OSError) and error.filename is not None and len(args) == 2:
        args = (*args, error.filename)  # Python takes it out of them
    attributes: dict[str, Any] = {}
    for name, value in getattr(error, "__dict__", {}).items():
        with suppress(EncodeError):
            if name != _MARKS:
                attributes[name] = values.encode(value)
    return {
        "type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "class": name_of(kind),
        "args": [_kept(arg, values) for arg in args],
        "attributes": attributes,
        "text": str(error),
    }


def rebuild(run_id: str, name: str, kept: Mapping[str, Any], values: Values) -> Exception:
    """Return a recorded error to be raised again: of its class where the process has that, else a CallFailedError."""
    cls = values.find(kept["class"])
    if isinstance(cls, type) and issubclass(cls, Exception):
        with suppress(TypeLostError, TypeError, ValueError, AttributeError):
            args, attributes = values.decode(kept["args"]), values.decode(kept["attributes"])
            made: Exception = cls(*args) if cls.__module__ == builtins.__name__ else cls.__new__(cls, *args)
            made.args = tuple(made.args if isinstance(made, OSError) else args)
            for attribute, value in attributes.items():
                setattr(made, attribute, value)
            return made
    return CallFailedError(
        f"run {run_id!r}: {name!r} failed when it was recorded: {kept['type']}: {kept['text']}",
        run_id=run_id,
        kind=kept["type"],
        text=kept["text"],
    )


def mark(error: BaseException, call: object) -> None:
    """Note on an error which call failed with it."""
    with suppress(AttributeError):
        error.__dict__.setdefault(_MARKS, []).append(call)


def marks(error: BaseException) -> Iterator[Any]:
    """Return the calls that failed with an error, with what it was raised from, or with those it groups."""
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield from getattr(one, _MARKS, ())
        found.append(one.__cause__)
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions


def _kept(arg: Any, values: Values) -> Any:
    try:
        return values.encode(arg)
    except EncodeError:
        return str(arg)
