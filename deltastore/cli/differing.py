"""What differs between two inspected values, part by part. Pure; imports the generic decoder.

The invariant: parts are compared as stored, type by type, so True isn't 1; no difference means the same value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from deltastore.cli.rendering import one_line
from deltastore.codec.generic import Built


class _Absent:
    """What stands where one side has nothing."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True)
class Change:
    """One part that differs. `path`: channel, then keys, fields and places; ABSENT where a side lacks it."""

    path: tuple[Any, ...]
    old: Any
    new: Any


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return what makes one state of another, channel by channel."""
    return list(_mappings((), old, new))


def _mappings(path: tuple[Any, ...], old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Iterator[Change]:
    for key in [*old, *(key for key in new if key not in old)]:
        yield from _values((*path, key), old.get(key, ABSENT), new.get(key, ABSENT))


def _values(path: tuple[Any, ...], old: Any, new: Any) -> Iterator[Change]:
    match old, new:
        case (dict(), dict()):
            yield from _mappings(path, old, new)
        case (list(), list()):
            yield from _lists(path, old, new)
        case (Built(), Built()) if old.name == new.name:
            yield from _values(path, old.parts, new.parts)
        case _:
            if type(old) is not type(new) or _shape(old) != _shape(new):
                yield Change(path, old, new)


def _lists(path: tuple[Any, ...], old: list[Any], new: list[Any]) -> Iterator[Change]:
    before, after = list(map(_shape, old)), list(map(_shape, new))
    # its guess at what is common enough to be ignored makes long lists of the same numbers seem changed
    for tag, from_, to, at, until in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        paired = min(to - from_, until - at)
        for place in range(paired):
            yield from _values((*path, at + place), old[from_ + place], new[at + place])
        for place in range(from_ + paired, to):
            yield Change((*path, place), old[place], ABSENT)
        for place in range(at + paired, until):
            yield Change((*path, place), ABSENT, new[place])


def _shape(value: Any) -> str:
    """Return text that is the same for the same value only: dicts by their keys, not in order."""
    match value:
        case dict():
            return "{" + ",".join(sorted(f"{_shape(key)}:{_shape(item)}" for key, item in value.items())) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_shape, value)) + "]"
        case Built():
            return f"{value.name}({_shape(value.parts)})"
    return one_line(value)
