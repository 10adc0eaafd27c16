"""Removing one checkpoint: for good, or hidden where something still needs it.

A child that is a delta becomes an anchor first, where its channels can be folded without running a user's reducer; else
the record stays, hidden. Imports packing and reading. The invariant: what stays readable reads as before.
"""

from dataclasses import replace

from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.log import keys, packing, rows
from deltastore.log import state as st
from deltastore.log.reading import View
from deltastore.reducers import FIRST_INTERNED_REDUCER
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
            _store(tx, view, namespace, ulid, replace(record, flags=record.flags | rec.HIDDEN))
        return
    before = view.preceding(namespace.number, ulid)
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
    folded = {number: view.folded(number, channel) for number, channel in view.state(namespace.number, child).items()}
    if any(channel.writes and channel.reducer >= FIRST_INTERNED_REDUCER for channel in folded.values()):
        return False
    loosen(tx, view, namespace, child)
    anchor = replace(record, flags=record.flags | rec.ANCHOR, depth=0, ops=tuple(st.set_ops(folded)), order=None)
    _store(tx, view, namespace, child, anchor)
    return True


def _store(tx: WriteTransaction, view: View, namespace: rows.Namespace, ulid: bytes, record: rec.Record) -> None:
    row = recordrow.encode_row(rec.encode_record(record), (0, 0))
    rows.put(tx, keys.record(view.thread, namespace.number, ulid), row)
