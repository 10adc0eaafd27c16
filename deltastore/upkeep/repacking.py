"""Repacking: consecutive rows of a thread as one, without chunks that nothing needs.

`plan_*` read and compress outside any write transaction and look at one row's worth each; `apply_*` put that in place
where it is still what was seen. Imports marking, and log and below. The invariant: no checkpoint's meaning changes, and
no user object is decoded.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import chunkrow, recordrow
from deltastore.codec import records as rec
from deltastore.codec.dictionary import Dictionary
from deltastore.codec.primitives import SEAL_BYTES, unseal
from deltastore.log import dictionaries, keys, packing, rows
from deltastore.log.reading import FoundRow, View
from deltastore.storage.port import Row, WriteTransaction

MAX_PACK_BYTES = 1 << 20
"""Plain bytes of a pack of chunks: reading one chunk decompresses all."""
MAX_RECORD_PACK_BYTES = 512 * 1024
"""Plain bytes of the records and writes of a pack, the same however they stand: looking for one unpacks all."""
MAX_PACK_RECORDS = 1024
DEFAULT_LEVEL = 19
"""zstd level of what is written once and read for months: on conversations 6 % shorter than level 12, in four times
its time."""
MAX_DEAD_SHARE = 0.1
"""A full pack with a smaller share of dead bytes stays as it is, unless everything dead must go."""
LEAF_BYTES, PAGE_BYTES = 2000, 4096
"""What fits into a page beside other rows; larger rows take whole pages of their own, on LMDB."""


@dataclass(frozen=True, slots=True)
class Means:
    """How a thread's rows are compacted: zstd's level, whether all that is dead must go, the store's dictionary."""

    level: int
    erase: bool
    dictionary: Dictionary | None
    before: list[int] | None
    """How they were compacted the last time, as the thread's header tells."""

    @property
    def number(self) -> int:
        """The dictionary's number, 0 without."""
        return 0 if self.dictionary is None else self.dictionary.number

    @property
    def are_new(self) -> bool:
        """Whether even a row that was compacted before may be smaller by these means."""
        return self.before is None or self.level > self.before[1] or self.number != self.before[3]

    def find_nothing(self, changes: int) -> bool:
        """Tell whether nothing is left to do for a thread with this count of changes."""
        return (
            self.before is not None and self.before[0] == changes and not self.are_new and self.erase <= self.before[2]
        )

    def stamp(self, changes: int) -> list[int]:
        """Return what the header of a thread that was compacted by these means tells."""
        return [changes, self.level, self.erase, self.number]

    def must_replace(self, needed: int | None) -> bool:
        """Tell whether a row needs a dictionary that isn't in use any more."""
        return needed is not None and needed != self.number

    def encoded(self, row: chunkrow.ChunkRow) -> bytes:
        """Return a chunk row as stored, unsealed."""
        return chunkrow.encode_row(row, chunkrow.encode_body(row, self.level, self.dictionary))


@dataclass(frozen=True, slots=True)
class ChunkChange:
    """Rows of one series as they were seen, and those that take their place; none if they stay."""

    series: int
    seen: tuple[Row, ...]
    made: tuple[tuple[int, bytes], ...] | None
    last: int
    packed_up_to: int
    """The header's when the rows were seen: what is loose was counted from there."""
    plain_bytes: int
    loose_rows: int
    loose_bytes: int
    freed: int
    """How many chunks go."""


def plan_chunks(
    view: View,
    header: rows.Header,
    series: int,
    before: ChunkChange | None,
    needed: Collection[int] | None,
    *,
    until: int,
    means: Means,
) -> ChunkChange | None:
    """Plan the next pack of a series, behind the one `before` and below the number `until`; None at the end.

    `needed` None: nothing is known to be dead. Raises CorruptionError.
    """
    after = before.last if before else 0
    seen: list[Row] = []
    parts: list[chunkrow.ChunkRow] = []
    size = 0
    for row, decoded in _chunk_rows(view, series, after):
        if decoded.numbers[-1] >= until:
            break
        kept = decoded if needed is None else chunkrow.only(decoded, needed)
        if parts and size + kept.plain_bytes > MAX_PACK_BYTES:
            break
        seen.append(row)
        parts.append(decoded)
        size += kept.plain_bytes
    if not parts:
        return None
    loose = [part for part in parts if part.numbers[-1] > header.packed_up_to[series]]
    change = ChunkChange(
        series,
        tuple(seen),
        None,
        parts[-1].numbers[-1],
        header.packed_up_to[series],
        size,
        len(loose),
        sum(part.plain_bytes for part in loose),
        0,
    )
    joined = chunkrow.join_rows(parts)
    kept = joined if needed is None else chunkrow.only(joined, needed)
    freed = len(joined.numbers) - len(kept.numbers)
    dead_bytes = joined.plain_bytes - kept.plain_bytes
    tolerable = not freed if means.erase else dead_bytes <= joined.plain_bytes * MAX_DEAD_SHARE
    named = [chunkrow.dictionary_of_row(unseal(*row), part.numbers[-1]) for row, part in zip(seen, parts, strict=True)]
    retired = any(map(means.must_replace, named))
    if len(parts) == 1 and tolerable and not retired and not means.are_new:
        return change
    # no part may be so small that the next compaction would take it into the pack before
    least = MAX_PACK_BYTES + 1 - before.plain_bytes if before else 0
    made = tuple((part.numbers[-1], row) for part, row in _encoded(kept, means, least))
    smaller = sum(len(row) + SEAL_BYTES for _, row in made) < sum(len(sealed) for _, sealed in seen)
    if not smaller and not freed and not retired:
        return change  # it was as small as it gets
    return replace(change, made=made, freed=freed)


def _chunk_rows(view: View, series: int, after: int) -> Iterator[tuple[Row, chunkrow.ChunkRow]]:
    prefix = keys.chunks(view.thread, series)
    for key, sealed in view.tx.scan(keys.chunk(view.thread, series, after) + b"\0", keys.end_of(prefix)):
        yield (key, sealed), view.open_chunks(key, sealed)


def _encoded(row: chunkrow.ChunkRow, means: Means, least: int) -> list[tuple[chunkrow.ChunkRow, bytes]]:
    """Return a row as stored, or smaller ones, the first of at least `least` plain bytes, where that saves pages."""
    if not row.numbers:
        return []
    whole = means.encoded(row)
    if not LEAF_BYTES < len(whole) <= 2 * PAGE_BYTES or len(row.numbers) < 2:
        return [(row, whole)]
    parts = [(part, means.encoded(part)) for part in split(row, -(-len(whole) // (LEAF_BYTES * 9 // 10)))]
    if parts[0][0].plain_bytes < least:
        return [(row, whole)]
    if sum(_page_bytes(len(stored)) for _, stored in parts) < _page_bytes(len(whole)):
        return parts
    return [(row, whole)]


def _page_bytes(size: int) -> int:
    return size if size <= LEAF_BYTES else -(-size // PAGE_BYTES) * PAGE_BYTES


def split(row: chunkrow.ChunkRow, count: int) -> list[chunkrow.ChunkRow]:
    """Split a row into about as many parts, of about the same plain size."""
    target = row.plain_bytes / count
    groups: list[list[int]] = [[]]
    size = 0.0
    for number in row.numbers:
        groups[-1].append(number)
        size += len(row.whole[number]) if number in row.whole else len(row.based[number].frame)
        if size >= target * len(groups) and len(groups) < count:
            groups.append([])
    return [chunkrow.only(row, frozenset(group)) for group in groups if group]


def apply_chunks(
    tx: WriteTransaction, thread: int, change: ChunkChange, changes: int | None, means: Means
) -> int | None:
    """Put new rows in place, and return the header's count of changes; None where they aren't what was seen.

    `changes`: what the count was when needed chunks were looked for. It must be that still if chunks go, for what was
    put since may name them again; where none go and it isn't, 0 says that they must be looked for anew.
    """
    header = rows.load_header(tx, thread)
    if header is None or tx.get_many([key for key, _ in change.seen]) != [sealed for _, sealed in change.seen]:
        return None
    if not dictionaries.is_in_use(tx, means.dictionary):
        return None
    series = change.series
    known = header.changes == changes
    if (change.freed and not known) or header.packed_up_to[series] != change.packed_up_to:
        return None
    if change.made is None and change.last <= header.packed_up_to[series]:
        return header.changes if known else 0
    if change.made is not None:
        for key, _ in change.seen:
            tx.delete(key)
        for last, row in change.made:
            rows.put(tx, keys.chunk(thread, series, last), row)
    if change.last > header.packed_up_to[series]:
        header.loose_rows[series] = max(0, header.loose_rows[series] - change.loose_rows)
        header.loose_bytes[series] = max(0, header.loose_bytes[series] - change.loose_bytes)
        header.packed_up_to[series] = change.last
    if change.freed:
        header.collected += 1
    rows.store_header(tx, thread, header)
    return header.changes if known else 0


# --- records


def plan_records(
    view: View, namespace: rows.Namespace, after: bytes | None, until: bytes, means: Means
) -> tuple[packing.RecordPack | None, bytes] | None:
    """Plan the next pack of records behind a ULID, up to another, and tell how far it looked; None at the end.

    The last record stays in a row of its own, for the next put stands on it; remnants stay where they are.
    """
    run: list[FoundRow] = []
    size = count = 0
    mended = False
    last_row = _last_row(view, namespace)
    for found in view.record_rows(namespace.number, after):
        if (found.key == last_row and not found.row.packed) or found.row.ulids[-1] > until:
            break
        if found.row.records[0].is_remnant:
            if run:
                break
            return None, found.row.ulids[-1]
        more, loose_writes = _plain_bytes(view, namespace, found)
        size += more
        count += len(found.row.ulids)
        if run and (size > MAX_RECORD_PACK_BYTES or count > MAX_PACK_RECORDS):
            break
        run.append(found)
        mended = found.row.packed and loose_writes
    if not run:
        return None
    last = run[-1].row.ulids[-1]
    if len(run) < 2 and not mended and not _is_other(run[0], means):
        return None, last
    made = packing.pack_records(view, namespace, run, means.dictionary, means.level)
    return (None if made is None or _is_idle(run, made, means, mended=mended) else made), last


def _is_other(found: FoundRow, means: Means) -> bool:
    """Tell whether a pack needs a dictionary out of use, or may be shorter by these means."""
    if not found.row.packed:
        return False
    needed = recordrow.dictionary_of_row(unseal(found.key, found.sealed))
    return means.are_new or means.must_replace(needed)


def _is_idle(run: Sequence[FoundRow], made: packing.RecordPack, means: Means, *, mended: bool) -> bool:
    """Tell whether a pack in place of a pack gains nothing."""
    if len(run) > 1 or mended:
        return False
    needed = recordrow.dictionary_of_row(unseal(run[0].key, run[0].sealed))
    return not means.must_replace(needed) and len(made.row) + SEAL_BYTES >= len(run[0].sealed)


def _plain_bytes(view: View, namespace: rows.Namespace, found: FoundRow) -> tuple[int, bool]:
    """Return what a row's records and their writes weigh, and whether any of these stand in rows of their own."""
    loose = 0
    for ulid, record in zip(found.row.ulids, found.row.records, strict=True):
        span = keys.writes_of(view.thread, namespace.number, keys.encode_id(record.id or ulids.to_text(ulid)))
        found_rows = () if record.is_hidden else view.tx.scan(*span)
        loose += sum(len(sealed) - SEAL_BYTES for _, sealed in found_rows)
    records = sum(len(ormsgpack.packb(rec.fields_of(record))) for record in found.row.records)
    packed = sum(len(row) for tasks in found.row.writes.values() for row in tasks.values())
    return records + packed + loose, loose > 0


def _last_row(view: View, namespace: rows.Namespace) -> bytes | None:
    prefix = keys.records(view.thread, namespace.number)
    return next((key for key, _ in view.tx.scan(prefix, keys.end_of(prefix), reverse=True)), None)


def apply_records(tx: WriteTransaction, thread: int, name: bytes, pack: packing.RecordPack, means: Means) -> bool:
    """Put a pack in place of what it holds, where that is still what was seen."""
    if not dictionaries.is_in_use(tx, means.dictionary):
        return False
    header = rows.load_header(tx, thread)
    namespace = rows.load_namespace(tx, thread, name)
    if header is None or namespace is None:
        return False
    if not packing.put_records(tx, thread, namespace, pack):
        return False
    rows.store_namespace(tx, thread, namespace)
    rows.store_header(tx, thread, header)
    return True
