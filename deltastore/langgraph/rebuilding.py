"""Whether LangGraph's serializer rebuilt what a payload names, or gave its parts instead.

The serializer tells of a failure by one log line a process, or not at all. So each object of a payload is loaded once
more by itself, the inner ones too, and must be of the class that it names. Nothing is imported here: the serializer
has imported what its allowlist takes by then. Imports LangGraph.
"""

import re
import sys
from collections.abc import Callable
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_NUMPY_ARRAY, EXT_PYDANTIC_V2

_HAS_OBJECTS: Final = re.compile(rb"[\xc7-\xc9\xd4-\xd8]")
"""The bytes that msgpack begins an extension with; they occur elsewhere too, so a hit only means a closer look."""

Loads = Callable[[tuple[str, bytes]], Any]
"""A serializer's `loads_typed`."""


def lost_in(data: bytes, loads: Loads) -> str | None:
    """Return the name of an object in a msgpack payload that `loads` doesn't rebuild; None where all are well.

    Raises what msgpack raises of bytes that aren't msgpack.
    """
    if _HAS_OBJECTS.search(data) is None:
        return None
    lost: list[str] = []

    def look(code: int, inner: bytes) -> None:
        # errors raised here would lose their type on the way through msgpack
        try:
            parts = ormsgpack.unpackb(inner, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
            built = loads(("msgpack", ormsgpack.packb(ormsgpack.Ext(code, inner))))
            name = _lost(code, parts, built)
        except Exception as error:  # noqa: BLE001 - constructors may raise anything
            name = f"an object of extension {code} ({type(error).__name__})"
        if name is not None:
            lost.append(name)

    ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
    return lost[0] if lost else None


def _lost(code: int, parts: Any, built: Any) -> str | None:
    """Return the name of the object that these parts should have become, unless they have."""
    if code == EXT_DELTA_SNAPSHOT:
        return None  # a wrapper that is always there; what is in it was looked at
    if code == EXT_NUMPY_ARRAY:
        return "numpy.ndarray" if built is None else None
    if code > EXT_PYDANTIC_V2 or type(parts) is not list or len(parts) < 3:
        return f"an object of extension {code}, which this LangGraph doesn't know"
    module, name, payload = parts[:3]
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type):
        built_well = isinstance(built, found)
    else:  # a function makes it, as re.compile does
        built_well = callable(found) and not isinstance(built, type(payload))
    return None if built_well else f"{module}.{name}"
