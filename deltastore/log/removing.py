"""Removing checkpoints: one at a time, or as a plan of what outlives them says.

One alone: a child that is a delta becomes an anchor first, where its channels can be folded without running a user's
reducer; else the record stays, hidden. Imports surviving, hiding, packing and reading. The invariant: what stays
readable reads as before.
"""

from collections.abc import Collection

from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.log import hiding, keys, packing, rows, surviving, tagging
from deltastore.log.reading import FoundRow, View
from deltastore.storage.port import WriteTransaction


def hide_or_remove(
    tx: WriteTransaction, view: View, header: rows.Header, namespace: rows.Namespace, ulid: bytes, *, hide: bool
) -> None:
    """Take a record out of sight: hidden if asked for or needed, else removed. Changes header and namespace, unstored.

    The caller sees to the by-id row, to counts, and to the writes of the id.
    """
    header.collected += 1
    loosen(tx, view, namespace, ulid)
    if hide or not _free_child(tx, view, namespace, ulid):
        record = view.record(namespace.number, ulid)
        if record is not None:
            _store(tx, view, namespace, ulid, record._replace(flags=record.flags | rec.HIDDEN))
        return
    before = view.preceding(namespace.number, ulid)
    if namespace.front == rows.NATIVE:
        _relink(tx, view, namespace, ulid)
    tx.delete(keys.record(view.thread, namespace.number, ulid))
    if namespace.tip == ulid:
        namespace.tip = None
    while before is not None and namespace.front == rows.NATIVE and before[1].is_hidden:
        # a hidden record stays for the delta after it; with that gone, nothing needs it
        held, _ = before
        following = view.following(namespace.number, held)
        if following is not None and _is_delta_on(following[1], held):
            break
        before = view.preceding(namespace.number, held)
        loosen(tx, view, namespace, held)
        tx.delete(keys.record(view.thread, namespace.number, held))


def loosen(tx: WriteTransaction, view: View, namespace: rows.Namespace, ulid: bytes) -> None:
    """See to it that a record stands in a row of its own."""
    found = view.row_of(namespace.number, ulid)
    if found is not None:
        packing.explode(tx, view, namespace, found)


def _is_delta_on(record: rec.Record, base: bytes) -> bool:
    return not record.is_anchor and record.parent == base


def _free_child(tx: WriteTransaction, view: View, namespace: rows.Namespace, ulid: bytes) -> bool:
    """Make the delta on a record an anchor; False where that would take a user's reducer."""
    following = view.following(namespace.number, ulid)
    if following is None or not _is_delta_on(following[1], ulid):
        return True
    child, record = following
    anchor = hiding.as_anchor(view, namespace, child, record)
    if anchor is None:
        return False
    loosen(tx, view, namespace, child)
    _store(tx, view, namespace, child, anchor)
    return True


def _relink(tx: WriteTransaction, view: View, namespace: rows.Namespace, ulid: bytes) -> None:
    """Lead the next record, where it is the child of a native one that goes, to the nearest ancestor that stays."""
    following = view.following(namespace.number, ulid)
    if following is None or following[1].parent != ulid or not following[1].is_anchor:
        return
    child, record = following

    def is_staying(ancestor: bytes) -> bool:
        found = None if ancestor == ulid else view.record(namespace.number, ancestor)
        return found is not None and not found.is_hidden

    loosen(tx, view, namespace, child)
    made = hiding.relinked(record, lambda ancestor: view.record(namespace.number, ancestor), is_staying)
    _store(tx, view, namespace, child, made)


def _store(tx: WriteTransaction, view: View, namespace: rows.Namespace, ulid: bytes, record: rec.Record) -> None:
    row = recordrow.encode_row(rec.encode_record(record), (0, 0))
    rows.put(tx, keys.record(view.thread, namespace.number, ulid), row)


def apply(tx: WriteTransaction, view: View, header: rows.Header, plan: surviving.Plan) -> None:
    """Do what a plan says, in the transaction that it was made in. Changes header and namespace, unstored."""
    namespace = plan.namespace
    if not plan.removed and not plan.rewritten and not plan.visible:
        return
    header.collected += 1
    for found in plan.touched:
        _remove_from(tx, view, namespace, found, plan.removed)
    for id_ in plan.visible:
        encoded = keys.encode_id(id_)
        tx.delete(keys.by_id(view.thread, namespace.number, encoded))
        tx.delete_range(*keys.writes_of(view.thread, namespace.number, encoded))
    for run in plan.remnants:
        packed = recordrow.RecordRow(
            True,
            tuple(ulid for ulid, _ in run),
            tuple(remnant.record for _, remnant in run),
            {remnant.record.id: remnant.writes for _, remnant in run if remnant.writes},
        )
        rows.put(tx, keys.record(view.thread, namespace.number, run[-1][0]), recordrow.encode_pack(packed))
    for ulid, record in plan.rewritten.items():
        _store(tx, view, namespace, ulid, record)
    tagging.remove(tx, view.thread, namespace.number, plan.visible)
    header.deleted += len(plan.visible)
    header.checkpoints -= len(plan.visible)
    namespace.count -= len(plan.visible)
    namespace.latest = plan.latest
    if namespace.tip in plan.removed:
        namespace.tip = None


def _remove_from(
    tx: WriteTransaction, view: View, namespace: rows.Namespace, found: FoundRow, removed: Collection[bytes]
) -> None:
    """Take records out of the row that holds them; what stays in a pack gets rows of its own."""
    if all(ulid in removed for ulid in found.row.ulids):
        tx.delete(found.key)
        if namespace.front != rows.NATIVE and found.row.packed and not all(r.is_hidden for r in found.row.records):
            namespace.id_packs -= 1
        return
    packing.explode(tx, view, namespace, found)
    for ulid in found.row.ulids:
        if ulid in removed:
            tx.delete(keys.record(view.thread, namespace.number, ulid))


def drop_namespace(tx: WriteTransaction, thread: int, header: rows.Header, namespace: rows.Namespace) -> None:
    """Remove a namespace with all that it holds. Changes the header, unstored."""
    for prefix in keys.of_namespace(thread, namespace.number):
        tx.delete_range(prefix, keys.end_of(prefix))
    rows.remove_namespace(tx, thread, namespace)
    header.collected += 1
    header.deleted += namespace.count
    header.checkpoints -= namespace.count
