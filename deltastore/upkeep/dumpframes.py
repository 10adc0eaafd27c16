"""The frames of a dump: items in msgpack, each compressed alone, with a checksum over those of a thread.

`docs/dump-format.md` says what stands in them. Imports codec. The invariant: what isn't whole raises ChecksumError, and
nothing of a thread is to be believed before its checksum was met.
"""

import hashlib
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

import ormsgpack

from deltastore.codec.primitives import MAX_PLAIN_BYTES, PACK_LEVEL, pack, unpack
from deltastore.errors import ChecksumError, FormatError

MAGIC = b"deltastore dump\n"
DUMP_VERSION = 1
"""The version of the dump's format that this release writes, and reads no other."""

LENGTH_BYTES = 4
DIGEST_BYTES = 16

FIRST_CHANNEL, FIRST_REDUCER, FIRST_TAG = 16, 16, 32
"""Where a thread's own numbers begin; those below mean what the format says, in every store."""


class Sink(Protocol):
    """What a dump is written to: a binary file, or all that is like one."""

    def write(self, data: bytes, /) -> object:
        """Take all of the data."""


class Source(Protocol):
    """What a dump is read from: a binary file, or all that is like one."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes; none at the end."""


@runtime_checkable
class Seekable(Source, Protocol):
    """A source that may be read a second time, as a file and not a pipe can."""

    def seekable(self) -> bool:
        """Tell whether it really can."""

    def tell(self) -> int:
        """Return the place that it is read from next."""

    def seek(self, place: int, /) -> int:
        """Go back to a place."""


def _digest() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


class FrameWriter:
    """Writes a dump. Not thread-safe."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._checksum = _digest()
        self.bytes = len(MAGIC)
        sink.write(MAGIC)
        self.put(["dump", DUMP_VERSION, f"deltastore {_release()}"])

    def put(self, item: list[Any], *, packed: bool = False) -> None:
        """Write an item; one that is `packed` holds compressed bytes, and isn't compressed again."""
        plain = ormsgpack.packb(item)
        data = b"\0" + plain if packed else pack(plain, PACK_LEVEL)
        frame = len(data).to_bytes(LENGTH_BYTES, "big") + data
        self._checksum.update(frame)
        self._sink.write(frame)
        self.bytes += len(frame)

    def begin_thread(self, item: list[Any]) -> None:
        """Write the item that a thread begins with, and its checksum with it."""
        self._checksum = _digest()
        self.put(item)

    def end_thread(self, checkpoints: int) -> None:
        """Write the item that a thread ends with."""
        self.put(["thread end", checkpoints, self._checksum.digest()])


class FrameReader:
    """Reads a dump. Not thread-safe."""

    def __init__(self, source: Source) -> None:
        """Read how it begins. Raises FormatError where it is no dump, or one of another version."""
        self._source = source
        self._checksum = _digest()
        self._before = b""
        begin = self._take(len(MAGIC))
        if begin != MAGIC:
            raise FormatError(f"this is no dump of a store: it begins with {begin!r}, expected {MAGIC!r}")
        match self.next():
            case ["dump", int(version), str(tool)]:
                if version != DUMP_VERSION:
                    raise FormatError(
                        f"the dump has version {version}, written by {tool}; this release reads version {DUMP_VERSION}"
                    )
            case item:
                raise ChecksumError(f"malformed dump: it begins with an item {item[:1]}")

    def next(self) -> list[Any]:
        """Return the next item: its kind, then what belongs to it. Raises ChecksumError."""
        self._before = self._checksum.digest()
        head = self._take(LENGTH_BYTES)
        length = int.from_bytes(head, "big")
        if len(head) < LENGTH_BYTES:
            raise ChecksumError("the dump ends early")
        if not 1 <= length <= MAX_PLAIN_BYTES:
            raise ChecksumError(f"malformed dump: a frame of {length} bytes")
        data = self._take(length)
        if len(data) < length:
            raise ChecksumError("the dump ends early")
        self._checksum.update(head)
        self._checksum.update(data)
        try:
            item = ormsgpack.unpackb(unpack(data), option=ormsgpack.OPT_NON_STR_KEYS)
        except ValueError as error:
            raise ChecksumError(f"malformed dump: {error}") from error
        if not isinstance(item, list) or not item or not isinstance(item[0], str):
            raise ChecksumError("malformed dump: a frame holds no item")
        if item[0] == "thread":
            self._checksum = _digest()
            self._checksum.update(head)
            self._checksum.update(data)
        return item

    def check(self, digest: bytes) -> None:
        """Raise ChecksumError unless the thread whose last item was just read is as it was written."""
        if digest != self._before:
            raise ChecksumError("the thread fails its checksum: the dump is damaged")

    def _take(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count and (part := self._source.read(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _release() -> str:
    try:
        return metadata.version("deltastore")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "(not installed)"
