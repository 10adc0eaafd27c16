"""The option `validate`: a warning where a value comes back otherwise than it was put.

Imports errors and LangGraph. The invariant: it never changes what is stored, nor whether it is.
"""

import inspect
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from deltastore.errors import DegradedValueWarning
from deltastore.langgraph.differing import differences

MAX_WARNINGS = 5
"""Warnings of one value: a list of a million tuples has one fault, not a million."""
_PACKAGE = str(Path(__file__).parent)


def warn_of_losses(channel: str, given: Any, reload: Callable[[], Any]) -> None:
    """Issue a DegradedValueWarning for each place, up to MAX_WARNINGS, where a value differs from its reload.

    What LangGraph makes itself isn't warned of: the text that a task's error becomes, and the tuple around interrupts.
    Raises nothing, except the warning itself where the user has made it an error.
    """
    if channel == ERROR:
        return
    if channel == INTERRUPT and type(given) is tuple:
        given = list(given)
    try:
        found = reload()
    except Exception as error:  # noqa: BLE001 - a serializer may raise anything
        _warn(channel, "", f"the {type(given).__name__} can't be read back ({type(error).__name__}: {error})")
        return
    for lost in islice(differences(given, found), MAX_WARNINGS):
        _warn(channel, lost.path, f"{lost.one} at {channel}{lost.path} comes back as {lost.other}")


def _warn(channel: str, path: str, what: str) -> None:
    warning = DegradedValueWarning(f"channel {channel!r}: {what}", channel=channel, path=path)
    warnings.warn(warning, stacklevel=_caller())


def _caller() -> int:
    """Return the stack level, for `_warn`, of whoever called the saver."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
