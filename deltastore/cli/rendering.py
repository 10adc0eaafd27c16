"""Inspected values as text for people. Pure; imports text, the generic decoder and inspection.

The invariant: every line is printable, whatever the value holds.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from deltastore.cli.text import escaped, size
from deltastore.codec.generic import Built, Sealed
from deltastore.codec.strict import REMOVE_ALL, Remove
from deltastore.upkeep.inspecting import Unfolded

WIDTH = 100
"""What fits in a line of text, in characters; a value that does stands on one line."""
CUT = 400
"""Characters of a text that are shown unless all are asked for."""
INDENT = "  "


def lines_of(value: Any, *, full: bool = False) -> list[str]:
    """Return a value over as many lines as it needs; `full`: long texts whole."""
    short = one_line(value, full=full)
    if len(short) <= WIDTH:
        return [short]
    match value:
        case list() | tuple():
            return ["[", *_indented(_listed(value, full)), "]"]
        case dict():
            return ["{", *_indented(_keyed(value.items(), full)), "}"]
        case Built(parts=dict()):
            return [escaped(value.name) + "{", *_indented(_named(value.parts, full)), "}"]
        case Built():
            return [escaped(value.name) + "(", *_indented(lines_of(value.parts, full=full)), ")"]
        case Unfolded():
            return list(_unfolded(value, full))
    return [short]


def one_line(value: Any, *, full: bool = True) -> str:
    """Return a value on one line."""
    match value:
        case str():
            return _quoted(value, full)
        case bytes() | bytearray():
            return f"<{type(value).__name__} of {size(len(value))}>" if len(value) > CUT and not full else repr(value)
        case list() | tuple():
            return "[" + ", ".join(one_line(item, full=full) for item in value) + "]"
        case dict():
            return "{" + ", ".join(_pair(key, item, full) for key, item in value.items()) + "}"
        case Built(parts=dict() as fields):
            inner = ", ".join(f"{_field(key)}: {one_line(item, full=full)}" for key, item in fields.items())
            return f"{escaped(value.name)}{{{inner}}}"
        case Built(parts=tuple() as arguments):
            return f"{escaped(value.name)}({', '.join(one_line(item, full=full) for item in arguments)})"
        case Built():
            return f"{escaped(value.name)}({one_line(value.parts, full=full)})"
        case Sealed():
            return f"<{size(value.size)} of {escaped(value.kind)} that only {escaped(value.serializer)} can read>"
        case Unfolded():
            return " ".join(line.strip() for line in _unfolded(value, full))
        case Remove():
            return "<remove all>" if value == REMOVE_ALL else f"<remove {one_line(value.id)}>"
    return escaped(repr(value))


def kind_of(value: Any) -> str:
    """Return what a value is, in a word or two."""
    match value:
        case list() | tuple() | dict():
            return f"{'dict' if isinstance(value, dict) else 'list'} of {len(value)}"
        case Built():
            return escaped(value.name)
        case Sealed():
            return "sealed"
        case Unfolded():
            return "not folded"
    return type(value).__name__


def _quoted(text: str, full: bool) -> str:
    shown = text if full or len(text) <= CUT else text[:CUT]
    quoted = '"' + escaped(shown).replace('"', '\\"') + '"'
    return quoted if shown is text else f"{quoted}… ({len(text)} characters)"


def _pair(key: Any, item: Any, full: bool) -> str:
    return f"{one_line(key, full=full)}: {one_line(item, full=full)}"


def _field(key: Any) -> str:
    return escaped(key) if isinstance(key, str) else one_line(key)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (INDENT + line for line in lines)


def _listed(values: Iterable[Any], full: bool) -> Iterator[str]:
    for item in values:
        *most, last = lines_of(item, full=full)
        yield from most
        yield last + ","


def _keyed(items: Iterable[tuple[Any, Any]], full: bool) -> Iterator[str]:
    for key, item in items:
        yield from _after(one_line(key, full=full), item, full)


def _named(fields: dict[Any, Any], full: bool) -> Iterator[str]:
    for key, item in fields.items():
        yield from _after(_field(key), item, full)


def _after(label: str, item: Any, full: bool) -> Iterator[str]:
    first, *rest = lines_of(item, full=full)
    lines = [f"{label}: {first}", *rest]
    lines[-1] += ","
    yield from lines


def _unfolded(value: Unfolded, full: bool) -> Iterator[str]:
    by = f"reducer {value.reducer}" if value.reducer else "the graph's own reducer"
    yield f"<seed and {len(value.writes)} writes, which only {escaped(by)} can fold>"
    first, *rest = lines_of(value.seed, full=full) if value.present else ["(none)"]
    yield from _indented([f"seed: {first}", *rest])
    for place, write in enumerate(value.writes):
        first, *rest = lines_of(write, full=full)
        yield from _indented([f"write {place}: {first}", *rest])
