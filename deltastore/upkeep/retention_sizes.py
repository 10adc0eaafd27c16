"""What checkpoints weigh: the chunks that they name, and their own rows, for `max_bytes`.

An estimate from stored sizes: a row of chunks is shared out among the chunks in it by their lengths, and a checkpoint's
own row counts by what it says, not by its present form. Reads all chunk rows of a thread; decodes no value. Imports log
and below. The invariant: deletions and packing of other checkpoints don't change what one weighs.
"""

import math
from collections.abc import Iterable, Mapping

from deltastore.codec import records as rec
from deltastore.log import finding, keys, rows
from deltastore.log import state as st
from deltastore.log.reading import View

RECORD_BYTES = 150
"""About what a checkpoint's own row and by-id row take beside metadata, in bytes: packed ones take less."""

Ranks = Mapping[bytes, int]
"""By ULID, when a checkpoint goes: the smallest rank first."""


class Weights:
    """What would be free, rank by rank: a chunk is so when the last checkpoint that names it has gone."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sizes: tuple[dict[int, int], ...] = tuple({} for _ in range(rec.SERIES))
        self._bases: tuple[dict[int, tuple[int, ...]], ...] = tuple({} for _ in range(rec.SERIES))
        self._last: tuple[dict[int, int], ...] = tuple({} for _ in range(rec.SERIES))
        self._own: dict[int, int] = {}
        for series in range(rec.SERIES):
            self._load(series)

    def _load(self, series: int) -> None:
        prefix = keys.chunks(self.view.thread, series)
        for key, sealed in self.view.tx.scan(prefix, keys.end_of(prefix)):
            row = self.view.open_chunks(key, sealed)
            frames = sum(len(based.frame) for based in row.based.values())
            plain = sum(map(len, row.whole.values())) or 1
            ratio = (len(sealed) - frames) / plain
            for number, blob in row.whole.items():
                self.sizes[series][number] = math.ceil(len(blob) * ratio)
            for number, based in row.based.items():
                self.sizes[series][number] = len(based.frame)
                self._bases[series][number] = based.bases

    def add(self, namespace: rows.Namespace, ranks: Ranks) -> None:
        """Take in a namespace's checkpoints, those that have a rank. Raises BrokenChainError."""
        chain: list[tuple[int, st.State]] = []
        state: st.State = {}
        for found in self.view.record_rows(namespace.number):
            for ulid, record in zip(found.row.ulids, found.row.records, strict=True):
                if record.is_anchor:
                    self._add_chain(chain)
                    chain, state = [], {}
                state = st.fold(state, record)
                if ulid in ranks and not record.is_hidden:
                    chain.append((ranks[ulid], state))
                    self._add_own(ranks[ulid], record)
        self._add_chain(chain)

    def _add_own(self, rank: int, record: rec.Record) -> None:
        size = RECORD_BYTES + len(record.metadata) + len(record.frame or b"")
        self._own[rank] = self._own.get(rank, 0) + size

    def _add_chain(self, chain: list[tuple[int, st.State]]) -> None:
        """Take in checkpoints whose states share most spans: each span is looked at once."""
        seen: set[tuple[int, tuple[int, int]]] = set()
        known: set[int] = set()
        for rank, state in sorted(chain, key=lambda item: item[0], reverse=True):
            for number, channel in state.items():
                if id(channel) in known:  # the chain keeps it alive, so nothing else has this id
                    continue
                known.add(id(channel))
                series = rec.series_of(number)
                for value in (channel.value, *channel.writes):
                    if value is not None:
                        new = [span for span in value.spans if (series, span) not in seen]
                        seen.update((series, span) for span in new)
                        self._name(series, new, rank)

    def add_writes(self, rank: int, tasks: rows.Tasks, row_bytes: int) -> None:
        """Take in a checkpoint's pending writes."""
        self._own[rank] = self._own.get(rank, 0) + row_bytes
        for writes in tasks.values():
            for write in writes.values():
                self._name(0, write.value.spans, rank)

    def _name(self, series: int, spans: Iterable[tuple[int, int]], rank: int) -> None:
        last = self._last[series]
        for first, length in spans:
            for number in range(first, first + length):
                if last.get(number, -1) < rank:
                    last[number] = rank

    def by_rank(self) -> dict[int, int]:
        """Return the bytes that are free once all checkpoints of a rank and the smaller ones have gone."""
        out = dict(self._own)
        for series in range(rec.SERIES):
            last = dict(self._last[series])
            for number in sorted(self._bases[series], reverse=True):  # a base is needed as long as what stands on it
                for base in self._bases[series][number] if number in last else ():
                    last[base] = max(last.get(base, -1), last[number])
            for number, rank in last.items():
                out[rank] = out.get(rank, 0) + self.sizes[series].get(number, 0)
        return out


def tasks_of(view: View, namespace: rows.Namespace, id_: str) -> tuple[rows.Tasks, int]:
    """Return a checkpoint's pending writes, and about what their rows take."""
    tasks = finding.tasks(view, namespace, id_)
    return tasks, sum(len(rows.encode_tasks({task: writes})) for task, writes in tasks.items())
