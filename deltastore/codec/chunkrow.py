"""Chunk rows: one stored row that holds the chunks of one put, or many chunks packed together.

A blob is a chunk as held in memory: a tag byte, then its payload. Large edited chunks are *based*: compressed against
their predecessor. Pure; imports primitives and errors. The invariant: the head alone tells which numbers a row holds
and which bases it needs.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from deltastore.codec.dictionary import Dictionaries, Dictionary
from deltastore.codec.primitives import (
    ROW_LEVEL,
    Reader,
    compress_against,
    decompress_against,
    dictionary_of,
    pack,
    plain_size,
    put_varint,
    unpack,
)
from deltastore.errors import ChecksumError, EncodeError

ROW_KIND = 2
MIN_BASED_BYTES = 8192
"""Smaller chunks aren't worth a frame of their own, in bytes of payload."""
MAX_BASED_SHARE = 0.25
"""A based frame must be shorter than this share of its payload, or the chunk is stored whole."""
MAX_DEPTH = 8
"""How many bases stand behind a based chunk at most: each is one more row to read."""
MAX_CHUNKS_PER_ROW = 1 << 24
"""What a row may hold, in chunks: a damaged count must not ask for all memory."""


class Based(NamedTuple):
    """A chunk stored as its difference from `bases[0]`, which stood on `bases[1]` when this was stored, and so on."""

    bases: tuple[int, ...]
    plain_bytes: int
    frame: bytes


class ChunkRow(NamedTuple):
    """Chunks in ascending order of their numbers: whole ones as blobs, based ones as tag and difference."""

    numbers: tuple[int, ...]
    tags: bytes
    whole: dict[int, bytes]
    based: dict[int, Based]

    @property
    def plain_bytes(self) -> int:
        """What the row's chunks weigh before compression, based ones as stored, in bytes."""
        return sum(map(len, self.whole.values())) + sum(len(based.frame) for based in self.based.values())

    def tag(self, number: int) -> int:
        """Return the tag byte of a chunk that the row holds."""
        return self.tags[self.numbers.index(number)]


def only(row: ChunkRow, wanted: Collection[int]) -> ChunkRow:
    """Return a row with those of its chunks alone that are wanted."""
    places = [place for place, number in enumerate(row.numbers) if number in wanted]
    if len(places) == len(row.numbers):
        return row
    numbers = tuple(row.numbers[place] for place in places)
    return ChunkRow(
        numbers,
        bytes(row.tags[place] for place in places),
        {number: row.whole[number] for number in numbers if number in row.whole},
        {number: row.based[number] for number in numbers if number in row.based},
    )


def make_based(blob: bytes, base: int, base_blob: bytes, behind: Sequence[int], level: int = ROW_LEVEL) -> Based | None:
    """Return a blob as its difference from a base, or None where that isn't worth it.

    `behind` are the bases that the base itself stands on, nearest first. `level` is zstd's.
    """
    if len(blob) <= MIN_BASED_BYTES or len(behind) >= MAX_DEPTH:
        return None
    payload = blob[1:]
    frame = compress_against(payload, base_blob[1:], level)
    if len(frame) >= len(payload) * MAX_BASED_SHARE:
        return None
    return Based((base, *behind), len(payload), frame)


def encode_body(row: ChunkRow, level: int = ROW_LEVEL, dictionary: Dictionary | None = None) -> bytes:
    """Return the packed body of a row: tags, lengths and payloads of the whole chunks.

    It doesn't depend on the numbers. `level` is zstd's. Raises EncodeError beyond what can be read again.
    """
    if len(row.numbers) > MAX_CHUNKS_PER_ROW:
        raise EncodeError(f"{len(row.numbers)} new elements in one checkpoint; the limit is {MAX_CHUNKS_PER_ROW}")
    lengths = bytearray()
    blobs = [row.whole[number] for number in row.numbers if number in row.whole]
    for blob in blobs:
        put_varint(lengths, len(blob) - 1)
    plain = b"".join((row.tags, lengths, *(memoryview(blob)[1:] for blob in blobs)))
    return pack(plain, level, dictionary)


def encode_row(row: ChunkRow, body: bytes) -> bytes:
    """Return the stored form, unsealed, given the body that `encode_body` made."""
    out = bytearray((ROW_KIND,))
    runs = _runs(row.numbers)
    put_varint(out, len(runs))
    for skipped, length in runs:
        put_varint(out, skipped)
        put_varint(out, length)
    put_varint(out, len(row.based))
    frames: list[bytes] = []
    for place, number in enumerate(row.numbers):
        based = row.based.get(number)
        if based is None:
            continue
        put_varint(out, place)
        put_varint(out, len(based.bases))
        for base in based.bases:
            put_varint(out, number - base)
        put_varint(out, based.plain_bytes)
        put_varint(out, len(based.frame))
        frames.append(based.frame)
    put_varint(out, len(body))
    return b"".join((out, body, *frames))


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return (numbers skipped, length) of each run, from the greatest number downwards."""
    runs: list[tuple[int, int]] = []
    below = numbers[-1] + 1
    for number in reversed(numbers):
        if number == below - 1 and runs:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((below - 1 - number, 1))
        below = number
    return runs


class Head(NamedTuple):
    """What the head of a row says: the numbers held and, of the based ones, all bases."""

    numbers: tuple[int, ...]
    based: dict[int, Based]
    body: bytes


def decode_head(data: bytes, last: int) -> Head:
    """Parse the head of a row whose key says that `last` is the greatest number. Raises ChecksumError."""
    reader = Reader(data)
    if reader.take(1)[0] != ROW_KIND:
        raise ChecksumError(f"malformed chunk row up to {last}: kind {data[0]} where {ROW_KIND} was expected")
    runs = [(reader.varint(), reader.varint()) for _ in _counted(reader)]
    entries = [
        (reader.varint(), [reader.varint() for _ in range(_depth(reader))], reader.varint(), reader.varint())
        for _ in _counted(reader)
    ]
    body = reader.take(reader.varint())
    numbers = _numbers(runs, last, min(MAX_CHUNKS_PER_ROW, plain_size(body)))  # each has a tag in the body
    based: dict[int, Based] = {}
    lowest = 0
    for place, distances, plain_bytes, size in entries:
        if not lowest <= place < len(numbers):
            raise ChecksumError(f"malformed chunk row up to {last}: a based chunk at place {place}")
        number, lowest = numbers[place], place + 1
        bases = tuple(number - distance for distance in distances)
        if not all(own > base > 0 for own, base in pairwise((number, *bases))):  # so none stands on itself
            raise ChecksumError(f"malformed chunk row up to {last}: chunk {number} stands on {bases}")
        based[number] = Based(bases, plain_bytes, reader.take(size))
    reader.finish()
    return Head(tuple(numbers), based, body)


def _counted(reader: Reader) -> range:
    """Read a count of things that take a byte at least each."""
    count = reader.varint()
    if count > reader.end:
        raise ChecksumError(f"malformed chunk row: {count} parts in {reader.end} bytes")
    return range(count)


def _depth(reader: Reader) -> int:
    depth = reader.varint()
    if not 1 <= depth <= MAX_DEPTH:
        raise ChecksumError(f"malformed chunk row: a chunk at depth {depth}")
    return depth


def _numbers(runs: list[tuple[int, int]], last: int, limit: int) -> list[int]:
    """Return the numbers held, ascending."""
    if not runs or runs[0][0] or sum(length for _, length in runs) > limit:
        raise ChecksumError(f"malformed chunk row up to {last}: {len(runs)} runs of more numbers than tags, or of none")
    numbers: list[int] = []
    top = last
    for skipped, length in runs:
        top -= skipped
        if not 1 <= length <= top:
            raise ChecksumError(f"malformed chunk row up to {last}: a run of {length} from {top} down")
        numbers.extend(range(top, top - length, -1))
        top -= length
    numbers.reverse()
    return numbers


def dictionary_of_row(data: bytes, last: int) -> int | None:
    """Return the number of the dictionary that a row needs, or None. Raises ChecksumError."""
    return dictionary_of(decode_head(data, last).body)


def decode_row(data: bytes, last: int, dictionaries: Dictionaries | None) -> ChunkRow:
    """Parse a row and decompress its whole chunks. Raises ChecksumError."""
    head = decode_head(data, last)
    plain = unpack(head.body, dictionaries)
    reader = Reader(plain)
    tags = reader.take(len(head.numbers))
    held: Iterable[tuple[int, int]] = enumerate(head.numbers)
    if head.based:
        held = [(place, number) for place, number in held if number not in head.based]
    lengths = reader.varints(len(head.numbers) - len(head.based))
    whole: dict[int, bytes] = {}
    start = reader.place
    if start + sum(lengths) != reader.end:
        raise ChecksumError(f"malformed chunk row: chunks of {sum(lengths)} bytes in {reader.end - start}")
    for (place, number), length in zip(held, lengths, strict=True):
        whole[number] = tags[place : place + 1] + plain[start : start + length]
        start += length
    return ChunkRow(head.numbers, tags, whole, head.based)


def join_rows(rows: Iterable[ChunkRow]) -> ChunkRow:
    """Return one row that holds the chunks of several, given in ascending order. Based chunks stay as they are."""
    numbers: list[int] = []
    tags = bytearray()
    whole: dict[int, bytes] = {}
    based: dict[int, Based] = {}
    for row in rows:
        numbers.extend(row.numbers)
        tags.extend(row.tags)
        whole.update(row.whole)
        based.update(row.based)
    return ChunkRow(tuple(numbers), bytes(tags), whole, based)


def resolve(number: int, row: ChunkRow, blob_of: Callable[[int], bytes]) -> bytes:
    """Return the blob of a number that the row holds; `blob_of` gives the blobs of bases. Raises ChecksumError."""
    blob = row.whole.get(number)
    if blob is not None:
        return blob
    based = row.based[number]
    base = blob_of(based.bases[0])
    tag = row.tags[row.numbers.index(number)]
    return bytes((tag,)) + decompress_against(based.frame, base[1:], based.plain_bytes)
