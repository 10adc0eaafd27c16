"""Checkpoints and pending writes of a thread by the caller's ids: from an id to a ULID, and ids in order.

Imports reading, keys and rows. The invariant: an id that packing moved into a pack's range is found as before, and a
by-id row that leads nowhere raises.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from deltastore import ulid as ulids
from deltastore.codec.primitives import unseal
from deltastore.codec.records import Record
from deltastore.errors import ChecksumError, CorruptionError, InvalidIdError
from deltastore.log import announcing, keys, names, rows
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction, Row


def find_thread(tx: ReadTransaction, name: str) -> tuple[int, rows.Header] | None:
    """Return a thread's number and header, or None where nothing has the name. Raises ChecksumError."""
    thread = names.find(tx, keys.THREAD, keys.encode_name(name))
    if thread is None:
        return None
    header = rows.load_header(tx, thread)
    if header is None:
        raise ChecksumError(f"thread {name!r} has a number but no header: rows are missing; run check")
    return thread, header


def find_namespace(tx: ReadTransaction, thread: str, namespace: str) -> tuple[int, rows.Header, rows.Namespace] | None:
    """Return the number and header of a thread, and a namespace of it, or None where one isn't there."""
    known = find_thread(tx, thread)
    found = None if known is None else rows.load_namespace(tx, known[0], keys.encode_name(namespace))
    return None if known is None or found is None else (*known, found)


def find(view: View, namespace: rows.Namespace, id_: str) -> bytes | None:
    """Return the ULID of the visible checkpoint with an id, or None. Raises ChecksumError."""
    if namespace.front == rows.NATIVE:
        try:
            ulid = ulids.from_text(id_)
        except InvalidIdError:
            return None
        record = view.record(namespace.number, ulid)
        return ulid if record is not None and not record.is_hidden else None
    located = locate(view, namespace, id_)
    if located is None:
        return None
    key, entry = located
    if entry.smallest is None:
        return entry.ulid
    if view.tx.remote:
        known = announcing.Known(view.thread, namespace.number)
        announcing.records(view.tx, known, (entry.ulid,), announcing.EARLIER_ROWS)
    found = view.row_of(namespace.number, entry.ulid)
    if found is None:
        raise view.broken(entry.ulid, f"row {key.hex()} names a record pack that is missing")
    place = found.row.visible(id_)
    return None if place is None else found.row.ulids[place]


def locate(view: View, namespace: rows.Namespace, id_: str) -> tuple[bytes, rows.IdEntry] | None:
    """Return the by-id row of an id: its own, or that of the one pack whose range may hold it."""
    if namespace.is_above(id_):
        return None  # as nearly all are that are put
    prefix = keys.ids(view.thread, namespace.number)
    own = prefix + keys.encode_id(id_)
    if not namespace.id_packs:
        row = rows.get(view.tx, own)
        return None if row is None else (own, rows.decode_id_entry(own, row))
    for key, sealed in view.tx.scan(own, keys.end_of(prefix)):
        entry = rows.decode_id_entry(key, unseal(key, sealed))
        if key == own and entry.smallest is None:
            return key, entry
        if entry.smallest is not None:  # ranges of packs don't overlap, so the first one decides
            return (key, entry) if entry.smallest.encode() <= own[len(prefix) :] else None
    return None


def ids_down(view: View, namespace: rows.Namespace, before: str | None) -> Iterator[tuple[str, bytes, Record]]:
    """Iterate over the visible checkpoints of a namespace, the greatest id first, below `before`."""
    if namespace.front == rows.NATIVE:
        yield from _ulids_down(view, namespace, before)
        return
    prefix = keys.ids(view.thread, namespace.number)
    start = keys.end_of(prefix)
    waiting: list[tuple[bytes, bytes, Record]] = []  # of a pack, ascending
    limit = None if before is None else before.encode("utf-8", "surrogatepass")
    if limit is not None:
        start = prefix + limit
    if limit is not None and namespace.id_packs:  # the pack that may hold `before` stands at or after it
        located = next((key for key, row in view.tx.scan(start, keys.end_of(prefix)) if _is_pack(key, row)), None)
        if located is not None:
            waiting = _members(view, namespace.number, located)
    for key, sealed in _looking_ahead(view, namespace.number, view.tx.scan(prefix, start, reverse=True)):
        id_ = key[len(prefix) :]
        while waiting and waiting[-1][0] > id_:
            member = waiting.pop()
            if limit is None or member[0] < limit:
                yield member[0].decode(), member[1], member[2]
        entry = rows.decode_id_entry(key, unseal(key, sealed))
        if entry.smallest is not None:
            waiting = _members(view, namespace.number, key)
        else:
            record = view.record(namespace.number, entry.ulid)
            if record is None:
                raise view.broken(entry.ulid, f"row {key.hex()} names a record that is missing")
            yield id_.decode(), entry.ulid, record
    while waiting:
        member = waiting.pop()
        if limit is None or member[0] < limit:
            yield member[0].decode(), member[1], member[2]


def _looking_ahead(view: View, namespace: int, found: Iterator[Row]) -> Iterator[Row]:
    """Iterate over by-id rows; where a look costs a trip, their records come together."""
    if not view.tx.remote:
        yield from found
        return
    known = announcing.Known(view.thread, namespace)
    while page := list(islice(found, announcing.LOOK_AHEAD)):
        with contextlib.suppress(CorruptionError):  # whoever reaches it says so
            entries = [rows.decode_id_entry(key, unseal(key, sealed)) for key, sealed in page]
            announcing.records(view.tx, known, [entry.ulid for entry in entries])
        yield from page


def _is_pack(key: bytes, sealed: bytes) -> bool:
    return rows.decode_id_entry(key, unseal(key, sealed)).smallest is not None


def _members(view: View, namespace: int, key: bytes) -> list[tuple[bytes, bytes, Record]]:
    """Return the visible records of the pack that a by-id row names, in the order of their ids."""
    entry = rows.decode_id_entry(key, unseal(key, view.tx.get(key) or b""))
    found = view.row_of(namespace, entry.ulid)
    if found is None:
        raise view.broken(entry.ulid, f"row {key.hex()} names a record pack that is missing")
    return sorted(
        (
            (record.id.encode(), ulid, record)
            for ulid, record in zip(found.row.ulids, found.row.records, strict=True)
            if not record.is_hidden
        ),
        key=lambda member: member[0],
    )


def _ulids_down(view: View, namespace: rows.Namespace, before: str | None) -> Iterator[tuple[str, bytes, Record]]:
    limit = None if before is None else ulids.from_text(before)
    for found in view.record_rows(namespace.number, limit, reverse=True):
        end = len(found.row.ulids) if limit is None else bisect_left(found.row.ulids, limit)
        for place in range(end - 1, -1, -1):  # records of a pack are parsed when they are looked at
            ulid, record = found.row.ulids[place], found.row.records[place]
            if not record.is_hidden:
                yield record.id or ulids.to_text(ulid), ulid, record


def tasks(view: View, namespace: rows.Namespace, id_: str) -> rows.Tasks:
    """Return the pending writes of a checkpoint id: task → idx → write."""
    loose = loose_tasks(view, namespace, id_)
    packed: rows.Tasks = {}
    for key, row in packed_tasks(view, namespace, id_).items():
        packed |= rows.decode_tasks(key, row)
    return rows.merge_tasks(packed, loose) if packed else loose


def task(view: View, namespace: rows.Namespace, id_: str, name: str) -> rows.Tasks:
    """Return the pending writes of one task of a checkpoint id, as `tasks` does; other tasks' rows aren't looked at."""
    hashed = keys.task_hash(keys.encode_name(name))
    key = keys.writes(view.thread, namespace.number, keys.encode_id(id_)) + hashed
    loose, packed = rows.get(view.tx, key), packed_tasks(view, namespace, id_).get(hashed)
    found = [rows.decode_tasks(key, row).get(name, {}) for row in (packed, loose) if row is not None]
    return {name: {idx: write for writes in found for idx, write in writes.items()}} if any(found) else {}


def loose_tasks(view: View, namespace: rows.Namespace, id_: str) -> rows.Tasks:
    """Return the pending writes of a checkpoint id that stand in rows of their own."""
    loose: rows.Tasks = {}
    for key, sealed in view.tx.scan(*keys.writes_of(view.thread, namespace.number, keys.encode_id(id_))):
        loose |= rows.decode_tasks(key, unseal(key, sealed))
    return loose


def packed_tasks(view: View, namespace: rows.Namespace, id_: str) -> dict[bytes, bytes]:
    """Return the write rows that a record pack holds for a checkpoint id: task hash → row."""
    if namespace.front == rows.NATIVE:
        ulid = find(view, namespace, id_)
        holder = None if ulid is None else view.row_of(namespace.number, ulid)
    else:
        located = locate(view, namespace, id_)
        packed = located is not None and located[1].smallest is not None
        holder = view.row_of(namespace.number, located[1].ulid) if located and packed else None
    return holder.row.writes.get(id_, {}) if holder else {}


def check_latest(namespace: rows.Namespace) -> None:
    """Raise ChecksumError where a namespace counts checkpoints but names no latest."""
    if namespace.count and namespace.latest is None:
        raise ChecksumError(f"a namespace counts {namespace.count} checkpoints but names no latest; run check")
