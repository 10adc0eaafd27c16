"""The cache of heads: what the last put or read of a namespace left in memory.

A head is keyed by the checkpoint's ULID and is only used while the thread's `collected` is what it was when the head
was read; since a checkpoint's meaning never changes, it is right whichever process wrote since. Bounded in bytes.
Imports codec, state, standing and lru. Thread-safe.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from deltastore.codec.blobs import Cut
from deltastore.codec.records import Value
from deltastore.codec.spans import Spans, below
from deltastore.log.lru import Lru
from deltastore.log.rows import Tasks
from deltastore.log.standing import Standing
from deltastore.log.state import State

DEFAULT_CACHE_BYTES = 64 * 1024 * 1024
BLOB_OVERHEAD_BYTES = 64
"""What a bytes object and its place in a list weigh beside the data."""
ENTRY_OVERHEAD_BYTES = 2048
STANDING_BYTES = 1024
"""What a thread's own rows weigh in memory, about."""
WRITE_BYTES = 512
"""The same of a pending write, but for its chunks."""


class Sum(NamedTuple):
    """What a channel's next snapshot will mostly be made of: its last value's chunks, and the writes since, in order.

    `kind` is the last value's, and `spans` and `blobs` are empty where there was none.
    """

    kind: int
    spans: Spans
    blobs: list[bytes]
    writes: tuple[Value, ...] = ()


@dataclass(slots=True, repr=False)
class Head:
    """A checkpoint's channels: chunk numbers, and for channels that were put or read as values the chunks themselves.

    `blobs` may lack channels; the lists in it are never changed in place. `versions` are LangGraph's, decoded. `sums`
    are of channels without a value whose last one was a snapshot, and may lack some. `notes` are the codec's, of blobs.
    """

    ulid: bytes
    id: str
    depth: int
    collected: int
    state: State
    blobs: dict[int, list[bytes]] = field(default_factory=dict)
    keys: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    bases: dict[int, tuple[int, ...]] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)
    sums: dict[int, Sum] = field(default_factory=dict)
    versions: dict[str, Any] | None = None
    notes: dict[int, object] = field(default_factory=dict)

    def put(self, ulid: bytes, id_: str, collected: int, state: State, bases: dict[int, tuple[int, ...]]) -> "Head":
        """Return the head of a prepared put as it was stored: a copy that shares everything else."""
        return Head(
            ulid,
            id_,
            self.depth,
            collected,
            state,
            self.blobs,
            self.keys,
            bases,
            self.seeds,
            self.sums,
            self.versions,
            self.notes,
        )

    def cut(self, number: int) -> Cut | None:
        """Return a channel's value as it was taken apart, to be a codec's `before`; None where the head lacks it."""
        channel, blobs = self.state.get(number), self.blobs.get(number)
        if channel is None or channel.value is None or channel.writes or blobs is None:
            return None
        return Cut(channel.value.kind, blobs, self.keys.get(number), self.notes.get(number))

    def weight(self) -> int:
        """Return about what the head holds, in bytes."""
        held = ENTRY_OVERHEAD_BYTES
        for number, blobs in self.blobs.items():
            size = sum(map(len, blobs)) + BLOB_OVERHEAD_BYTES * len(blobs)
            held += 2 * size if number in self.notes else size  # they hold about as much
        for found in self.sums.values():
            held += sum(map(len, found.blobs)) + BLOB_OVERHEAD_BYTES * len(found.blobs)
        return held


@dataclass(slots=True, repr=False)
class Pending:
    """The pending writes of a checkpoint that this process put: encoded chunk → number, and the writes by task.

    `reach`: the first chunk number that is surely above all that is named here. Never changed in place.
    """

    collected: int
    reach: int
    numbers: dict[bytes, int] = field(default_factory=dict)
    bases: dict[int, tuple[int, ...]] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=dict)

    def below(self, next_chunk: int) -> "Pending":
        """Return what a snapshot with this next chunk number holds: another thread may have put and kept more since.

        Numbers from there on are the ones that a put in the making gives its own new chunks, and shifts.
        """
        if self.reach <= next_chunk:
            return self
        numbers, bases = self.numbers, self.bases
        if max(numbers.values(), default=0) >= next_chunk:
            numbers = {blob: number for blob, number in numbers.items() if number < next_chunk}
        if max(bases, default=0) >= next_chunk:
            bases = {number: behind for number, behind in bases.items() if number < next_chunk}
        tasks = {
            task: {idx: write for idx, write in writes.items() if below(write.value.spans, next_chunk)}
            for task, writes in self.tasks.items()
        }
        return Pending(self.collected, min(self.reach, next_chunk), numbers, bases, tasks)

    def with_(self, later: "Pending") -> "Pending":
        """Return both together."""
        tasks = {task: {**self.tasks.get(task, {}), **writes} for task, writes in later.tasks.items()}
        numbers, bases = self.numbers | later.numbers, self.bases | later.bases
        return Pending(self.collected, max(self.reach, later.reach), numbers, bases, {**self.tasks, **tasks})

    def weight(self) -> int:
        """Return about what it holds, in bytes."""
        writes = sum(map(len, self.tasks.values()))
        held = sum(map(len, self.numbers)) + BLOB_OVERHEAD_BYTES * len(self.numbers)
        return held + WRITE_BYTES * writes + ENTRY_OVERHEAD_BYTES


Kept = Head | Pending | Standing


class HeadCache:
    """The most recently used heads and pending writes, up to a number of bytes. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._kept: Lru[tuple[Any, ...], Kept] = Lru(limit_bytes)
        self.hits = 0
        self.misses = 0

    def head(self, thread: int, namespace: int, collected: int, ulid: bytes | None = None) -> Head | None:
        """Return the namespace's cached head.

        None where it is another checkpoint's, or something was collected since.
        """
        found = self._kept.get((thread, namespace))
        is_it = isinstance(found, Head) and found.collected == collected and (ulid is None or found.ulid == ulid)
        self.hits += is_it  # about: counting must not take a lock more
        self.misses += not is_it
        return found if isinstance(found, Head) and is_it else None

    def keep(self, thread: int, namespace: int, head: Head) -> None:
        """Keep a head, in place of the namespace's earlier one. An older checkpoint doesn't displace a newer one."""
        earlier = self._kept.get((thread, namespace))
        if isinstance(earlier, Head) and earlier.ulid > head.ulid and earlier.collected >= head.collected:
            return
        self._put((thread, namespace), head)

    def renew(self, thread: int, namespace: int, ulid: bytes, was: int, now: int) -> None:
        """Keep a head valid over a deletion that freed no chunk number and left its checkpoint there.

        `was` and `now` are what the thread's `collected` was before it and is after; only once that is committed.
        """
        found = self.head(thread, namespace, was, ulid)
        if found is not None:  # a copy: a put may be using the other
            self.keep(thread, namespace, replace(found, collected=now))

    def pending(self, thread: int, namespace: int, id_: str, collected: int, next_chunk: int) -> Pending | None:
        """Return the cached pending writes of a checkpoint id.

        Only as far as a snapshot with this next chunk number has them.
        """
        found = self._kept.get((thread, namespace, id_))
        return found.below(next_chunk) if isinstance(found, Pending) and found.collected == collected else None

    def keep_pending(self, thread: int, namespace: int, id_: str, pending: Pending) -> None:
        """Keep the pending writes of a checkpoint id, beside those that other tasks put meanwhile."""
        earlier = self._kept.get((thread, namespace, id_))
        if isinstance(earlier, Pending) and earlier.collected == pending.collected:
            pending = earlier.with_(pending)
        self._put((thread, namespace, id_), pending)

    def standing(self, thread: str, namespace: str) -> Standing | None:
        """Return what a thread's own rows were when this process wrote last there, by the names of both."""
        found = self._kept.get((thread, namespace))
        return found if isinstance(found, Standing) else None

    def keep_standing(self, thread: str, namespace: str, standing: Standing) -> None:
        """Keep a thread's own rows as a committed write left them. An earlier write doesn't displace a later one.

        That a thread is absent displaces any: when it was there can't be told by its number.
        """
        earlier = self._kept.get((thread, namespace))
        if isinstance(earlier, Standing) and earlier.recency > standing.recency and standing.thread is not None:
            return
        self._put((thread, namespace), standing)

    def drop_pending(self, thread: int, namespace: int, id_: str) -> None:
        """Forget pending writes that a checkpoint has consumed."""
        self._kept.remove((thread, namespace, id_))

    @property
    def held_bytes(self) -> int:
        """About what the cache holds."""
        return self._kept.held_bytes

    def _put(self, key: tuple[Any, ...], value: Kept) -> None:
        self._kept.put(key, value, STANDING_BYTES if isinstance(value, Standing) else value.weight())
