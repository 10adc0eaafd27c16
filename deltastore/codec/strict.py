"""The strict msgpack codec of the native API: what comes back equals what was put, in type and value.

It takes None, bool, int of 64 bits, float, str, bytes, and exact lists and dicts of these (keys: any of the scalars).
Everything else is refused, never degraded. Imports blobs and errors. The invariant: decode(encode(v)) is v byte for
byte, NaN and -0.0 included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, Final

import ormsgpack

from deltastore.codec import blobs as bl
from deltastore.codec.records import LIST
from deltastore.errors import ChecksumError, EncodeError

MAX_NESTING = 200
"""How deep a value may nest; ormsgpack gives up at 1,024, Python's own recursion earlier."""
_LEAVES: Final = frozenset((type(None), bool, float, str, bytes))
_KEYS: Final = _LEAVES | {int}
_IDS: Final = frozenset((str, int, bytes))
"""What an upsert takes for the id of an element."""
_ENTRY: Final = bytes((bl.STRICT_ENTRY,))
_ELEMENT: Final = bytes((bl.STRICT_ELEMENT, 0x91))
"""How an element's blob begins: its tag, and the header of a list of one."""
_BLOCK: Final = 128
"""Elements that are compared at once."""
_SHORT, _SHORT_HEADER, _HEADER = 16, 1, 3
"""How many bytes the header of a list takes: of one that is shorter than the first number, and of a longer one."""
_TYPES: Final = _KEYS | {list, dict}
"""All that is taken; packing takes more, bytearrays as bytes for one."""
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
PLAIN_ONLY: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
)
"""With these and without a default, packing raises on everything that would come back as another type; so do keys that
aren't exactly str."""
_PACK: Final = PLAIN_ONLY | ormsgpack.OPT_NON_STR_KEYS


class _Everything(Enum):
    """What REMOVE_ALL names. None won't do: `Remove(message.get("id"))` of a message without id mustn't remove all."""

    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Remove:
    """In a write to an upsert channel: removes the element with this id; REMOVE_ALL removes all before it."""

    id: str | int | bytes | _Everything


REMOVE_ALL: Final = Remove(_Everything.EVERYTHING)


def strict_pack(value: Any) -> bytes:
    """Return msgpack of a value of the supported types. Raises EncodeError."""
    _check(value, 0)
    return _packed(value)


def _packed(value: Any) -> bytes:
    try:
        return ormsgpack.packb(value, option=_PACK)
    except (TypeError, ValueError) as error:
        raise EncodeError(str(error)) from error


def strict_unpack(data: bytes) -> Any:
    """Undo `strict_pack`. Raises ChecksumError."""
    try:
        return ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError as error:
        raise ChecksumError(f"malformed value: {error}") from error


def _check(value: Any, depth: int) -> None:
    """Refuse what ormsgpack would take and give back as something else."""
    kind = type(value)
    if kind in _LEAVES:
        return
    if kind is int:
        if not _MIN_INT <= value <= _MAX_INT:
            raise EncodeError(f"an int of {value.bit_length()} bits; 64 is the limit")
        return
    if depth >= MAX_NESTING:
        raise EncodeError(f"nested deeper than {MAX_NESTING}")
    if kind is list:
        for item in value:
            _check(item, depth + 1)
        return
    if kind is dict:
        for key, item in value.items():
            if type(key) not in _KEYS:
                raise EncodeError(f"a key of type {type(key).__name__}; scalars are taken")
            _check(item, depth + 1)
        return
    raise EncodeError(f"type {kind.__module__}.{kind.__qualname__} isn't taken as it is")


class StrictCodec:
    """The codec of the native API. Stateless and thread-safe."""

    name = "strict msgpack 1"
    elementwise = True

    def encode(self, value: Any) -> bytes:
        """Return a value as an opaque blob. Raises EncodeError."""
        return _tagged(bl.STRICT_OPAQUE, value)

    def unwrap(self, value: Any) -> None:
        """Return None: the native API has no snapshots."""

    def wrap(self, value: Any) -> Any:
        """Refuse: only LangGraph puts snapshots. Raises CodecMismatchError."""
        raise bl.wrong_tag(bl.JSONPLUS_ELEMENT, self)

    def encode_elements(self, values: list[Any]) -> list[bytes]:
        """Return a blob for each element; a Remove becomes a removal. Raises EncodeError."""
        return [_removal(value) if type(value) is Remove else _tagged(bl.STRICT_ELEMENT, [value]) for value in values]

    def cut_list(self, values: list[Any], before: bl.Cut | None) -> bl.Cut:
        """Take a list apart; elements that are as they were aren't looked into again. Raises EncodeError."""
        known = known_elements(values, before.blobs if before else ())
        return bl.Cut(
            LIST, [blob or self.encode_elements([value])[0] for value, blob in zip(values, known, strict=True)]
        )

    def note(self, values: list[Any], blobs: list[bytes], notes: object) -> object:
        """Return None: what is stored decodes fast enough."""

    def encode_entry(self, key: Any, value: Any) -> bytes:
        """Return an entry of a dict. Raises EncodeError."""
        if type(key) is str and type(value) in _LEAVES:  # versions, mostly: several a put
            return _ENTRY + _packed({key: value})
        return _tagged(bl.STRICT_ENTRY, {key: value})

    def encode_run(self, values: list[Any]) -> bytes:
        """Return some scalars. Raises EncodeError."""
        return _tagged(bl.STRICT_RUN, values)

    def decode(self, blob: bytes) -> Any:
        """Return the value of an opaque blob. Raises ChecksumError, CodecMismatchError."""
        if blob[0] != bl.STRICT_OPAQUE:
            raise bl.wrong_tag(blob[0], self)
        return strict_unpack(blob[1:])

    def decode_list(self, blobs: Sequence[bytes], notes: object = None) -> list[Any]:
        """Return the list of these elements, runs and removals. Raises ChecksumError, CodecMismatchError."""
        out: list[Any] = []
        for blob in blobs:
            if blob[0] in (bl.STRICT_ELEMENT, bl.STRICT_RUN):
                out.extend(_unpack_as(list, blob))
            elif blob[0] == bl.STRICT_REMOVAL:
                found = strict_unpack(blob[1:])
                out.append(REMOVE_ALL if found is None else Remove(found))
            else:
                raise bl.wrong_tag(blob[0], self)
        return out

    def decode_dict(self, blobs: Sequence[bytes]) -> dict[Any, Any]:
        """Return the dict of these entries. Raises ChecksumError, CodecMismatchError."""
        out: dict[Any, Any] = {}
        for blob in blobs:
            if blob[0] != bl.STRICT_ENTRY:
                raise bl.wrong_tag(blob[0], self)
            out.update(_unpack_as(dict, blob))
        return out


def _unpack_as(kind: type, blob: bytes) -> Any:
    value = strict_unpack(blob[1:])
    if type(value) is not kind:
        raise ChecksumError(f"malformed value: a {type(value).__name__} where a {kind.__name__} was expected")
    return value


def _removal(remove: Remove) -> bytes:
    if remove.id is _Everything.EVERYTHING:
        return _tagged(bl.STRICT_REMOVAL, None)
    if type(remove.id) not in _IDS:
        raise EncodeError(f"a Remove of type {type(remove.id).__name__}; ids are str, int or bytes")
    return _tagged(bl.STRICT_REMOVAL, remove.id)


def _tagged(tag: int, value: Any) -> bytes:
    return bytes((tag,)) + strict_pack(value)


STRICT: Final = StrictCodec()


def known_elements(values: list[Any], before: Sequence[bytes], *, but: bytes | None = None) -> list[bytes | None]:
    """Return, for each element of a list, the blob that `before` has at its place where encoding would make the same.

    None stands for all others, and for elements whose encoding has `but` in it. Raises nothing. Many elements are
    compared at once, which takes a twentieth of the time of encoding each.
    """
    found: list[bytes | None] = [None] * len(values)
    for start in range(0, min(len(values), len(before)), _BLOCK):
        blobs = before[start : start + _BLOCK]
        items = values[start : start + len(blobs)]
        blobs = blobs[: len(items)]
        if _are(blobs, items, but):
            found[start : start + len(blobs)] = blobs
        else:
            for place, (item, blob) in enumerate(zip(items, blobs, strict=True), start):
                if _are((blob,), [item], but):
                    found[place] = blob
    return found


def _are(blobs: Sequence[bytes], items: list[Any], but: bytes | None) -> bool:
    """Tell whether these are the blobs of these elements; False where that isn't sure."""
    if not all(blob.startswith(_ELEMENT) for blob in blobs):
        return False
    try:
        packed = ormsgpack.packb(items, option=PLAIN_ONLY)
    except (TypeError, ValueError):
        return False
    joined = b"".join([blob[len(_ELEMENT) :] for blob in blobs])
    header = _SHORT_HEADER if len(items) < _SHORT else _HEADER
    if len(packed) != header + len(joined) or not packed.endswith(joined) or (but is not None and but in joined):
        return False
    return _are_plain(items)


def _are_plain(level: Sequence[Any]) -> bool:
    """Tell whether values that can be packed are of the types that are taken, all the way down."""
    while level:
        if not set(map(type, level)) <= _TYPES:
            return False
        dicts = [value.values() for value in level if type(value) is dict]
        lists = [value for value in level if type(value) is list]
        level = list(chain(chain.from_iterable(dicts), chain.from_iterable(lists)))
    return True


# --- what the built-in reducers ask of a chunk -------------------------------------


def element_id(blob: bytes) -> Any:
    """Return the id by which an upsert knows an element: its `id`, or None. Plain data is read, no user code runs."""
    if blob[0] != bl.STRICT_ELEMENT:
        return None
    element = _only(_unpack_as(list, blob))
    found = element.get("id") if type(element) is dict else None
    return _keyed(found) if type(found) in _IDS else None


def removal_id(blob: bytes) -> Any:
    """Return the id that a removal names; None stands for all."""
    found = strict_unpack(blob[1:])
    if found is not None and type(found) not in _IDS:
        raise ChecksumError(f"malformed value: a removal of type {type(found).__name__}")
    return None if found is None else _keyed(found)


def entry_key(blob: bytes) -> Any:
    """Return the key of an entry; keys are the same where a Python dict takes them for the same, as 1, 1.0 and True."""
    if blob[0] != bl.STRICT_ENTRY:
        raise ChecksumError(f"malformed value: a chunk with tag {blob[0]} among the entries of a dict")
    return _only(_unpack_as(dict, blob))


def _only(items: Any) -> Any:
    if len(items) != 1:
        raise ChecksumError(f"malformed value: a chunk of {len(items)} elements where one was expected")
    return next(iter(items))


def _keyed(found: Any) -> bytes:
    """Tell 1 from "1" as the encoding does."""
    return strict_pack(found)
