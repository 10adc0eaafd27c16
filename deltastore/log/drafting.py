"""The draft of a put: what it changes of the parent's channels, and the ops, chunks and head that come of it.

Reads through a view, runs a user's reducer where an anchor needs it, and writes nothing. Imports reading, intents,
placing, heads, registry, seeds and state. The invariant: the ops, folded onto the parent's state, give the head's
state.
"""

from collections.abc import Callable, Mapping

from deltastore import ulid as ulids
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.blobs import STRICT_REMOVAL, Codec, Cut, assemble, cut
from deltastore.codec.strict import STRICT
from deltastore.errors import EncodeError, InvalidInputError, ReducerMismatchError
from deltastore.log import policy, rows
from deltastore.log import state as st
from deltastore.log.heads import Head, HeadCache, Sum
from deltastore.log.intents import FoldWrite, Intent
from deltastore.log.placing import NewChunks, Old, Placed, place
from deltastore.log.reading import View
from deltastore.log.registry import Registry
from deltastore.log.seeds import Seeds
from deltastore.reducers import APPEND, FIRST_INTERNED_REDUCER, MERGE, REPLACE, UPSERT

MAX_KEPT_BASES = 256
"""How many based chunks a head remembers before it forgets those that no value holds any more."""


def load_head(view: View, namespace: rows.Namespace, ulid: bytes, collected: int, heads: HeadCache) -> Head:
    """Return a checkpoint's head, from the cache or by a fold. Raises BrokenChainError."""
    cached = heads.head(view.thread, namespace.number, collected, ulid)
    if cached is not None:
        return cached
    chain = view.chain(namespace.number, ulid)
    _, record = chain[-1]
    state = st.fold_chain(link for _, link in chain)
    head = Head(ulid, record.id or ulids.to_text(ulid), len(chain) - 1, collected, state)
    head.seeds = dict(record.seeds)
    if rec.VERSIONS_CHANNEL in head.state:
        fill(view, head, rec.VERSIONS_CHANNEL)
        head.versions = STRICT.decode_dict(head.blobs[rec.VERSIONS_CHANNEL])
    return head


def fill(view: View, head: Head, number: int) -> bool:
    """See to it that a head holds a channel's chunks; tell whether it does.

    It doesn't where a user's reducer must fold first.
    """
    if number in head.blobs:
        return True
    channel = head.state[number]
    if channel.writes or channel.value is None:
        return False
    head.blobs[number] = view.blobs(rec.series_of(number), channel.value.spans)
    head.bases |= view.bases
    return True


class Draft:
    """The channels of a put in the making."""

    def __init__(
        self,
        view: View,
        parent: Head | None,
        known: Mapping[bytes, int],
        next_chunk: tuple[int, ...],
        codec: Codec,
        registry: Registry,
        seeds: Seeds,
    ) -> None:
        self.view = view
        self.parent = parent
        self.known = known
        self.codec = codec
        self.registry = registry
        self.seeds = seeds
        # bases are known of value chunks alone, and a chain must end somewhere
        self.new = tuple(NewChunks(first, may_base=series == 0) for series, first in enumerate(next_chunk))
        self.state: st.State = dict(parent.state) if parent else {}
        self.blobs = dict(parent.blobs) if parent else {}
        self.keys = dict(parent.keys) if parent else {}
        self.notes = dict(parent.notes) if parent else {}
        self.bases = dict(parent.bases) if parent else {}
        self.ops: list[rec.Op] = []

    def resolve(
        self, intent: Intent, decision: policy.Decision
    ) -> tuple[Head, tuple[rec.Op, ...], tuple[int, ...] | None, policy.Decision]:
        """Return the new head, the record's ops, the order where it must be stated, and the decision as it stands."""
        wanted = intent.resolve(self.parent)
        for number in sorted(wanted.drop):
            self._apply(rec.Drop(number))
            self.blobs.pop(number, None)
            self._forget(number)
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
        if decision.reason is policy.Reason.SMALL and st.spans_in(self.state) is None:
            decision = policy.Decision(False, policy.Reason.CHANGED)  # an anchor would run reducers for nothing
        if decision.anchor:
            self._fold_all()
            ops, order, depth = st.set_ops(self.state), None, 0
        sums = self.seeds.carry(wanted.seeds)
        head = Head(
            b"",
            "",
            depth,
            0,
            self.state,
            self.blobs,
            self.keys,
            self._kept_bases(sums),
            wanted.seeds,
            sums,
            wanted.versions,
            self.notes,
        )
        return head, ops, order, decision

    def _forget(self, number: int) -> None:
        """Forget what is known of a channel beside its chunks: it must never be another value's."""
        self.keys.pop(number, None)
        self.notes.pop(number, None)

    def _apply(self, op: rec.Op) -> None:
        self.ops.append(op)
        channel = st.apply_op(self.state.get(op.channel), op)
        if channel is None:
            self.state.pop(op.channel, None)
        else:
            self.state[op.channel] = channel

    def _old(self, number: int) -> Old | None:
        """Return the parent's value of a channel with its chunks, read where the cache lacks them."""
        if self.parent is None or number not in self.parent.state:
            return None
        before = self.parent.state[number]
        if before.writes:  # stored unfolded: the head must stay so, for a patch can't stand on writes
            folded = self.view.folded(number, before)
            if folded.writes or folded.value is None:
                return None
            blobs = self.view.blobs(rec.series_of(number), folded.value.spans)
            self.bases |= self.view.bases
            return Old(folded.value.kind, folded.value.spans, blobs, None)
        if number not in self.parent.blobs:
            if not fill(self.view, self.parent, number):
                return None
            self.bases |= self.parent.bases
        value = self.parent.state[number].value
        if value is None:
            return None
        return Old(value.kind, value.spans, self.parent.blobs[number], self.parent.keys.get(number))

    def _assign(self, number: int, value: Cut, configured: int | None) -> None:
        before = self.state.get(number)
        self._check_configured(number, before, configured)
        placed = self._placed(number, value)
        self.blobs[number] = placed.blobs
        self._forget(number)
        if value.keys is not None:
            self.keys[number] = value.keys
        if value.notes is not None:
            self.notes[number] = value.notes
        op = _op_for(number, value.kind, placed, before, configured or 0)
        if op is not None:
            self._apply(op)

    def _placed(self, number: int, value: Cut) -> Placed:
        old, known, new = self._old(number), self._known(number), self.new[rec.series_of(number)]
        if value.kind not in rec.SNAPSHOTS:
            return place(value, old, known, new)
        found = self.seeds.find(number)
        writes = [chunk for write in found.writes for chunk in sp.numbers(write.spans)]
        blobs = [self.view.blob(0, chunk) for chunk in writes]
        self.bases |= self.view.bases
        if old is not None and old.kind == value.kind:
            return place(value, old, {**known, **dict(zip(blobs, writes, strict=True))}, new)
        # where reducers append, a snapshot is just this
        summed = Old(
            value.kind, sp.join((found.spans, *(write.spans for write in found.writes))), [*found.blobs, *blobs], None
        )
        placed = place(value, summed, known, new)
        return Placed(placed.blobs, placed.spans)  # it isn't the parent's value, so the op must state all of it

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
        self._forget(write.channel)
        if reducer == REPLACE:
            self.blobs[write.channel] = write.cut.blobs
        self._apply(rec.Fold(write.channel, reducer, (rec.Value(write.cut.kind, sp.of_numbers(numbers)),)))

    def _check_write(self, write: FoldWrite, before: st.Channel | None, reducer: int) -> None:
        needed = {APPEND: rec.LIST, UPSERT: rec.LIST, MERGE: rec.DICT}.get(reducer)
        kinds = dict.fromkeys(rec.KINDS, "value") | {rec.LIST: "list", rec.DICT: "dict"}
        name = self.registry.channel_name(self.view.tx, write.channel)
        described = self.registry.describe(self.view.tx, reducer)
        if needed is not None:
            if write.cut.kind != needed:
                found = type(assemble(write.cut.kind, write.cut.blobs, self.codec)).__name__
                raise InvalidInputError(
                    f"channel {name!r} has reducer {described}, which takes a {kinds[needed]}; a value of type {found} "
                    f'was written. For values of any type open a new store with channels={{{name!r}: "replace"}}'
                )
            if before is not None and before.value is not None and before.value.kind != needed:
                raise InvalidInputError(
                    f"channel {name!r} holds a {kinds[before.value.kind]}; "
                    f"reducer {described} needs a {kinds[needed]} there"
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
            self._forget(number)
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

    def _kept_bases(self, sums: Mapping[int, Sum]) -> dict[int, tuple[int, ...]]:
        if len(self.bases) <= MAX_KEPT_BASES:
            return self.bases
        held = [channel.value.spans for channel in self.state.values() if channel.value]
        live = {number for spans in held for number in sp.numbers(spans)}
        live.update(number for found in sums.values() for number in sp.numbers(found.spans))
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
        return rec.Set(number, reducer, rec.Value(kind, placed.spans))
    if splice.removed == splice.inserted == 0:
        return None
    return rec.Patch(number, splice.place, splice.removed, placed.inserted)
