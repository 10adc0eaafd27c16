"""Diffs: what is another in one state than in an earlier one, as frozen records.

`diff_values` compares two plain states, `diff_readings` two checkpoints as read: chunks that both share are the same
without being decoded. Imports codec and log. The invariant: a value of another type is another value (`1`, `1.0` and
`True` differ), and the order of channels and keys is no part of a value.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from deltastore.codec.blobs import JSONPLUS_RUN, STRICT_RUN, Codec
from deltastore.codec.records import DICT, LIST
from deltastore.log import state as st
from deltastore.log.loading import LoadedChannel, Reading

DEFAULT_DEPTH = 4
"""How many keys and places a path has at most: deeper, the whole part counts as changed."""

Path = tuple[Any, ...]
"""A channel's name, then keys of dicts and places in lists."""


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

    Lists are compared without their common beginning and end; what is left is paired place by place where it is
    as long in both, else it was removed and added. Nothing is taken from its place that moved.
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
        return _ABSENT if channel is None else replace(reading, channels={name: channel}).values(codec)[name]

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
    if len(path) < depth and type(old) is type(new):
        if isinstance(old, dict):
            return _dicts(path, old, new, depth)
        if isinstance(old, list):
            return _lists(path, old, new, depth)
    return _part(path, old, new)


def _dicts(path: Path, old: Mapping[Any, Any], new: Mapping[Any, Any], depth: int) -> list[Change]:
    mine = {(type(key), key): value for key, value in old.items()}
    theirs = {(type(key), key): value for key, value in new.items()}
    found: list[Change] = []
    for typed in [*mine, *(typed for typed in theirs if typed not in mine)]:
        before, after = mine.get(typed, _ABSENT), theirs.get(typed, _ABSENT)
        inner = (*path, typed[1])
        found += _part(inner, before, after) if _ABSENT in (before, after) else _values(inner, before, after, depth)
    return found


def _lists(path: Path, old: Sequence[Any], new: Sequence[Any], depth: int, first: int = 0) -> list[Change]:
    """Compare lists that stand at place `first` of longer ones."""
    shorter = min(len(old), len(new))
    begin = next((place for place in range(shorter) if not _same(old[place], new[place])), shorter)
    end = next((n for n in range(shorter - begin) if not _same(old[-1 - n], new[-1 - n])), shorter - begin)
    mine, theirs = old[begin : len(old) - end], new[begin : len(new) - end]
    places = range(first + begin, first + begin + max(len(mine), len(theirs)))
    if len(mine) == len(theirs):
        pairs = zip(places, mine, theirs, strict=True)
        return [change for place, before, after in pairs for change in _values((*path, place), before, after, depth)]
    return [
        *(Change("removed", (*path, place), value, None) for place, value in zip(places, mine, strict=False)),
        *(Change("added", (*path, place), None, value) for place, value in zip(places, theirs, strict=False)),
    ]


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
    return bool(old == new)
