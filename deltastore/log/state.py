"""Channels as chunk numbers, and what ops do to them. Pure; imports codec and reducers.

The invariant: `apply(diff(a, b), a) == b`, and folding a chain in pieces gives what folding it at once gives.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deltastore.codec import spans as sp
from deltastore.codec.records import LIST, Drop, Fold, Op, Patch, Record, Set, Value, series_of
from deltastore.errors import BrokenChainError
from deltastore.reducers import APPEND, REPLACE


class Channel(NamedTuple):
    """A channel's value, and writes that its reducer hasn't folded yet because it must look into chunks for that."""

    value: Value | None
    reducer: int
    writes: tuple[Value, ...] = ()


State = dict[int, Channel]
"""Channel number → channel, in the order of the state."""


class Splice(NamedTuple):
    """How one sequence of chunks became another.

    `removed` of them at `place` were replaced by `inserted` of the new ones.
    """

    place: int
    removed: int
    inserted: int


def diff(old: Sequence[bytes], new: Sequence[bytes]) -> Splice:
    """Return the shortest single splice that makes `new` of `old`: what is left without common beginning and end."""
    shorter = min(len(old), len(new))
    begin = _common(old, new, shorter)
    end = _common(old[::-1], new[::-1], shorter - begin) if begin < shorter else 0
    return Splice(begin, len(old) - begin - end, len(new) - begin - end)


def _common(old: Sequence[bytes], new: Sequence[bytes], limit: int) -> int:
    """Count the equal elements at the beginning.

    Slices compare in C, so most of a long list costs nothing in Python.
    """
    if old[:limit] == new[:limit]:
        return limit
    low, high = 0, limit  # old[:low] == new[:low], old[:high] != new[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low


def apply_op(channel: Channel | None, op: Op) -> Channel | None:
    """Return the channel after an op; None where it is absent.

    Raises BrokenChainError on an op that can't stand there.
    """
    match op:
        case Set():
            return Channel(op.value, op.reducer)
        case Patch():
            if channel is None or channel.value is None or channel.writes:
                raise BrokenChainError(f"channel {op.channel}: a patch without a value to patch")
            spans = sp.splice(channel.value.spans, op.place, op.removed, op.spans)
            return Channel(Value(channel.value.kind, spans), channel.reducer)
        case Fold():
            return _fold(channel, op)
        case Drop():
            return None


def _fold(channel: Channel | None, op: Fold) -> Channel:
    if op.reducer == REPLACE:
        return Channel(op.writes[-1], REPLACE)
    value = channel.value if channel else None
    if op.reducer == APPEND:
        before = value.spans if value else ()
        return Channel(Value(LIST, sp.join((before, *(write.spans for write in op.writes)))), APPEND)
    return Channel(value, op.reducer, (*(channel.writes if channel else ()), *op.writes))


def fold(state: State, record: Record) -> State:
    """Return the state after a record, in the record's order. An anchor doesn't look at the state before it."""
    after: State = {} if record.is_anchor else dict(state)
    for op in record.ops:
        channel = apply_op(after.get(op.channel), op)
        if channel is None:
            after.pop(op.channel, None)
        else:
            after[op.channel] = channel
    return after if record.order is None else in_order(after, record.order)


def fold_chain(records: Iterable[Record]) -> State:
    """Return the state after consecutive records, of which the first is an anchor."""
    state: State = {}
    for record in records:
        state = fold(state, record)
    return state


def spans_in(state: State) -> int | None:
    """Count the spans of all channels; None where writes aren't folded."""
    count = 0
    for channel in state.values():
        if channel.value is None or channel.writes:
            return None
        count += len(channel.value.spans)
    return count


def in_order(state: State, order: Sequence[int]) -> State:
    """Return the state with its channels in this order. Raises BrokenChainError where they aren't these."""
    if set(order) != set(state) or len(order) != len(state):
        raise BrokenChainError(f"a record orders the channels {sorted(order)}, but the state has {sorted(state)}")
    return {channel: state[channel] for channel in order}


def shift(state: State, bases: tuple[int, int], shifts: tuple[int, int]) -> State:
    """Return the state with the chunks from each base on renumbered."""
    if not any(shifts):
        return state

    def moved(channel: int, value: Value) -> Value:
        series = series_of(channel)
        return Value(value.kind, sp.join((sp.shift(value.spans, bases[series], shifts[series]),)))

    return {
        number: Channel(
            None if channel.value is None else moved(number, channel.value),
            channel.reducer,
            tuple(moved(number, write) for write in channel.writes),
        )
        for number, channel in state.items()
    }


def set_ops(state: State) -> tuple[Set, ...]:
    """Return the ops of an anchor: every channel in full. All writes must be folded."""
    ops = []
    for number, channel in state.items():
        if channel.value is None or channel.writes:
            raise BrokenChainError(f"channel {number} can't be stated in full: writes aren't folded")
        ops.append(Set(number, channel.reducer, channel.value))
    return tuple(ops)
