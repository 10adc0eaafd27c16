"""Arrays as PostgreSQL's binary protocol has them: values go over as they are, without quoting. Pure.

Layout: dimensions (1), whether there are nulls (0), the elements' type, length, first index (1); then each element
after its length; all int32, big-endian.
"""

import struct
from collections.abc import Sequence

_INT8, _BYTEA = 20, 17
_EMPTY = struct.Struct(">iii")
_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">iq")
_INT8_BYTES = 8


def integers(numbers: Sequence[int]) -> bytes:
    """Return an array of bigint."""
    if not numbers:
        return _EMPTY.pack(0, 0, _INT8)
    parts = [_HEAD.pack(1, 0, _INT8, len(numbers), 1)]
    parts += [_NUMBER.pack(_INT8_BYTES, number) for number in numbers]
    return b"".join(parts)


def strings(values: Sequence[bytes]) -> bytes:
    """Return an array of bytea."""
    if not values:
        return _EMPTY.pack(0, 0, _BYTEA)
    parts = [_HEAD.pack(1, 0, _BYTEA, len(values), 1)]
    for value in values:
        parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def integer(number: int) -> bytes:
    """Return a bigint."""
    return number.to_bytes(_INT8_BYTES, "big", signed=True)


def to_integer(data: bytes | None) -> int:
    """Return the number that a bigint of a result holds."""
    return int.from_bytes(data or b"", "big", signed=True)
