"""A put: prepare outside any write transaction, then apply inside one.

`prepare` finds the parent's head, has the draft made, and makes the rows; `apply` checks that this still holds,
mints the ULID, takes numbers and writes. Imports the other modules of log. The invariant: `apply` writes all of a
put or, returning a reason, nothing.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import NamedTuple, Protocol

from deltastore import ulid as ulids
from deltastore.codec import chunkrow, recordrow
from deltastore.codec import records as rec
from deltastore.codec.blobs import Codec
from deltastore.errors import CheckpointNotFoundError, DeltastoreError, FrontMismatchError
from deltastore.log import announcing, fencing, finding, keys, names, packing, policy, rows
from deltastore.log import standing as standings
from deltastore.log import state as st
from deltastore.log.announcing import Look
from deltastore.log.drafting import Draft, load_head
from deltastore.log.heads import Head, HeadCache
from deltastore.log.intents import Intent
from deltastore.log.reading import View
from deltastore.log.registry import Registry
from deltastore.log.seeds import Seeds
from deltastore.log.standing import Standing
from deltastore.storage.port import Believed, ReadTransaction, Wanted, WriteTransaction


class At(Enum):
    """Where a put attaches, other than to a named checkpoint."""

    LATEST = "latest"
    ROOT = "root"


class Put(NamedTuple):
    """A checkpoint to be put. `id` None: the ULID's text. `must_exist`: refuse a parent that isn't stored.

    `expected`: the id that must be the namespace's last at the commit, `""` for none; None: not checked.
    """

    thread: str
    namespace: str
    front: int
    id: str | None
    parent: str | At
    must_exist: bool
    time_ms: int
    root: str | None
    frame: bytes | None
    metadata: bytes
    intent: Intent
    codec: Codec
    expected: str | None = None


class Stored(NamedTuple):
    """A checkpoint as it was put: where, the head and the rows that it leaves, and whether as an anchor and why."""

    thread: int
    namespace: int
    ulid: bytes
    id: str
    parent_id: str | None
    head: Head
    decision: policy.Decision
    standing: Standing


class Context(NamedTuple):
    """What a put needs beside its transaction."""

    heads: HeadCache
    registry: Registry
    snapshot_frequency: int
    read: Callable[[], AbstractContextManager[ReadTransaction]] | None
    """Begins a read transaction; None where looks are far away."""


class Parent(NamedTuple):
    """The parent as prepare found it: `ulid` and `head` None where there is none, or it isn't stored."""

    id: str | None
    ulid: bytes | None
    head: Head | None


class Prepared(NamedTuple):
    """A put made ready, in the numbering that prepare saw, and what it stands on."""

    put: Put
    standing: Standing
    parent: Parent
    decision: policy.Decision
    record: rec.Record
    body: bytes
    chunks: tuple[tuple[chunkrow.ChunkRow, bytes] | None, ...]
    head: Head
    packs: packing.Plan

    @property
    def stored_bytes(self) -> int:
        """What its new rows weigh, in bytes, but for keys and heads of rows."""
        return len(self.body) + chunk_bytes(self.chunks)


def prepare(tx: ReadTransaction, put: Put, context: Context) -> Prepared:
    """Make a put ready. Raises CheckpointNotFoundError, FrontMismatchError, ReducerMismatchError, EncodeError."""
    look = Look(
        announcing.CHAIN_ROWS, 2, announcing.WRITE_ROWS, named=(put.parent,) if isinstance(put.parent, str) else ()
    )
    before = context.heads.standing(put.thread, put.namespace) if tx.remote else None
    if before is not None and before.thread is not None and before.header is not None and before.namespace is not None:
        packing.announce(tx, before.thread, before.header, before.namespace)
    known = None if before is None else before.known
    return _prepare(tx, standings.read(tx, put.thread, put.namespace, look, known), put, context)


def prepare_remembered(put: Put, context: Context) -> Prepared | None:
    """Make a put ready by what is in memory, or return None where that isn't enough.

    Nor is it where it refuses the put: others may have deleted since what it tells of.
    """
    standing = context.heads.standing(put.thread, put.namespace)
    if standing is None:
        return None
    try:
        return _prepare(standings.NOTHING, standing, put, context)
    except (standings.NotInMemory, DeltastoreError):
        return None


def _prepare(tx: ReadTransaction, standing: Standing, put: Put, context: Context) -> Prepared:
    header, namespace = standing.header, standing.namespace
    view = View(tx, standing.thread or 0, put.thread)
    check_front(namespace, put)
    parent = _find_parent(view, standing, put, context.heads)
    decision = policy.decide(
        parent_named=parent.id is not None,
        parent_stored=parent.ulid is not None,
        parent_is_tip=parent.ulid is not None and namespace is not None and namespace.tip == parent.ulid,
        parent_depth=parent.head.depth if parent.head else 0,
        parent_spans=st.spans_in(parent.head.state) if parent.head else None,
        snapshot_frequency=context.snapshot_frequency,
    )
    next_chunk = standing.next_chunk
    known: Mapping[bytes, int] = {}
    pending_bases: Mapping[int, tuple[int, ...]] = {}
    tasks = None
    if namespace is not None and parent.id is not None:
        pending = context.heads.pending(view.thread, namespace.number, parent.id, standing.collected, next_chunk[0])
        if pending is not None:
            known, pending_bases = pending.numbers, pending.bases
            tasks = pending.tasks if standing.remembered else None
    seeds = Seeds(view, namespace, parent.id, parent.head, tasks)
    draft = Draft(view, parent.head, known, next_chunk, put.codec, context.registry, seeds)
    draft.bases |= pending_bases
    head, ops, order, decision = draft.resolve(put.intent, decision)
    head.collected = standing.collected
    record = rec.Record(
        (rec.ANCHOR if decision.anchor else 0) | _missing_flags(parent, header),
        put.id or "",
        parent.id if put.id is not None else None,
        parent.ulid,
        head.depth,
        put.time_ms,
        put.root,
        put.frame,
        put.metadata,
        ops,
        order,
        tuple(head.seeds.items()),
        next_chunk,
    )
    dictionary = standing.dictionary
    made = [chunks.row(draft.bases) for chunks in draft.new]
    if made[0] is not None:
        head.bases |= {number: based.bases for number, based in made[0].based.items()}
    return Prepared(
        put,
        standing,
        parent,
        decision,
        record,
        rec.encode_record(record, dictionary),
        tuple((row, chunkrow.encode_body(row, dictionary=dictionary)) if row else None for row in made),
        head,
        _packs(view, standing, context),
    )


def _packs(view: View, standing: Standing, context: Context) -> packing.Plan:
    """Plan what is packed along; where all else was in memory, only the rows that go into it are read."""
    header, namespace = standing.header, standing.namespace
    if header is None or namespace is None or not packing.is_due(header, namespace):
        return packing.NOTHING
    if view.tx is not standings.NOTHING or context.read is None:
        return packing.plan(view, header, namespace, standing.dictionary)
    with context.read() as tx:
        return packing.plan(View(tx, view.thread, view.name), header, namespace, standing.dictionary)


def _missing_flags(parent: Parent, header: rows.Header | None) -> int:
    """Tell readers of a record that its parent wasn't stored, and whether that may be for a deletion."""
    if parent.id is None or parent.ulid is not None:
        return 0
    return rec.PARENT_MISSING | (rec.PARENT_DELETED if header is not None and header.deleted else 0)


class Addressed(Protocol):
    """What is put, and by which API."""

    @property
    def thread(self) -> str:
        """The thread's name."""

    @property
    def namespace(self) -> str:
        """The namespace's name."""

    @property
    def front(self) -> int:
        """The API that puts."""


def check_front(namespace: rows.Namespace | None, put: Addressed) -> None:
    """Raise FrontMismatchError where a namespace belongs to the other API."""
    if namespace is not None and namespace.front != put.front:
        raise FrontMismatchError(
            f"thread {put.thread!r}, namespace {put.namespace!r} is written by the "
            f"{rows.FRONT_NAMES[namespace.front]} API; "
            f"the {rows.FRONT_NAMES[put.front]} API can't write there. Use another thread or namespace"
        )


def _find_parent(view: View, standing: Standing, put: Put, heads: HeadCache) -> Parent:
    namespace = standing.namespace
    if put.parent is At.ROOT:
        return Parent(None, None, None)
    if put.parent is At.LATEST:
        if namespace is None or namespace.latest is None:
            return Parent(None, None, None)
        id_ = namespace.latest
    else:
        id_ = str(put.parent)
    if standing.remembered and namespace is not None:
        return _remembered_parent(id_, view.thread, standing, namespace, heads)
    ulid = finding.find(view, namespace, id_) if namespace is not None else None
    if ulid is None or namespace is None:
        if put.must_exist:
            raise CheckpointNotFoundError(
                f"thread {put.thread!r} has no checkpoint {id_!r} to put after; see its history"
            )
        return Parent(id_, None, None)
    return Parent(id_, ulid, load_head(view, namespace, ulid, standing.collected, heads))


def _remembered_parent(
    id_: str, thread: int, standing: Standing, namespace: rows.Namespace, heads: HeadCache
) -> Parent:
    """Return the parent if it is the tip, whose head is in memory. Raises NotInMemory."""
    head = None
    if namespace.tip is not None:
        head = heads.head(thread, namespace.number, standing.collected, namespace.tip)
    if head is None or head.id != id_:
        raise standings.NotInMemory
    return Parent(id_, head.ulid, head)


# --- apply ----------------------------------------------------------------------------------


def wanted_by(prepared: Prepared) -> Wanted:
    """Return what `apply` looks at."""
    put, standing = prepared.put, prepared.standing
    own = standings.wanted_by(standing, put.thread, put.namespace)
    if standing.thread is None:
        return own
    looked_at: list[bytes] = []
    runs: list[tuple[bytes, bytes, bytes]] = []
    if standing.namespace is not None:
        packed = packing.wanted_by(standing.thread, standing.namespace, prepared.packs)
        looked_at, runs = list(packed.keys), list(packed.runs)
        known = standing.thread, standing.namespace.number
        for id_ in (put.id, prepared.parent.id if prepared.parent.ulid is None else None):
            if id_ is None or standing.namespace.is_above(id_):
                continue
            key = keys.by_id(*known, keys.encode_id(id_))
            runs.append((key, key, keys.end_of(keys.ids(*known))))
        if put.expected is not None and standing.namespace.tip is not None:
            key = keys.record(*known, standing.namespace.tip)
            runs.append((key, key, keys.end_of(keys.records(*known))))
    return own._replace(keys=[*own.keys, *looked_at], runs=runs, believed=_believed(prepared, own.believed))


def _believed(prepared: Prepared, own: Believed | None) -> Believed | None:
    """Return what `apply` will find, where no more than the thread's own rows tells it."""
    put, namespace = prepared.put, prepared.standing.namespace
    if own is None or namespace is None or put.expected is not None:
        return None
    if prepared.parent.id is not None and prepared.parent.ulid is None:
        return None
    if put.id is not None and not namespace.is_above(put.id):
        return None
    return own._replace(sealed=[*own.sealed, *prepared.packs.replaced])


def apply(tx: WriteTransaction, prepared: Prepared, now_ms: int) -> Stored | str:
    """Write a prepared put, or return why it must be prepared again: then it has written nothing.

    Raises ConflictError, FrontMismatchError.
    """
    put, thread = prepared.put, prepared.standing.thread
    found = standings.find(tx, prepared.standing, put.thread, put.namespace, now_ms)
    if isinstance(found, str):
        return found
    header = found.header
    check_front(found.namespace, put)
    namespace = found.namespace or rows.new_namespace(header, keys.encode_name(put.namespace), put.front)
    view = View(tx, thread or 0, put.thread)
    fencing.check(view, namespace, put)
    stale = _stale(view, namespace, prepared)
    if stale:
        return stale
    if thread is None:  # nothing was written so far: whoever shares the transaction goes on with it
        thread = names.assign(tx, keys.THREAD, header.name, names.new_number(tx, keys.THREAD))
        namespace.others = ()
        view = View(tx, thread, put.thread)
    ulid = ulids.mint(header.last_ulid, now_ms)
    as_seen = packing.is_as_seen(header, prepared.packs)
    shifts = take_numbers(tx, thread, header, prepared.record.bases, prepared.chunks)
    packing.apply(tx, thread, header, namespace, prepared.packs, as_seen=as_seen)
    id_ = put.id or ulids.to_text(ulid)
    replaced = put.id is not None and found.namespace is not None and _replace_id(tx, view, header, namespace, prepared)
    rows.put(tx, keys.record(thread, namespace.number, ulid), recordrow.encode_row(prepared.body, shifts))
    if put.id is not None:
        rows.put(tx, keys.by_id(thread, namespace.number, keys.encode_id(id_)), rows.IdEntry(ulid).encode())
    namespace.tip = ulid
    namespace.latest = id_ if namespace.latest is None else max(namespace.latest, id_)
    if not replaced:
        namespace.count += 1
        header.checkpoints += 1
    if prepared.decision.anchor:
        namespace.loose_before += namespace.loose_since
        namespace.loose_since = 0
    namespace.loose_since += 1
    header.last_ulid = ulid
    header.updated_ms = max(header.updated_ms, now_ms)
    standing = found.store(tx, thread, namespace)
    bases = prepared.head.bases
    if shifts[0]:
        first = prepared.record.bases[0]
        bases = {number + shifts[0] if number >= first else number: behind for number, behind in bases.items()}
    # a copy: the storage may ask to run this again, with other shifts
    state = st.shift(prepared.head.state, prepared.record.bases, shifts)
    head = prepared.head.put(ulid, id_, header.collected, state, bases)
    return Stored(thread, namespace.number, ulid, id_, prepared.parent.id, head, prepared.decision, standing)


def remember(heads: HeadCache, prepared: Prepared, stored: Stored) -> None:
    """Keep the head of a put. Only once it is committed: it names chunks."""
    heads.keep(stored.thread, stored.namespace, stored.head)
    heads.keep_standing(prepared.put.thread, prepared.put.namespace, stored.standing)
    if prepared.parent.id is not None:
        heads.drop_pending(stored.thread, stored.namespace, prepared.parent.id)


def _stale(view: View, namespace: rows.Namespace, prepared: Prepared) -> str | None:
    parent = prepared.parent
    if prepared.put.parent is At.LATEST and namespace.latest != parent.id:
        return "another checkpoint became the latest meanwhile"
    if (prepared.standing.remembered or not prepared.decision.anchor) and namespace.tip != parent.ulid:
        return "the parent isn't the tip any more"
    if parent.id is not None and parent.ulid is None and finding.find(view, namespace, parent.id) is not None:
        return "the parent was put meanwhile"
    return None


def _replace_id(
    tx: WriteTransaction, view: View, header: rows.Header, namespace: rows.Namespace, prepared: Prepared
) -> bool:
    """Let a put take over the id of an earlier record, which stays, hidden, for what still names it."""
    earlier = finding.find(view, namespace, prepared.put.id or "")
    if earlier is None:
        return False
    from deltastore.log.removing import hide_or_remove  # with most of what deletions need, and ids seldom come again

    # a deletion may have led the way of others to the tip, where else nobody's parent stands
    named = prepared.record.parent == earlier or namespace.tip != earlier or header.deleted > 0
    hide_or_remove(tx, view, header, namespace, earlier, hide=named)
    return True


def chunk_bytes(chunks: tuple[tuple[chunkrow.ChunkRow, bytes] | None, ...]) -> int:
    """Return what new chunks weigh as stored, in bytes."""
    size = 0
    for made in chunks:
        if made is not None:
            row, body = made
            size += len(body)
            for based in row.based.values():
                size += len(based.frame)
    return size


def take_numbers(
    tx: WriteTransaction,
    thread: int,
    header: rows.Header,
    bases: tuple[int, ...],
    chunks: tuple[tuple[chunkrow.ChunkRow, bytes] | None, ...],
) -> tuple[int, int]:
    """Give new chunks their numbers and store their rows; return by how much each series moved since prepare."""
    shifts = [0, 0]
    for series, made in enumerate(chunks):
        shifts[series] = header.next_chunk[series] - bases[series]
        if made is None:
            continue
        row, body = made
        row = _renumbered(row, shifts[series])
        rows.put(tx, keys.chunk(thread, series, row.numbers[-1]), chunkrow.encode_row(row, body))
        header.next_chunk[series] += len(row.numbers)
        header.loose_rows[series] += 1
        header.loose_bytes[series] += row.plain_bytes
    return shifts[0], shifts[1]


def _renumbered(row: chunkrow.ChunkRow, by: int) -> chunkrow.ChunkRow:
    """Return a put's own row under its real numbers; bases are older chunks and keep theirs."""
    if by == 0:
        return row
    return row._replace(
        numbers=tuple(number + by for number in row.numbers),
        whole={number + by: blob for number, blob in row.whole.items()},
        based={number + by: based for number, based in row.based.items()},
    )
