"""Pending writes: values sent to channels before the checkpoint that consumes them exists.

They arrive before their own checkpoint as a rule, so their rows are keyed by the caller's checkpoint id and need
nothing that a put mints. Imports putting. The invariant: first-write-wins (idx ≥ 0) or replace (idx < 0) is decided per
write, inside the transaction.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.blobs import Cut
from deltastore.codec.primitives import seal
from deltastore.errors import CheckpointNotFoundError, FrontMismatchError
from deltastore.log import announcing, finding, keys, names, rows
from deltastore.log import standing as standings
from deltastore.log.announcing import Look
from deltastore.log.heads import Head, HeadCache, Pending
from deltastore.log.placing import NewChunks, Old, place
from deltastore.log.putting import check_front, chunk_bytes, take_numbers
from deltastore.log.reading import View
from deltastore.log.standing import Standing
from deltastore.storage.port import Believed, ReadTransaction, Wanted, WriteTransaction


class PutWrites(NamedTuple):
    """Writes of one task, each with its idx, channel and value. `must_exist`: refuse an unknown checkpoint."""

    thread: str
    namespace: str
    front: int
    id: str
    task: str
    path: str
    time_ms: int
    writes: Sequence[tuple[int, str, Cut]]
    must_exist: bool


class PreparedWrites(NamedTuple):
    """Writes made ready, in the numbering that prepare saw."""

    put: PutWrites
    standing: Standing
    writes: tuple[tuple[int, int, rec.Value], ...]
    chunks: tuple[tuple[chunkrow.ChunkRow, bytes] | None, ...]
    numbers: dict[bytes, int]
    chunk_bases: dict[int, tuple[int, ...]]
    tip: tuple[str, bytes] | None = None
    """Id and ULID of the last checkpoint, where they are remembered."""
    is_first: bool = False
    """Whether, as far as is known, this task has put nothing before."""

    @property
    def stored_bytes(self) -> int:
        """What its new chunks weigh as stored, in bytes."""
        return chunk_bytes(self.chunks)


def prepare(tx: ReadTransaction, put: PutWrites, channels: Sequence[int], heads: HeadCache) -> PreparedWrites:
    """Make writes ready, given their channels' numbers. Raises CheckpointNotFoundError, FrontMismatchError."""
    before = heads.standing(put.thread, put.namespace) if tx.remote else None
    known = None if before is None else before.known
    if known is not None:
        tx.prefetch(Wanted(keys=(_row(put, *known),)))
    look = Look(named=(put.id,) if put.must_exist else ())
    standing = standings.read(tx, put.thread, put.namespace, look, known)
    if put.must_exist:
        _require(tx, standing, put)
    is_first = known is not None and known == standing.known and tx.get(_row(put, *known)) is None
    return _prepare(standing, put, channels, heads, is_first=is_first)


def prepare_remembered(put: PutWrites, channels: Sequence[int], heads: HeadCache) -> PreparedWrites | None:
    """Make writes ready by what is in memory, or return None where that isn't enough, or refuses them."""
    standing = None if put.must_exist else heads.standing(put.thread, put.namespace)
    try:
        return None if standing is None else _prepare(standing, put, channels, heads, is_first=standing.own)
    except FrontMismatchError:
        return None


def _prepare(
    standing: Standing, put: PutWrites, channels: Sequence[int], heads: HeadCache, *, is_first: bool
) -> PreparedWrites:
    thread, namespace, collected, bases = standing.thread, standing.namespace, standing.collected, standing.next_chunk
    check_front(namespace, put)
    numbers: dict[bytes, int] = {}
    chunk_bases: dict[int, tuple[int, ...]] = {}
    head = earlier = None
    if thread is not None and namespace is not None:
        earlier = heads.pending(thread, namespace.number, put.id, collected, bases[0])
        if earlier is not None:
            numbers, chunk_bases = earlier.numbers, dict(earlier.bases)
        # mostly the tip's; another one's chunks do as well, for the put that makes the tip may be under way just now
        head = heads.head(thread, namespace.number, collected)
    if head is not None:
        chunk_bases.update((number, behind) for number, behind in head.bases.items() if number < bases[0])
    new = NewChunks(bases[0])
    values: list[tuple[int, int, rec.Value]] = []
    for channel, (idx, _, cut) in zip(channels, put.writes, strict=True):
        old = None if head is None else _known(head, channel, bases[0])
        placed = place(cut, old, numbers, new)
        values.append((idx, channel, rec.Value(cut.kind, placed.spans)))
    row = new.row(chunk_bases)
    if row is not None:
        chunk_bases |= {number: based.bases for number, based in row.based.items()}
    made = (row, chunkrow.encode_body(row, dictionary=standing.dictionary)) if row else None
    tip = None if head is None else (head.id, head.ulid)
    is_first = is_first and (earlier is None or put.task not in earlier.tasks)
    return PreparedWrites(put, standing, tuple(values), (made, None), numbers | new.index, chunk_bases, tip, is_first)


def _known(head: Head, channel: int, next_chunk: int) -> Old | None:
    """Return the value of a channel, as far as a snapshot with this next chunk number has all of its chunks.

    The cache may be ahead of the snapshot; numbers from there on are those of this put's own chunks.
    """
    value = head.state[channel].value if channel in head.blobs else None
    if value is None or not sp.below(value.spans, next_chunk):
        return None
    return Old(value.kind, value.spans, head.blobs[channel], head.keys.get(channel))


def _require(tx: ReadTransaction, standing: Standing, put: PutWrites) -> None:
    view, namespace = View(tx, standing.thread or 0, put.thread), standing.namespace
    if namespace is None or finding.find(view, namespace, put.id) is None:
        raise CheckpointNotFoundError(
            f"thread {put.thread!r} has no checkpoint {put.id!r} to keep writes for; see its history"
        )


class AppliedWrites(NamedTuple):
    """The rows that prepared writes leave, by how much their new chunks moved, and the writes that were taken."""

    standing: Standing
    shift: int
    taken: dict[int, rows.StoredWrite]


def wanted_by(prepared: PreparedWrites) -> Wanted:
    """Return what `apply` looks at."""
    put, standing = prepared.put, prepared.standing
    own = standings.wanted_by(standing, put.thread, put.namespace)
    if standing.thread is None or standing.namespace is None:
        return own
    known = standing.thread, standing.namespace.number
    row = _row(put, *known)
    wanted = own._replace(keys=[*own.keys, row], believed=None)
    if standing.namespace.front == rows.NATIVE:
        ulid = announcing.ulid_of(put.id)
        if ulid is None:
            return wanted
        place = keys.record(*known, ulid)
        return wanted._replace(runs=[(place, place, keys.end_of(keys.records(*known)))])
    if standing.namespace.is_above(put.id):
        return wanted._replace(believed=_believed(prepared, row, None, own.believed))
    place = keys.by_id(*known, keys.encode_id(put.id))
    runs = [(place, place, keys.end_of(keys.ids(*known)))]
    return wanted._replace(runs=runs, believed=_believed(prepared, row, place, own.believed))


def _row(put: PutWrites, thread: int, namespace: int) -> bytes:
    """Return the key of the task's row."""
    return keys.writes(thread, namespace, keys.encode_id(put.id)) + keys.task_hash(keys.encode_name(put.task))


def _believed(prepared: PreparedWrites, row: bytes, place: bytes | None, own: Believed | None) -> Believed | None:
    """Return what `apply` will find of a task's first writes: no row of theirs, and, at `place`, the tip's id."""
    if own is None or not prepared.is_first:
        return None
    gaps = [*own.gaps, (row, row + b"\0")]
    if place is None:
        return own._replace(gaps=gaps)
    if prepared.tip is not None and prepared.tip[0] == prepared.put.id:
        its = seal(place, rows.IdEntry(prepared.tip[1]).encode())
        return own._replace(rows=[*own.rows, (place, its)], gaps=gaps)
    return None


def apply(tx: WriteTransaction, prepared: PreparedWrites, now_ms: int) -> AppliedWrites | str | None:
    """Store prepared writes; return why they must be prepared again, or None where all of them were there already."""
    put = prepared.put
    if not put.writes:
        return None
    thread, bases = prepared.standing.thread, prepared.standing.next_chunk
    found = standings.find(tx, prepared.standing, put.thread, put.namespace, now_ms)
    if isinstance(found, str):
        return found
    header, namespace = found.header, found.namespace
    check_front(namespace, put)
    is_new = thread is None
    if thread is None:
        thread = names.assign(tx, keys.THREAD, header.name, names.new_number(tx, keys.THREAD))
    if namespace is None:
        namespace = rows.new_namespace(header, keys.encode_name(put.namespace), put.front)
        namespace.others = () if is_new else None
    view = View(tx, thread, put.thread)
    key = keys.writes(thread, namespace.number, keys.encode_id(put.id)) + keys.task_hash(keys.encode_name(put.task))
    loose_row = rows.get(tx, key)
    loose = {} if loose_row is None else rows.decode_tasks(key, loose_row)
    known = set(loose.get(put.task, ()))
    packed_row = finding.packed_tasks(view, namespace, put.id).get(key[-keys.HASH_BYTES :])
    if packed_row is not None:
        known |= set(rows.decode_tasks(key, packed_row).get(put.task, ()))
    taken = [(idx, channel, value) for idx, channel, value in prepared.writes if idx < 0 or idx not in known]
    if not taken:
        return None
    shift = take_numbers(tx, thread, header, bases, prepared.chunks)[0]
    stored: dict[int, rows.StoredWrite] = {}
    for idx, channel, value in taken:
        moved = rec.Value(value.kind, sp.join((sp.shift(value.spans, bases[0], shift),)))
        stored[idx] = rows.StoredWrite(idx, channel, moved, put.path, put.time_ms)
    loose[put.task] = {**loose.get(put.task, {}), **stored}
    rows.put(tx, key, rows.encode_tasks(loose))
    header.updated_ms = max(header.updated_ms, now_ms)
    return AppliedWrites(found.store(tx, thread, namespace), shift, stored)


def remember(heads: HeadCache, prepared: PreparedWrites, applied: AppliedWrites) -> None:
    """Keep what was put for the checkpoint's child to find. Only once it is committed: it names chunks."""
    base, standing = prepared.standing.next_chunk[0], applied.standing
    if standing.thread is None or standing.namespace is None:
        return

    def moved(number: int) -> int:
        return number + applied.shift if number >= base else number

    numbers, bases = prepared.numbers, prepared.chunk_bases
    if applied.shift:
        numbers = {blob: moved(number) for blob, number in numbers.items()}
        bases = {moved(number): behind for number, behind in bases.items()}
    reach = standing.next_chunk[0]
    pending = Pending(standing.collected, reach, numbers, bases, {prepared.put.task: applied.taken})
    heads.keep_pending(standing.thread, standing.namespace.number, prepared.put.id, pending)
    heads.keep_standing(prepared.put.thread, prepared.put.namespace, standing)
