"""Spans: ranges of chunk numbers, in the order of a value.

A span is (first number, length). Pure; imports primitives only. The invariant: spans are normal, that is no span is
empty and none continues the one before it, so that equal sequences of numbers have equal spans.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from deltastore.codec.primitives import Reader, put_varint, unzigzag, zigzag
from deltastore.errors import ChecksumError

_length_of: Callable[[tuple[int, int]], int] = itemgetter(1)
Span = tuple[int, int]
Spans = tuple[Span, ...]

MAX_CHUNKS = 1 << 32
"""What a value may have, in chunks: a damaged length must not ask for all memory."""
_SMALL_GAP, _SMALL = 64, 128
"""What one byte of a varint holds: zigzagged, and as it is."""
MAX_NUMBER = 1 << 47
"""The greatest chunk number: half of what six bytes of a key hold, so that a shift of as much still fits."""


def join(parts: Iterable[Sequence[Span]]) -> Spans:
    """Return the spans of several, one after the other."""
    out: list[Span] = []
    for part in parts:
        for first, length in part:
            if length == 0:
                continue
            if out and out[-1][0] + out[-1][1] == first:
                out[-1] = (out[-1][0], out[-1][1] + length)
            else:
                out.append((first, length))
    return tuple(out)


def of_numbers(numbers: Iterable[int]) -> Spans:
    """Return the spans of a sequence of chunk numbers."""
    out: list[Span] = []
    first = length = 0
    for number in numbers:
        if length and number == first + length:
            length += 1
            continue
        if length:
            out.append((first, length))
        first, length = number, 1
    if length:
        out.append((first, length))
    return tuple(out)


def numbers(spans: Sequence[Span]) -> list[int]:
    """Return the chunk numbers of spans, in order."""
    return [number for first, length in spans for number in range(first, first + length)]


def count(spans: Sequence[Span]) -> int:
    """Return how many chunks spans hold."""
    return sum(map(_length_of, spans))


def below(spans: Sequence[Span], number: int) -> bool:
    """Tell whether all chunks have numbers below this one."""
    return all(first + length <= number for first, length in spans)


def slice_of(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """Return the spans of the chunks from place `start` up to `stop`."""
    out: list[Span] = []
    place = 0
    for first, length in spans:
        low, high = max(start - place, 0), min(stop - place, length)
        if low < high:
            out.append((first + low, high - low))
        place += length
        if place >= stop:
            break
    return out


def splice(spans: Spans, place: int, removed: int, inserted: Sequence[Span]) -> Spans:
    """Return the spans with `removed` chunks at `place` replaced by others."""
    total = count(spans)
    if not 0 <= place <= place + removed <= total:
        raise ChecksumError(f"malformed record: {removed} chunks at {place} replaced in a value of {total}")
    out = slice_of(spans, 0, place) if place < total else list(spans)  # most values only grow
    after = slice_of(spans, place + removed, total) if place + removed < total else []
    for first, length in (*inserted, *after[:1]):  # only there can one continue another
        if out and out[-1][0] + out[-1][1] == first:
            out[-1] = (out[-1][0], out[-1][1] + length)
        else:
            out.append((first, length))
    out += after[1:]
    return tuple(out)


def shift(spans: Sequence[Span], base: int, by: int) -> Spans:
    """Return the spans with `by` added to every number from `base` on."""
    if by == 0:
        return tuple(spans)
    out: list[Span] = []
    for first, length in spans:
        below = min(max(base - first, 0), length)
        if below:
            out.append((first, below))
        if below < length:
            out.append((first + below + by, length - below))
    return tuple(out)


def encode(spans: Sequence[Span], base: int) -> bytes:
    """Return spans as (gap, length) varints; the first gap is counted from `base`."""
    if len(spans) == 1:  # mostly: a chunk or two, just stored
        (first, length) = spans[0]
        if 0 <= first - base < _SMALL_GAP and length < _SMALL:
            return bytes((first - base << 1, length))
    out = bytearray()
    expected = base
    for first, length in spans:
        put_varint(out, zigzag(first - expected))
        put_varint(out, length)
        expected = first + length
    return bytes(out)


def decode(data: bytes, base: int) -> Spans:
    """Undo `encode`. Raises ChecksumError."""
    if len(data) == 2 and data[0] < _SMALL and 0 < data[1] < _SMALL:  # as `encode` writes most
        first = base + unzigzag(data[0])
        if 1 <= first <= MAX_NUMBER - _SMALL:
            return ((first, data[1]),)
    reader = Reader(data)
    out: list[Span] = []
    expected, total = base, 0
    while reader.place < reader.end:
        first = expected + unzigzag(reader.varint())
        length = reader.varint()
        total += length
        if first < 1 or length == 0 or total > MAX_CHUNKS or first + length > MAX_NUMBER:
            raise ChecksumError(f"malformed spans: {length} chunks from number {first}")
        out.append((first, length))
        expected = first + length
    return tuple(out)
