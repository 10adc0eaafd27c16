"""`Handle`: what all calls on one open store share.

Imports the storage's port and the modules that keep state. The invariant: a forked child has caches and queues of its
own, for it has none of the threads that the parent's wait for.
"""

import os
import time
from collections.abc import Callable, Iterable

from deltastore.log import names, policy, putting, rowcache
from deltastore.log.attempts import Pool
from deltastore.log.committing import CommitQueue
from deltastore.log.format import check_frequency, open_format
from deltastore.log.heads import DEFAULT_CACHE_BYTES, Head, HeadCache
from deltastore.log.metering import Meter
from deltastore.log.reading import View
from deltastore.log.registry import Registry
from deltastore.reducers import Reducer
from deltastore.storage.port import ReadTransaction, Storage


class Handle:
    """An open store: its storage, names, caches and what waits to be committed. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        *,
        snapshot_frequency: int | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        reducers: Iterable[Reducer] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open what a storage holds; a fresh one is made a store. Raises FormatError, InvalidInputError."""
        if snapshot_frequency is not None:
            check_frequency(snapshot_frequency)
        self.storage = storage
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._pid = os.getpid()
        stored = open_format(storage, snapshot_frequency)
        self.uuid: bytes = stored[1]
        self.names = names.Names(storage)
        self.registry = Registry(self.names, reducers)
        frequency = snapshot_frequency or stored[2].get("snapshot_frequency", policy.DEFAULT_SNAPSHOT_FREQUENCY)
        self._context = self._new_context(frequency)
        self._begin_writing()

    def _new_context(self, frequency: int) -> putting.Context:
        for_rows = self._cache_bytes // rowcache.SHARE
        self._rows = rowcache.RowCache(for_rows)
        heads = HeadCache(self._cache_bytes - for_rows)
        return putting.Context(heads, self.registry, frequency, None if self.storage.remote else self.storage.read)

    def _view(self, tx: ReadTransaction, number: int, thread: str) -> View:
        self.heads  # noqa: B018 - after a fork, the caches are others
        return View(tx, number, thread, self._rows)

    @property
    def snapshot_frequency(self) -> int:
        """How many checkpoints from one anchor to the next at most, in this handle."""
        return self._context.snapshot_frequency

    @property
    def heads(self) -> HeadCache:
        """The head cache of this handle."""
        if os.getpid() != self._pid:  # a fork copies locks as they are, perhaps held by a thread that isn't here
            self._pid = os.getpid()
            self._context = self._new_context(self._context.snapshot_frequency)
            self._begin_writing()
        return self._context.heads

    def _begin_writing(self) -> None:
        self._puts, self._writes, self._gets = Meter(), Meter(), Meter()
        self._commits = CommitQueue(self.storage, runs_user_code=bool(self.registry.registered))
        self._pool = Pool(self.storage, self._commits)

    def _own_pool(self) -> Pool:
        self.heads  # noqa: B018 - after a fork, the pool is another
        return self._pool

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Wait for the puts under way in the pool, and close the storage."""
        self._own_pool().close()
        self.storage.close()

    def cached_head(self, thread: str, namespace: str) -> Head | None:
        """Return the head that the cache happens to hold of a namespace; nothing is read. Don't change it."""
        heads = self.heads
        standing = heads.standing(thread, namespace)
        if standing is None or standing.thread is None or standing.namespace is None:
            return None
        return heads.head(standing.thread, standing.namespace.number, standing.collected)
