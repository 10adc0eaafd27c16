"""`Log`: puts, reads and deletions of one open store, over any storage.

Imports the other modules of log. The invariant: a put is prepared outside write transactions and applied in one.
"""

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from deltastore.log import attempts, keys, pending, putting
from deltastore.log.answering import Answers
from deltastore.log.attempts import Write

if TYPE_CHECKING:
    from deltastore.log.activity import Activity
    from deltastore.log.keeping import Keeping


class Log(Answers):
    """One open store. Owns neither threads of its own nor, beyond the head cache, any state. Thread-safe."""

    # --- puts

    def put(self, put: putting.Put) -> putting.Stored:
        """Store a checkpoint; durable on return as the storage's sync mode says.

        Raises what `prepare` does, ContentionError.
        """
        write = self._put(put)
        return attempts.run(write, self.storage, self._commits)

    def put_writes(self, put: pending.PutWrites) -> None:
        """Store pending writes of a checkpoint, which may not be stored yet.

        Raises CheckpointNotFoundError, ContentionError.
        """
        write = self._put_writes(put)
        attempts.run(write, self.storage, self._commits)

    def put_soon(self, put: putting.Put) -> "Future[putting.Stored]":
        """Do as `put` does, in the threads of a small pool. Raises RuntimeError where no more threads are given."""
        return self._own_pool().start(lambda: self._put(put))

    def put_writes_soon(self, put: pending.PutWrites) -> "Future[None]":
        """Do as `put_writes` does, as `put_soon` does."""
        return self._own_pool().start(lambda: self._put_writes(put))

    def _put(self, put: putting.Put) -> Write[putting.Prepared, putting.Stored, putting.Stored]:
        started, heads = time.perf_counter(), self.heads
        # new names get their numbers before any transaction begins; the put then finds them in memory
        self.names.numbers(keys.CHANNEL, put.intent.names())

        def end(prepared: putting.Prepared, stored: putting.Stored) -> putting.Stored:
            putting.remember(heads, prepared, stored)
            self._puts.record(time.perf_counter() - started, prepared.stored_bytes, stored.head.depth + 1)
            return stored

        return Write(
            put.thread,
            lambda: putting.prepare_remembered(put, self._context),
            lambda tx: putting.prepare(tx, put, self._context),
            lambda tx, made: putting.apply(tx, made, self.now_ms()),
            end,
            putting.wanted_by,
        )

    def _put_writes(self, put: pending.PutWrites) -> Write[pending.PreparedWrites, pending.AppliedWrites | None, None]:
        started, heads = time.perf_counter(), self.heads
        channels = self.names.numbers(keys.CHANNEL, [channel for _, channel, _ in put.writes])

        def end(prepared: pending.PreparedWrites, applied: pending.AppliedWrites | None) -> None:
            if applied is not None:
                pending.remember(heads, prepared, applied)
            self._writes.record(time.perf_counter() - started, prepared.stored_bytes)

        return Write(
            put.thread,
            lambda: pending.prepare_remembered(put, channels, heads),
            lambda tx: pending.prepare(tx, put, channels, heads),
            lambda tx, made: pending.apply(tx, made, self.now_ms()),
            end,
            pending.wanted_by,
        )

    # --- others

    @property
    def keeping(self) -> "Keeping":
        """Deletions, copies, tags and rules: what decides over how long things are kept."""
        from deltastore.log.keeping import Keeping  # whoever puts and reads needs none of it

        return Keeping(self)

    def activity(self) -> "Activity":
        """Return what this handle did since it was opened, or since this process was forked off with it."""
        from deltastore.log.activity import Activity  # seldom asked for

        commits, heads = self._commits, self.heads
        return Activity(
            self._puts.timing(),
            self._writes.timing(),
            self._gets.timing(),
            self._puts.bytes + self._writes.bytes,
            max(self._puts.most, self._gets.most),
            commits.commits,
            commits.works / commits.commits if commits.commits else 0.0,
            commits.largest,
            heads.hits,
            heads.misses,
            heads.held_bytes + self._rows.held_bytes,
        )
