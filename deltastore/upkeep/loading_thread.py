"""Loading one thread of a dump: its rows as a put would have written them, under a number that nothing names yet.

Imports renumbering, and log and below. The invariant: transactions are bounded, each can be run again, and records and
chunks are packed on the way, so that a loaded thread takes no more room than one that grew.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from deltastore import ulid as ulids
from deltastore.codec import chunkrow, recordrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.primitives import PACK_LEVEL
from deltastore.errors import ChecksumError, InvalidIdError, ThreadExistsError
from deltastore.log import copying, keys, names, packing, policy, rows, tagging
from deltastore.log.engine import Log
from deltastore.log.reading import View
from deltastore.storage.port import Row, WriteTransaction
from deltastore.upkeep.dumpframes import FIRST_CHANNEL, FIRST_REDUCER, FIRST_TAG
from deltastore.upkeep.renumbering import Numbers

_HERE = b"dump"
"""Stands for a row's key in the messages of parsers."""


@dataclass(frozen=True, slots=True)
class _Remnant:
    """A remnant that waits for those next to it: they stand in packs."""

    ulid: bytes
    record: rec.Record
    tasks: dict[bytes, bytes]


class ThreadLoad:
    """A thread being loaded. Not thread-safe."""

    def __init__(self, log: Log, name: str, facts: list[Any]) -> None:
        """Begin, given what the thread's first item says of it. Raises ChecksumError."""
        self.header = _header(name, facts)
        self._log = log
        self._name = name
        self._number = copying.begin_filling(log.storage, log.now_ms())
        self._given: dict[bytes, list[int]] = {keys.CHANNEL: [], keys.REDUCER: [], keys.TAG: []}
        self._numbers = Numbers(
            self._numbered(keys.CHANNEL, FIRST_CHANNEL),
            self._numbered(keys.REDUCER, FIRST_REDUCER),
            self._numbered(keys.TAG, FIRST_TAG),
        )
        self._namespace: rows.Namespace | None = None
        self._last: bytes = b""
        self._batch: list[Row] = []
        self._batch_bytes = 0
        self._ended: list[rows.Namespace] = []
        self._tags: list[tuple[int, bytes, str]] = []
        self._remnants: list[_Remnant] = []

    def _numbered(self, kind: bytes, first: int) -> Callable[[int], int]:
        given = self._given[kind]

        def number(dumped: int) -> int:
            if not 0 <= dumped - first < len(given):
                raise ChecksumError(f"malformed dump: number {dumped} of kind {kind!r} was given no name")
            return given[dumped - first]

        return number

    # --- items

    def take(self, item: list[Any]) -> None:
        """Take in an item.

        Raises ChecksumError, StoreFullError, ConflictError, and InvalidInputError beyond a limit of the store.
        """
        match item:
            case ["channel", bytes(name)]:
                self._give(keys.CHANNEL, name)
            case ["reducer", bytes(name)]:
                self._give(keys.REDUCER, name)
            case ["tag", bytes(name)]:
                self._give(keys.TAG, name)
            case ["namespace", bytes(name), int(front), bytes() | None as tip] if front in rows.FRONT_NAMES:
                self._end_namespace()
                self._namespace = rows.new_namespace(self.header, name, front)
                self._namespace.tip = tip
                self._last = b""
                self._flush_if_due()
            case ["records", list(found)]:
                for fields in found:
                    self._record(fields)
            case ["writes", bytes() | str() as id_, list(tasks)]:
                self._writes(rec.unpack_id(id_) or "", self._tasks(tasks))
            case ["tags", list(found)]:
                self._tags.extend(map(self._tag, found))
            case ["chunks", int(series), int(last), bytes(row)] if 0 <= series < rec.SERIES:
                self._chunks(series, last, row)
            case _:
                raise ChecksumError(f"malformed dump: {item[0]!r} can't stand within a thread")

    def _give(self, kind: bytes, name: bytes) -> None:
        self._given[kind].append(self._log.names.number(kind, keys.decode_name(name)))

    def _current(self) -> rows.Namespace:
        if self._namespace is None:
            raise ChecksumError("malformed dump: something of a namespace before any is named")
        return self._namespace

    def _end_namespace(self) -> None:
        if self._namespace is None:
            return
        self._store_remnants()
        if policy.should_pack_records(self._namespace.loose_before):
            self._flush()
        self._ended.append(self._current())
        self._namespace = None

    def _tag(self, fields: Any) -> tuple[int, bytes, str]:
        match fields:
            case [bytes(tag), bytes() | str() as id_]:
                return self._current().number, tag, rec.unpack_id(id_) or ""
        raise ChecksumError("malformed dump: a tag that is no name and id")

    # --- records and writes

    def _record(self, fields: Any) -> None:
        namespace = self._current()
        match fields:
            case [bytes(ulid), parts, list(tasks)] if len(ulid) == ulids.ULID_BYTES and ulid > self._last:
                self._last = ulid
                record = self._numbers.record(rec.parse_record(parts))
            case _:
                raise ChecksumError("malformed dump: a record that is none, or isn't in the order of ULIDs")
        id_ = record.id or ulids.to_text(ulid)
        if record.is_remnant:
            self._add_remnant(_Remnant(ulid, record, _by_hash(self._tasks(tasks))))
            return
        self._store_remnants()
        body = recordrow.encode_row(rec.encode_record(record), (0, 0))
        self._put(keys.record(self._number, namespace.number, ulid), body)
        if not record.is_hidden:
            if namespace.front != rows.NATIVE:
                key = keys.by_id(self._number, namespace.number, _encode_id(id_))
                self._put(key, rows.IdEntry(ulid).encode())
            namespace.count += 1
            namespace.latest = id_ if namespace.latest is None else max(namespace.latest, id_)
            self.header.checkpoints += 1
        if record.is_anchor:
            namespace.loose_before += namespace.loose_since
            namespace.loose_since = 0
        namespace.loose_since += 1
        self._writes(id_, self._tasks(tasks))

    def _tasks(self, fields: list[Any]) -> rows.Tasks:
        return self._numbers.tasks(rows.parse_tasks(_HERE, fields))

    def _writes(self, id_: str, tasks: rows.Tasks) -> None:
        if tasks:
            prefix = keys.writes(self._number, self._current().number, _encode_id(id_))
            for hashed, row in _by_hash(tasks).items():
                self._put(prefix + hashed, row)
        self._flush_if_due()

    def _add_remnant(self, remnant: _Remnant) -> None:
        full = len(self._remnants) >= policy.MAX_PACK_RECORDS
        if full or any(known.record.id == remnant.record.id for known in self._remnants):  # writes are kept by id
            self._store_remnants()
        self._remnants.append(remnant)

    def _store_remnants(self) -> None:
        run, self._remnants = self._remnants, []
        if run:
            packed = recordrow.RecordRow(
                True,
                tuple(remnant.ulid for remnant in run),
                tuple(remnant.record for remnant in run),
                {remnant.record.id: remnant.tasks for remnant in run if remnant.tasks},
            )
            key = keys.record(self._number, self._current().number, run[-1].ulid)
            self._put(key, recordrow.encode_pack(packed))

    # --- chunks

    def _chunks(self, series: int, last: int, data: bytes) -> None:
        row = chunkrow.decode_row(data, last, None)  # dumps name no dictionary
        if not self.header.packed_up_to[series] < row.numbers[0] <= last < self.header.next_chunk[series]:
            raise ChecksumError(f"malformed dump: chunks {row.numbers[0]} to {last} of series {series} out of order")
        renumbered = self._numbers.chunks(row)
        if renumbered is not row:
            data = chunkrow.encode_row(renumbered, chunkrow.encode_body(renumbered, PACK_LEVEL))
        self.header.packed_up_to[series] = last
        self._put(keys.chunk(self._number, series, last), data)
        self._flush_if_due()

    # --- transactions

    def _put(self, key: bytes, value: bytes) -> None:
        self._batch.append((key, value))
        self._batch_bytes += len(key) + len(value)

    def _flush_if_due(self) -> None:
        rows_due = len(self._batch) + len(self._ended) + len(self._tags) >= copying.MAX_COPIED_ROWS
        if rows_due or self._batch_bytes >= copying.MAX_COPIED_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what was gathered, then pack what that made packable. The queue row is written too: this goes on."""

        def work(tx: WriteTransaction) -> None:
            self._require(tx)
            rows.enqueue(tx, rows.Queued(self._number, rows.FILLING, self._log.now_ms()))
            self._write(tx)

        names.in_write(self._log.storage, (self._number,), work)
        self._batch, self._batch_bytes, self._ended, self._tags = [], 0, [], []
        while self._namespace is not None and policy.should_pack_records(self._namespace.loose_before):
            packed = self._pack(self._namespace)
            if packed is None:
                return
            self._namespace = packed

    def _write(self, tx: WriteTransaction) -> None:
        for key, value in self._batch:
            rows.put(tx, key, value)
        for namespace in self._ended:
            rows.store_namespace(tx, self._number, namespace)
        for namespace_number, tag, id_ in self._tags:
            tagging.put(tx, self._number, namespace_number, tag, id_)

    def _pack(self, namespace: rows.Namespace) -> rows.Namespace | None:
        """Pack some records; return the namespace afterwards, or None where there are none to be packed."""
        with self._log.storage.read() as tx:
            made = packing.plan(View(tx, self._number, self._name), self.header, namespace, None)
        if made.records is None:
            return None

        def work(tx: WriteTransaction) -> rows.Namespace:
            self._require(tx)
            after = replace(namespace)  # the storage may run this again
            packing.apply(tx, self._number, self.header, after, made)
            return after

        return names.in_write(self._log.storage, (self._number,), work)

    def _require(self, tx: WriteTransaction) -> None:
        copying.require_filling(tx, self._number, f"loading thread {self._name!r}", "load again")

    def finish(self) -> None:
        """Write what is left, and let the name lead to the thread. Raises ThreadExistsError."""
        self._end_namespace()

        def work(tx: WriteTransaction) -> None:
            encoded = keys.encode_name(self._name)
            if names.find(tx, keys.THREAD, encoded) is not None:
                raise ThreadExistsError(f"a thread named {self._name!r} was made while it was loaded; delete it first")
            self._require(tx)
            self._write(tx)
            rows.store_header(tx, self._number, self.header)
            names.assign(tx, keys.THREAD, encoded, self._number)
            tx.delete(keys.queued(self._number))

        names.in_write(self._log.storage, (self._number,), work)

    def abandon(self) -> None:
        """Leave what was written to the next collection."""

        def work(tx: WriteTransaction) -> None:
            if rows.get(tx, keys.queued(self._number)) is not None:  # else it was finished, or collected
                rows.enqueue(tx, rows.Queued(self._number, rows.DELETED, self._log.now_ms()))

        names.in_write(self._log.storage, (self._number,), work)


def _header(name: str, facts: list[Any]) -> rows.Header:
    match facts:
        case [int(created), int(updated), bytes() | None as last, [int(values), int(versions)], int(deleted)] if (
            (last is None or len(last) == ulids.ULID_BYTES)
            and all(1 <= number <= sp.MAX_NUMBER for number in (values, versions))
            and min(created, updated, deleted) >= 0
        ):
            return rows.Header(keys.encode_name(name), created, updated, last, [values, versions], deleted=deleted)
    raise ChecksumError("malformed dump: a thread without the facts of one")


def _by_hash(tasks: rows.Tasks) -> dict[bytes, bytes]:
    """Return write rows by what stands for their tasks in keys."""
    grouped: dict[bytes, rows.Tasks] = {}
    for task, writes in tasks.items():
        grouped.setdefault(keys.task_hash(keys.encode_name(task)), {})[task] = writes
    return {hashed: rows.encode_tasks(group) for hashed, group in grouped.items()}


def _encode_id(id_: str) -> bytes:
    try:
        return keys.encode_id(id_)
    except InvalidIdError as error:
        raise ChecksumError(f"malformed dump: {error}") from error
