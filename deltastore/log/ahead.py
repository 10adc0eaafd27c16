"""What reads of the log look at first where a look costs a trip: all that they will need, in as few as it takes.

Called only where a transaction is `remote`. Imports announcing, finding, heads, reading and registry. The invariant:
nothing is decided here; what is missing or damaged is found when it is asked for.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.codec.spans import Span
from deltastore.errors import CorruptionError
from deltastore.log import announcing, finding, keys, rows
from deltastore.log.announcing import Known, Look
from deltastore.log.heads import HeadCache
from deltastore.log.reading import View, require
from deltastore.log.registry import Registry
from deltastore.storage.port import ReadTransaction, Wanted


def look(tx: ReadTransaction, heads: HeadCache, thread: str, namespace: str, wanted: Look) -> None:
    """Announce a look into a namespace; where its numbers are remembered, nothing is asked for before."""
    standing = heads.standing(thread, namespace)
    known = None
    if standing is not None and standing.thread is not None and standing.namespace is not None:
        known = Known(standing.thread, standing.namespace.number)
    announcing.thread(tx, thread, namespace, known, wanted)


def read(
    tx: ReadTransaction, heads: HeadCache, thread: str, namespace: str, id_: str | None, *, with_writes: bool
) -> None:
    """Announce what reading a checkpoint looks at, but for its chunks."""
    standing = heads.standing(thread, namespace)
    found = standing.namespace if standing is not None else None
    is_last = id_ is None or (found is not None and found.latest == id_)
    head = None
    if standing is not None and standing.thread is not None and found is not None:
        head = heads.head(standing.thread, found.number, standing.collected, found.tip)
    before = 0 if not is_last else announcing.CHAIN_ROWS if head is None else 1
    look(
        tx,
        heads,
        thread,
        namespace,
        Look(before, 2, announcing.WRITE_ROWS if with_writes else 0, () if id_ is None else (id_,)),
    )


def page(
    tx: ReadTransaction,
    heads: HeadCache,
    thread: str,
    namespace: str,
    before: str | None,
    limit: int,
    *,
    with_writes: bool = False,
) -> None:
    """Announce what a page of checkpoints looks at, but for chunks."""
    count = max(limit + 1, announcing.LOOK_AHEAD)
    writes = announcing.WRITE_ROWS * limit if with_writes and before is None else 0
    records = count + announcing.CHAIN_ROWS if with_writes else count  # those that the last of the page stands on
    look(tx, heads, thread, namespace, Look(records, count, writes, before=before))


def walk(
    tx: ReadTransaction, heads: HeadCache, thread: str, namespace: str, id_: str | None, channels: Sequence[str]
) -> None:
    """Announce where a walk begins."""
    tx.prefetch(Wanted(keys=[keys.of_name(keys.CHANNEL, keys.encode_name(name)) for name in channels]))
    read(tx, heads, thread, namespace, id_, with_writes=True)


def read_many(
    tx: ReadTransaction,
    heads: HeadCache,
    registry: Registry,
    view_of: Callable[[ReadTransaction, int, str], View],
    thread: str,
    ids: Sequence[tuple[str, str]],
) -> None:
    """Look at all that reading these checkpoints needs."""
    by_namespace: dict[str, list[str]] = {}
    for namespace, id_ in ids:
        by_namespace.setdefault(namespace, []).append(id_)
    for namespace, some in by_namespace.items():
        look(tx, heads, thread, namespace, Look(announcing.CHAIN_ROWS, writes=1, named=some))
    view: View | None = None
    targets: list[tuple[rows.Namespace, bytes]] = []
    collected = 0
    for namespace, some in by_namespace.items():
        located = finding.find_namespace(tx, thread, namespace)
        if located is None:
            continue
        number, header, found = located
        collected, view = header.collected, view or view_of(tx, number, thread)
        with contextlib.suppress(CorruptionError):
            targets += [(found, ulid) for ulid in (finding.find(view, found, id_) for id_ in some) if ulid is not None]
    if view is not None:
        bring(view, collected, targets, heads, registry, wanted=None, with_writes=True)


def bring(
    view: View,
    collected: int,
    targets: Sequence[tuple[rows.Namespace, bytes]],
    heads: HeadCache,
    registry: Registry,
    *,
    wanted: Collection[str] | None,
    with_writes: bool,
) -> None:
    """Where a look costs a trip: read what `load` will look at in checkpoints, all of them together.

    What is missing or damaged is found when it is loaded.
    """
    with contextlib.suppress(CorruptionError):
        found = {ulid: heads.head(view.thread, namespace.number, collected, ulid) for namespace, ulid in targets}
        for namespace, ulid in targets:
            before = announcing.CHAIN_ROWS if ulid == namespace.tip else announcing.EARLIER_ROWS
            before = 0 if found[ulid] is not None else before
            announcing.records(view.tx, announcing.Known(view.thread, namespace.number), (ulid,), before)
        spans: dict[tuple[int, Span], None] = {}
        numbers: set[int] = set()
        if with_writes:
            for namespace, ulid in targets:
                record = require(view, namespace, ulid)
                known = Known(view.thread, namespace.number)
                announcing.writes(view.tx, known, (record.id or ulids.to_text(ulid),))
        for namespace, ulid in targets:
            record, head = require(view, namespace, ulid), found[ulid]
            state = head.state if head is not None else view.state(namespace.number, ulid)
            numbers.update(number for number in state if number >= rec.FIRST_CHANNEL)
            if wanted is not None:  # by name: so the names come first
                announcing.names_of(view.tx, keys.CHANNEL, registry.names.unknown(keys.CHANNEL, sorted(numbers)))
            values = [
                (rec.series_of(number), value.spans)
                for number, channel in state.items()
                if head is None or number not in head.blobs or channel.writes
                for value in (*((channel.value,) if channel.value else ()), *channel.writes)
                if wanted is None or number < rec.FIRST_CHANNEL or registry.is_wanted(view.tx, number, wanted)
            ]
            if with_writes:
                tasks = finding.tasks(view, namespace, record.id or ulids.to_text(ulid))
                numbers.update(write.channel for by_idx in tasks.values() for write in by_idx.values())
                spans.update(dict.fromkeys(rows.spans_of(tasks)))
            spans.update(dict.fromkeys((series, span) for series, held in values for span in held))
        announcing.names_of(view.tx, keys.CHANNEL, registry.names.unknown(keys.CHANNEL, sorted(numbers)))
        view.bring(list(spans))
