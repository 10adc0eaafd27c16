"""Channels as chunk numbers, and where the chunks of new values stand: rebuilt equals wanted, in pieces as at once."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.blobs import Cut, assemble, cut
from deltastore.codec.records import DICT, LIST, OPAQUE, Drop, Fold, Patch, Record, Set, Value
from deltastore.codec.strict import STRICT, Remove
from deltastore.errors import BrokenChainError, ChecksumError
from deltastore.log import state
from deltastore.log.placing import NewChunks, Old, Placed, place
from deltastore.log.state import Channel, State
from deltastore.reducers import APPEND, MERGE, REPLACE, UPSERT, fold_numbers

BLOBS = st.lists(st.sampled_from([b"\x01a", b"\x01b", b"\x01c"]), max_size=12)
"""Chunks with many repeats."""
LISTS = st.lists(st.sampled_from([{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "a", "x": 1}]), max_size=8)
SCALARS = st.lists(st.integers(0, 3), max_size=8)
DICTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4)
VALUES = st.one_of(LISTS, SCALARS, DICTS, st.sampled_from(["", "x", None]))


class Store:
    """The chunks of one thread, as puts leave them: a number, once given, always means the same blob."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = [b""]

    def new(self) -> NewChunks:
        return NewChunks(len(self.blobs))

    def keep(self, new: NewChunks) -> None:
        for _ in range(len(new)):
            blob = new.blob(len(self.blobs))
            assert blob is not None
            self.blobs.append(blob)

    def blob(self, number: int) -> bytes:
        return self.blobs[number]

    def value(self, value: Value) -> Any:
        return assemble(value.kind, [self.blobs[number] for number in sp.numbers(value.spans)], STRICT)


class TestDiff:
    @given(BLOBS, BLOBS)
    @example([b"a"] * 5, [b"a"] * 3)
    @example([b"a", b"b", b"a"], [b"a"])
    def test_the_splice_makes_the_new_of_the_old_and_is_the_shortest(self, old: list[bytes], new: list[bytes]) -> None:
        splice = state.diff(old, new)
        inserted = new[splice.place : splice.place + splice.inserted]
        assert [*old[: splice.place], *inserted, *old[splice.place + splice.removed :]] == new
        removed = old[splice.place : splice.place + splice.removed]
        if removed and inserted:
            assert removed[0] != inserted[0]
            assert removed[-1] != inserted[-1]
        assert (splice.removed == splice.inserted == 0) == (old == new)

    @given(st.integers(0, 3000), st.integers(0, 3000), BLOBS)
    def test_one_edit_of_a_long_list_is_found_where_it_is(self, before: int, after: int, middle: list[bytes]) -> None:
        numbered = [b"%d" % number for number in range(before + after)]
        splice = state.diff(numbered, [*numbered[:before], *middle, *numbered[before:]])
        assert splice == state.Splice(before if middle else before + after, 0, len(middle))


def put(store: Store, wanted: Cut, old: Old | None, known: dict[bytes, int] | None = None) -> Placed:
    new = store.new()
    placed = place(wanted, old, known or {}, new)
    store.keep(new)
    return placed


class TestPlacing:
    @given(st.lists(BLOBS, min_size=1, max_size=6), st.sets(st.sampled_from([b"\x01a", b"\x01b"])))
    def test_every_number_placed_is_that_of_the_wanted_blob(
        self, values: list[list[bytes]], pending: set[bytes]
    ) -> None:
        store = Store()
        store.blobs.extend(sorted(pending))
        known = {blob: number for number, blob in enumerate(store.blobs) if number}
        old: Old | None = None
        for wanted in values:
            placed = put(store, Cut(LIST, wanted), old, known)
            assert [store.blob(number) for number in sp.numbers(placed.spans)] == wanted
            assert placed.blobs == wanted
            if old is not None:
                assert placed.splice is not None
                patch = Patch(16, placed.splice.place, placed.splice.removed, placed.inserted)
                before = Channel(Value(LIST, old.spans), 0)
                assert state.apply_op(before, patch) == Channel(Value(LIST, placed.spans), 0)
            old = Old(LIST, placed.spans, placed.blobs, None)

    @given(BLOBS, BLOBS)
    def test_a_blob_that_the_old_value_holds_is_not_stored_again(self, before: list[bytes], after: list[bytes]) -> None:
        store = Store()
        placed = put(store, Cut(LIST, before), None)
        stored = len(store.blobs)
        put(store, Cut(LIST, after), Old(LIST, placed.spans, placed.blobs, None))
        assert stored == 1 + len(set(before))
        assert set(store.blobs[stored:]) == set(after) - set(before)
        assert len(store.blobs) == 1 + len(set(before) | set(after))

    def test_a_known_blob_is_not_stored_again(self) -> None:
        store = Store()
        store.blobs.append(b"\x01a")
        assert put(store, Cut(LIST, [b"\x01a", b"\x01b", b"\x01b"]), None, {b"\x01a": 1}).spans == sp.of_numbers(
            [1, 2, 2]
        )
        assert len(store.blobs) == 3

    def test_a_value_of_another_kind_is_not_made_of_the_old_one(self) -> None:
        store = Store()
        old = Old(LIST, (), [], None)
        assert put(store, Cut(DICT, [], ()), old).splice is None
        assert put(store, Cut(LIST, []), old).splice == state.Splice(0, 0, 0)

    def large(self, seed: int, edit: bytes = b"") -> bytes:
        return b"\x01" + random.Random(seed).randbytes(20_000) + edit

    @pytest.mark.parametrize("kind", [LIST, DICT, OPAQUE])
    def test_an_edited_large_chunk_is_stored_as_its_difference(self, kind: int) -> None:
        count = 1 if kind == OPAQUE else 3
        keys = tuple("abc") if kind == DICT else None
        store = Store()
        before = [self.large(seed) for seed in range(count)]
        placed = put(store, Cut(kind, before, keys), None)
        new = store.new()
        after = [*before[:-1], self.large(count - 1, b"edit")]
        again = place(Cut(kind, after, keys), Old(kind, placed.spans, placed.blobs, keys), {}, new)
        row = new.row({})
        assert row is not None
        assert row.whole == {}
        (number,) = row.numbers
        assert row.based[number].bases == (sp.numbers(placed.spans)[-1],)
        assert chunkrow.resolve(number, row, store.blob) == after[-1]
        assert sp.numbers(again.spans) == [*sp.numbers(placed.spans)[:-1], number]

    def test_an_entry_that_moved_is_stored_against_the_one_of_its_key(self) -> None:
        store = Store()
        placed = put(store, Cut(DICT, [self.large(1), self.large(2)], ("a", "b")), None)
        old = Old(DICT, placed.spans, placed.blobs, ("a", "b"))
        new = store.new()
        place(Cut(DICT, [self.large(2, b"edit"), self.large(3)], ("b", "c")), old, {}, new)
        row = new.row({sp.numbers(placed.spans)[1]: (1,)})
        assert row is not None
        assert {number: based.bases for number, based in row.based.items()} == {3: (2, 1)}
        assert list(row.whole) == [4]

    def test_at_the_depth_limit_a_chunk_is_stored_whole(self) -> None:
        store = Store()
        placed = put(store, Cut(OPAQUE, [self.large(1)]), None)
        new = store.new()
        place(Cut(OPAQUE, [self.large(1, b"edit")]), Old(OPAQUE, placed.spans, placed.blobs, None), {}, new)
        row = new.row({sp.numbers(placed.spans)[0]: tuple(range(20, 20 - chunkrow.MAX_DEPTH, -1))})
        assert row is not None
        assert not row.based

    def test_a_put_without_new_chunks_has_no_row(self) -> None:
        assert NewChunks(5).row({}) is None
        assert NewChunks(5).blob(4) is None


# --- chains ------------------------------------------------------------------------------


def record(ops: Sequence[rec.Op], *, anchor: bool = False, order: Sequence[int] | None = None) -> Record:
    flags = rec.ANCHOR if anchor else 0
    return Record(flags, "", None, None, 0, 0, None, None, b"", tuple(ops), tuple(order) if order else None, (), (1, 1))


CHANNELS = st.integers(16, 18)
STATES = st.dictionaries(CHANNELS, VALUES, max_size=3)
WRITES = st.one_of(
    st.tuples(st.just("assign"), STATES),
    st.tuples(st.just("append"), st.tuples(st.just(19), LISTS)),
    st.tuples(st.just("merge"), st.tuples(st.just(20), DICTS)),
    st.tuples(st.just("upsert"), st.tuples(st.just(21), LISTS.map(lambda items: [*items, Remove("b")]))),
    st.tuples(st.just("replace"), st.tuples(st.just(22), VALUES)),
)
REDUCERS = {"append": APPEND, "merge": MERGE, "upsert": UPSERT, "replace": REPLACE}


def delta(store: Store, before: State, wanted: dict[int, Any]) -> Record:
    """A record that makes the channels 16 to 18 what is wanted, in that order, and leaves the others."""
    ops: list[rec.Op] = [Drop(number) for number in before if number <= 18 and number not in wanted]
    for number, value in wanted.items():
        made = cut(value, STRICT, "channel")
        channel = before.get(number)
        old = None
        if channel is not None and channel.value is not None:
            numbers = sp.numbers(channel.value.spans)
            old = Old(channel.value.kind, channel.value.spans, [store.blob(each) for each in numbers], None)
        placed = put(store, made, old)
        if placed.splice is None:
            ops.append(Set(number, 0, Value(made.kind, placed.spans)))
        else:
            ops.append(Patch(number, placed.splice.place, placed.splice.removed, placed.inserted))
    order = [*wanted, *(number for number in before if number > 18)]
    return record(ops, order=order)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Store, list[Record], list[dict[int, Any]]]:
    """Records, of which the first is an anchor, and the state that each should give."""
    store = Store()
    records = [record((), anchor=True)]
    current: State = {}
    wanted: dict[int, Any] = {}
    expected: list[dict[int, Any]] = [{}]
    for verb, what in draw(st.lists(WRITES, max_size=8)):
        if verb == "assign":
            wanted = what | {number: value for number, value in wanted.items() if number > 18}
            records.append(delta(store, current, what))
        else:
            number, value = what
            made = cut(value, STRICT, "channel")
            spans = put(store, made, None).spans
            records.append(record([Fold(number, REDUCERS[verb], (Value(made.kind, spans),))]))
            wanted = wanted | {number: model(verb, wanted.get(number), value)}
        current = state.fold(current, records[-1])
        expected.append(wanted)
    return store, records, expected


def model(verb: str, value: Any, write: Any) -> Any:
    match verb:
        case "append":
            return [*(value or []), *write]
        case "merge":
            return (value or {}) | write
        case "replace":
            return write
    ids: dict[str, Any] = {element["id"]: element for element in value or []}
    for element in write:
        if not isinstance(element, Remove):
            ids[element["id"]] = element
    ids.pop("b", None)  # each write ends with its removal
    return list(ids.values())


def folded(store: Store, channel: Channel) -> Channel:
    """What a reader does with the writes that are left: it looks into chunks."""
    if not channel.writes:
        return channel
    base = sp.numbers(channel.value.spans) if channel.value else []
    numbers = fold_numbers(channel.reducer, base, [sp.numbers(write.spans) for write in channel.writes], store.blob)
    return Channel(Value(channel.writes[0].kind, sp.of_numbers(numbers)), channel.reducer)


def read(store: Store, channels: State) -> dict[int, Any]:
    values = {}
    for number, channel in channels.items():
        value = folded(store, channel).value
        assert value is not None
        values[number] = store.value(value)
    return values


class TestChains:
    @given(chains())
    def test_folding_a_chain_gives_the_state_that_was_put_in_its_order(
        self, chain: tuple[Store, list[Record], list[dict[int, Any]]]
    ) -> None:
        store, records, expected = chain
        for length, wanted in enumerate(expected, 1):
            found = read(store, state.fold_chain(records[:length]))
            assert list(found.items()) == list(wanted.items())

    @given(chains(), st.data())
    def test_folding_in_pieces_is_as_at_once(
        self, chain: tuple[Store, list[Record], list[dict[int, Any]]], data: st.DataObject
    ) -> None:
        store, records, _ = chain
        place = data.draw(st.integers(1, len(records)))
        middle = {number: folded(store, channel) for number, channel in state.fold_chain(records[:place]).items()}
        anchor = record(state.set_ops(middle), anchor=True)
        assert state.fold_chain([anchor]) == middle
        at_once, in_pieces = state.fold_chain(records), state.fold_chain([anchor, *records[place:]])
        assert list(at_once) == list(in_pieces)
        assert {number: folded(store, channel) for number, channel in at_once.items()} == {
            number: folded(store, channel) for number, channel in in_pieces.items()
        }

    @given(chains(), st.integers(1, 20), st.integers(0, 100))
    def test_a_shifted_state_is_the_state_of_shifted_records(
        self, chain: tuple[Store, list[Record], list[dict[int, Any]]], base: int, by: int
    ) -> None:
        _, records, _ = chain
        records = [each._replace(bases=(base, 1)) for each in records]
        shifted = state.fold_chain(rec.shifted(each, (by, 0)) for each in records)
        assert state.shift(state.fold_chain(records), (base, 1), (by, 0)) == shifted

    @given(chains())
    def test_a_state_is_left_as_it_was_by_a_fold(self, chain: tuple[Store, list[Record], list[dict[int, Any]]]) -> None:
        _, records, _ = chain
        before = state.fold_chain(records[:-1])
        kept = dict(before)
        state.fold(before, records[-1])
        assert list(before.items()) == list(kept.items())


class TestRefusals:
    value = Value(LIST, ((1, 2),))

    @pytest.mark.parametrize("channel", [None, Channel(None, MERGE, (value,)), Channel(value, UPSERT, (value,))])
    def test_a_patch_without_a_value_to_patch_raises(self, channel: Channel | None) -> None:
        with pytest.raises(BrokenChainError, match="16"):
            state.apply_op(channel, Patch(16, 0, 0, ()))

    @pytest.mark.parametrize(("at", "removed"), [(0, 3), (2, 1), (3, 0), (-1, 1)])
    def test_a_patch_outside_the_value_raises(self, at: int, removed: int) -> None:
        with pytest.raises(ChecksumError):
            state.apply_op(Channel(self.value, 0), Patch(16, at, removed, ((5, 1),)))

    @pytest.mark.parametrize("order", [(16,), (16, 17, 18), (16, 16), (17, 18), ()])
    def test_an_order_of_other_channels_raises(self, order: tuple[int, ...]) -> None:
        channels = {16: Channel(self.value, 0), 17: Channel(self.value, 0)}
        with pytest.raises(BrokenChainError):
            state.in_order(channels, order)

    def test_an_anchor_of_writes_that_are_not_folded_raises(self) -> None:
        for channel in (Channel(self.value, UPSERT, (self.value,)), Channel(None, UPSERT, (self.value,))):
            with pytest.raises(BrokenChainError):
                state.set_ops({16: channel})

    def test_an_anchor_does_not_look_at_the_state_before(self) -> None:
        before = {16: Channel(self.value, 0)}
        assert state.fold(before, record([Set(17, 2, self.value)], anchor=True)) == {17: Channel(self.value, 2)}
