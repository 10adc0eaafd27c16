"""Repacking: consecutive rows of a thread as one, without chunks that nothing needs.

`plan_*` read and compress outside any write transaction and look at one row's worth each; `apply_*` put that in place
where it is still what was seen. Imports marking, and log and below. The invariant: no checkpoint's meaning changes, and
no user object is decoded.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec.primitives import SEAL_BYTES, unseal
from deltastore.log import keys, packing, rows
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
    erase: bool,
    level: int,
) -> ChunkChange | None:
    """Plan the next pack of a series, behind the one `before` and below the number `until`; None at the end.

    `needed` None: nothing is known to be dead. `erase`: no dead chunk may stay. `level` is zstd's.
    Raises CorruptionError.
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
    tolerable = not freed if erase else dead_bytes <= joined.plain_bytes * MAX_DEAD_SHARE
    if len(parts) == 1 and tolerable:
        return change
    # no part may be so small that the next compaction would take it into the pack before
    least = MAX_PACK_BYTES + 1 - before.plain_bytes if before else 0
    made = tuple((part.numbers[-1], row) for part, row in _encoded(kept, level, least))
    if sum(len(row) + SEAL_BYTES for _, row in made) >= sum(len(sealed) for _, sealed in seen) and not freed:
        return change  # it was as small as it gets
    return replace(change, made=made, freed=freed)


def _chunk_rows(view: View, series: int, after: int) -> Iterator[tuple[Row, chunkrow.ChunkRow]]:
    prefix = keys.chunks(view.thread, series)
    for key, sealed in view.tx.scan(keys.chunk(view.thread, series, after) + b"\0", keys.end_of(prefix)):
        number = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
        yield (key, sealed), chunkrow.decode_row(unseal(key, sealed), number)


def _encoded(row: chunkrow.ChunkRow, level: int, least: int) -> list[tuple[chunkrow.ChunkRow, bytes]]:
    """Return a row as stored, or smaller ones, the first of at least `least` plain bytes, where that saves pages."""
    if not row.numbers:
        return []
    whole = chunkrow.encode_row(row, chunkrow.encode_body(row, level))
    if not LEAF_BYTES < len(whole) <= 2 * PAGE_BYTES or len(row.numbers) < 2:
        return [(row, whole)]
    split = [
        (part, chunkrow.encode_row(part, chunkrow.encode_body(part, level)))
        for part in _split(row, -(-len(whole) // (LEAF_BYTES * 9 // 10)))
    ]
    if split[0][0].plain_bytes < least:
        return [(row, whole)]
    if sum(_page_bytes(len(stored)) for _, stored in split) < _page_bytes(len(whole)):
        return split
    return [(row, whole)]


def _page_bytes(size: int) -> int:
    return size if size <= LEAF_BYTES else -(-size // PAGE_BYTES) * PAGE_BYTES


def _split(row: chunkrow.ChunkRow, count: int) -> list[chunkrow.ChunkRow]:
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


def apply_chunks(tx: WriteTransaction, thread: int, change: ChunkChange, changes: int | None) -> int | None:
    """Put new rows in place, and return the header's count of changes; None where they aren't what was seen.

    `changes`: what the count was when needed chunks were looked for. It must be that still if chunks go, for what was
    put since may name them again; where none go and it isn't, 0 says that they must be looked for anew.
    """
    header = rows.load_header(tx, thread)
    if header is None or tx.get_many([key for key, _ in change.seen]) != [sealed for _, sealed in change.seen]:
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


@dataclass(frozen=True, slots=True)
class WholeChange:
    """A row as it was seen, and those that take its place, with nothing in them that stands on what nobody names."""

    series: int
    seen: Row
    last: int
    made: tuple[tuple[int, bytes], ...]
    more_bytes: int


def plan_whole(view: View, series: int, below: int, named: Collection[int], level: int) -> WholeChange | None:
    """Plan how the next row below a number gets free of bases that nothing names; None where no row needs it.

    From the last row to the first: what stands on such a base is whole before the base is. Raises CorruptionError.
    """
    prefix = keys.chunks(view.thread, series)
    for key, sealed in view.tx.scan(prefix, keys.chunk(view.thread, series, below), reverse=True):
        last = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
        head = chunkrow.decode_head(unseal(key, sealed), last)
        standing = {number for number, based in head.based.items() if not set(based.bases) <= set(named)}
        if not standing & set(named):
            continue
        row = chunkrow.decode_row(unseal(key, sealed), last)
        whole = row.whole | {number: view.blob(series, number) for number in standing}
        based = {number: found for number, found in row.based.items() if number not in standing}
        freed = replace(row, whole=whole, based=based)
        parts = _split(freed, -(-freed.plain_bytes // MAX_PACK_BYTES) or 1)
        made = [(part.numbers[-1], chunkrow.encode_row(part, chunkrow.encode_body(part, level))) for part in parts]
        return WholeChange(series, (key, sealed), last, tuple(made), freed.plain_bytes - row.plain_bytes)
    return None


def apply_whole(tx: WriteTransaction, thread: int, change: WholeChange) -> bool:
    """Put new rows in place of one, where that is still what was seen; tell whether it was."""
    header = rows.load_header(tx, thread)
    key, sealed = change.seen
    if header is None or tx.get(key) != sealed:
        return False
    tx.delete(key)
    for last, row in change.made:
        rows.put(tx, keys.chunk(thread, change.series, last), row)
        if last > header.packed_up_to[change.series]:
            header.loose_rows[change.series] += 1
    if change.last > header.packed_up_to[change.series]:
        header.loose_rows[change.series] -= 1
        header.loose_bytes[change.series] += change.more_bytes
    header.collected += 1  # heads in memory know these chunks' bases
    rows.store_header(tx, thread, header)
    return True


# --- records


def plan_records(
    view: View, namespace: rows.Namespace, after: bytes | None, until: bytes
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
    if len(run) < 2 and not mended:
        return None, last
    return packing.pack_records(view, namespace, run), last


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


def apply_records(tx: WriteTransaction, thread: int, name: bytes, pack: packing.RecordPack) -> bool:
    """Put a pack in place of what it holds, where that is still what was seen."""
    header = rows.load_header(tx, thread)
    namespace = rows.load_namespace(tx, thread, name)
    if header is None or namespace is None:
        return False
    if not packing.put_records(tx, thread, namespace, pack):
        return False
    rows.store_namespace(tx, thread, namespace)
    rows.store_header(tx, thread, header)
    return True
