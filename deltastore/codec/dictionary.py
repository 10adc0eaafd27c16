"""Compression dictionaries: what many rows have in common, stored once and named by each row that was shortened by it.

Pure; imports contexts. The invariant: a dictionary never changes; its number always means it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import zstandard

from deltastore.codec.contexts import Compressors, Contexts

MAX_SHORTENED_BYTES = 64 * 1024
"""Plain bytes of a part that a dictionary is tried on: longer ones have learnt by themselves what it could tell."""


class Dictionary:
    """A trained zstd dictionary, under its number in a store. Thread-safe."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        self.content = content
        data = zstandard.ZstdCompressionDict(content)
        self._compressors = Compressors(dict_data=data, write_dict_id=False)
        self.decompressors = Contexts(partial(zstandard.ZstdDecompressor, dict_data=data))

    def compress(self, data: bytes, level: int) -> bytes:
        """Return a zstd frame that states its plain size and needs this dictionary."""
        return self._compressors.compress(data, level)


def train(samples: Sequence[bytes], size: int) -> bytes | None:
    """Return a dictionary of at most `size` bytes for what is like these samples; None where they are too few."""
    try:
        return zstandard.train_dictionary(size, list(samples)).as_bytes()
    except zstandard.ZstdError:
        return None


Dictionaries = Callable[[int], Dictionary]
"""Gives a store's dictionary by number. Raises ChecksumError where there is none."""
