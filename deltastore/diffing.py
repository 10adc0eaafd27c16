"""Diffs: what is another in one state than in an earlier one, as frozen records.

`diff_values` compares two states, plain or as `upkeep.inspecting` gives them, `diff_readings` two checkpoints as read:
chunks that both share are the same without being decoded. Imports codec and log. The invariant: a value of another type
is another value (`1`, `1.0` and `True` differ), and the order of channels and keys is no part of a value.
"""

import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from deltastore.codec.blobs import JSONPLUS_RUN, STRICT_RUN, Codec
from deltastore.codec.generic import Built
from deltastore.codec.records import DICT, LIST
from deltastore.log import state as st
from deltastore.log.loading import LoadedChannel, Reading
from deltastore.terms import DEFAULT_DEPTH

ALL_DEPTHS = 1 << 30
"""A depth that no value has, so that every part is told apart."""
MAX_ALIGNED_PAIRS = 1_000_000
"""How many pairs of elements are compared to align what differs of two lists, which takes a fraction of a second."""

Path = tuple[Any, ...]
"""A channel's name, then keys of dicts, fields of objects and places in lists."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `path` names the part: places in lists are those of the new state, of what was removed the old's.

    `old` is None where it was added, `new` where it was removed.
    """

    kind: Literal["added", "removed", "changed"]
    path: Path
    old: Any
    new: Any


Changes = tuple[Change, ...]


def diff_values(old: Mapping[Any, Any], new: Mapping[Any, Any], *, depth: int = DEFAULT_DEPTH) -> Changes:
    """Return what was removed from, changed in, and added to a state or any other mapping, in its order.

    Lists are aligned by the elements that are the same in both, unless they differ in too many; between these, elements
    are paired place by place, and what is left over was removed or added. Nothing is taken from its place that moved.
    An inspected object is opened as the dict or list of its parts where both are of one class.
    """
    return tuple(_dicts((), old, new, depth))


def diff_readings(old: Reading, new: Reading, codec: Codec, *, depth: int = DEFAULT_DEPTH) -> Changes:
    """Return what `diff_values` would of the two states, decoding only the chunks that differ. Raises as reading does.

    Where a list is paired, one whose chunks were cut otherwise may be paired otherwise.
    """
    found: list[Change] = []
    for name in [*old.channels, *(name for name in new.channels if name not in old.channels)]:
        before, after = old.channels.get(name), new.channels.get(name)
        if before is None or after is None:
            found += _part((name,), *_sides(old, new, name, codec))
        elif before != after:
            found += _channels(name, old, new, codec, depth)
    return tuple(found)


_ABSENT: Any = object()


def _sides(old: Reading, new: Reading, name: str, codec: Codec) -> tuple[Any, Any]:
    def side(reading: Reading) -> Any:
        channel = reading.channels.get(name)
        return _ABSENT if channel is None else reading._replace(channels={name: channel}).values(codec)[name]

    return side(old), side(new)


def _channels(name: str, old: Reading, new: Reading, codec: Codec, depth: int) -> list[Change]:
    """Compare a channel that both have, in other chunks."""
    before, after = old.channels[name], new.channels[name]
    if depth < 2 or not (_is_plain(before) and _is_plain(after)) or before.kind != after.kind:
        return _values((name,), *_sides(old, new, name, codec), depth)
    mine, theirs = before.blobs or [], after.blobs or []
    if before.kind == LIST:
        splice = st.diff(mine, theirs)
        place = sum(_count(blob, codec) for blob in mine[: splice.place])
        return _lists(
            (name,),
            codec.decode_list(mine[splice.place : splice.place + splice.removed]),
            codec.decode_list(theirs[splice.place : splice.place + splice.inserted]),
            depth,
            place,
        )
    if before.kind == DICT:
        shared = set(mine) & set(theirs)
        return _dicts(
            (name,),
            codec.decode_dict([blob for blob in mine if blob not in shared]),
            codec.decode_dict([blob for blob in theirs if blob not in shared]),
            depth,
        )
    return _values((name,), *_sides(old, new, name, codec), depth)


def _is_plain(channel: LoadedChannel) -> bool:
    """Tell whether a channel is all in chunks, without writes that a user's reducer is to fold."""
    return channel.blobs is not None and not channel.writes


def _count(blob: bytes, codec: Codec) -> int:
    """Return how many elements a chunk of a list holds; a run is short enough to be decoded for that."""
    return len(codec.decode_list([blob])) if blob[0] in (STRICT_RUN, JSONPLUS_RUN) else 1


# --- values


def _part(path: Path, old: Any, new: Any) -> list[Change]:
    if old is _ABSENT:
        return [Change("added", path, None, new)]
    if new is _ABSENT:
        return [Change("removed", path, old, None)]
    return [Change("changed", path, old, new)]


def _values(path: Path, old: Any, new: Any, depth: int) -> list[Change]:
    if _same(old, new):
        return []
    before, after = _opened(old), _opened(new)
    if len(path) < depth and type(before) is type(after) and _class(old) == _class(new):
        if isinstance(before, dict):
            return _dicts(path, before, after, depth)
        if isinstance(before, list):
            return _lists(path, before, after, depth)
    return _part(path, old, new)


def _opened(value: Any) -> Any:
    """Return an inspected object's parts; any other value as it is."""
    return value.parts if isinstance(value, Built) else value


def _class(value: Any) -> str | None:
    return value.name if isinstance(value, Built) else None


def _dicts(path: Path, old: Mapping[Any, Any], new: Mapping[Any, Any], depth: int) -> list[Change]:
    mine = {(type(key), key): value for key, value in old.items()}
    theirs = {(type(key), key): value for key, value in new.items()}
    found: list[Change] = []
    for typed in [*mine, *(typed for typed in theirs if typed not in mine)]:
        before, after = mine.get(typed, _ABSENT), theirs.get(typed, _ABSENT)
        inner = (*path, typed[1])
        if before is _ABSENT or after is _ABSENT:
            found += _part(inner, before, after)
        else:
            found += _values(inner, before, after, depth)
    return found


def _lists(path: Path, old: Sequence[Any], new: Sequence[Any], depth: int, first: int = 0) -> list[Change]:
    """Compare lists that stand at place `first` of longer ones."""
    shorter = min(len(old), len(new))
    begin = next((place for place in range(shorter) if not _same(old[place], new[place])), shorter)
    end = next((n for n in range(shorter - begin) if not _same(old[-1 - n], new[-1 - n])), shorter - begin)
    first += begin
    mine, theirs = old[begin : len(old) - end], new[begin : len(new) - end]
    found: list[Change] = []
    for from_, to, at, until in _unlike(mine, theirs):
        paired = min(to - from_, until - at)
        for n in range(paired):
            found += _values((*path, first + at + n), mine[from_ + n], theirs[at + n], depth)
        found += [Change("removed", (*path, first + n), mine[n], None) for n in range(from_ + paired, to)]
        found += [Change("added", (*path, first + n), None, theirs[n]) for n in range(at + paired, until)]
    return found


def _unlike(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[int, int, int, int]]:
    """Iterate over what stands between the elements that both have: where it begins and ends in the one and the other.

    All is unlike where there is too much of it, or where an element can't be hashed.
    """
    if 0 < len(old) * len(new) <= MAX_ALIGNED_PAIRS:
        try:
            before, after = list(map(_token, old)), list(map(_token, new))
        except TypeError:
            yield 0, len(old), 0, len(new)
            return
        # its guess at what is common enough to be ignored makes long lists of the same numbers seem changed
        for tag, *block in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                yield block[0], block[1], block[2], block[3]
    else:
        yield 0, len(old), 0, len(new)


def _token(value: Any) -> Hashable:
    """Return what is equal for the same values only. Raises TypeError where a value can't be hashed."""
    if isinstance(value, float):
        return type(value), struct.pack("d", value)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_token, value))
    if isinstance(value, dict):
        return type(value), frozenset((type(key), key, _token(item)) for key, item in value.items())
    if _has_fields(value):
        return type(value), tuple(map(_token, _fields(value)))
    hash(value)
    return type(value), value


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> Iterator[Any]:
    return (getattr(value, field.name) for field in fields(value) if field.compare)


def _same(old: Any, new: Any) -> bool:
    """Tell whether two values are equal in type too."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, float):
        return struct.pack("d", old) == struct.pack("d", new)
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict):
        if len(old) != len(new):
            return False
        theirs = {(type(key), key): value for key, value in new.items()}
        return all((type(key), key) in theirs and _same(value, theirs[type(key), key]) for key, value in old.items())
    if _has_fields(old):
        return all(map(_same, _fields(old), _fields(new)))
    return bool(old == new)
