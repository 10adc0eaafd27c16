"""Chunks of a thread under repair: which can be read, and what becomes of the rows of those that can't.

Imports the draft and the plan's records, and log and below. The invariant: a chunk that could be read is read as
before, and the chunks that `has` tells of are those that a reader finds.
"""

from bisect import bisect_right
from collections.abc import Iterable

from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.errors import CorruptionError
from deltastore.log import keys
from deltastore.log.reading import View
from deltastore.upkeep.repair_draft import Draft
from deltastore.upkeep.repair_plan import QUARANTINED, REBUILT, Notes


class Chunks:
    """The chunk rows of a thread, mended in the draft."""

    def __init__(self, draft: Draft, number: int, name: str, notes: Notes) -> None:
        self._draft = draft
        self._number = number
        self._where = f"thread {name!r}"
        self._notes = notes
        self.next_free = [1, 1]
        """By series the number after all that rows hold or held."""
        self._rows: list[dict[int, chunkrow.ChunkRow]] = [{}, {}]
        self._view = View(draft, number, name)
        for series in range(rec.SERIES):
            self._read(series)
        self._ranges = [sp.of_numbers(self._whole(series)) for series in range(rec.SERIES)]
        self._starts = [[first for first, _ in ranges] for ranges in self._ranges]

    def _read(self, series: int) -> None:
        prefix = keys.chunks(self._number, series)
        below = 0
        for key, row in list(self._draft.scan(prefix, keys.end_of(prefix))):
            last = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
            if last <= sp.MAX_NUMBER:
                self.next_free[series] = max(self.next_free[series], last + 1)
            try:
                found = self._view.open_chunks(key, row)
            except CorruptionError as error:
                self._notes.note(self._where, f"chunks up to {last} of series {series}", QUARANTINED, error)
                self._draft.quarantine(key, error)
                continue
            if found.numbers[0] <= below:  # the row before would be asked for these
                reason = f"the row of chunks up to {below} stands before some that it holds"
                found = chunkrow.only(found, range(below + 1, last + 1))
                self._replace(series, key, found, reason)
            below = last
            self._rows[series][last] = found

    def _replace(self, series: int, key: bytes, row: chunkrow.ChunkRow, reason: str) -> None:
        self._notes.note(self._where, f"row {key.hex()} of series {series}", REBUILT, reason)
        self._draft.keep_copy(key, reason)
        self._draft.put(key, chunkrow.encode_row(row, chunkrow.encode_body(row)))

    def _whole(self, series: int) -> Iterable[int]:
        """Iterate over the numbers that can be read, in order; lost bases that aren't needed any more are forgotten."""
        based: dict[int, tuple[int, ...]] = {}
        readable: set[int] = set()
        for last, row in self._rows[series].items():
            mended = row
            for number in row.numbers:
                difference = row.based.get(number)
                if difference is not None:
                    try:
                        self._view.blob(series, number)
                    except CorruptionError:
                        continue
                    based[number] = (difference.bases[0], *based.get(difference.bases[0], ()))
                    if not readable.issuperset(difference.bases):  # what stood behind its base once
                        own = {number: difference._replace(bases=based[number])}
                        mended = mended._replace(based=mended.based | own)
                readable.add(number)
                yield number
            if mended is not row:
                key = keys.chunk(self._number, series, last)
                self._replace(series, key, mended, "it names lost chunks that it doesn't need")
                self._rows[series][last] = mended

    def has(self, series: int, spans: sp.Spans) -> bool:
        """Tell whether all chunks of spans can be read."""
        return self.missing(series, spans) is None

    def missing(self, series: int, spans: sp.Spans) -> int | None:
        """Return the first chunk of spans that can't be read, or None."""
        for first, length in spans:
            place = bisect_right(self._starts[series], first) - 1
            start, count = self._ranges[series][place] if place >= 0 else (0, 0)
            end = max(first, start + count)
            if first + length > end:
                return end
        return None

    def loose(self, series: int, packed_up_to: int) -> tuple[int, int]:
        """Return how many rows stand after the packed ones, and their plain bytes."""
        found = [row for last, row in self._rows[series].items() if last > packed_up_to]
        return len(found), sum(row.plain_bytes for row in found)
