"""Varints, sealed rows, and compressed bytes: what every row of the format is made of.

Imports dictionary and errors. The invariant: malformed bytes raise ChecksumError, whatever they are.
"""

import hashlib
from functools import partial

import xxhash
import zstandard

from deltastore.codec.contexts import Compressors, Contexts
from deltastore.codec.dictionary import MAX_SHORTENED_BYTES, Dictionaries, Dictionary
from deltastore.errors import ChecksumError, EncodeError

SEAL_BYTES, HASH_BYTES = 8, 12
MAX_VARINT_BYTES = 10
MAX_PLAIN_BYTES = 1 << 31
"""What one compressed part may grow to, in bytes: a damaged size must not ask for all memory."""
MAX_EXPANSION = 1 << 15
"""How many bytes one byte of zstd can stand for: a block takes 4 bytes at least and gives 128 KB at most."""
MAX_JOINED_BYTES = 4096
"""Up to here it is faster to copy a value behind its key than to hash them one after the other."""
MIN_COMPRESSED_BYTES = 64
"""Shorter parts are stored plain: a zstd frame costs 13 bytes."""
MIN_ROW_COMPRESSED_BYTES = 256
"""The same for what a put writes: below, a frame saves little, and a record's none, until packing or compaction takes
many together; and zstd's binding gives up the interpreter, which a busy graph's put then waits for."""
ROW_LEVEL = 3
"""zstd level of what a put writes: speed first."""
PACK_LEVEL = 7
"""zstd level of packs, written once for many puts: 5 % shorter than level 3 on conversations, for 3 times its time."""
LARGE_WINDOW_LOG = 20
"""From here on zstd looks for long matches in a table of its own, and there is no larger one for others."""

PLAIN, _ZSTD, _SHORTENED = b"\0", b"\1", b"\2"
"""Methods of packed parts: as they are, a zstd frame, a frame that needs a dictionary."""


_compressors = Compressors()
_decompressors = Contexts(zstandard.ZstdDecompressor)


def put_varint(out: bytearray, number: int) -> None:
    """Append an unsigned LEB128."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def zigzag(number: int) -> int:
    """Map a signed number to an unsigned one, small to small."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def unzigzag(number: int) -> int:
    """Undo `zigzag`."""
    return -((number + 1) >> 1) if number & 1 else number >> 1


class Reader:
    """Reads varints and bytes from the front of a row. Not thread-safe."""

    __slots__ = ("data", "end", "place")

    def __init__(self, data: bytes, place: int = 0) -> None:
        self.data = data
        self.place = place
        self.end = len(data)

    def varint(self) -> int:
        """Read an unsigned LEB128. Raises ChecksumError."""
        number = shift = 0
        data, place = self.data, self.place
        limit = min(self.end, place + MAX_VARINT_BYTES)
        while place < limit:
            byte = data[place]
            place += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.place = place
                return number
            shift += 7
        raise ChecksumError(f"malformed row: a varint at byte {self.place} of {self.end} has no end")

    def varints(self, count: int) -> list[int]:
        """Read so many unsigned LEB128. Raises ChecksumError."""
        data, place, end = self.data, self.place, self.end
        out: list[int] = []
        for _ in range(count):
            byte = data[place] if place < end else 0x80
            if byte < 0x80:  # most take one byte, or two
                place += 1
                out.append(byte)
            elif place + 1 < end and data[place + 1] < 0x80:
                out.append(byte & 0x7F | data[place + 1] << 7)
                place += 2
            else:
                self.place = place
                out.append(self.varint())
                place = self.place
        self.place = place
        return out

    def take(self, count: int) -> bytes:
        """Read `count` bytes. Raises ChecksumError."""
        start = self.place
        if count > self.end - start:
            raise ChecksumError(f"malformed row: {count} bytes wanted at byte {start} of {self.end}")
        self.place = start + count
        return self.data[start : start + count]

    def finish(self) -> None:
        """Raise ChecksumError unless all was read."""
        if self.place != self.end:
            raise ChecksumError(f"malformed row: {self.end - self.place} bytes too many")


def seal(key: bytes, value: bytes) -> bytes:
    """Append the checksum over key and value, so that a row moved elsewhere fails too."""
    return value + _checksum(key, value)


def unseal(key: bytes, row: bytes) -> bytes:
    """Check and remove the checksum. Raises ChecksumError naming the row."""
    value = row[:-SEAL_BYTES]
    if len(row) < SEAL_BYTES or row[-SEAL_BYTES:] != _checksum(key, value):
        raise ChecksumError(
            f"row {key.hex()} fails its checksum ({len(row)} bytes): the file is damaged; "
            "run check, and restore from a backup"
        )
    return value


def _checksum(key: bytes, value: bytes) -> bytes:
    if len(value) <= MAX_JOINED_BYTES:
        return xxhash.xxh3_64_digest(key + value)
    digest = xxhash.xxh3_64(key)
    digest.update(value)
    return digest.digest()


def name_hash(name: bytes) -> bytes:
    """Return what stands for a name in keys; rows compare names in full."""
    return hashlib.blake2b(name, digest_size=HASH_BYTES).digest()


def compress(data: bytes, level: int) -> bytes:
    """Return a zstd frame that states its plain size."""
    return _compressors.compress(data, level)


def decompress(frame: bytes) -> bytes:
    """Undo `compress`. Raises ChecksumError."""
    return _decompress(_decompressors, frame)


def _decompress(contexts: Contexts[zstandard.ZstdDecompressor], frame: bytes) -> bytes:
    """Decompress a frame, once what it claims to hold is known to be possible."""
    _claimed(frame)
    decompressor = contexts.take()
    try:
        data = decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ChecksumError(f"malformed row: {error}") from error
    contexts.give(decompressor)
    return data


def _claimed(frame: bytes) -> int:
    """Return what a frame says that it holds, in bytes. Raises ChecksumError where that can't be."""
    try:
        claimed = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise ChecksumError(f"malformed row: {error}") from error
    if not 0 <= claimed <= min(MAX_PLAIN_BYTES, len(frame) * MAX_EXPANSION):
        raise ChecksumError(f"malformed row: a frame of {len(frame)} bytes claims to hold {claimed}")
    return claimed


def compress_against(data: bytes, base: bytes, level: int = ROW_LEVEL) -> bytes:
    """Return a zstd frame of `data` that refers to `base`, an earlier version of it."""
    window_log = min(max((len(data) + len(base)).bit_length(), 10), 31)
    if level == ROW_LEVEL and window_log <= LARGE_WINDOW_LOG:
        # to fill tables is what takes the time: small ones find most of an edit in half of it. They must not be smaller
        # than an eighth of the base: zstd takes no more of it than eight times the larger, from its end
        size = max(window_log - 4, len(base).bit_length() - 3, 10)
        tables = {"hash_log": size, "chain_log": size}
    else:
        tables = {"hash_log": min(window_log, LARGE_WINDOW_LOG)}
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=window_log, enable_ldm=window_log > LARGE_WINDOW_LOG, **tables
    )
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=dictionary).compress(data)


def decompress_against(frame: bytes, base: bytes, plain_bytes: int) -> bytes:
    """Undo `compress_against`. Raises ChecksumError."""
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    make = partial(zstandard.ZstdDecompressor, dict_data=dictionary, max_window_size=1 << 31)
    data = _decompress(Contexts(make), frame)
    if len(data) != plain_bytes:
        raise ChecksumError(f"malformed row: {len(data)} bytes where {plain_bytes} were stated")
    return data


def pack(data: bytes, level: int = ROW_LEVEL, dictionary: Dictionary | None = None) -> bytes:
    """Return the data behind a byte of method, compressed where that is shorter. Raises EncodeError."""
    if len(data) > MAX_PLAIN_BYTES:  # it couldn't be read again
        raise EncodeError(f"{len(data)} bytes in one row; the limit is {MAX_PLAIN_BYTES}. Use several checkpoints")
    best = PLAIN + data
    if len(data) < (MIN_COMPRESSED_BYTES if dictionary or level > ROW_LEVEL else MIN_ROW_COMPRESSED_BYTES):
        return best
    shortened = dictionary is not None and len(data) <= MAX_SHORTENED_BYTES
    if dictionary is not None and shortened:
        head = bytearray(_SHORTENED)
        put_varint(head, dictionary.number)
        best = min(best, bytes(head) + dictionary.compress(data, level), key=len)
    if not shortened or level > ROW_LEVEL:  # a put doesn't try twice
        best = min(best, _ZSTD + compress(data, level), key=len)
    return best


def dictionary_of(packed: bytes) -> int | None:
    """Return the number of the dictionary that packed bytes need, or None. Raises ChecksumError."""
    return Reader(packed, 1).varint() if packed[:1] == _SHORTENED else None


def plain_size(packed: bytes) -> int:
    """Return what `unpack` will give, in bytes, as far as the head of the frame tells. Raises ChecksumError."""
    match packed[:1]:
        case b"\1":
            return _claimed(packed[1:])
        case b"\2":
            return _claimed(packed[_after_number(packed) :])
    return len(packed) - 1


def unpack(packed: bytes, dictionaries: Dictionaries | None = None) -> bytes:
    """Undo `pack`. Without dictionaries, what needs one is refused. Raises ChecksumError."""
    match packed[:1]:
        case b"\1":
            return decompress(packed[1:])
        case b"\0":
            return packed[1:]
        case b"\2" if dictionaries is not None:
            found = dictionaries(Reader(packed, 1).varint())
            return _decompress(found.decompressors, packed[_after_number(packed) :])
        case b"\2":
            raise ChecksumError("malformed row: it needs a dictionary where none can be")
    raise ChecksumError(f"malformed row: unknown method {packed[:1].hex() or 'missing'}")


def _after_number(packed: bytes) -> int:
    reader = Reader(packed, 1)
    reader.varint()
    return reader.place
