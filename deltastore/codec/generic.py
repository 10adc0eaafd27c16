"""Values of any codec as plain data and records that name classes: nothing of the user's is imported or called.

For people and tools that look into a store without the program that wrote it. What LangGraph's serializer wrote is
msgpack whose extensions hold module, class and fields; an object becomes a `Built`. What another serializer wrote, an
encrypting one say, becomes a `Sealed`. Imports blobs, strict, messageforms and errors. The invariant: decoding runs no
code but this project's and msgpack's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import ormsgpack

from deltastore.codec import blobs as bl
from deltastore.codec.messageforms import FORMS, MODULE
from deltastore.codec.strict import STRICT
from deltastore.errors import ChecksumError

SNAPSHOT: Final = "langgraph.DeltaSnapshot"
"""How a snapshot of a DeltaChannel is named: the list or dict that its writes made."""
ARRAY: Final = "numpy.ndarray"

_SINGLE, _POSITIONAL, _KEYWORDS, _METHOD, _PYDANTIC_1, _PYDANTIC_2, _ARRAY, _SNAPSHOT = range(8)
"""LangGraph's extensions of msgpack."""
_PARTS_AT_LEAST: Final = 3

DIGEST_BYTES: Final = 16
"""Of a sealed value: enough that no two are taken for one, whoever chose their bytes."""

TypeOf = Callable[[int], str]
"""Gives the name of an interned tag: serializer, version, form and kind of data, with NUL between."""


@dataclass(frozen=True, slots=True)
class Built:
    """An object, by the name of its class (or of the function that makes it) and what it was made from.

    `parts`: a dict of fields, a tuple of arguments, or the one argument.
    """

    name: str
    parts: Any

    def __hash__(self) -> int:
        return hash(self.name)  # the parts may be lists; an object may be a key of a dict all the same


@dataclass(frozen=True, slots=True)
class Sealed:
    """A value that only its serializer can read: which that is, the kind of data it wrote, how many bytes.

    `digest` tells it from others, as its bytes would.
    """

    serializer: str
    kind: str
    size: int
    digest: bytes = b""


class GenericCodec:
    """A decoder of what any codec of this project encoded. Thread-safe."""

    def __init__(self, type_of: TypeOf) -> None:
        self._type_of = type_of

    def wrap(self, value: Any) -> Built:
        """Return a snapshot of this list or dict."""
        return Built(SNAPSHOT, value)

    def decode(self, blob: bytes) -> Any:
        """Return the value of an opaque blob. Raises ChecksumError."""
        tag, data = blob[0], blob[1:]
        match tag:
            case bl.STRICT_OPAQUE:
                return STRICT.decode(blob)
            case bl.JSONPLUS_MSGPACK:
                return _unpack(data)
            case bl.JSONPLUS_NULL:
                return None
            case bl.JSONPLUS_BYTES:
                return data
            case bl.JSONPLUS_BYTEARRAY:
                return bytearray(data)
        if tag < bl.FIRST_INTERNED_TAG:
            raise ChecksumError(f"malformed value: a whole value with tag {tag}")
        serializer, _, _, kind = (*self._type_of(tag).split("\0", 3), "", "", "")[:4]
        return Sealed(serializer, kind, len(data), blake2b(data, digest_size=DIGEST_BYTES).digest())

    def decode_list(self, blobs: Sequence[bytes], notes: object = None) -> list[Any]:
        """Return the list of these elements, runs and removals. Raises ChecksumError."""
        out: list[Any] = []
        for blob in blobs:
            match blob[0]:
                case bl.STRICT_ELEMENT | bl.STRICT_RUN | bl.STRICT_REMOVAL:
                    out.extend(STRICT.decode_list([blob]))
                case bl.JSONPLUS_MESSAGE:
                    out.append(_message(blob[1:]))
                case bl.JSONPLUS_ELEMENT | bl.JSONPLUS_RUN:
                    out.extend(_unpack_as(list, blob[1:]))
                case tag:
                    raise ChecksumError(f"malformed value: an element of a list with tag {tag}")
        return out

    def decode_dict(self, blobs: Sequence[bytes]) -> dict[Any, Any]:
        """Return the dict of these entries. Raises ChecksumError."""
        out: dict[Any, Any] = {}
        for blob in blobs:
            if blob[0] == bl.STRICT_ENTRY:
                out.update(STRICT.decode_dict([blob]))
            elif blob[0] == bl.JSONPLUS_ENTRY:
                out.update(_unpack_as(dict, blob[1:]))
            else:
                raise ChecksumError(f"malformed value: an entry of a dict with tag {blob[0]}")
        return out


def _unpack(data: bytes) -> Any:
    try:
        return ormsgpack.unpackb(data, ext_hook=_built, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError as error:
        raise ChecksumError(f"malformed value: {error}") from error


def _unpack_as(kind: type, data: bytes) -> Any:
    value = _unpack(data)
    if type(value) is not kind:
        raise ChecksumError(f"malformed value: a {type(value).__name__} where a {kind.__name__} was expected")
    return value


def _built(code: int, data: bytes) -> Any:
    """Return what an extension holds; what isn't LangGraph's is named by its number."""
    parts = _unpack(data) if code <= _SNAPSHOT else data
    if code == _SNAPSHOT:
        return Built(SNAPSHOT, parts)
    if code == _ARRAY and type(parts) is list and len(parts) == _PARTS_AT_LEAST + 1:
        return Built(ARRAY, {"dtype": parts[0], "shape": parts[1], "bytes": len(parts[3])})
    if code > _SNAPSHOT or type(parts) is not list or len(parts) < _PARTS_AT_LEAST:
        return Built(f"msgpack extension {code}", parts)
    name, arguments = f"{parts[0]}.{parts[1]}", parts[2]
    if code == _METHOD and len(parts) > _PARTS_AT_LEAST:
        name = f"{name}.{parts[3]}"
    return Built(name, tuple(arguments) if code == _POSITIONAL and type(arguments) is list else arguments)


def _message(data: bytes) -> Built:
    match _unpack(data):
        case [int(number), *values] if number in FORMS and len(FORMS[number].fields) == len(values):
            form = FORMS[number]
            return Built(f"{MODULE}.{form.name}", dict(zip(form.fields, values, strict=True)))
    raise ChecksumError("malformed message: its fields aren't those of a message")
