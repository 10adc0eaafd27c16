"""Failures of calls, as they are recorded, and as they are raised again.

Imports errors. The invariant: nothing but Python's own exceptions is built from what is stored.
"""

import builtins
from collections.abc import Mapping
from typing import Any

from deltastore.agent.values import Values
from deltastore.errors import CallFailedError, EncodeError


def record(error: Exception, values: Values) -> dict[str, Any]:
    """Return what is kept of an error."""
    kind = type(error)
    args: tuple[Any, ...] = error.args
    if isinstance(error, OSError) and error.filename is not None and len(args) == 2:
        args = (*args, error.filename)  # Python takes it out of them
    try:
        kept = values.encode(list(args))
    except EncodeError:
        kept = None
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "args": kept, "text": str(error)}


def rebuild(run_id: str, name: str, kept: Mapping[str, Any], values: Values) -> Exception:
    """Return a recorded error to be raised again: of its own class where that is Python's, else a CallFailedError."""
    cls = getattr(builtins, kept["type"], None)
    if isinstance(cls, type) and issubclass(cls, Exception) and kept["args"] is not None:
        try:
            made: Exception = cls(*values.decode(kept["args"]))
        except TypeError:
            pass
        else:
            return made
    return CallFailedError(
        f"run {run_id!r}: {name!r} failed when it was recorded: {kept['type']}: {kept['text']}",
        run_id=run_id,
        kind=kept["type"],
        text=kept["text"],
    )
