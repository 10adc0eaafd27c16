"""Which chunks of a thread are needed: those that records and writes name, and those that these stand on.

Reads rows only, and of chunk rows only the heads. Imports log and below. The invariant: a chunk that isn't marked is
named by nothing, as of the transaction.
"""

from collections.abc import Iterator

from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.primitives import unseal
from deltastore.log import keys, rows
from deltastore.log.reading import View

Marked = tuple[set[int], set[int]]
"""Chunk numbers that are needed, by series."""


def mark(view: View) -> Marked:
    """Return the chunks of a thread that are needed. Raises CorruptionError."""
    marked = mark_named(view)
    add_bases(view, marked)
    return marked


def mark_named(view: View) -> Marked:
    """Return the chunks that records and writes name, without those that these stand on. Raises CorruptionError."""
    marked: Marked = (set(), set())
    for channel, spans in named(view):
        needed = marked[rec.series_of(channel)]
        for first, length in spans:
            needed.update(range(first, first + length))
    return marked


def add_bases(view: View, marked: Marked) -> None:
    """Mark what the marked chunks stand on. Raises CorruptionError."""
    for series, needed in enumerate(marked):
        prefix = keys.chunks(view.thread, series)
        for key, sealed in view.tx.scan(prefix, keys.end_of(prefix), reverse=True):  # bases have smaller numbers
            head = chunkrow.decode_head(unseal(key, sealed), int.from_bytes(key[-keys.NUMBER_BYTES :], "big"))
            for number in sorted(head.based.keys() & needed, reverse=True):
                needed.update(head.based[number].bases)


def named(view: View) -> Iterator[tuple[int, sp.Spans]]:
    """Iterate over channels and the spans that records and writes name for them."""
    for namespace in rows.load_namespaces(view.tx, view.thread):
        for found in view.record_rows(namespace.number):
            for record in found.row.records:
                for op in record.ops:
                    yield from spans_of(op)
            for tasks in found.row.writes.values():
                for row in tasks.values():
                    yield from written(rows.decode_tasks(found.key, row))
    prefix = keys.all_writes(view.thread)
    for key, sealed in view.tx.scan(prefix, keys.end_of(prefix)):
        yield from written(rows.decode_tasks(key, unseal(key, sealed)))


def spans_of(op: rec.Op) -> Iterator[tuple[int, sp.Spans]]:
    """Iterate over the spans that an op names, each with its channel."""
    match op:
        case rec.Set():
            yield op.channel, op.value.spans
        case rec.Patch():
            yield op.channel, op.spans
        case rec.Fold():
            for write in op.writes:
                yield op.channel, write.spans
        case rec.Drop():
            pass


def written(tasks: rows.Tasks) -> Iterator[tuple[int, sp.Spans]]:
    """Iterate over the spans that pending writes name, each with its channel."""
    for writes in tasks.values():
        for write in writes.values():
            yield write.channel, write.value.spans
