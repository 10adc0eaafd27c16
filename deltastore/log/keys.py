"""Where each row stands in the one ordered key space: thread first, then kind.

Pure; imports limits and the hash of names. The invariant: names of any length and content never appear in a key,
except the caller's checkpoint ids, which are limited.
"""

from deltastore.codec import primitives
from deltastore.codec.records import SERIES
from deltastore.errors import ChecksumError, InvalidIdError
from deltastore.ulid import ULID_BYTES

THREAD_BYTES, NAMESPACE_BYTES, NUMBER_BYTES, HASH_BYTES = 6, 3, 6, primitives.HASH_BYTES
name_hash = primitives.name_hash
MAX_ID_BYTES = 255
"""A caller's checkpoint id, in bytes of UTF-8: it stands in keys, whose length one byte tells."""
MAX_NAME_BYTES = 65_536
"""A name of a thread, namespace, channel or task, in bytes of UTF-8: they are hashed in keys, so only sense
limits them."""

STORE = bytes(THREAD_BYTES)
FORMAT = STORE + b"F"
QUEUE = STORE + b"Q"
RETENTION = STORE + b"K"
DICTIONARIES = STORE + b"D"
COUNTERS = STORE + b"C"
UNFINISHED = STORE + b"U"

THREAD, CHANNEL, REDUCER, TAG, DICTIONARY = b"t", b"c", b"r", b"g", b"d"


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all that begin with a prefix (which doesn't end in 0xff bytes only)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def encode_name(name: str) -> bytes:
    """Return a name as stored. Raises InvalidIdError beyond `MAX_NAME_BYTES`."""
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > MAX_NAME_BYTES:
        raise InvalidIdError(f"a name of {len(data)} bytes; at most {MAX_NAME_BYTES} are taken")
    return data


def decode_name(data: bytes) -> str:
    """Undo `encode_name`. Raises ChecksumError."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ChecksumError(f"the stored name {data[:64].hex()} isn't UTF-8: {error.reason}; run check") from error


def encode_id(id_: str) -> bytes:
    """Return a caller's checkpoint id as it stands in keys. Raises InvalidIdError."""
    if not isinstance(id_, str):
        raise InvalidIdError(f"a checkpoint id of type {type(id_).__name__}; expected a str")
    try:
        data = id_.encode()
    except UnicodeEncodeError as error:
        raise InvalidIdError(f"a checkpoint id that isn't valid Unicode: {error.reason}") from error
    if not 1 <= len(data) <= MAX_ID_BYTES:
        raise InvalidIdError(f"a checkpoint id of {len(data)} bytes; expected 1 to {MAX_ID_BYTES}")
    return data


def of_name(kind: bytes, name: bytes) -> bytes:
    """Name to number."""
    return STORE + b"H" + kind + name_hash(name)


def of_number(kind: bytes, number: int) -> bytes:
    """Number to name."""
    return STORE + b"N" + kind + number.to_bytes(NUMBER_BYTES, "big")


def numbers_of(kind: bytes) -> bytes:
    """The prefix of all numbers of a kind."""
    return STORE + b"N" + kind


def counter(kind: bytes) -> bytes:
    """The counter that numbers of a kind are minted from."""
    return COUNTERS + kind


def queued(thread: int) -> bytes:
    """The queue row of a thread that is deleted, or being filled."""
    return QUEUE + thread.to_bytes(THREAD_BYTES, "big")


def dictionary(number: int) -> bytes:
    """A compression dictionary."""
    return DICTIONARIES + number.to_bytes(NUMBER_BYTES, "big")


def thread(number: int) -> bytes:
    """The prefix of a thread's rows."""
    return number.to_bytes(THREAD_BYTES, "big")


def header(number: int) -> bytes:
    """A thread's header."""
    return thread(number) + b"h"


def retention(number: int) -> bytes:
    """A thread's own retention rules."""
    return thread(number) + b"k"


def namespaces(number: int) -> bytes:
    """The prefix of a thread's namespace rows."""
    return thread(number) + b"n"


def namespace(number: int, name: bytes) -> bytes:
    """A namespace row."""
    return thread(number) + b"n" + name_hash(name)


def records(number: int, namespace: int) -> bytes:
    """The prefix of a namespace's record rows."""
    return thread(number) + b"r" + namespace.to_bytes(NAMESPACE_BYTES, "big")


def record(number: int, namespace: int, ulid: bytes) -> bytes:
    """A record row."""
    return records(number, namespace) + ulid


def ids(number: int, namespace: int) -> bytes:
    """The prefix of a namespace's by-id rows."""
    return thread(number) + b"i" + namespace.to_bytes(NAMESPACE_BYTES, "big")


def by_id(number: int, namespace: int, id_: bytes) -> bytes:
    """A by-id row."""
    return ids(number, namespace) + id_


def writes(number: int, namespace: int, id_: bytes) -> bytes:
    """The prefix of a checkpoint's write rows."""
    return thread(number) + b"w" + namespace.to_bytes(NAMESPACE_BYTES, "big") + bytes((len(id_),)) + id_


def writes_of(number: int, namespace: int, id_: bytes) -> tuple[bytes, bytes]:
    """The range of a checkpoint's write rows, one for each hash of a task: first key, and the first one after all."""
    prefix = writes(number, namespace, id_)
    return prefix, prefix + b"\xff" * (HASH_BYTES + 1)


def all_writes(number: int) -> bytes:
    """The prefix of a thread's write rows."""
    return thread(number) + b"w"


def tags(number: int, namespace: int) -> bytes:
    """The prefix of a namespace's tag rows."""
    return thread(number) + b"t" + namespace.to_bytes(NAMESPACE_BYTES, "big")


def tag(number: int, namespace: int, name: bytes) -> bytes:
    """A tag row."""
    return tags(number, namespace) + name_hash(name)


def of_namespace(number: int, namespace: int) -> list[bytes]:
    """The prefixes of all that a namespace holds, but for its own row and chunks, which are the thread's."""
    return [thread(number) + kind + namespace.to_bytes(NAMESPACE_BYTES, "big") for kind in (b"r", b"i", b"w", b"t")]


def task_hash(task: bytes) -> bytes:
    """What stands for a task in the key of its writes."""
    return name_hash(task)


def chunks(number: int, series: int) -> bytes:
    """The prefix of a series of chunk rows."""
    return thread(number) + b"c" + bytes((series,))


def chunk(number: int, series: int, last: int) -> bytes:
    """The chunk row whose greatest number is `last`."""
    return chunks(number, series) + last.to_bytes(NUMBER_BYTES, "big")


def quarantine(number: int) -> bytes:
    """The prefix of what was quarantined of a thread; of 0: of the store."""
    return thread(number) + b"q"


def quarantined(number: int, key: bytes, row: bytes) -> bytes:
    """The quarantine row of a row, by its key and its bytes as found."""
    return quarantine(number) + name_hash(len(key).to_bytes(2, "big") + key + row)


def is_well_formed(key: bytes) -> bool:
    """Tell whether a thread row's key goes on, after its kind, as its kind demands. Unknown kinds don't."""
    kind, rest = key[THREAD_BYTES : THREAD_BYTES + 1], key[THREAD_BYTES + 1 :]
    match kind:
        case b"h" | b"k":
            return not rest
        case b"n" | b"q":
            return len(rest) == HASH_BYTES
        case b"r":
            return len(rest) == NAMESPACE_BYTES + ULID_BYTES
        case b"i":
            return 1 <= len(rest) - NAMESPACE_BYTES <= MAX_ID_BYTES
        case b"w":
            length = len(rest) - NAMESPACE_BYTES - 1 - HASH_BYTES
            return 1 <= length <= MAX_ID_BYTES and rest[NAMESPACE_BYTES] == length
        case b"t":
            return len(rest) == NAMESPACE_BYTES + HASH_BYTES
        case b"c":
            return len(rest) == 1 + NUMBER_BYTES and rest[0] < SERIES
    return False
