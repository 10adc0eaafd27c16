"""Blobs and codecs: how a value becomes chunks, and chunks a value again.

Holds the tags of the format, the protocol that every codec meets, and `cut` and `assemble`. Pure; imports records and
errors. The invariant: `assemble(cut(value))` is what the codec's own round trip of the whole value gives.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from deltastore.codec.records import DICT, LIST, OPAQUE, SNAPSHOT_DICT, SNAPSHOT_LIST
from deltastore.errors import ChecksumError, CodecMismatchError, EncodeError

STRICT_ELEMENT, STRICT_ENTRY, STRICT_RUN, STRICT_OPAQUE, STRICT_REMOVAL = 1, 2, 3, 4, 5
JSONPLUS_ELEMENT, JSONPLUS_ENTRY, JSONPLUS_RUN = 8, 9, 10
JSONPLUS_MSGPACK, JSONPLUS_NULL, JSONPLUS_BYTES, JSONPLUS_BYTEARRAY = 11, 12, 13, 14
JSONPLUS_MESSAGE = 15
FIRST_INTERNED_TAG = 32
LAST_TAG = 255

MAX_RUN_ELEMENTS = 1024
MAX_RUN_BYTES = 8192
MAX_RUN_STRING_BYTES = 64
"""Longer strings are elements of their own: they are worth finding again."""
MAX_CHUNK_BYTES = 1 << 30
"""One chunk, in bytes: LMDB and zstd take more, machines seldom do."""
MAX_LOCATE_DEPTH = 50
"""How deep the search for the part that can't be encoded goes."""

_SCALARS = frozenset((bool, int, float, type(None), str))
_SCALAR_BYTES = 9
"""What a number takes at most in msgpack; a string takes its length and 2."""


class NotElementwiseError(Exception):
    """Raised by a codec where one value, against the rule, has no encoding by elements: it is stored whole."""


class Decoder(Protocol):
    """Turns blobs into values. Thread-safe, deterministic; no method touches a storage.

    Raises ChecksumError or the serializer's own error.
    """

    def wrap(self, value: Any) -> Any:
        """Return a snapshot of this list or dict, as the round trip of the snapshot gives it.

        Raises CodecMismatchError where this codec has no snapshots.
        """

    def decode(self, blob: bytes) -> Any:
        """Return the value of an opaque blob."""

    def decode_list(self, blobs: Sequence[bytes], notes: object = None) -> list[Any]:
        """Return the list whose elements and runs these are; faster with this codec's notes of a similar one."""

    def decode_dict(self, blobs: Sequence[bytes]) -> dict[Any, Any]:
        """Return the dict whose entries these are."""


class Codec(Decoder, Protocol):
    """Turns values into blobs and back. Encoding raises EncodeError, or whatever `cut` turns into one."""

    @property
    def name(self) -> str:
        """The serializer's name and version, for messages."""

    @property
    def elementwise(self) -> bool:
        """Whether lists and dicts may be cut: a whole value's encoding is made of its elements' encodings."""

    def encode(self, value: Any) -> bytes:
        """Return a whole value as one blob."""

    def unwrap(self, value: Any) -> Any:
        """Return the list or dict that a snapshot holds, to be cut as such; None where the value is no snapshot of one.

        A snapshot sums up a channel's writes in a wrapping of the API's own, so its chunks are those of the writes.
        """

    def encode_elements(self, values: list[Any]) -> list[bytes]:
        """Return the elements of a list as a blob each: the hook where a serializer may treat elements its own way."""

    def cut_list(self, values: list[Any], before: "Cut | None") -> "Cut":
        """Take a list apart by `encode_elements`, faster where this codec cut `before` and both have much in common."""

    def note(self, values: list[Any], blobs: list[bytes], notes: object) -> object:
        """Return notes of a list just decoded from these blobs, with these notes: for the next that has much of it."""

    def encode_entry(self, key: Any, value: Any) -> bytes:
        """Return a key and its value as one blob."""

    def encode_run(self, values: list[Any]) -> bytes:
        """Return some scalars as one blob."""


class Cut(NamedTuple):
    """A value taken apart. `keys` are a dict's keys, which tell a changed entry's predecessor.

    `notes` are the codec's own, for the next value of the same channel; they hold no object that can be changed.
    """

    kind: int
    blobs: list[bytes]
    keys: tuple[Any, ...] | None = None
    notes: object = None


def cut(value: Any, codec: Codec, channel: str, before: Cut | None = None) -> Cut:
    """Take a value apart. Raises EncodeError naming channel and path; of the value only immutable parts are kept.

    `before`: what this codec made of a value that this one is probably made of. It changes nothing but the time taken.
    """
    try:
        made = _cut(value, codec, before)
    except Exception as error:  # a serializer may raise anything
        raise _located(error, value, codec, channel) from error
    largest = max(map(len, made.blobs), default=0)
    if largest > MAX_CHUNK_BYTES:
        raise EncodeError(
            f"channel {channel!r}: one element takes {largest} bytes encoded; the limit is {MAX_CHUNK_BYTES}. "
            "Keep large data in files and their names in the state",
            channel=channel,
        )
    return made


def encode_whole(value: Any, codec: Codec, channel: str) -> bytes:
    """Return a value as one blob, never cut. Raises EncodeError naming channel and path."""
    try:
        return codec.encode(value)
    except Exception as error:  # a serializer may raise anything
        raise _located(error, value, codec, channel) from error


def _cut(value: Any, codec: Codec, before: Cut | None) -> Cut:
    if codec.elementwise:
        try:
            return _cut_elements(value, codec, before)
        except NotElementwiseError:
            pass
    return Cut(OPAQUE, [codec.encode(value)])


def _cut_elements(value: Any, codec: Codec, before: Cut | None = None) -> Cut:
    if type(value) is list:
        if _is_scalars(value):
            return Cut(LIST, [codec.encode_run(run) for run in runs(value)])
        return codec.cut_list(value, before)
    if type(value) is dict:
        return Cut(DICT, [codec.encode_entry(key, item) for key, item in value.items()], tuple(value))
    held = codec.unwrap(value)
    if type(held) is list or type(held) is dict:
        made = _cut_elements(held, codec)
        return Cut(SNAPSHOT_LIST if made.kind == LIST else SNAPSHOT_DICT, made.blobs, made.keys, made.notes)
    return Cut(OPAQUE, [codec.encode(value)])


def _is_scalars(values: list[Any]) -> bool:
    types = set(map(type, values))
    if not types <= _SCALARS:
        return False
    if str not in types:
        return True
    return all(
        type(value) is not str or len(value.encode("utf-8", "surrogatepass")) <= MAX_RUN_STRING_BYTES
        for value in values
    )


def runs(values: list[Any]) -> Iterable[list[Any]]:
    """Split scalars into runs. A list that only grew has the same runs, but for the last."""
    if str not in set(map(type, values)):  # numbers: at most 9 KB a run, so the count decides
        limit = min(MAX_RUN_ELEMENTS, MAX_RUN_BYTES // _SCALAR_BYTES)
        for start in range(0, len(values), limit):
            yield values[start : start + limit]
        return
    run: list[Any] = []
    size = 0
    for value in values:
        weight = len(value.encode("utf-8", "surrogatepass")) + 2 if type(value) is str else _SCALAR_BYTES
        if run and (size + weight > MAX_RUN_BYTES or len(run) >= MAX_RUN_ELEMENTS):
            yield run
            run, size = [], 0
        run.append(value)
        size += weight
    if run:
        yield run


def assemble(kind: int, blobs: Sequence[bytes], codec: Decoder, notes: object = None) -> Any:
    """Return the value that these chunks make up; `notes` are the codec's own, of a list, if there are any.

    Raises ChecksumError, CodecMismatchError, or the serializer's error.
    """
    if kind == LIST:
        return codec.decode_list(blobs, notes)
    if kind == DICT:
        return codec.decode_dict(blobs)
    if kind == SNAPSHOT_LIST:
        return codec.wrap(codec.decode_list(blobs, notes))
    if kind == SNAPSHOT_DICT:
        return codec.wrap(codec.decode_dict(blobs))
    if kind == OPAQUE and len(blobs) == 1:
        return codec.decode(blobs[0])
    raise ChecksumError(f"malformed value: kind {kind} with {len(blobs)} chunks")


def wrong_tag(tag: int, codec: Codec) -> CodecMismatchError:
    """Return the error for a chunk that another serializer wrote."""
    if tag <= STRICT_REMOVAL:
        return _mismatch(
            "the native API (strict msgpack)",
            codec,
            "read it with store.thread(…), and an agent's run with deltastore.agent",
        )
    writer = "LangGraph's JsonPlusSerializer" if tag < FIRST_INTERNED_TAG else f"another serializer (tag {tag})"
    return wrong_writer(writer, codec)


def wrong_writer(writer: str, codec: Codec) -> CodecMismatchError:
    """Return the error for a value that another serializer of LangGraph's savers wrote."""
    return _mismatch(writer, codec, "read it with DeltaSaver and the serializer that wrote it")


def _mismatch(writer: str, codec: Codec, advice: str) -> CodecMismatchError:
    return CodecMismatchError(f"a value written by {writer} can't be read with {codec.name}: {advice}")


def _located(error: Exception, value: Any, codec: Codec, channel: str) -> EncodeError:
    """Name the smallest part of a value that the codec refuses."""
    path, part, error = _locate(value, codec, 0, error)
    reason = f"{type(error).__name__}: {error}" if not isinstance(error, EncodeError) else str(error)
    where = f"{channel}{path}" if path else channel
    return EncodeError(
        f"channel {channel!r}: the {type(part).__name__} at {where} can't be stored by {codec.name} ({reason}). "
        "Nothing was written. Put a value of a supported type there, or keep it out of the state",
        channel=channel,
        path=path,
    )


def _locate(value: Any, codec: Codec, depth: int, error: Exception) -> tuple[str, Any, Exception]:
    """Return path, part, and what the codec says of that part; `error` is what it said of the whole."""
    children: Iterable[tuple[str, Any]] = ()
    encode: Callable[[Any], object] = codec.encode
    if depth == 0 and codec.elementwise and type(value) is list:  # an order to an upsert may stand here, and only here
        encode = lambda element: codec.encode_elements([element])  # noqa: E731
    if depth < MAX_LOCATE_DEPTH:
        if isinstance(value, dict):
            children = ((f"[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            children = ((f"[{place}]", item) for place, item in enumerate(value))
    for step, child in children:
        try:
            encode(child)
        except Exception as raised:  # noqa: BLE001 - a serializer may raise anything
            path, part, error = _locate(child, codec, depth + 1, raised)
            return step + path, part, error
    return "", value, error
