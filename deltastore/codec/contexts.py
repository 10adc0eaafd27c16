"""zstd contexts that wait to be used again, whichever thread needs one next.

A context takes a tenth of a millisecond to make and up to a megabyte; a graph of LangGraph's puts from new threads at
every invocation, so they are kept for all threads. Pure; imports nothing of the project. The invariant: a context is
used by one thread at a time.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import zstandard

MAX_IDLE = 8
"""How many contexts of a kind wait; what was given back before is let go."""

C = TypeVar("C")


class Contexts(Generic[C]):
    """Contexts of one kind. Thread-safe, without a lock: a forked child must find none that is held."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._idle: deque[C] = deque(maxlen=MAX_IDLE)

    def take(self) -> C:
        """Return a context that nobody else uses until it is given back; one that is lost is no harm."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give(self, context: C) -> None:
        """Take back a context, in the state in which it was given out."""
        self._idle.append(context)


class Compressors:
    """Compressors of the same options, for each level that is asked for. Thread-safe."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._by_level: dict[int, Contexts[zstandard.ZstdCompressor]] = {}

    def compress(self, data: bytes, level: int) -> bytes:
        """Return a zstd frame that states its plain size."""
        contexts = self._by_level.get(level)
        if contexts is None:
            make = partial(zstandard.ZstdCompressor, level=level, **self._options)
            contexts = self._by_level.setdefault(level, Contexts(make))
        compressor = contexts.take()
        frame = compressor.compress(data)
        contexts.give(compressor)
        return frame
