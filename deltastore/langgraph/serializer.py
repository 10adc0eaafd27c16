"""Codecs over LangGraph's serializers.

`JsonPlusCodec` calls LangGraph's own serializer element by element, which is exact because msgpack nests by
concatenation: the encoding of a list is a header and its elements' encodings. `OpaqueCodec` hands any other serializer
the whole value once. The invariant: what comes back is what `loads_typed(dumps_typed(value))` gives.
Imports codec and LangGraph.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from deltastore.codec import blobs as bl
from deltastore.codec.records import LIST
from deltastore.errors import ChecksumError, CodecMismatchError, EncodeError
from deltastore.langgraph import messages, noting
from deltastore.langgraph.rebuilding import Loads
from deltastore.langgraph.strict import refusing, restricted

_MSGPACK = "msgpack"
_OPAQUE_TAGS = {
    _MSGPACK: bl.JSONPLUS_MSGPACK,
    "null": bl.JSONPLUS_NULL,
    "bytes": bl.JSONPLUS_BYTES,
    "bytearray": bl.JSONPLUS_BYTEARRAY,
}
_OPAQUE_TYPES = {tag: kind for kind, tag in _OPAQUE_TAGS.items()}
_ONE_ELEMENT, _ONE_ENTRY = 0x91, 0x81
"""What msgpack begins a list of one with, and a dict of one."""

TagOf = Callable[[str], int]
"""Gives the tag of an interned kind of data, by name."""
TypeOf = Callable[[int], str]
"""Gives the name of an interned tag."""


def codec_for(serde: SerializerProtocol, tag_of: TagOf, type_of: TypeOf, *, strict: bool = False) -> "OpaqueCodec":
    """Return the codec for a serializer: element by element where that is known to be exact, else opaque.

    With `strict`, a class that the allowlist refuses, or that can't be rebuilt, raises TypeRefusedError or
    TypeLostError instead of coming back as its parts. Raises InvalidInputError as `restricted` does.
    """
    if strict:
        serde = restricted(serde)
    loads = refusing(serde) if strict else serde.loads_typed
    if type(serde) is JsonPlusSerializer:
        return JsonPlusCodec(serde, loads, tag_of, type_of)
    return OpaqueCodec(serde, loads, tag_of, type_of)


class OpaqueCodec:
    """Any `SerializerProtocol`, one chunk a value. As thread-safe as the serializer."""

    elementwise = False

    def __init__(self, serde: SerializerProtocol, loads: Loads, tag_of: TagOf, type_of: TypeOf) -> None:
        self.serde = serde
        self._loads = loads
        # it must give no plain data, which LangGraph's serializer would load all the same
        self._must_encrypt = isinstance(serde, EncryptedSerializer)
        kind = type(serde)
        self.name = f"{kind.__module__}.{kind.__qualname__}"
        self._tag_of = tag_of
        self._type_of = type_of

    def encode(self, value: Any) -> bytes:
        """Return a value as an opaque blob. Raises what the serializer raises."""
        kind, data = self.serde.dumps_typed(value)
        if self._is_plain(kind):
            raise EncodeError(f"{self.name} gives it unencrypted, as {kind!r}")
        tag = self._known_tag(kind)
        if tag is None:
            tag = self._tag_of(f"{self.name}\x001\x00opaque\x00{kind}")
        return bytes((tag,)) + data

    def decode(self, blob: bytes) -> Any:
        """Return the value of an opaque blob. Raises CodecMismatchError, or what the serializer raises."""
        tag = blob[0]
        kind = self._known_kind(tag)
        if kind is None:
            if tag < bl.FIRST_INTERNED_TAG:
                raise bl.wrong_tag(tag, self)
            writer, _, _, kind = self._type_of(tag).split("\0", 3)
            if writer != self.name:  # it may have a kind of the same name
                raise bl.wrong_writer(writer, self)
        if self._is_plain(kind):
            raise CodecMismatchError(
                f"a value of kind {kind!r} is stored unencrypted, which {self.name} never writes: somebody else put it "
                "there. There is no option to read it; restore it, or put the state again"
            )
        return self._loads((kind, blob[1:]))

    def reload(self, value: Any) -> Any:
        """Return what a value comes back as, without the store. Raises what the serializer raises."""
        return self._loads(self.serde.dumps_typed(value))

    def _is_plain(self, kind: str) -> bool:
        """Tell whether data that should be encrypted isn't."""
        return self._must_encrypt and "+" not in kind

    def _known_tag(self, kind: str) -> int | None:
        return None

    def _known_kind(self, tag: int) -> str | None:
        return None

    def unwrap(self, value: Any) -> Any:
        """Return None: values are never cut."""

    def wrap(self, value: Any) -> Any:
        """Refuse: what is cut was written by another serializer. Raises CodecMismatchError."""
        raise bl.wrong_tag(bl.JSONPLUS_ELEMENT, self)

    def encode_elements(self, values: list[Any]) -> list[bytes]:
        """Not for this codec: values are never cut."""
        raise NotImplementedError

    def cut_list(self, values: list[Any], before: bl.Cut | None) -> bl.Cut:
        """Not for this codec: values are never cut."""
        raise NotImplementedError

    def encode_entry(self, key: Any, value: Any) -> bytes:
        """Not for this codec: values are never cut."""
        raise NotImplementedError

    def encode_run(self, values: list[Any]) -> bytes:
        """Not for this codec: values are never cut."""
        raise NotImplementedError

    def decode_list(self, blobs: Sequence[bytes], notes: object = None) -> list[Any]:
        """Refuse: what is cut was written by another serializer. Raises CodecMismatchError."""
        raise bl.wrong_tag(blobs[0][0] if blobs else bl.JSONPLUS_ELEMENT, self)

    def note(self, values: list[Any], blobs: list[bytes], notes: object) -> object:
        """Return None: values are never cut."""

    def decode_dict(self, blobs: Sequence[bytes]) -> dict[Any, Any]:
        """Refuse: what is cut was written by another serializer. Raises CodecMismatchError."""
        raise bl.wrong_tag(blobs[0][0] if blobs else bl.JSONPLUS_ENTRY, self)


class JsonPlusCodec(OpaqueCodec):
    """LangGraph's `JsonPlusSerializer` itself, element by element. Thread-safe."""

    elementwise = True

    def _known_tag(self, kind: str) -> int | None:
        return _OPAQUE_TAGS.get(kind)

    def _known_kind(self, tag: int) -> str | None:
        return _OPAQUE_TYPES.get(tag)

    def _packed(self, value: Any, first: int | None) -> bytes:
        kind, data = self.serde.dumps_typed(value)
        if kind != _MSGPACK or (first is not None and data[0] != first):
            raise bl.NotElementwiseError  # pickle_fallback is on, and was needed
        return data

    def _has_own_reader(self) -> bool:
        """Whether the user gave the serializer a reader of his own, which must see every message and snapshot."""
        return bool(getattr(self.serde, "_custom_unpack_ext_hook", False))

    def encode(self, value: Any) -> bytes:
        """Return a value as an opaque blob; a message as the element that it is in a list: writes often are bare.

        Raises what the serializer raises.
        """
        message = None if self._has_own_reader() else messages.encode(value)
        return super().encode(value) if message is None else message

    def decode(self, blob: bytes) -> Any:
        """Return the value of an opaque blob. Raises CodecMismatchError, or what the serializer raises."""
        return messages.decode([blob])[0] if blob[0] == bl.JSONPLUS_MESSAGE else super().decode(blob)

    def unwrap(self, value: Any) -> Any:
        """Return what a DeltaChannel's snapshot holds; None for any other value."""
        return value.value if type(value) is _DeltaSnapshot and not self._has_own_reader() else None

    def wrap(self, value: Any) -> Any:
        """Return a DeltaChannel's snapshot of a value."""
        return _DeltaSnapshot(value)

    def encode_elements(self, values: list[Any]) -> list[bytes]:
        """Return a blob for each element. Raises what the serializer raises."""
        if self._has_own_reader():
            return [self._element(value) for value in values]
        return [messages.encode(value) or self._element(value) for value in values]

    def cut_list(self, values: list[Any], before: bl.Cut | None) -> bl.Cut:
        """Take a list apart; runs of messages that are as they were aren't encoded again."""
        if self._has_own_reader():
            return bl.Cut(LIST, self.encode_elements(values))
        blobs, notes = noting.encode(values, self.encode_elements, _noted(before.notes if before else None))
        return bl.Cut(LIST, blobs, notes=notes)

    def _element(self, value: Any) -> bytes:
        return bytes((bl.JSONPLUS_ELEMENT,)) + self._packed([value], _ONE_ELEMENT)

    def encode_entry(self, key: Any, value: Any) -> bytes:
        """Return an entry of a dict. Raises what the serializer raises."""
        return bytes((bl.JSONPLUS_ENTRY,)) + self._packed({key: value}, _ONE_ENTRY)

    def encode_run(self, values: list[Any]) -> bytes:
        """Return some scalars. Raises what the serializer raises."""
        return bytes((bl.JSONPLUS_RUN,)) + self._packed(values, None)

    def decode_list(self, blobs: Sequence[bytes], notes: object = None) -> list[Any]:
        """Return the list of these elements and runs. Raises CodecMismatchError, or what the serializer raises."""
        noted = _noted(notes)
        return self._decoded(blobs) if noted is None else noting.decode(blobs, self._decoded, noted)

    def note(self, values: list[Any], blobs: list[bytes], notes: object) -> object:
        """Return notes of a list that was decoded, for the next that has much of it."""
        return noting.note(values, blobs, _noted(notes))

    def _decoded(self, blobs: Sequence[bytes]) -> list[Any]:
        out: list[Any] = []
        for tag, group in groupby(blobs, key=itemgetter(0)):
            same = list(group)
            if tag == bl.JSONPLUS_MESSAGE:
                out.extend(messages.decode(same))
            elif tag == bl.JSONPLUS_ELEMENT:
                out.extend(self._joined(same, b"\xdd"))
            elif tag == bl.JSONPLUS_RUN:
                for blob in same:
                    out.extend(self._loads((_MSGPACK, blob[1:])))
            else:
                raise bl.wrong_tag(tag, self)
        return out

    def decode_dict(self, blobs: Sequence[bytes]) -> dict[Any, Any]:
        """Return the dict of these entries. Raises CodecMismatchError, or what the serializer raises."""
        for blob in blobs:
            if blob[0] != bl.JSONPLUS_ENTRY:
                raise bl.wrong_tag(blob[0], self)
        joined: dict[Any, Any] = self._joined(blobs, b"\xdf")
        return joined

    def _joined(self, blobs: Sequence[bytes], header: bytes) -> Any:
        """Decode parts as the one list or dict that they are: each but its header of one."""
        data = b"".join((header, len(blobs).to_bytes(4, "big"), *(memoryview(blob)[2:] for blob in blobs)))
        value = self._loads((_MSGPACK, data))
        if len(value) > len(blobs):
            raise ChecksumError(f"malformed value: {len(blobs)} chunks gave {len(value)} elements")
        return value


def _noted(notes: object) -> noting.Notes | None:
    """Return notes if this codec made them: a thread may have been written with another."""
    return notes if isinstance(notes, noting.Notes) else None
