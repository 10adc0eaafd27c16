"""Reducers: what a write to a channel means.

The built-in ones fold chunk numbers, never values, so they run no user code. Users register their own with a name and a
version; both are stored, and another version at read time is an error. Imports errors and, for the ids of elements,
codec.
The invariant: folding writes in pieces equals folding them at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltastore.codec import blobs as bl
from deltastore.codec import strict
from deltastore.errors import InvalidInputError

PATCH, REPLACE, APPEND, MERGE, UPSERT = 0, 1, 2, 3, 4
FIRST_INTERNED_REDUCER = 16
BUILT_IN: Final[Mapping[str, int]] = {"replace": REPLACE, "append": APPEND, "merge": MERGE, "upsert": UPSERT}
"""The built-in reducers that a channel may be given, and their numbers in the format.

replace: the last write. append: lists, joined. merge: dicts, the later entry in the earlier one's place. upsert: lists
of elements with an `id`, as LangChain's `add_messages`: an element with a known id takes the old one's place,
others are appended; `Remove(id)` removes, `REMOVE_ALL` removes all before it. An element without id is appended;
removing an unknown id does nothing.
"""

BlobOf = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Reducer:
    """A reducer of the user's: `fold(value, write)` returns the next value. It must be deterministic.

    `initial()` gives the value before the first write. Raise `version` whenever `fold` would give another
    result than before.
    """

    name: str
    version: int
    fold: Callable[[Any, Any], Any]
    initial: Callable[[], Any]

    def __post_init__(self) -> None:
        if not self.name or "\0" in self.name or self.name in BUILT_IN or self.name == "patch":
            raise InvalidInputError(f"a reducer can't be named {self.name!r}: empty, with NUL, or a built-in's name")
        if type(self.version) is not int or self.version < 1:
            raise InvalidInputError(f"reducer {self.name!r}: version {self.version!r}; expected an int from 1 on")
        if not all(map(callable, (self.fold, self.initial))):
            raise InvalidInputError(f"reducer {self.name!r}: fold and initial must be callable")

    def fold_all(self, value: Any, writes: Sequence[Any], *, present: bool) -> Any:
        """Fold writes onto a value, or onto the initial one where there is none."""
        current = value if present else self.initial()
        for write in writes:
            current = self.fold(current, write)
        return current


def default_for(value: Any) -> int:
    """Return the reducer of a channel that nobody configured, by the type of its first write."""
    if type(value) is list:
        return APPEND
    return MERGE if type(value) is dict else REPLACE


def name_of(reducer: int) -> str:
    """Return a built-in reducer's name, for messages."""
    return {number: name for name, number in BUILT_IN.items()}.get(reducer, "patch")


def fold_numbers(reducer: int, base: Sequence[int], writes: Sequence[Sequence[int]], blob_of: BlobOf) -> list[int]:
    """Fold writes, given as chunk numbers, onto a value given so.

    Raises ChecksumError on chunks that don't belong there.
    """
    numbers = list(base)
    for write in writes:
        if reducer == MERGE:
            numbers = _merge(numbers, write, blob_of)
        elif reducer == UPSERT:
            numbers = _upsert(numbers, write, blob_of)
        elif reducer == APPEND:
            numbers.extend(write)
        else:
            numbers = list(write)
    return numbers


def _merge(base: list[int], write: Sequence[int], blob_of: BlobOf) -> list[int]:
    merged = {strict.entry_key(blob_of(number)): number for number in base}
    for number in write:
        merged[strict.entry_key(blob_of(number))] = number
    return list(merged.values())


def _upsert(base: list[int], write: Sequence[int], blob_of: BlobOf) -> list[int]:
    """Follow langgraph.graph.message.add_messages: removals take effect when the write ends."""
    blobs = [(number, blob_of(number)) for number in write]
    for place in range(len(blobs) - 1, -1, -1):
        if blobs[place][1][0] == bl.STRICT_REMOVAL and strict.removal_id(blobs[place][1]) is None:
            base, blobs = [], blobs[place + 1 :]
            break
    merged = list(base)
    ids = [strict.element_id(blob_of(number)) for number in merged]
    places = {found: place for place, found in enumerate(ids) if found is not None}
    removed: set[Any] = set()
    for number, blob in blobs:
        if blob[0] == bl.STRICT_REMOVAL:
            if strict.removal_id(blob) in places:
                removed.add(strict.removal_id(blob))
            continue
        found = strict.element_id(blob)
        if found is not None and found in places:
            removed.discard(found)
            merged[places[found]] = number
            continue
        if found is not None:
            places[found] = len(merged)
        merged.append(number)
        ids.append(found)
    return [number for number, found in zip(merged, ids, strict=True) if found is None or found not in removed]
