"""The small rows: header of a thread, namespaces, by-id entries, writes, queue.

Pure but for the transaction handed in. Imports keys and codec. The invariant: every row is sealed, and what doesn't
parse raises ChecksumError.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ormsgpack

from deltastore.codec import spans as sp
from deltastore.codec.primitives import PLAIN, pack, seal, unpack, unseal
from deltastore.codec.records import KINDS, Value, pack_id, pack_task, unpack_id, unpack_task
from deltastore.errors import ChecksumError, InvalidInputError
from deltastore.log import keys
from deltastore.storage.port import ReadTransaction, WriteTransaction

DELETED, FILLING = 1, 2
NATIVE, LANGGRAPH = 0, 1
FRONT_NAMES = {NATIVE: "native", LANGGRAPH: "LangGraph"}


def get(tx: ReadTransaction, key: bytes) -> bytes | None:
    """Return a row, unsealed, or None. Raises ChecksumError."""
    row = tx.get(key)
    return None if row is None else unseal(key, row)


def put(tx: WriteTransaction, key: bytes, value: bytes) -> bytes:
    """Seal and store a row; return it as stored."""
    sealed = seal(key, value)
    tx.put(key, sealed)
    return sealed


def parse(key: bytes, data: bytes) -> Any:
    """Parse a msgpack row. Raises ChecksumError naming it."""
    try:
        return ormsgpack.unpackb(data)
    except ValueError as error:
        raise ChecksumError(f"row {key.hex()} doesn't parse: {error}") from error


_NUMBERS = 1 << 8 * keys.NUMBER_BYTES
COMPACTED = 4
"""How many numbers tell of the last compaction."""


@dataclass(slots=True, repr=False)
class Header:
    """A thread's header. Lists are by series; `deleted` counts the checkpoints that were deleted one by one, ever.

    `changes` counts the transactions that changed any row of the thread. `compacted` is what it was after the last
    compaction, then zstd's level, whether all that was dead went (0, 1), and the dictionary in use (0: none).
    """

    name: bytes
    created_ms: int
    updated_ms: int
    last_ulid: bytes | None = None
    next_chunk: list[int] = field(default_factory=lambda: [1, 1])
    next_namespace: int = 1
    collected: int = 0
    loose_rows: list[int] = field(default_factory=lambda: [0, 0])
    loose_bytes: list[int] = field(default_factory=lambda: [0, 0])
    packed_up_to: list[int] = field(default_factory=lambda: [0, 0])
    checkpoints: int = 0
    deleted: int = 0
    changes: int = 0
    compacted: list[int] | None = None

    def copy(self) -> "Header":
        """Return one that can be changed for itself."""
        return Header(
            self.name,
            self.created_ms,
            self.updated_ms,
            self.last_ulid,
            list(self.next_chunk),
            self.next_namespace,
            self.collected,
            list(self.loose_rows),
            list(self.loose_bytes),
            list(self.packed_up_to),
            self.checkpoints,
            self.deleted,
            self.changes,
            self.compacted,
        )

    def encode(self) -> bytes:
        """Return the stored form."""
        return ormsgpack.packb(
            [
                self.name,
                self.created_ms,
                self.updated_ms,
                self.last_ulid,
                self.next_chunk,
                self.next_namespace,
                self.collected,
                self.loose_rows,
                self.loose_bytes,
                self.packed_up_to,
                self.checkpoints,
                self.deleted,
                self.changes,
                self.compacted,
            ]
        )

    @classmethod
    def decode(cls, key: bytes, data: bytes) -> "Header":
        """Undo `encode`. Raises ChecksumError."""
        match parse(key, data):
            case [
                bytes(),
                int(),
                int(),
                bytes() | None,
                chunks,
                int(),
                int(),
                loose_rows,
                loose_bytes,
                packed_up_to,
                int(),
                int(),
                int(),
                list() | None as compacted,
            ] as fields if (
                _is_by_series(chunks)
                and _is_by_series(loose_rows)
                and _is_by_series(loose_bytes)
                and _is_by_series(packed_up_to)
            ):
                if compacted is None or (len(compacted) == COMPACTED and all(isinstance(n, int) for n in compacted)):
                    return cls(*fields)
        raise ChecksumError(f"row {key.hex()} is no thread header")


def _is_by_series(item: Any) -> bool:
    match item:
        case [int(values), int(versions)]:
            return 0 <= values < _NUMBERS and 0 <= versions < _NUMBERS
    return False


def _fits(number: Any, size: int) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 8 * size


@dataclass(slots=True, repr=False)
class Namespace:
    """A namespace of a thread.

    `loose_before` are records of their own before the last anchor, `loose_since` the others. `id_packs` counts the
    by-id rows that stand for a record pack.
    """

    name: bytes
    number: int
    front: int
    count: int = 0
    tip: bytes | None = None
    latest: str | None = None
    loose_before: int = 0
    loose_since: int = 0
    packed_up_to: bytes | None = None
    id_packs: int = 0
    others: tuple["Namespace", ...] | None = field(default=None, compare=False)
    """What else its row held when it was loaded; None: not known."""

    def is_above(self, id_: str) -> bool:
        """Tell whether an id of LangGraph's is greater than that of every visible checkpoint, so that it is none's."""
        return not self.count if self.latest is None else id_ > self.latest

    def copy(self) -> "Namespace":
        """Return one that can be changed for itself."""
        found = Namespace(*self.fields())
        found.others = self.others
        return found

    def fields(self) -> list[Any]:
        """Return the stored fields."""
        return [
            self.name,
            self.number,
            self.front,
            self.count,
            self.tip,
            self.latest,
            self.loose_before,
            self.loose_since,
            self.packed_up_to,
            self.id_packs,
        ]


def decode_namespaces(key: bytes, data: bytes) -> list[Namespace]:
    """Return the namespaces whose names share a hash: one, but for hostile names. Raises ChecksumError."""
    found = parse(key, data)
    if not isinstance(found, list) or not found:
        raise ChecksumError(f"row {key.hex()} is no namespace row")
    return [_decode_namespace(key, fields) for fields in found]


def _decode_namespace(key: bytes, fields: Any) -> Namespace:
    match fields:
        case [bytes(), number, int(), int(), bytes() | None, str() | None, int(), int(), bytes() | None, int()] if (
            _fits(number, keys.NAMESPACE_BYTES)
        ):
            return Namespace(*fields)
    raise ChecksumError(f"row {key.hex()} is no namespace row")


def new_namespace(header: Header, name: bytes, front: int) -> Namespace:
    """Return a namespace under the thread's next number, unstored.

    Raises InvalidInputError when numbers are used up.
    """
    number = header.next_namespace
    if number >= 1 << 8 * keys.NAMESPACE_BYTES:
        raise InvalidInputError(
            f"thread {keys.decode_name(header.name)!r} has had {number - 1} namespaces, which is the limit. "
            "Start another thread"
        )
    header.next_namespace += 1
    return Namespace(name, number, front)


def load_namespace(tx: ReadTransaction, thread: int, name: bytes) -> Namespace | None:
    """Return a namespace of a thread, or None."""
    key = keys.namespace(thread, name)
    row = get(tx, key)
    if row is None:
        return None
    found, *others = decode_namespaces(key, row)
    if found.name != name:
        others.append(found)
        place = next((place for place, other in enumerate(others) if other.name == name), None)
        if place is None:
            return None
        found = others.pop(place)
    found.others = tuple(others)
    return found


def store_namespace(tx: WriteTransaction, thread: int, namespace: Namespace) -> bytes:
    """Store a namespace, loaded in this transaction or new, beside those that share its hash; return the row."""
    key = keys.namespace(thread, namespace.name)
    others = _others(tx, key, namespace) if namespace.others is None else namespace.others
    return put(tx, key, ormsgpack.packb([*(found.fields() for found in others), namespace.fields()]))


def _others(tx: ReadTransaction, key: bytes, namespace: Namespace) -> tuple[Namespace, ...]:
    row = get(tx, key)
    found = () if row is None else decode_namespaces(key, row)
    return tuple(other for other in found if other.name != namespace.name)


def remove_namespace(tx: WriteTransaction, thread: int, namespace: Namespace) -> None:
    """Remove a namespace's row, but for those that share its hash."""
    key = keys.namespace(thread, namespace.name)
    others = _others(tx, key, namespace)
    if others:
        put(tx, key, ormsgpack.packb([found.fields() for found in others]))
    else:
        tx.delete(key)


def load_namespaces(tx: ReadTransaction, thread: int) -> list[Namespace]:
    """Return all namespaces of a thread, in the order of their numbers."""
    prefix = keys.namespaces(thread)
    found = [
        namespace
        for key, row in tx.scan(prefix, keys.end_of(prefix))
        for namespace in decode_namespaces(key, unseal(key, row))
    ]
    return sorted(found, key=lambda namespace: namespace.number)


def load_header(tx: ReadTransaction, thread: int) -> Header | None:
    """Return a thread's header, or None."""
    key = keys.header(thread)
    row = get(tx, key)
    return None if row is None else Header.decode(key, row)


def store_header(tx: WriteTransaction, thread: int, header: Header) -> bytes:
    """Store a thread's header, once more changed; return the row."""
    header.changes += 1
    return put(tx, keys.header(thread), header.encode())


# --- by-id rows ----------------------------------------------------------------------


class IdEntry(NamedTuple):
    """Where an id leads: one record, or the pack that holds so many `ids` from `smallest` up to the key's."""

    ulid: bytes
    smallest: str | None = None
    ids: int = 1

    def encode(self) -> bytes:
        """Return the stored form."""
        if self.smallest is None:
            return ormsgpack.packb([self.ulid])
        return ormsgpack.packb([self.ulid, pack_id(self.smallest), self.ids])


def decode_id_entry(key: bytes, data: bytes) -> IdEntry:
    """Undo `IdEntry.encode`. Raises ChecksumError."""
    match parse(key, data):
        case [bytes(ulid)]:
            return IdEntry(ulid)
        case [bytes(ulid), bytes() | str() as smallest, int(ids)]:
            return IdEntry(ulid, unpack_id(smallest), ids)
    raise ChecksumError(f"row {key.hex()} is no by-id row")


# --- writes -----------------------------------------------------------------------------


class StoredWrite(NamedTuple):
    """A pending write: where it stands among its task's, its channel, its value as chunks, the task's path."""

    idx: int
    channel: int
    value: Value
    path: str
    time_ms: int


Tasks = dict[str, dict[int, StoredWrite]]
"""The writes of one row: task id → idx → write. More than one task only if their hashes collide."""


def spans_of(tasks: Tasks) -> list[tuple[int, sp.Span]]:
    """Return where the chunks of writes are, each span with its series."""
    return [(0, span) for by_idx in tasks.values() for write in by_idx.values() for span in write.value.spans]


def encode_tasks(tasks: Tasks) -> bytes:
    """Return the stored form of a write row."""
    return pack(ormsgpack.packb(fields_of_tasks(tasks)))


def encode_packed_tasks(tasks: Tasks) -> bytes:
    """Return a write row as a record pack gives it back: plain, for the pack is compressed as a whole."""
    return PLAIN + ormsgpack.packb(fields_of_tasks(tasks))


def fields_of_tasks(tasks: Tasks) -> list[Any]:
    """Return the stored fields of writes, spans counted from 0."""
    return [
        [
            pack_task(keys.encode_name(task)),
            [
                [
                    write.idx,
                    write.channel,
                    write.value.kind,
                    sp.encode(write.value.spans, 0),
                    keys.encode_name(write.path),
                    write.time_ms,
                ]
                for write in writes.values()
            ],
        ]
        for task, writes in tasks.items()
    ]


def decode_tasks(key: bytes, data: bytes) -> Tasks:
    """Undo `encode_tasks`. Raises ChecksumError."""
    return parse_tasks(key, parse(key, unpack(data)))


def parse_tasks(key: bytes, found: Any) -> Tasks:
    """Undo `fields_of_tasks`; the key is for the message. Raises ChecksumError."""
    if not isinstance(found, list):
        raise ChecksumError(f"row {key.hex()} is no write row")
    return dict(_decode_task(key, fields) for fields in found)


def _decode_task(key: bytes, fields: Any) -> tuple[str, dict[int, StoredWrite]]:
    match fields:
        case [task, list(writes)]:
            made = [_decode_write(key, write) for write in writes]
            return keys.decode_name(unpack_task(task)), {write.idx: write for write in made}
    raise ChecksumError(f"row {key.hex()} is no write row")


def _decode_write(key: bytes, fields: Any) -> StoredWrite:
    match fields:
        case [int(idx), int(channel), kind, bytes(spans), bytes(path), int(time_ms)] if kind in KINDS:
            return StoredWrite(idx, channel, Value(kind, sp.decode(spans, 0)), keys.decode_name(path), time_ms)
    raise ChecksumError(f"row {key.hex()} is no write row")


def merge_tasks(packed: Tasks, loose: Tasks) -> Tasks:
    """Return both; a loose write wins over a packed one of the same task and idx."""
    return {task: packed.get(task, {}) | loose.get(task, {}) for task in packed | loose}


# --- queue --------------------------------------------------------------------------------


class Queued(NamedTuple):
    """A thread number that no name leads to: deleted, or being filled by a copy since a moment."""

    thread: int
    state: int
    since_ms: int


def enqueue(tx: WriteTransaction, queued: Queued) -> None:
    """Store a queue row."""
    put(tx, keys.queued(queued.thread), ormsgpack.packb([queued.state, queued.since_ms]))


def load_queue(tx: ReadTransaction) -> list[Queued]:
    """Return the queue, in the order of thread numbers."""
    out: list[Queued] = []
    for key, row in tx.scan(keys.QUEUE, keys.end_of(keys.QUEUE)):
        match parse(key, unseal(key, row)):
            case [int(state), int(since_ms)]:
                out.append(Queued(int.from_bytes(key[-keys.THREAD_BYTES :], "big"), state, since_ms))
            case _:
                raise ChecksumError(f"row {key.hex()} is no queue row")
    return out
