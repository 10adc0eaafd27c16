"""Statistics: what of a store takes how much room, and what would be without deltas. Reads only.

One thread at a time, each in one read transaction; values are measured, never decoded. Rows hold many chunks
compressed together, so the bytes of one chunk are its share by plain size. Imports marking, and log and below.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.primitives import unseal
from deltastore.errors import InvalidInputError
from deltastore.log import finding, keys, rows, surviving, tagging
from deltastore.log import state as st
from deltastore.log.reading import View
from deltastore.reducers import REPLACE
from deltastore.storage.port import ReadTransaction
from deltastore.store import Store
from deltastore.upkeep import marking
from deltastore.upkeep.progress import Progress

KINDS = ("chunks", "versions", "records", "ids", "writes", "tags", "heads")
"""Kinds of rows: chunks of values; chunks of LangGraph's versions; records of checkpoints; their ids; pending writes;
tags; headers of threads and namespaces."""


@dataclass(frozen=True, slots=True)
class RowBytes:
    """How many rows there are, and their bytes as stored, keys included."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ThreadStatistics:
    """One thread. Bytes are as stored, but `full_bytes`: all states in full, unencoded rows, one a checkpoint.

    `channels`: bytes of the chunks that a channel was the first to name. `base_bytes`: of chunks that others are stored
    against and no channel names any more. `garbage_bytes`: of chunks that nothing needs, which compaction removes.
    `stray_writes`: pending writes whose checkpoint isn't there, or not yet. `freed_bytes`: about what would go if the
    last checkpoints alone were kept; None unless asked for.
    """

    name: str
    checkpoints: int
    kinds: Mapping[str, RowBytes]
    channels: Mapping[str, int]
    base_bytes: int
    garbage_bytes: int
    full_bytes: int
    stray_writes: int
    freed_bytes: int | None

    @property
    def bytes(self) -> int:
        """All rows of the thread."""
        return sum(kind.bytes for kind in self.kinds.values())


@dataclass(frozen=True, slots=True)
class Statistics:
    """A store: its threads, the largest first, and `store_rows`, which belong to none of them.

    `orphans`: rows that no name leads to, of deleted threads and of copies and loads under way or given up; `collect`
    removes them, those of what may be under way after an hour.
    """

    threads: tuple[ThreadStatistics, ...]
    store_rows: RowBytes
    orphans: RowBytes


def measure(store: Store, *, keep_last: int | None = None, progress: Progress | None = None) -> Statistics:
    """Measure a store; `keep_last`: what would be freed by keeping the last so many checkpoints of each namespace.

    Tagged checkpoints count as kept. `progress` is told of threads. Raises CorruptionError, InvalidInputError.
    """
    if keep_last is not None and keep_last < 1:
        raise InvalidInputError(f"keep_last {keep_last}; expected at least 1")
    names = [row.name for row in store.log.all_threads()]
    threads: list[ThreadStatistics] = []
    for done, name in enumerate(names):
        if progress is not None:
            progress(done, len(names))
        with store.log.storage.read() as tx:
            found = finding.find_thread(tx, name)
            if found is not None:  # else deleted since
                threads.append(_Thread(store, tx, found[0], name).measure(found[1], keep_last))
    with store.log.storage.read() as tx:
        store_rows = RowBytes(*tx.measure(keys.STORE, keys.thread(1)))
        queued = [tx.measure(prefix, keys.end_of(prefix)) for prefix in map(_prefix, rows.load_queue(tx))]
    orphans = RowBytes(sum(count for count, _ in queued), sum(size for _, size in queued))
    return Statistics(tuple(sorted(threads, key=lambda thread: -thread.bytes)), store_rows, orphans)


def _prefix(queued: rows.Queued) -> bytes:
    return keys.thread(queued.thread)


class _Thread:
    """One thread, in one transaction."""

    def __init__(self, store: Store, tx: ReadTransaction, number: int, name: str) -> None:
        self.registry = store.log.registry
        self.tx = tx
        self.view = View(tx, number, name)
        self.stored: tuple[dict[int, float], dict[int, float]] = ({}, {})
        self.plain_up_to: tuple[list[int], list[int]] = ([0], [0])
        """The plain bytes of all chunks with smaller numbers, by number."""

    def measure(self, header: rows.Header, keep_last: int | None) -> ThreadStatistics:
        kinds = self._kinds()
        for series in range(rec.SERIES):
            self._load_sizes(series)
        channels: dict[int, float] = {}
        named: marking.Marked = (set(), set())
        for channel, spans in marking.named(self.view):
            series = rec.series_of(channel)
            new = [number for number in sp.numbers(spans) if number not in named[series]]
            named[series].update(new)
            channels[channel] = channels.get(channel, 0) + self._bytes(series, new)
        needed: marking.Marked = (set(named[0]), set(named[1]))
        marking.add_bases(self.view, needed)
        namespaces = rows.load_namespaces(self.tx, self.view.thread)
        all_bytes = sum(sum(sizes.values()) for sizes in self.stored)
        freed = None if keep_last is None else self._freed(namespaces, needed, keep_last, kinds)
        return ThreadStatistics(
            self.view.name,
            header.checkpoints,
            kinds,
            {self.registry.channel_name(self.tx, number): round(size) for number, size in channels.items()},
            round(self._bytes(0, needed[0] - named[0])),
            round(all_bytes - self._bytes(0, needed[0]) - self._bytes(1, needed[1])),
            sum(self._full(namespace) for namespace in namespaces),
            self._stray_writes(namespaces),
            freed,
        )

    # --- sizes

    def _kinds(self) -> dict[str, RowBytes]:
        thread = self.view.thread
        prefixes = {
            "chunks": keys.chunks(thread, 0),
            "versions": keys.chunks(thread, 1),
            "records": keys.thread(thread) + b"r",
            "ids": keys.thread(thread) + b"i",
            "writes": keys.all_writes(thread),
            "tags": keys.thread(thread) + b"t",
        }
        found = {kind: RowBytes(*self.tx.measure(prefix, keys.end_of(prefix))) for kind, prefix in prefixes.items()}
        count, size = self.tx.measure(keys.thread(thread), keys.thread(thread + 1))
        others = list(found.values())
        found["heads"] = RowBytes(count - sum(each.rows for each in others), size - sum(each.bytes for each in others))
        return {kind: found[kind] for kind in KINDS}

    def _load_sizes(self, series: int) -> None:
        plain: dict[int, int] = {}
        prefix = keys.chunks(self.view.thread, series)
        for key, sealed in self.tx.scan(prefix, keys.end_of(prefix)):
            row = self.view.open_chunks(key, sealed)
            frames = {number: len(based.frame) for number, based in row.based.items()}
            whole = sum(map(len, row.whole.values()))
            shared = len(key) + len(sealed) - sum(frames.values())
            for number in row.numbers:
                if number in frames:
                    self.stored[series][number] = frames[number]
                    plain[number] = row.based[number].plain_bytes
                else:
                    self.stored[series][number] = shared * len(row.whole[number]) / whole
                    plain[number] = len(row.whole[number])
        up_to = self.plain_up_to[series]
        for number in range(max(plain, default=0) + 1):
            up_to.append(up_to[-1] + plain.get(number, 0))

    def _bytes(self, series: int, numbers: Iterable[int]) -> float:
        sizes = self.stored[series]
        return sum(sizes.get(number, 0) for number in numbers)

    def _plain(self, channel: int, value: rec.Value) -> int:
        up_to = self.plain_up_to[rec.series_of(channel)]
        last = len(up_to) - 1
        return sum(up_to[min(first + length, last)] - up_to[min(first, last)] for first, length in value.spans)

    # --- states

    def _full(self, namespace: rows.Namespace) -> int:
        """Return the plain bytes of all full states together."""
        total = 0
        state: st.State = {}
        sizes: dict[int, int] = {}
        for found in self.view.record_rows(namespace.number):
            for record in found.row.records:
                state = st.fold(state, record)
                if record.is_anchor:
                    sizes = {}
                for op in record.ops:
                    self._resize(sizes, op, state)
                if not record.is_hidden:
                    total += len(record.frame or b"") + len(record.metadata) + sum(sizes.values())
        return total

    def _resize(self, sizes: dict[int, int], op: rec.Op, state: st.State) -> None:
        """Take an op into the plain sizes of channels, given the state after it."""
        channel = state.get(op.channel)
        if channel is None:
            sizes.pop(op.channel, None)
        elif isinstance(op, rec.Fold) and op.reducer != REPLACE and op.channel in sizes:
            # only what is new is looked at: a list that grows for long may have as many spans as elements
            sizes[op.channel] += sum(self._plain(op.channel, write) for write in op.writes)
        else:
            sizes[op.channel] = sum(self._plain(op.channel, value) for value in _values(channel))

    def _stray_writes(self, namespaces: Iterable[rows.Namespace]) -> int:
        by_number = {namespace.number: namespace for namespace in namespaces}
        prefix = keys.all_writes(self.view.thread)
        stray = 0
        for key, sealed in self.tx.scan(prefix, keys.end_of(prefix)):
            rest = key[len(prefix) :]
            namespace = by_number.get(int.from_bytes(rest[: keys.NAMESPACE_BYTES], "big"))
            id_ = rest[keys.NAMESPACE_BYTES + 1 : -keys.HASH_BYTES].decode("utf-8", "backslashreplace")
            if namespace is None or finding.find(self.view, namespace, id_) is None:
                stray += sum(map(len, rows.decode_tasks(key, unseal(key, sealed)).values()))
        return stray

    # --- what retention would free

    def _freed(
        self,
        namespaces: Iterable[rows.Namespace],
        needed: marking.Marked,
        keep_last: int,
        kinds: Mapping[str, RowBytes],
    ) -> int:
        kept: marking.Marked = (set(), set())
        held = gone = 0
        for namespace in namespaces:
            ids = [id_ for id_, _, _ in finding.ids_down(self.view, namespace, None)]
            staying = {*ids[:keep_last], *tagging.load(self.tx, self.view.thread, namespace.number).values()}
            held += len(ids)
            gone += sum(id_ not in staying for id_ in ids)
            for channel, spans in self._keeps(namespace, staying):
                kept[rec.series_of(channel)].update(sp.numbers(spans))
        marking.add_bases(self.view, kept)
        chunks = sum(self._bytes(series, needed[series] - kept[series]) for series in range(rec.SERIES))
        records = (kinds["records"].bytes + kinds["ids"].bytes) * gone / held if held else 0
        return round(chunks + records)

    def _keeps(self, namespace: rows.Namespace, staying: set[str]) -> Iterator[tuple[int, sp.Spans]]:
        """Iterate over the spans, each with its channel, that checkpoints which stay name, and their pending writes."""
        for id_ in staying:
            ulid = finding.find(self.view, namespace, id_)
            for number, channel in self.view.state(namespace.number, ulid).items() if ulid else ():
                yield from ((number, value.spans) for value in _values(channel))
            yield from marking.written(finding.tasks(self.view, namespace, id_))
        if namespace.front != rows.NATIVE:
            yield from _histories(surviving.plan(self.view, namespace, lambda id_, _: id_ not in staying))


def _values(channel: st.Channel) -> tuple[rec.Value, ...]:
    return channel.writes if channel.value is None else (channel.value, *channel.writes)


def _histories(plan: surviving.Plan) -> Iterator[tuple[int, sp.Spans]]:
    """Iterate over the spans that the histories of DeltaChannels would still need."""
    for run in plan.remnants:
        for _, remnant in run:
            for op in remnant.record.ops:
                yield from marking.spans_of(op)
            for hashed, row in remnant.writes.items():
                yield from marking.written(rows.decode_tasks(hashed, row))
