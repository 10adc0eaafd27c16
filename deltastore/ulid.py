"""ULIDs as 16 bytes: milliseconds, then 64 bits drawn once per thread, then a counter.

Within one thread they only ever grow, whichever process mints them and whatever the clock does. The middle 64 bits stay
the same from one to the next, so that a column of them compresses to almost nothing.
Text form as in the ULID specification (https://github.com/ulid/spec). Imports errors only.
"""

import os

from deltastore.errors import InvalidIdError

ULID_BYTES = 16
ULID_CHARACTERS = 26
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_TAIL_BITS = 80
_COUNTER_BITS = 16
_LIMIT = 1 << 128


def mint(last: bytes | None, now_ms: int) -> bytes:
    """Return the ULID after `last` at this time: max(now, last + 1). Without a last one, the random part is drawn."""
    if last is None:
        tail = int.from_bytes(os.urandom(8), "big") << _COUNTER_BITS
        return ((now_ms << _TAIL_BITS) | tail).to_bytes(ULID_BYTES, "big")
    previous = int.from_bytes(last, "big")
    tail = previous & ((1 << _TAIL_BITS) - 1) & ~((1 << _COUNTER_BITS) - 1)
    fresh = (now_ms << _TAIL_BITS) | tail
    following = max(fresh, previous + 1)
    return following.to_bytes(ULID_BYTES, "big")


def milliseconds(ulid: bytes) -> int:
    """Return the time part of a ULID, in milliseconds since 1970."""
    return int.from_bytes(ulid[:6], "big")


def to_text(ulid: bytes) -> str:
    """Return the 26 characters of a ULID; they sort as the bytes do."""
    number = int.from_bytes(ulid, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def from_text(text: str) -> bytes:
    """Parse the canonical 26 characters. Raises InvalidIdError."""
    if not isinstance(text, str):
        raise InvalidIdError(f"a ULID of type {type(text).__name__}; expected a str")
    if len(text) == ULID_CHARACTERS:
        number = 0
        for character in text:
            value = _VALUES.get(character)
            if value is None:
                break
            number = (number << 5) | value
        else:
            if number < _LIMIT:
                return number.to_bytes(ULID_BYTES, "big")
    raise InvalidIdError(f"not a ULID: {text!r}; expected {ULID_CHARACTERS} characters of {_ALPHABET}")
