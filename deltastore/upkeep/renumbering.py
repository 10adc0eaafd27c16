"""Renumbering: a thread's records, writes and chunks with other numbers for channels, reducers and tags.

Pure; imports codec and rows. The invariant: nothing but these numbers changes, and no user object is decoded.
"""

from collections.abc import Callable
from dataclasses import dataclass

from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec.blobs import FIRST_INTERNED_TAG
from deltastore.log import rows
from deltastore.reducers import FIRST_INTERNED_REDUCER


@dataclass(frozen=True, slots=True)
class Numbers:
    """What an interned number becomes, by kind. Numbers that the format itself gives stay as they are."""

    channel: Callable[[int], int]
    reducer: Callable[[int], int]
    tag: Callable[[int], int]

    def of_channel(self, number: int) -> int:
        """Return a channel's number."""
        return number if number < rec.FIRST_CHANNEL else self.channel(number)

    def of_reducer(self, number: int) -> int:
        """Return a reducer's number."""
        return number if number < FIRST_INTERNED_REDUCER else self.reducer(number)

    def blob(self, blob: bytes) -> bytes:
        """Return a blob; the empty one of a remnant has no tag."""
        if not blob or blob[0] < FIRST_INTERNED_TAG:
            return blob
        return bytes((self.tag(blob[0]),)) + blob[1:]

    def record(self, record: rec.Record) -> rec.Record:
        """Return a record."""
        return record._replace(
            frame=None if record.frame is None else self.blob(record.frame),
            metadata=self.blob(record.metadata),
            ops=tuple(map(self._op, record.ops)),
            order=None if record.order is None else tuple(map(self.of_channel, record.order)),
            seeds=tuple((self.of_channel(channel), distance) for channel, distance in record.seeds),
        )

    def _op(self, op: rec.Op) -> rec.Op:
        match op:
            case rec.Set() | rec.Fold():
                return op._replace(channel=self.of_channel(op.channel), reducer=self.of_reducer(op.reducer))
            case _:
                return op._replace(channel=self.of_channel(op.channel))

    def tasks(self, tasks: rows.Tasks) -> rows.Tasks:
        """Return the writes of a checkpoint, tasks by name and writes by place."""
        return {
            task: {idx: write._replace(channel=self.of_channel(write.channel)) for idx, write in sorted(writes.items())}
            for task, writes in sorted(tasks.items())
        }

    def chunks(self, row: chunkrow.ChunkRow) -> chunkrow.ChunkRow:
        """Return a row of chunks; the same one where all its tags are the format's own."""
        if max(row.tags, default=0) < FIRST_INTERNED_TAG:
            return row
        tags = bytes(tag if tag < FIRST_INTERNED_TAG else self.tag(tag) for tag in row.tags)
        return row._replace(tags=tags, whole={number: self.blob(blob) for number, blob in row.whole.items()})
