"""What a transaction that looks far away is told beforehand, so that what belongs together comes in one trip.

Called only where a transaction is `remote`. Imports keys and names. The invariant: nothing here decides what is read;
whoever reads asks as if nothing had been announced.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deltastore import ulid as ulids
from deltastore.codec import spans as sp
from deltastore.errors import InvalidIdError
from deltastore.log import keys, names
from deltastore.storage.port import ReadTransaction, Wanted

FIRST_NAMESPACE = 1
"""The number of a thread's first namespace: mostly its root, and what is looked for before the number is known."""
LOOK_AHEAD = 32
"""Ids whose records are looked for together."""
CHAIN_ROWS = 51
"""Record rows that are looked for from the last backwards: an anchor is among them, at the default frequency."""
EARLIER_ROWS = 8
"""The same from an earlier checkpoint: those are packed by then, and a row may hold hundreds of records."""
WRITES_OF_EACH = 4
"""Rows of pending writes that are looked for, about, for each checkpoint that is packed."""
WRITE_ROWS = 8
"""Rows of pending writes that are looked for of each checkpoint at the end of a namespace: few tasks run at a time."""
DICTIONARY_IN_USE = (keys.DICTIONARIES, keys.end_of(keys.DICTIONARIES), 1)


class Look(NamedTuple):
    """What will be looked at in a namespace: the last records and ids, so many, below `before`; and the rows of ids.

    `writes`: the pending writes of these ids; without any, so many of the last rows of such.
    """

    records: int = 0
    ids: int = 0
    writes: int = 0
    named: Sequence[str] = ()
    before: str | None = None


class Known(NamedTuple):
    """What is remembered of where a look goes: the numbers of thread and namespace."""

    thread: int
    namespace: int = FIRST_NAMESPACE


def thread(tx: ReadTransaction, name: str, namespace: str, known: Known | None, look: Look) -> None:
    """Announce a thread's own rows and a look into a namespace; where the number isn't remembered, ask for it first."""
    encoded = keys.encode_name(name)
    name_key = keys.of_name(keys.THREAD, encoded)
    tx.prefetch(Wanted(keys=(name_key,), ends=(DICTIONARY_IN_USE,)))
    if known is None:
        found = names.number_in(name_key, tx.get(name_key), encoded)
        known = None if found is None else Known(found)
    if known is not None:
        own = (keys.header(known.thread), keys.namespace(known.thread, keys.encode_name(namespace)))
        tx.prefetch(_looking(known, look)._replace(keys=own))


def _looking(known: Known, look: Look) -> Wanted:
    records, ids = keys.records(*known), keys.ids(*known)
    writes = _writes_of(known)
    ends: list[tuple[bytes, bytes, int]] = []
    runs: list[tuple[bytes, bytes, bytes]] = []
    last_record, last_id = keys.end_of(records), keys.end_of(ids)
    if look.before is not None:
        place = ulid_of(look.before)
        if place is not None:  # of a native checkpoint, which has no row by id
            runs.append((records + place, records + place, last_record))
            last_record = records + place + b"\0"
        last_id = ids + look.before.encode("utf-8", "surrogatepass")
    if look.records:
        ends.append((records, last_record, look.records))
    if look.ids:
        ends.append((ids, last_id, look.ids))
    if look.writes and not look.named:
        ends.append((writes, keys.end_of(writes), look.writes))
    places = sorted(records + ulid for ulid in map(ulid_of, look.named) if ulid is not None)
    if places:
        ends.append((records, places[-1] + b"\0", EARLIER_ROWS))
    runs += [(place, place, keys.end_of(records)) for place in places]
    return Wanted(runs=[*runs, *_of_ids(known, look.named, writes=bool(look.writes))], ends=ends)


def _of_ids(known: Known, ids: Iterable[str], *, writes: bool) -> list[tuple[bytes, bytes, bytes]]:
    """Return the runs of the rows of ids, as far as they can be any, and of their pending writes."""
    runs: list[tuple[bytes, bytes, bytes]] = []
    for id_ in ids:
        try:
            encoded = keys.encode_id(id_)
        except InvalidIdError:
            continue
        own = keys.by_id(*known, encoded)
        runs.append((own, own, keys.end_of(keys.ids(*known))))
        if writes:
            lower, upper = keys.writes_of(*known, encoded)
            runs.append((lower, upper, upper))
    return runs


def ulid_of(id_: str) -> bytes | None:
    """Return the ULID of a native checkpoint's id; None where it isn't one."""
    try:
        return ulids.from_text(id_)
    except InvalidIdError:
        return None


def records(tx: ReadTransaction, known: Known, found: Iterable[bytes], before: int = 0) -> None:
    """Announce records by their ULIDs, and `before` rows up to each."""
    prefix = keys.records(*known)
    upper = keys.end_of(prefix)
    places = [prefix + ulid for ulid in found]
    ends = [(prefix, place + b"\0", before) for place in places] if before else []
    tx.prefetch(Wanted(runs=[(place, place, upper) for place in places], ends=ends))


def writes(tx: ReadTransaction, known: Known, ids: Iterable[str]) -> None:
    """Announce the pending writes of checkpoint ids."""
    ranges = [keys.writes_of(*known, keys.encode_id(id_)) for id_ in ids]
    tx.prefetch(Wanted(runs=[(lower, upper, upper) for lower, upper in ranges]))


def between_ids(tx: ReadTransaction, known: Known, ids: Sequence[str]) -> None:
    """Announce the rows of all ids from the first to the last, and one after them, and the writes of these."""
    encoded = [keys.encode_id(id_) for id_ in ids]
    prefix = keys.ids(*known)
    writes = [keys.writes_of(*known, id_) for id_ in encoded]
    runs = [(lower, upper, upper) for lower, upper in writes]
    tx.prefetch(Wanted(runs=[*runs, (prefix + encoded[0], prefix + encoded[-1] + b"\0", keys.end_of(prefix))]))


def loose(
    tx: ReadTransaction,
    known: Known,
    series: Iterable[tuple[int, int]],
    packed_up_to: bytes | None = None,
    records: int = 0,
) -> None:
    """Announce what isn't packed: the chunk rows of series after a number, and, where `packed_up_to` is given, the
    record rows after that ULID, `records` of them about, with their ids and writes.
    """
    ends: list[tuple[bytes, bytes, int]] = []
    runs: list[tuple[bytes, bytes, bytes]] = []
    if packed_up_to is not None:
        own, ids, pending = keys.records(*known), keys.ids(*known), _writes_of(known)
        runs += [(own + packed_up_to, keys.end_of(own), keys.end_of(own))]
        ends += [(ids, keys.end_of(ids), records + 1)]  # with the last pack's, which has one
        ends += [(pending, keys.end_of(pending), WRITES_OF_EACH * records)]
    for each, number in series:
        end = keys.end_of(keys.chunks(known.thread, each))
        runs.append((keys.chunk(known.thread, each, number), end, end))
    tx.prefetch(Wanted(runs=runs, ends=ends))


def _writes_of(known: Known) -> bytes:
    """Return how the rows of a namespace's pending writes begin."""
    return keys.all_writes(known.thread) + known.namespace.to_bytes(keys.NAMESPACE_BYTES, "big")


def chunks(tx: ReadTransaction, thread: int, wanted: Iterable[tuple[int, sp.Span]]) -> None:
    """Announce the chunk rows of spans, each with its series."""
    runs: list[tuple[bytes, bytes, bytes]] = []
    for series, (first, length) in wanted:
        upper = keys.end_of(keys.chunks(thread, series))
        runs.append((keys.chunk(thread, series, first), keys.chunk(thread, series, first + length - 1), upper))
    tx.prefetch(Wanted(runs=runs))


def names_of(tx: ReadTransaction, kind: bytes, numbers: Iterable[int]) -> None:
    """Announce the names of numbers."""
    tx.prefetch(Wanted(keys=[keys.of_number(kind, number) for number in numbers]))
