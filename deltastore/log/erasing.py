"""Erasing: a deletion after which nothing of what went is kept for the histories of others.

Only the graph can fold LangGraph's DeltaChannels, so the caller is told what is lacking, and hands in the values that
take its place. Imports choosing, deleting and putting. The invariant: what stays has every value that its history gave.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.blobs import Cut
from deltastore.log import choosing, deleting, finding, keys, putting, surviving
from deltastore.log.placing import NewChunks
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction, WriteTransaction

Folded = Mapping[bytes, Mapping[int, Cut]]
"""By the ULID of a checkpoint that stays: channel → the value that its history gave."""


class Lack(NamedTuple):
    """A checkpoint that stays, and the channels, by number, whose history would need what goes."""

    namespace: str
    id: str
    ulid: bytes
    channels: frozenset[int]


def lacks(tx: ReadTransaction, name: str, choose: choosing.Choose) -> tuple[int, list[Lack]]:
    """Return what a choice, made `with_needs`, would have to keep for others; an unknown thread lacks nothing.

    First comes the moment of the thread: its header's count of changes.
    """
    found = finding.find_thread(tx, name)
    if found is None:
        return 0, []
    view = View(tx, found[0], name)
    out: list[Lack] = []
    for plan in choose(view).plans:
        for ulid, channels in plan.needs.items():
            record = view.record(plan.namespace.number, ulid)
            if record is not None:
                out.append(Lack(keys.decode_name(plan.namespace.name), record.id, ulid, channels))
    return found[1].changes, out


def erase(
    tx: WriteTransaction,
    name: str,
    choose: Callable[[Collection[bytes]], choosing.Choose],
    folded: Folded,
    moment: int,
) -> deleting.Outcome | None:
    """Delete what is chosen, given the checkpoints that get folded values.

    None where the thread isn't as it was at the moment that they were folded at: a late write may belong into them.
    """
    found = finding.find_thread(tx, name)
    if found is None:
        return deleting.NOTHING
    thread, header = found
    if header.changes != moment:
        return None
    view = View(tx, thread, name)
    choice = choose(folded.keys())(view)
    new = NewChunks(header.next_chunk[0])
    choice = choice._replace(plans=tuple(_with_values(plan, folded, new) for plan in choice.plans))
    row = new.row({})
    if row is not None:
        bases = (header.next_chunk[0], header.next_chunk[1])
        putting.take_numbers(tx, thread, header, bases, ((row, chunkrow.encode_body(row)), None))
    return deleting.apply_choice(tx, view, header, choice)


def _with_values(plan: surviving.Plan, folded: Folded, new: NewChunks) -> surviving.Plan:
    rewritten = dict(plan.rewritten)
    for ulid in folded.keys() & rewritten.keys():
        record, values = rewritten[ulid], folded[ulid]
        ops = [
            rec.Set(channel, 0, rec.Value(cut.kind, sp.of_numbers([new.place(blob) for blob in cut.blobs])))
            for channel, cut in values.items()
        ]
        seeds = tuple(seed for seed in record.seeds if seed[0] not in values)
        others = [op for op in record.ops if op.channel not in values]  # all, unless somebody erased meanwhile
        rewritten[ulid] = record._replace(ops=(*others, *ops), seeds=seeds)
    return plan._replace(rewritten=rewritten)
