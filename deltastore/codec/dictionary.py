"""Compression dictionaries: what many rows have in common, stored once and named by each row that was shortened by it.

Pure; imports primitives' limits and errors. The invariant: a dictionary never changes; its number always means it.
"""

import threading
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import zstandard

MAX_SHORTENED_BYTES = 64 * 1024
"""Plain bytes of a part that a dictionary is tried on: longer ones have learnt by themselves what it could tell."""


class Dictionary:
    """A trained zstd dictionary, under its number in a store. Thread-safe."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        self.content = content
        self.data = zstandard.ZstdCompressionDict(content)

    def compress(self, data: bytes, level: int) -> bytes:
        """Return a zstd frame that states its plain size and needs this dictionary."""
        made = _engines.compressors.setdefault(self, {})
        if level not in made:
            made[level] = zstandard.ZstdCompressor(level=level, dict_data=self.data, write_dict_id=False)
        return made[level].compress(data)

    def decompressor(self) -> zstandard.ZstdDecompressor:
        """Return this OS thread's decompressor for frames that need this dictionary."""
        found = _engines.decompressors.get(self)
        if found is None:
            found = _engines.decompressors[self] = zstandard.ZstdDecompressor(dict_data=self.data)
        return found


def train(samples: Sequence[bytes], size: int) -> bytes | None:
    """Return a dictionary of at most `size` bytes for what is like these samples; None where they are too few."""
    try:
        return zstandard.train_dictionary(size, list(samples)).as_bytes()
    except zstandard.ZstdError:
        return None


class _Engines(threading.local):
    """zstd contexts belong to one OS thread at a time, and live as long as their dictionary."""

    def __init__(self) -> None:
        self.compressors: WeakKeyDictionary[Dictionary, dict[int, zstandard.ZstdCompressor]] = WeakKeyDictionary()
        self.decompressors: WeakKeyDictionary[Dictionary, zstandard.ZstdDecompressor] = WeakKeyDictionary()


_engines = _Engines()

Dictionaries = Callable[[int], Dictionary]
"""Gives a store's dictionary by number. Raises ChecksumError where there is none."""
