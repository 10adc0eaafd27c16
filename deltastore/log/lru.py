"""What was used most recently, up to a number of bytes: the bookkeeping that the caches share.

Imports nothing of the project. Thread-safe. The invariant: what is held never weighs more than the limit.
"""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values by key; the least recently used go first. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the values weigh together."""
        return self._bytes

    def get(self, key: K) -> V | None:
        """Return a value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Hold a value in place of an earlier one, which goes also where the new one is too heavy."""
        with self._lock:
            self._remove(key)
            if weight > self._limit:
                return
            self._entries[key] = (value, weight)
            self._bytes += weight
            while self._bytes > self._limit:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    def remove(self, key: K) -> None:
        """Let a value go; an unknown one is none."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry[1]
