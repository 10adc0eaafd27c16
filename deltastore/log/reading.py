"""Records and chunks of one thread, as one transaction sees them.

Imports keys, rows, state and codec. The invariant: what a checkpoint needs and isn't there raises BrokenChainError
naming thread and checkpoint; nothing missing reads as empty. A `View` lives as long as its transaction and isn't
thread-safe.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from deltastore import ulid as ulids
from deltastore.codec import chunkrow
from deltastore.codec import spans as sp
from deltastore.codec.primitives import unseal
from deltastore.codec.recordrow import RecordRow, open_row
from deltastore.codec.records import Record, Value, series_of
from deltastore.errors import BrokenChainError, CorruptionError
from deltastore.log import announcing, keys, rows
from deltastore.log.dictionaries import Dictionaries
from deltastore.log.rowcache import RowCache
from deltastore.log.state import Channel, State, fold
from deltastore.reducers import FIRST_INTERNED_REDUCER, fold_numbers
from deltastore.storage.port import ReadTransaction


class FoundRow(NamedTuple):
    """A record row: its key, its sealed bytes (to tell later whether it changed), and what it holds."""

    key: bytes
    sealed: bytes
    row: RecordRow


class View:
    """One thread in one transaction. Rows that were read are kept for the length of the call."""

    def __init__(self, tx: ReadTransaction, thread: int, name: str, rows: RowCache | None = None) -> None:
        """View a thread; `rows` keeps decoded rows for later views."""
        self._rows = rows
        self.tx = tx
        self.thread = thread
        self.name = name
        self.dictionaries = Dictionaries(tx)
        self.bases: dict[int, tuple[int, ...]] = {}
        """The bases of based value chunks that were read."""
        self._chunk_rows: dict[tuple[int, int], chunkrow.ChunkRow] = {}
        self._blobs: dict[tuple[int, int], bytes] = {}
        self._states: dict[tuple[int, bytes], State] = {}
        self._last_row: FoundRow | None = None

    # --- records

    def _record_row(self, key: bytes, sealed: bytes) -> FoundRow:
        """Decode a record row; the last one is kept, as one read looks into the same pack several times."""
        found = self._last_row
        if found is None or found.key != key or found.sealed != sealed:
            found = self._last_row = FoundRow(key, sealed, self._open(key, sealed))
        return found

    def _open(self, key: bytes, sealed: bytes) -> RecordRow:
        known = self._rows.get(key, sealed) if self._rows is not None else None
        if isinstance(known, RecordRow):
            return known
        row = open_row(unseal(key, sealed), key[-ulids.ULID_BYTES :], self.dictionaries)
        if self._rows is not None:
            self._rows.keep(key, sealed, row)
        return row

    def record_rows(self, namespace: int, after: bytes | None = None, *, reverse: bool = False) -> Iterator[FoundRow]:
        """Iterate over record rows; forwards those whose last ULID is > `after`, in reverse those up to
        the row that may hold it.
        """
        prefix = keys.records(self.thread, namespace)
        lower, upper = prefix, keys.end_of(prefix)
        if after is not None and not reverse:
            lower = prefix + after + b"\0"
        if after is not None and reverse:
            (found,) = self.tx.seek_many([(prefix + after, upper)])
            upper = found[0] + b"\0" if found else upper
        for key, sealed in self.tx.scan(lower, upper, reverse=reverse):
            yield self._record_row(key, sealed)

    def row_of(self, namespace: int, ulid: bytes) -> FoundRow | None:
        """Return the row that holds the record of a ULID, or None."""
        prefix = keys.records(self.thread, namespace)
        (found,) = self.tx.seek_many([(prefix + ulid, keys.end_of(prefix))])
        if found is None:
            return None
        holder = self._record_row(*found)
        return holder if ulid in holder.row.ulids else None

    def record(self, namespace: int, ulid: bytes) -> Record | None:
        """Return the record of a ULID, or None."""
        found = self.row_of(namespace, ulid)
        return None if found is None else found.row.records[found.row.ulids.index(ulid)]

    def following(self, namespace: int, ulid: bytes) -> tuple[bytes, Record] | None:
        """Return the record put next in the namespace, or None."""
        prefix = keys.records(self.thread, namespace)
        (found,) = self.tx.seek_many([(prefix + ulid + b"\0", keys.end_of(prefix))])
        holder = self.row_of(namespace, ulid)
        if holder is not None and holder.row.ulids[-1] != ulid:
            place = holder.row.ulids.index(ulid) + 1
            return holder.row.ulids[place], holder.row.records[place]
        if found is None:
            return None
        row = self._open(*found)
        return row.ulids[0], row.records[0]

    def preceding(self, namespace: int, ulid: bytes) -> tuple[bytes, Record] | None:
        """Return the record put before this one in the namespace, or None."""
        for held, row, place in self._down(namespace, ulid):
            if held < ulid:
                return held, row.records[place]
        return None

    def _down(self, namespace: int, ulid: bytes) -> Iterator[tuple[bytes, RecordRow, int]]:
        """Iterate over records from this one backwards, as ULID, row and place in it, without parsing them."""
        for found in self.record_rows(namespace, ulid, reverse=True):
            for place in range(bisect_right(found.row.ulids, ulid) - 1, -1, -1):
                yield found.row.ulids[place], found.row, place

    def chain(self, namespace: int, ulid: bytes) -> list[tuple[bytes, Record]]:
        """Return the records from the nearest anchor up to this one, each with its ULID. Raises BrokenChainError."""
        chain: list[tuple[bytes, Record]] = []
        wanted: bytes | None = ulid
        if self.tx.remote:
            known = announcing.Known(self.thread, namespace)
            announcing.records(self.tx, known, (ulid,), announcing.EARLIER_ROWS)
        for held, row, place in self._down(namespace, ulid):
            if held != wanted:
                break
            record = row.records[place]
            chain.append((held, record))
            if record.is_anchor:
                return chain[::-1]
            wanted = record.parent
            if wanted is None:
                raise self.broken(ulid, f"record {ulids.to_text(held)} is a delta without a base")
        raise self.broken(ulid, f"record {ulids.to_text(wanted)} is missing" if wanted else "no anchor")

    def state(self, namespace: int, ulid: bytes) -> State:
        """Return the channels of a checkpoint, as chunk numbers. Raises BrokenChainError."""
        if (namespace, ulid) not in self._states:
            state: State = {}
            for held, record in self.chain(namespace, ulid):
                # kept on the way: a list asks for these next, and they are made in any case
                state = self._states[namespace, held] = fold(state, record)
        return self._states[namespace, ulid]

    def broken(self, ulid: bytes, what: str) -> BrokenChainError:
        """Return the error for a checkpoint that can't be rebuilt."""
        return BrokenChainError(
            f"thread {self.name!r}: checkpoint {ulids.to_text(ulid)} can't be rebuilt: {what}. "
            "Rows were lost or damaged; run check, and restore from a backup"
        )

    # --- chunks

    def blob(self, series: int, number: int) -> bytes:
        """Return a chunk. Raises BrokenChainError, ChecksumError."""
        blob = self._blobs.get((series, number))
        if blob is None:
            row = self._chunk_row(series, number)
            based = row.based.get(number)
            blob = chunkrow.resolve(number, row, lambda base: self.blob(series, base))
            if based is not None and series == 0:  # its base may have been stored anew since
                self.bases[number] = (based.bases[0], *self.bases.get(based.bases[0], ()))
            self._blobs[series, number] = blob
        return blob

    def forget(self) -> None:
        """Keep no chunks any more, for whoever reads more of them than memory should hold."""
        self._chunk_rows.clear()
        self._blobs.clear()

    def blobs(self, series: int, spans: Iterable[sp.Span]) -> list[bytes]:
        """Return the chunks of spans, in order. Raises BrokenChainError, ChecksumError."""
        if self.tx.remote:
            spans = list(spans)
            self.bring([(series, span) for span in spans])
        return [self.blob(series, number) for first, length in spans for number in range(first, first + length)]

    def bring(self, wanted: Sequence[tuple[int, sp.Span]]) -> None:
        """Where a look costs a trip: read the rows that hold these chunks in one, and what those stand on in another.

        What is missing or damaged is found when it is asked for.
        """
        missing = [(series, span) for series, span in wanted if (series, span[0]) not in self._blobs]
        if not missing or not self.tx.remote:
            return
        announcing.chunks(self.tx, self.thread, missing)
        bases: set[tuple[int, int]] = set()
        with contextlib.suppress(CorruptionError):
            for series, (first, length) in missing:
                for number in range(first, first + length):
                    based = self._chunk_row(series, number).based.get(number)
                    bases.update((series, base) for base in (based.bases if based else ()))
        behind = [(series, (base, 1)) for series, base in sorted(bases) if (series, base) not in self._chunk_rows]
        if behind:
            announcing.chunks(self.tx, self.thread, behind)

    def open_chunks(self, key: bytes, sealed: bytes) -> chunkrow.ChunkRow:
        """Decode a chunk row, given its key. Raises ChecksumError."""
        known = self._rows.get(key, sealed) if self._rows is not None else None
        if isinstance(known, chunkrow.ChunkRow):
            return known
        last = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
        row = chunkrow.decode_row(unseal(key, sealed), last, self.dictionaries)
        if self._rows is not None:
            self._rows.keep(key, sealed, row)
        return row

    def _chunk_row(self, series: int, number: int) -> chunkrow.ChunkRow:
        row = self._chunk_rows.get((series, number))
        if row is not None:
            return row
        prefix = keys.chunks(self.thread, series)
        (found,) = self.tx.seek_many([(keys.chunk(self.thread, series, number), keys.end_of(prefix))])
        if found is not None:
            key, sealed = found
            row = self.open_chunks(key, sealed)
            for held in row.numbers:
                self._chunk_rows[series, held] = row
            if (series, number) in self._chunk_rows:
                return row
        raise BrokenChainError(
            f"thread {self.name!r}: chunk {number} of series {series} is missing. "
            "Rows were lost or damaged; run check, and restore from a backup"
        )

    def folded(self, number: int, channel: Channel) -> Channel:
        """Return a channel with its writes folded, where a built-in reducer can do that."""
        if not channel.writes or channel.reducer >= FIRST_INTERNED_REDUCER:
            return channel
        series = series_of(number)
        kind = channel.writes[0].kind
        base = sp.numbers(channel.value.spans) if channel.value else []
        writes = [sp.numbers(write.spans) for write in channel.writes]
        numbers = fold_numbers(channel.reducer, base, writes, lambda chunk: self.blob(series, chunk))
        return Channel(Value(kind, sp.of_numbers(numbers)), channel.reducer)


def require(view: View, namespace: rows.Namespace, ulid: bytes) -> Record:
    """Return the record that another row names. Raises BrokenChainError where it is missing."""
    record = view.record(namespace.number, ulid)
    if record is None:
        raise BrokenChainError(
            f"thread {view.name!r}: checkpoint {ulids.to_text(ulid)} is named but missing. "
            "Rows were lost or damaged; run check, and restore from a backup"
        )
    return record
