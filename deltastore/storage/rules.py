"""What every storage does alike: which keys may be written, which rows a range shows, how a counter is stored.

Pure functions on bytes; imports the port, the errors and xxhash. The invariant: two storages given the same calls
hold the same rows.
"""

from xxhash import xxh3_64_digest

from deltastore.errors import ChecksumError, InvalidInputError
from deltastore.storage.port import MAX_KEY_BYTES, RESERVED_PREFIX

RESERVED_END = RESERVED_PREFIX[:-1] + bytes([RESERVED_PREFIX[-1] + 1])
"""The first key after all reserved ones."""

_NUMBER_BYTES = 8
"""Width of a counter's number, and of its checksum: 64 bits can't run out at any rate of writing."""


def check_key(key: bytes) -> None:
    """Refuse a key that can't be written. Raises InvalidInputError."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidInputError(f"a key has {len(key)} bytes; expected 1 to {MAX_KEY_BYTES}")
    if key.startswith(RESERVED_PREFIX):
        raise InvalidInputError(f"the key {key!r} belongs to the storage itself; use one without {RESERVED_PREFIX!r}")


def check_lookup(key: bytes) -> None:
    """Refuse to look up the empty key, which no row can have. Raises InvalidInputError."""
    if not key:
        raise InvalidInputError(f"a key is empty; expected 1 to {MAX_KEY_BYTES} bytes")


def visible_ranges(lower: bytes, upper: bytes) -> list[tuple[bytes, bytes]]:
    """Cut the reserved keys out of lower <= key < upper; what is left, in key order."""
    if lower >= RESERVED_END or upper <= RESERVED_PREFIX:
        return [(lower, upper)]
    return [(lower, RESERVED_PREFIX), (max(lower, RESERVED_END), upper)]


def pack_counter(key: bytes, following: int) -> bytes:
    """Return the row of a counter whose next number is `following`."""
    number = following.to_bytes(_NUMBER_BYTES, "big")
    return number + xxh3_64_digest(key + number)


def unpack_counter(key: bytes, row: bytes | None, location: str) -> int:
    """Return a counter's next number; 1 when it has no row yet. Raises ChecksumError."""
    if row is None:
        return 1
    number = row[:_NUMBER_BYTES]
    if row[_NUMBER_BYTES:] != xxh3_64_digest(key + number):
        raise ChecksumError(
            f"the counter under {key!r} in {location} is damaged: found {row[:32]!r}, expected a number and its "
            "checksum; restore the store from a copy"
        )
    return int.from_bytes(number, "big")


def check_count(count: int) -> None:
    """Refuse to mint less than one number. Raises InvalidInputError."""
    if count < 1:
        raise InvalidInputError(f"asked for {count} numbers of a counter; expected at least 1")
