"""A put: prepare outside any write transaction, then apply inside one.

`prepare` finds the parent's head, what changed, and makes the rows; `apply` checks that this still holds, mints the ULID, takes numbers
and writes. Imports the other modules of log. The invariant: `apply` writes all of a put or, returning a reason, nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from deltastore import ulid as ulids
from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.blobs import STRICT_REMOVAL, Codec, Cut, assemble, cut
from deltastore.codec.strict import STRICT
from deltastore.errors import (
    CheckpointNotFoundError,
    ChecksumError,
    EncodeError,
    FrontMismatchError,
    InvalidInputError,
    ReducerMismatchError,
)
from deltastore.log import keys, names, packing, policy, rows
from deltastore.log import state as st
from deltastore.log.heads import Head, HeadCache
from deltastore.log.intents import FoldWrite, Intent
from deltastore.log.placing import NewChunks, Old, Placed, place
from deltastore.log.reading import View
from deltastore.log.registry import Registry
from deltastore.log.removing import hide_or_remove
from deltastore.reducers import APPEND, FIRST_INTERNED_REDUCER, MERGE, REPLACE, UPSERT
from deltastore.storage.port import ReadTransaction, WriteTransaction

MAX_KEPT_BASES = 256
"""How many based chunks a head remembers before it forgets those that no value holds any more."""


class At(Enum):
    """Where a put attaches, other than to a named checkpoint."""

    LATEST = "latest"
    ROOT = "root"


@dataclass(frozen=True, slots=True)
class Put:
    """A checkpoint to be put. `id` None: the ULID's text. `must_exist`: refuse a parent that isn't stored."""

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


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as it was put: where, the head that it leaves, and whether as an anchor and why."""

    thread: int
    namespace: int
    ulid: bytes
    id: str
    parent_id: str | None
    head: Head
    decision: policy.Decision


@dataclass(frozen=True, slots=True)
class Context:
    """What a put needs beside its transaction."""

    heads: HeadCache
    registry: Registry
    snapshot_frequency: int


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent as prepare found it: `ulid` and `head` None where there is none, or it isn't stored."""

    id: str | None
    ulid: bytes | None
    head: Head | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A put made ready, in the numbering that prepare saw, and what it stands on."""

    put: Put
    thread: int | None
    collected: int
    parent: Parent
    decision: policy.Decision
    record: rec.Record
    body: bytes
    chunks: tuple[tuple[chunkrow.ChunkRow, bytes] | None, ...]
    head: Head
    packs: packing.Plan


def prepare(tx: ReadTransaction, put: Put, context: Context) -> Prepared:
    """Make a put ready. Raises CheckpointNotFoundError, FrontMismatchError, ReducerMismatchError, EncodeError."""
    thread = names.find(tx, keys.THREAD, keys.encode_name(put.thread))
    header = None if thread is None else rows.load_header(tx, thread)
    if thread is not None and header is None:
        raise ChecksumError(f"thread {put.thread!r} has a number but no header: rows are missing; run check")
    view = View(tx, thread or 0, put.thread)
    namespace = rows.load_namespace(tx, thread, keys.encode_name(put.namespace)) if thread is not None else None
    check_front(namespace, put)
    collected = header.collected if header else 0
    parent = _find_parent(view, namespace, put, collected, context.heads)
    decision = policy.decide(
        parent_named=parent.id is not None,
        parent_stored=parent.ulid is not None,
        parent_is_tip=parent.ulid is not None and namespace is not None and namespace.tip == parent.ulid,
        parent_depth=parent.head.depth if parent.head else 0,
        snapshot_frequency=context.snapshot_frequency,
    )
    next_chunk = (header.next_chunk[0], header.next_chunk[1]) if header else (1, 1)
    known: Mapping[bytes, int] = {}
    pending_bases: Mapping[int, tuple[int, ...]] = {}
    if namespace is not None and parent.id is not None:
        pending = context.heads.pending(view.thread, namespace.number, parent.id, collected, next_chunk[0])
        if pending is not None:
            known, pending_bases = pending.numbers, pending.bases
    draft = _Draft(view, parent.head, known, next_chunk, put.codec, context.registry)
    draft.bases |= pending_bases
    head, ops, order = draft.resolve(put.intent, decision)
    head.collected = collected
    record = rec.Record(
        (rec.ANCHOR if decision.anchor else 0)
        | (rec.PARENT_MISSING if parent.id is not None and parent.ulid is None else 0),
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
    made = [chunks.row(draft.bases) for chunks in draft.new]
    for row in made[:1]:
        head.bases |= {number: based.bases for number, based in row.based.items()} if row else {}
    return Prepared(
        put,
        thread,
        collected,
        parent,
        decision,
        record,
        rec.encode_record(record),
        tuple((row, chunkrow.encode_body(row)) if row else None for row in made),
        head,
        packing.plan(view, header, namespace) if header and namespace else packing.NOTHING,
    )


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
            f"thread {put.thread!r}, namespace {put.namespace!r} is written by the {rows.FRONT_NAMES[namespace.front]} API; "
            f"the {rows.FRONT_NAMES[put.front]} API can't write there. Use another thread or namespace"
        )


def _find_parent(view: View, namespace: rows.Namespace | None, put: Put, collected: int, heads: HeadCache) -> Parent:
    if put.parent is At.ROOT:
        return Parent(None, None, None)
    if put.parent is At.LATEST:
        if namespace is None or namespace.latest is None:
            return Parent(None, None, None)
        id_ = namespace.latest
    else:
        id_ = str(put.parent)
    ulid = view.find(namespace, id_) if namespace is not None else None
    if ulid is None or namespace is None:
        if put.must_exist:
            raise CheckpointNotFoundError(
                f"thread {put.thread!r} has no checkpoint {id_!r} to put after; see its history"
            )
        return Parent(id_, None, None)
    return Parent(id_, ulid, load_head(view, namespace, ulid, collected, heads))


def load_head(view: View, namespace: rows.Namespace, ulid: bytes, collected: int, heads: HeadCache) -> Head:
    """Return a checkpoint's head, from the cache or by a fold. Raises BrokenChainError."""
    cached = heads.head(view.thread, namespace.number, collected, ulid)
    if cached is not None:
        return cached
    chain = view.chain(namespace.number, ulid)
    record = chain[-1]
    head = Head(ulid, record.id or ulids.to_text(ulid), len(chain) - 1, collected, st.fold_chain(chain))
    head.seeds = dict(record.seeds)
    if rec.VERSIONS_CHANNEL in head.state:
        fill(view, head, rec.VERSIONS_CHANNEL)
        head.versions = STRICT.decode_dict(head.blobs[rec.VERSIONS_CHANNEL])
    return head


def fill(view: View, head: Head, number: int) -> bool:
    """See to it that a head holds a channel's chunks; tell whether it does (not where a user's reducer must fold first)."""
    if number in head.blobs:
        return True
    channel = view.folded(number, head.state[number])
    if channel.writes or channel.value is None:
        return False
    head.state[number] = channel
    head.blobs[number] = view.blobs(rec.series_of(number), channel.value.spans)
    head.bases |= view.bases
    return True


class _Draft:
    """The channels of a put in the making."""

    def __init__(
        self,
        view: View,
        parent: Head | None,
        known: Mapping[bytes, int],
        next_chunk: tuple[int, ...],
        codec: Codec,
        registry: Registry,
    ) -> None:
        self.view = view
        self.parent = parent
        self.known = known
        self.codec = codec
        self.registry = registry
        self.new = tuple(NewChunks(first) for first in next_chunk)
        self.state: st.State = dict(parent.state) if parent else {}
        self.blobs = dict(parent.blobs) if parent else {}
        self.keys = dict(parent.keys) if parent else {}
        self.bases = dict(parent.bases) if parent else {}
        self.ops: list[rec.Op] = []

    def resolve(
        self, intent: Intent, decision: policy.Decision
    ) -> tuple[Head, tuple[rec.Op, ...], tuple[int, ...] | None]:
        """Return the new head, the ops of the record, and the order where it must be stated."""
        wanted = intent.resolve(self.parent)
        for number in sorted(wanted.drop):
            self._apply(rec.Drop(number))
        for number, value in wanted.assign.items():
            self._assign(number, value, wanted.configured.get(number))
        for write in wanted.folds:
            self._write(write)
        order = None
        if wanted.order is not None and tuple(self.state) != wanted.order:
            order = wanted.order
            self.state = st.in_order(self.state, order)
        ops = tuple(self.ops)
        depth = self.parent.depth + 1 if self.parent else 0
        if decision.anchor:
            self._fold_all()
            ops, order, depth = st.set_ops(self.state), None, 0
        head = Head(
            b"",
            "",
            depth,
            0,
            self.state,
            {number: blobs for number, blobs in self.blobs.items() if number in self.state},
            {number: keys_ for number, keys_ in self.keys.items() if number in self.state},
            self._kept_bases(),
            wanted.seeds,
            wanted.versions,
        )
        return head, ops, order

    def _apply(self, op: rec.Op) -> None:
        self.ops.append(op)
        channel = st.apply_op(self.state.get(op.channel), op)
        if channel is None:
            self.state.pop(op.channel, None)
        else:
            self.state[op.channel] = channel

    def _old(self, number: int) -> Old | None:
        """Return the parent's value of a channel with its chunks, read where the cache lacks them."""
        if self.parent is None or number not in self.parent.state or not fill(self.view, self.parent, number):
            return None
        self.bases |= self.parent.bases
        value = self.parent.state[number].value
        if value is None:
            return None
        return Old(value.kind, sp.numbers(value.spans), self.parent.blobs[number], self.parent.keys.get(number))

    def _assign(self, number: int, value: Cut, configured: int | None) -> None:
        if any(blob[0] == STRICT_REMOVAL for blob in value.blobs):
            name = self.registry.channel_name(self.view.tx, number)
            message = (
                f"channel {name!r}: a Remove stands in a whole value; it belongs into a write to an upsert channel"
            )
            raise EncodeError(message, channel=name)
        before = self.state.get(number)
        self._check_configured(number, before, configured)
        placed = place(value, self._old(number), self._known(number), self.new[rec.series_of(number)])
        self.blobs[number] = placed.blobs
        if value.keys is not None:
            self.keys[number] = value.keys
        op = _op_for(number, value.kind, placed, before, configured or 0)
        if op is not None:
            self._apply(op)

    def _known(self, number: int) -> Mapping[bytes, int]:
        return self.known if rec.series_of(number) == 0 else {}

    def _check_configured(self, number: int, before: st.Channel | None, configured: int | None) -> None:
        if before is not None and before.reducer and configured is not None and before.reducer != configured:
            describe = self.registry.describe
            raise ReducerMismatchError(
                f"channel {self.registry.channel_name(self.view.tx, number)!r} was written for reducer "
                f"{describe(self.view.tx, before.reducer)}, and is now given {describe(self.view.tx, configured)}. "
                "Register the former, or use another channel"
            )

    def _write(self, write: FoldWrite) -> None:
        before = self.state.get(write.channel)
        self._check_configured(write.channel, before, write.configured)
        reducer = (before.reducer if before else 0) or write.configured or write.default
        self._check_write(write, before, reducer)
        new = self.new[rec.series_of(write.channel)]
        numbers = [self.known.get(blob) or new.place(blob) for blob in write.cut.blobs]
        self.blobs.pop(write.channel, None)
        self.keys.pop(write.channel, None)
        if reducer == REPLACE:
            self.blobs[write.channel] = write.cut.blobs
        self._apply(rec.Fold(write.channel, reducer, (rec.Value(write.cut.kind, sp.of_numbers(numbers)),)))

    def _check_write(self, write: FoldWrite, before: st.Channel | None, reducer: int) -> None:
        needed = {APPEND: rec.LIST, UPSERT: rec.LIST, MERGE: rec.DICT}.get(reducer)
        kinds = {rec.LIST: "list", rec.DICT: "dict", rec.OPAQUE: "value"}
        name = self.registry.channel_name(self.view.tx, write.channel)
        described = self.registry.describe(self.view.tx, reducer)
        if needed is not None:
            if write.cut.kind != needed:
                raise InvalidInputError(
                    f"channel {name!r} has reducer {described}, which takes a {kinds[needed]}; a {kinds[write.cut.kind]} was written"
                )
            if before is not None and before.value is not None and before.value.kind != needed:
                raise InvalidInputError(
                    f"channel {name!r} holds a {kinds[before.value.kind]}; reducer {described} needs a {kinds[needed]} there"
                )
        if reducer != UPSERT and any(blob[0] == STRICT_REMOVAL for blob in write.cut.blobs):
            raise EncodeError(f"channel {name!r} has reducer {described}; a Remove is for upsert only", channel=name)
        if reducer >= FIRST_INTERNED_REDUCER:
            self.registry.reducer(self.view.tx, reducer, name)

    # --- anchors

    def _blob(self, series: int, number: int) -> bytes:
        return self.new[series].blob(number) or self.view.blob(series, number)

    def _fold_all(self) -> None:
        """Fold what is left to fold, so that every channel can be stated in full."""
        for number, channel in list(self.state.items()):
            if not channel.writes:
                continue
            self.blobs.pop(number, None)
            self.keys.pop(number, None)
            if channel.reducer < FIRST_INTERNED_REDUCER:
                self.state[number] = _Folding(self.view, self._blob).folded(number, channel)
            else:
                self.state[number] = self._fold_users(number, channel)

    def _fold_users(self, number: int, channel: st.Channel) -> st.Channel:
        """Run a user's reducer and store its result as chunks; those it took over are found again."""
        name = self.registry.channel_name(self.view.tx, number)
        reducer = self.registry.reducer(self.view.tx, channel.reducer, name)
        series = rec.series_of(number)
        found: dict[bytes, int] = {}

        def value_of(value: rec.Value) -> object:
            numbers = sp.numbers(value.spans)
            blobs = [self._blob(series, chunk) for chunk in numbers]
            found.update(zip(blobs, numbers, strict=True))
            return assemble(value.kind, blobs, self.codec)

        base = value_of(channel.value) if channel.value else None
        writes = [value_of(write) for write in channel.writes]
        made = cut(reducer.fold_all(base, writes, present=channel.value is not None), self.codec, name)
        numbers = [found.get(blob) or self.new[series].place(blob) for blob in made.blobs]
        return st.Channel(rec.Value(made.kind, sp.of_numbers(numbers)), channel.reducer)

    def _kept_bases(self) -> dict[int, tuple[int, ...]]:
        if len(self.bases) <= MAX_KEPT_BASES:
            return self.bases
        held = [channel.value.spans for channel in self.state.values() if channel.value]
        live = {number for spans in held for number in sp.numbers(spans)}
        return {number: bases for number, bases in self.bases.items() if number in live}


class _Folding(View):
    """A view that also sees the chunks of a put in the making."""

    def __init__(self, view: View, blob_of: Callable[[int, int], bytes]) -> None:
        super().__init__(view.tx, view.thread, view.name)
        self._blob_of = blob_of

    def blob(self, series: int, number: int) -> bytes:
        return self._blob_of(series, number)


def _op_for(number: int, kind: int, placed: Placed, before: st.Channel | None, configured: int) -> rec.Op | None:
    """Return the op that makes the parent's channel this value, or None where it is this value already."""
    splice = placed.splice
    if before is None or before.writes or splice is None or before.value is None:
        reducer = (before.reducer if before else 0) or configured
        return rec.Set(number, reducer, rec.Value(kind, sp.of_numbers(placed.numbers)))
    if splice.removed == splice.inserted == 0:
        return None
    inserted = sp.of_numbers(placed.numbers[splice.place : splice.place + splice.inserted])
    return rec.Patch(number, splice.place, splice.removed, inserted)


# --- apply ----------------------------------------------------------------------------------


def apply(tx: WriteTransaction, prepared: Prepared, now_ms: int) -> Stored | str:
    """Write a prepared put, or return why it must be prepared again: then the caller aborts the transaction."""
    put = prepared.put
    name = keys.encode_name(put.thread)
    if names.find(tx, keys.THREAD, name) != prepared.thread:
        return "the thread was created, deleted or replaced meanwhile"
    if prepared.thread is None:
        thread = names.assign(tx, keys.THREAD, name, names.new_number(tx, keys.THREAD))
        header = rows.Header(name, now_ms, now_ms)
    else:
        thread = prepared.thread
        found = rows.load_header(tx, thread)
        if found is None or found.collected != prepared.collected:
            return "something was collected meanwhile"
        header = found
    namespace = rows.load_namespace(tx, thread, keys.encode_name(put.namespace))
    check_front(namespace, put)
    namespace = namespace or rows.new_namespace(header, keys.encode_name(put.namespace), put.front)
    view = View(tx, thread, put.thread)
    stale = _stale(view, namespace, prepared)
    if stale:
        return stale
    ulid = ulids.mint(header.last_ulid, now_ms)
    shifts = take_numbers(tx, thread, header, prepared.record.bases, prepared.chunks)
    packing.apply(tx, thread, header, namespace, prepared.packs)
    id_ = put.id or ulids.to_text(ulid)
    replaced = put.id is not None and _replace_id(tx, view, header, namespace, prepared)
    rows.put(tx, keys.record(thread, namespace.number, ulid), rec.encode_row(prepared.body, shifts))
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
    rows.store_namespace(tx, thread, namespace)
    rows.store_header(tx, thread, header)
    # a copy: the storage may ask to run this again, with other shifts
    head = replace(
        prepared.head,
        ulid=ulid,
        id=id_,
        collected=header.collected,
        state=st.shift(prepared.head.state, prepared.record.bases, shifts),
    )
    if shifts[0]:
        base = prepared.record.bases[0]
        head.bases = {number + shifts[0] if number >= base else number: bases for number, bases in head.bases.items()}
    return Stored(thread, namespace.number, ulid, id_, prepared.parent.id, head, prepared.decision)


def remember(heads: HeadCache, prepared: Prepared, stored: Stored) -> None:
    """Keep the head of a put. Only once it is committed: it names chunks."""
    heads.keep(stored.thread, stored.namespace, stored.head)
    if prepared.parent.id is not None:
        heads.drop_pending(stored.thread, stored.namespace, prepared.parent.id)


def _stale(view: View, namespace: rows.Namespace, prepared: Prepared) -> str | None:
    parent = prepared.parent
    if prepared.put.parent is At.LATEST and namespace.latest != parent.id:
        return "another checkpoint became the latest meanwhile"
    if not prepared.decision.anchor and namespace.tip != parent.ulid:
        return "the parent isn't the tip any more"
    if parent.id is not None and parent.ulid is None and view.find(namespace, parent.id) is not None:
        return "the parent was put meanwhile"
    return None


def _replace_id(
    tx: WriteTransaction, view: View, header: rows.Header, namespace: rows.Namespace, prepared: Prepared
) -> bool:
    """Let a put take over the id of an earlier record, which stays, hidden, for what still names it."""
    earlier = view.find(namespace, prepared.put.id or "")
    if earlier is None:
        return False
    named = prepared.record.parent == earlier or namespace.tip != earlier
    hide_or_remove(tx, view, header, namespace, earlier, hide=named)
    return True


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
    return replace(
        row,
        numbers=tuple(number + by for number in row.numbers),
        whole={number + by: blob for number, blob in row.whole.items()},
        based={number + by: based for number, based in row.based.items()},
    )
