"""What outlives a deletion in a native namespace: which records go, which stay hidden, and which of the others change.

The counterpart of `surviving`, which is LangGraph's: no history is asked for here, but the delta after a record may
need it, where only a user's reducer could fold what they share. Reads only. Imports reading and surviving. The
invariant: each checkpoint that stays reads as before, and its way to the nearest ancestor that stays is known.
"""

from collections.abc import Callable

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.log import rows
from deltastore.log import state as st
from deltastore.log.reading import View
from deltastore.log.surviving import Plan
from deltastore.reducers import FIRST_INTERNED_REDUCER


def plan(view: View, namespace: rows.Namespace, is_doomed: Callable[[str, bytes], bool]) -> Plan:
    """Decide what a native namespace keeps when visible checkpoints go: `is_doomed` is given their id and ULID.

    Takes one pass over its records, from the last to the first. Raises BrokenChainError.
    """
    found = list(view.record_rows(namespace.number))
    records = {ulid: record for row in found for ulid, record in zip(row.row.ulids, row.row.records, strict=True)}
    visible = {ulid: ulids.to_text(ulid) for ulid, record in records.items() if not record.is_hidden}
    staying = {ulid for ulid, id_ in visible.items() if not is_doomed(id_, ulid)}
    needed: set[bytes] = set()
    rewritten: dict[bytes, rec.Record] = {}
    for ulid in reversed(records):
        record = records[ulid]
        if ulid not in staying and ulid not in needed:
            continue
        made = record
        base = None if record.is_anchor else record.parent
        if base is not None and base not in staying:
            anchor = as_anchor(view, namespace, ulid, record)
            if anchor is None:
                needed.add(base)
            else:
                made = anchor
        if made.is_anchor:
            made = relinked(made, records.get, staying.__contains__)
        if ulid not in staying:
            made = made._replace(flags=made.flags | rec.HIDDEN)
        if made != record:
            rewritten[ulid] = made
    removed = frozenset(records.keys() - staying - needed)
    return Plan(
        namespace,
        tuple(row for row in found if any(ulid in removed or ulid in rewritten for ulid in row.row.ulids)),
        removed,
        (),
        rewritten,
        frozenset(id_ for ulid, id_ in visible.items() if ulid not in staying),
        max((visible[ulid] for ulid in staying), default=None),
        {},
    )


def as_anchor(view: View, namespace: rows.Namespace, ulid: bytes, record: rec.Record) -> rec.Record | None:
    """Return a delta as an anchor; None where that would take a user's reducer. Raises BrokenChainError."""
    folded = {number: view.folded(number, channel) for number, channel in view.state(namespace.number, ulid).items()}
    if any(channel.writes and channel.reducer >= FIRST_INTERNED_REDUCER for channel in folded.values()):
        return None
    return record._replace(flags=record.flags | rec.ANCHOR, depth=0, ops=tuple(st.set_ops(folded)), order=None)


def relinked(
    record: rec.Record, lookup: Callable[[bytes], rec.Record | None], is_staying: Callable[[bytes], bool]
) -> rec.Record:
    """Return a native anchor that leads to its nearest ancestor that stays; the parent it was put after stays named.

    So whoever looks for the ends of branches isn't misled by what was deleted in between.
    """
    parent = record.parent
    while parent is not None and not is_staying(parent):
        above = lookup(parent)
        parent = None if above is None else above.parent
    if parent == record.parent:
        return record
    named = record.parent_id or ulids.to_text(record.parent or b"")
    return record._replace(parent=parent, parent_id=named)
