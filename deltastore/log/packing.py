"""Packs: many chunk rows, or many records with their ids and writes, as one compressed row.

`plan` reads and compresses outside any write transaction; `apply` leaves out what changed meanwhile; `explode` turns a
record pack into rows again before one of its records is changed. Imports reading and rows. The invariant: packing
changes no checkpoint's meaning.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from deltastore import ulid as ulids
from deltastore.codec import chunkrow, recordrow
from deltastore.codec import records as rec
from deltastore.codec.dictionary import Dictionary
from deltastore.codec.primitives import PACK_LEVEL, unseal
from deltastore.errors import CorruptionError, InvalidInputError
from deltastore.log import announcing, keys, policy, rows
from deltastore.log.reading import FoundRow, View
from deltastore.storage.port import ReadTransaction, Row, Wanted, WriteTransaction


class ChunkPack(NamedTuple):
    """Rows to be replaced, as they were seen, and the row that replaces them (None: one large row, which stays)."""

    series: int
    after: int
    """Up to where the series was packed when they were seen."""
    replaced: tuple[Row, ...]
    last: int
    row: bytes | None
    plain_bytes: int


class RecordPack(NamedTuple):
    """Record, by-id and write rows to be replaced, as they were seen, and the two rows that replace them."""

    namespace: bytes
    replaced: tuple[Row, ...]
    last: bytes
    row: bytes
    id_key: bytes | None
    id_row: bytes
    loose: int
    """How many records of their own go into it."""
    id_packs: int
    """How many more record packs are listed by id, less those that go into it."""


class Skip(NamedTuple):
    """Records that can't be packed where they stand: don't look at them again.

    `last` None: there were none, only a count. The count is an upper bound, for deletions don't lower it; left as it
    is, every put would look in vain.
    """

    namespace: bytes
    last: bytes | None


class Plan(NamedTuple):
    """What a put packs on its way, and the thread's header when that was seen."""

    chunks: tuple[ChunkPack, ...]
    records: RecordPack | Skip | None
    header: bytes = b""

    @property
    def replaced(self) -> list[Row]:
        """The rows to be replaced, as they were seen."""
        records = self.records.replaced if isinstance(self.records, RecordPack) else ()
        return [*(row for pack in self.chunks for row in pack.replaced), *records]


NOTHING = Plan((), None)


def plan(view: View, header: rows.Header, namespace: rows.Namespace, dictionary: Dictionary | None) -> Plan:
    """Decide what to pack, and make the packs. Packing is never a put's business: what can't be packed now stays."""
    try:
        return _plan(view, header, namespace, dictionary)
    except (CorruptionError, InvalidInputError):  # reading what is damaged reports it, and so does check
        return NOTHING


def _plan(view: View, header: rows.Header, namespace: rows.Namespace, dictionary: Dictionary | None) -> Plan:
    if view.tx.remote:
        announce(view.tx, view.thread, header, namespace)
    chunks = [
        made
        for series in _due(header)
        if (made := _plan_chunks(view, series, header.packed_up_to[series], dictionary)) is not None
    ]
    records = _plan_records(view, namespace, dictionary) if policy.should_pack_records(namespace.loose_before) else None
    return Plan(tuple(chunks), records, header.encode())


def announce(tx: ReadTransaction, thread: int, header: rows.Header, namespace: rows.Namespace) -> None:
    """Announce what `plan` looks at."""
    series = [(each, header.packed_up_to[each]) for each in _due(header)]
    known = announcing.Known(thread, namespace.number)
    if policy.should_pack_records(namespace.loose_before):
        loose = namespace.loose_before + namespace.loose_since
        announcing.loose(tx, known, series, namespace.packed_up_to or b"", loose)
    elif series:
        announcing.loose(tx, known, series)


def is_due(header: rows.Header, namespace: rows.Namespace) -> bool:
    """Tell whether a put packs anything."""
    return policy.should_pack_records(namespace.loose_before) or bool(_due(header))


def _due(header: rows.Header) -> list[int]:
    """Return the series of chunks of which a put packs some."""
    loose = zip(header.loose_rows, header.loose_bytes, strict=True)
    return [series for series, each in enumerate(loose) if policy.should_pack_chunks(*each)]


def _plan_chunks(view: View, series: int, packed_up_to: int, dictionary: Dictionary | None) -> ChunkPack | None:
    seen: list[Row] = []
    parts: list[chunkrow.ChunkRow] = []
    size = 0
    prefix = keys.chunks(view.thread, series)
    for key, sealed in view.tx.scan(keys.chunk(view.thread, series, packed_up_to) + b"\0", keys.end_of(prefix)):
        row = view.open_chunks(key, sealed)
        if parts and size + row.plain_bytes > policy.MAX_PACK_BYTES:
            break
        seen.append((key, sealed))
        parts.append(row)
        size += row.plain_bytes
    if not parts:
        return None
    if len(parts) == 1:
        return ChunkPack(series, packed_up_to, tuple(seen), parts[0].numbers[-1], None, size)
    joined = chunkrow.join_rows(parts)
    packed = chunkrow.encode_row(joined, chunkrow.encode_body(joined, PACK_LEVEL, dictionary))
    return ChunkPack(series, packed_up_to, tuple(seen), joined.numbers[-1], packed, size)


def _plan_records(view: View, namespace: rows.Namespace, dictionary: Dictionary | None) -> RecordPack | Skip:
    run = _packable(view, namespace)
    if not run:
        return Skip(namespace.name, None)
    made = pack_records(view, namespace, run, dictionary) if len(run) >= 2 else None
    return made or Skip(namespace.name, run[-1].row.ulids[0])


def pack_records(
    view: View,
    namespace: rows.Namespace,
    run: Sequence[FoundRow],
    dictionary: Dictionary | None,
    level: int = PACK_LEVEL,
) -> RecordPack | None:
    """Make one pack of consecutive rows, records of their own or packs, with their ids and writes.

    None where another id stands between theirs: a pack owns its range of ids. `level` is zstd's.
    Raises CorruptionError.
    """
    members = [pair for found in run for pair in zip(found.row.ulids, found.row.records, strict=True)]
    replaced = [(found.key, found.sealed) for found in run]
    visible = {record.id or ulids.to_text(ulid) for ulid, record in members if not record.is_hidden}
    last = members[-1][0]
    id_key, id_row, id_packs = None, b"", 0
    if view.tx.remote and visible:
        announcing.between_ids(view.tx, announcing.Known(view.thread, namespace.number), sorted(visible))
    if namespace.front != rows.NATIVE and visible:
        id_rows = _id_rows(view, namespace, run, visible)
        if id_rows is None:
            return None
        replaced += id_rows
        id_key = keys.by_id(view.thread, namespace.number, keys.encode_id(max(visible)))
        id_row = rows.IdEntry(last, min(visible), len(visible)).encode()
        id_packs = 1 - sum(found.row.packed and bool(_visible_ids(found)) for found in run)
    writes = {id_: dict(tasks) for found in run for id_, tasks in found.row.writes.items()}
    for id_ in visible:
        for key, sealed in view.tx.scan(*keys.writes_of(view.thread, namespace.number, keys.encode_id(id_))):
            replaced.append((key, sealed))
            row, packed = unseal(key, sealed), writes.setdefault(id_, {})
            hashed = key[-keys.HASH_BYTES :]
            if hashed in packed:
                row = rows.encode_tasks(
                    rows.merge_tasks(rows.decode_tasks(key, packed[hashed]), rows.decode_tasks(key, row))
                )
            packed[hashed] = row
    joined = recordrow.RecordRow(
        True, tuple(ulid for ulid, _ in members), tuple(record for _, record in members), writes
    )
    loose = sum(not found.row.packed for found in run)
    row = recordrow.encode_pack(joined, level, dictionary)
    return RecordPack(namespace.name, tuple(replaced), last, row, id_key, id_row, loose, id_packs)


def _visible_ids(found: FoundRow) -> list[str]:
    return [record.id for record in found.row.records if not record.is_hidden]


def _packable(view: View, namespace: rows.Namespace) -> list[FoundRow]:
    """Return the next records of their own, standing together before the last anchor, oldest first."""
    loose: list[FoundRow] = []
    anchor = 0  # how many of them stand before the last anchor seen
    for found in view.record_rows(namespace.number, namespace.packed_up_to):
        if found.row.packed:
            if anchor >= 2:
                break
            loose, anchor = [], 0
            continue
        if found.row.records[0].is_anchor:
            anchor = len(loose)
        loose.append(found)
        if len(loose) > policy.MAX_PACK_RECORDS and anchor:
            break
    size, count = 0, 0
    for found in loose[: min(anchor, policy.MAX_PACK_RECORDS)]:
        size += len(found.sealed)
        if count and size > policy.MAX_PACK_BYTES:
            break
        count += 1
    return loose[:count]


def _id_rows(
    view: View, namespace: rows.Namespace, run: Iterable[FoundRow], visible: Collection[str]
) -> list[Row] | None:
    """Return the by-id rows of these records, or None where another id or pack stands between them."""
    prefix = keys.ids(view.thread, namespace.number)
    lower, upper = prefix + min(visible).encode(), prefix + max(visible).encode() + b"\0"
    found = list(view.tx.scan(lower, upper))
    expected = {max(ids).encode() for row in run if (ids := _visible_ids(row))}
    if {key[len(prefix) :] for key, _ in found} != expected:
        return None
    for key, sealed in view.tx.scan(upper, keys.end_of(prefix)):
        entry = rows.decode_id_entry(key, unseal(key, sealed))
        if entry.smallest is not None:
            return None if entry.smallest <= max(visible) else found
    return found


def is_as_seen(header: rows.Header, made: Plan) -> bool:
    """Tell whether nothing of the thread has changed: each change of any row counts in the header."""
    return made != NOTHING and header.encode() == made.header


def apply(
    tx: WriteTransaction,
    thread: int,
    header: rows.Header,
    namespace: rows.Namespace,
    made: Plan,
    *,
    as_seen: bool = False,
) -> None:
    """Put packs in place of what they hold, as far as that is still what was seen; `as_seen`: all of it is.

    Changes header and namespace, unstored.
    """
    for pack in made.chunks:
        if not as_seen and (header.packed_up_to[pack.series] != pack.after or not _unchanged(tx, pack.replaced)):
            continue
        if pack.row is not None:
            for key, _ in pack.replaced:
                tx.delete(key)
            rows.put(tx, keys.chunk(thread, pack.series, pack.last), pack.row)
        header.loose_rows[pack.series] = max(0, header.loose_rows[pack.series] - len(pack.replaced))
        header.loose_bytes[pack.series] = max(0, header.loose_bytes[pack.series] - pack.plain_bytes)
        header.packed_up_to[pack.series] = pack.last
    records = made.records
    if records is None or records.namespace != namespace.name:
        return
    if isinstance(records, Skip):
        namespace.packed_up_to = records.last or namespace.packed_up_to
        namespace.loose_before = 0
    else:
        put_records(tx, thread, namespace, records, as_seen=as_seen)


def wanted_by(thread: int, namespace: rows.Namespace, made: Plan) -> Wanted:
    """Return what `apply` looks at: what it replaces, to be compared with what was seen, and the ids among these."""
    runs: list[tuple[bytes, bytes, bytes]] = []
    if isinstance(made.records, RecordPack) and made.records.id_key is not None:
        prefix = keys.ids(thread, namespace.number)
        first = rows.decode_id_entry(made.records.id_key, made.records.id_row).smallest or ""
        runs.append((prefix + keys.encode_id(first), made.records.id_key + b"\0", keys.end_of(prefix)))
    return Wanted(keys=[key for key, _ in made.replaced], runs=runs)


def put_records(
    tx: WriteTransaction, thread: int, namespace: rows.Namespace, made: RecordPack, *, as_seen: bool = False
) -> bool:
    """Put a record pack in place of what it holds, if that is still what was seen; tell whether it was.

    `as_seen`: it is, nothing of the thread having changed. Changes the namespace, unstored.
    """
    if not as_seen and not (_unchanged(tx, made.replaced) and _ids_alone(tx, thread, namespace, made)):
        return False
    for key, _ in made.replaced:
        tx.delete(key)
    rows.put(tx, keys.record(thread, namespace.number, made.last), made.row)
    if made.id_key is not None:
        rows.put(tx, made.id_key, made.id_row)
    namespace.id_packs += made.id_packs
    namespace.packed_up_to = max(namespace.packed_up_to or made.last, made.last)
    before = min(made.loose, namespace.loose_before)
    namespace.loose_before -= before
    namespace.loose_since = max(0, namespace.loose_since - (made.loose - before))
    return True


def _ids_alone(tx: WriteTransaction, thread: int, namespace: rows.Namespace, made: RecordPack) -> bool:
    """Tell whether still no pack's range touches this one's: others may have packed since it was planned."""
    if made.id_key is None:
        return True
    prefix = keys.ids(thread, namespace.number)
    entry = rows.decode_id_entry(made.id_key, made.id_row)
    own = {key for key, _ in made.replaced}
    for key, sealed in tx.scan(prefix + keys.encode_id(entry.smallest or ""), keys.end_of(prefix)):
        found = rows.decode_id_entry(key, unseal(key, sealed))
        if found.smallest is not None and key not in own:
            return key > made.id_key and found.smallest.encode() > made.id_key[len(prefix) :]
    return True


def _unchanged(tx: WriteTransaction, seen: Iterable[Row]) -> bool:
    seen = tuple(seen)
    return tx.get_many([key for key, _ in seen]) == [sealed for _, sealed in seen]


def explode(tx: WriteTransaction, view: View, namespace: rows.Namespace, found: FoundRow) -> None:
    """Turn a record pack into rows of their own, so that one of them can be changed.

    Changes the namespace, unstored.
    """
    row = found.row
    if not row.packed:
        return
    tx.delete(found.key)
    visible = [record.id for record in row.records if not record.is_hidden]
    if namespace.front != rows.NATIVE and visible:
        tx.delete(keys.by_id(view.thread, namespace.number, keys.encode_id(max(visible))))
        namespace.id_packs -= 1
    for ulid, record in zip(row.ulids, row.records, strict=True):
        rows.put(
            tx,
            keys.record(view.thread, namespace.number, ulid),
            recordrow.encode_row(rec.encode_record(record), (0, 0)),
        )
        if namespace.front != rows.NATIVE and not record.is_hidden:
            rows.put(
                tx, keys.by_id(view.thread, namespace.number, keys.encode_id(record.id)), rows.IdEntry(ulid).encode()
            )
    for id_, tasks in row.writes.items():
        prefix = keys.writes(view.thread, namespace.number, keys.encode_id(id_))
        for task, packed in tasks.items():
            key = prefix + task
            loose = rows.get(tx, key)
            if loose is not None:
                merged = rows.merge_tasks(rows.decode_tasks(key, packed), rows.decode_tasks(key, loose))
                rows.put(tx, key, rows.encode_tasks(merged))
            else:
                rows.put(tx, key, packed)
    namespace.loose_before += len(row.ulids)
    first = row.ulids[0]
    if namespace.packed_up_to is None or namespace.packed_up_to >= first:
        namespace.packed_up_to = (int.from_bytes(first, "big") - 1).to_bytes(ulids.ULID_BYTES, "big")
