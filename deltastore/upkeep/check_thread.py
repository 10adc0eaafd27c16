"""Check of one thread: its header, chunks, records, ids and pending writes, each against the others.

Imports report, and log and below. The invariant: problems go into the tally; only what keeps a thread
from being read at all is raised.
"""

from collections.abc import Container, Iterable, Iterator

from deltastore import ulid as ulids
from deltastore.codec import chunkrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.blobs import FIRST_INTERNED_TAG
from deltastore.codec.primitives import unseal
from deltastore.errors import CorruptionError
from deltastore.log import finding, keys, quarantine, retention, rows, tagging
from deltastore.log import state as st
from deltastore.log.reading import View
from deltastore.reducers import FIRST_INTERNED_REDUCER
from deltastore.storage.port import ReadTransaction
from deltastore.upkeep.report import Tally

KIND_NAMES = {keys.CHANNEL: "channel", keys.REDUCER: "reducer", keys.TAG: "kind of serialized data"}
_THREAD_KINDS = frozenset(b"hknriwtcq")


def check_quarantine(tx: ReadTransaction, thread: int, where: str, tally: Tally) -> None:
    """Count the quarantine rows of a thread, or of the store (0); only the row itself must be whole."""
    for key, row in quarantine.scan(tx, thread):
        try:
            quarantine.decode(key, row)
        except CorruptionError as error:
            tally.problem(where, error)
        else:
            tally.quarantined += 1


def nameless(used: Iterable[tuple[bytes, int]], named: Container[tuple[bytes, int]]) -> Iterator[str]:
    """Iterate over what is to be said of numbers that are used, by kind, and have no name."""
    for kind, number in sorted(used):
        if (kind, number) not in named:
            yield f"{KIND_NAMES[kind]} {number} has no name, so what is stored of it can't be read"


class ThreadCheck:
    """One thread's rows."""

    def __init__(self, tx: ReadTransaction, number: int, name: str, tally: Tally) -> None:
        self.tx = tx
        self.number = number
        self.where = f"thread {name!r}"
        self.tally = tally
        self.view = View(tx, number, name)
        self.needed: tuple[set[int], set[int]] = (set(), set())
        self.used: set[tuple[bytes, int]] = set()
        """The numbers, by kind of name, without whose names what is needed can't be read."""
        self.held: tuple[dict[int, chunkrow.ChunkRow], dict[int, chunkrow.ChunkRow]] = ({}, {})

    def run(self) -> None:
        """Check everything of the thread. Raises CorruptionError, MismatchError where that can't be done."""
        header = rows.load_header(self.tx, self.number)
        if header is None:
            self._problem("its header is missing")
            return
        if header.name != keys.encode_name(self.view.name):
            self._problem(f"its header names {header.name.decode('utf-8', 'backslashreplace')!r}")
        for key, _ in self.tx.scan(keys.thread(self.number), keys.thread(self.number + 1)):
            if key[keys.THREAD_BYTES] not in _THREAD_KINDS:
                self._problem(f"row {key.hex()} is of unknown kind")
            elif not keys.is_well_formed(key):
                self._problem(f"row {key.hex()} has no key of its kind")
        check_quarantine(self.tx, self.number, self.where, self.tally)
        try:
            retention.load(self.tx, self.number)
        except CorruptionError as error:
            self._problem(error)
        self._load_chunks(header)
        namespaces = rows.load_namespaces(self.tx, self.number)
        ids: dict[int, set[str]] = {namespace.number: self._namespace(header, namespace) for namespace in namespaces}
        self._writes(ids)
        self._numbers(b"r", {namespace.number for namespace in namespaces})
        self._numbers(b"i", {namespace.number for namespace in namespaces if namespace.front != rows.NATIVE})
        self._numbers(b"t", {namespace.number for namespace in namespaces})
        for namespace in namespaces:
            self._tags(namespace, ids[namespace.number])
        counted = sum(namespace.count for namespace in namespaces)
        if counted != header.checkpoints:
            self._problem(f"its header counts {header.checkpoints} checkpoints, its namespaces {counted}")
        self._garbage()

    def _problem(self, what: object) -> None:
        self.tally.problem(self.where, what)

    def _numbers(self, kind: bytes, known: set[int]) -> None:
        """Report rows of namespaces that aren't there."""
        prefix = keys.thread(self.number) + kind
        for key, _ in self.tx.scan(prefix, keys.end_of(prefix)):
            number = int.from_bytes(key[len(prefix) : len(prefix) + keys.NAMESPACE_BYTES], "big")
            if number not in known:
                self._problem(f"row {key.hex()} belongs to namespace {number}, which isn't there")

    # --- chunks

    def _load_chunks(self, header: rows.Header) -> None:
        for series in range(rec.SERIES):
            prefix = keys.chunks(self.number, series)
            loose = loose_bytes = 0
            for key, row in self.tx.scan(prefix, keys.end_of(prefix)):
                last = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
                try:
                    decoded = self.view.open_chunks(key, row)
                except CorruptionError as error:
                    self._problem(f"row {key.hex()}: {error}")
                    continue
                if last > header.packed_up_to[series]:
                    loose, loose_bytes = loose + 1, loose_bytes + decoded.plain_bytes
                if last >= header.next_chunk[series]:
                    self._problem(f"chunk {last} of series {series}: the next number is {header.next_chunk[series]}")
                for number in decoded.numbers:
                    if number in self.held[series]:
                        self._problem(f"chunk {number} of series {series} is held by two rows")
                    self.held[series][number] = decoded
            if (loose, loose_bytes) != (header.loose_rows[series], header.loose_bytes[series]):
                self._problem(
                    f"series {series} has {loose} loose rows of {loose_bytes} bytes; "
                    f"the header says {header.loose_rows[series]} of {header.loose_bytes[series]}"
                )

    def _need(self, series: int, spans: sp.Spans, what: str) -> None:
        for first, length in spans:
            for number in range(first, first + length):
                if number in self.needed[series]:
                    continue
                self.needed[series].add(number)
                row = self.held[series].get(number)
                if row is None:
                    self._problem(f"{what} needs chunk {number} of series {series}, which is missing")
                    continue
                based = row.based.get(number)
                if based is None:
                    continue
                self._need(series, tuple((base, 1) for base in based.bases), f"chunk {number}")
                try:
                    self.view.blob(series, number)
                except CorruptionError as error:
                    self._problem(error)

    def _garbage(self) -> None:
        for series in range(rec.SERIES):
            self.tally.chunks += len(self.held[series])
            for number, row in self.held[series].items():
                based = row.based.get(number)
                size = len(based.frame) if based else len(row.whole[number])
                self.tally.chunk_bytes += size
                if number not in self.needed[series]:
                    self.tally.garbage_chunks += 1
                    self.tally.garbage_bytes += size
                elif (tag := row.tag(number) if based else row.whole[number][0]) >= FIRST_INTERNED_TAG:
                    self.used.add((keys.TAG, tag))

    # --- records

    def _namespace(self, header: rows.Header, namespace: rows.Namespace) -> set[str]:
        """Check a namespace's records against its row and its ids; return the visible ids."""
        where = f"namespace {keys.decode_name(namespace.name)!r}"
        visible: dict[str, bytes] = {}
        held: dict[bytes, rec.Record] = {}
        previous: bytes | None = None
        state: st.State | None = {}
        depth = 0
        for found in self.view.record_rows(namespace.number):
            for ulid, record in zip(found.row.ulids, found.row.records, strict=True):
                if previous is not None and ulid <= previous:
                    self._problem(f"{where}: record {ulids.to_text(ulid)} doesn't follow {ulids.to_text(previous)}")
                what = f"{where}, checkpoint {record.id or ulids.to_text(ulid)!r}"
                if record.is_anchor:
                    self._folds(state, what)
                    self._unneeded(held.get(previous or b""), namespace)
                state, depth = self._record(record, what, previous, state, depth)
                held[ulid] = record
                previous = ulid
                if record.is_hidden:
                    self.tally.hidden += 1
                    continue
                id_ = record.id or ulids.to_text(ulid)
                if id_ in visible:
                    self._problem(f"{what}: two visible checkpoints have this id")
                visible[id_] = ulid
            for id_, tasks in found.row.writes.items():
                for task, row in tasks.items():
                    self._tasks(rows.decode_tasks(found.key, row), f"packed writes of {id_!r}, task {task.hex()}")
        self._folds(state, where)
        self._unneeded(held.get(previous or b""), namespace)
        self._parents(held, namespace, header, where)
        if header.last_ulid is not None and previous is not None and previous > header.last_ulid:
            self._problem(f"{where}: record {ulids.to_text(previous)} is newer than the header's last")
        self._tip(namespace, visible, previous, where)
        if namespace.front != rows.NATIVE:
            self._ids(namespace, visible, where)
        self.tally.checkpoints += len(visible)
        return set(visible)

    def _record(
        self, record: rec.Record, what: str, previous: bytes | None, state: st.State | None, depth: int
    ) -> tuple[st.State | None, int]:
        """Fold one record onto the state before it (None: broken)."""
        depth = 0 if record.is_anchor else depth + 1
        self.tally.max_depth = max(self.tally.max_depth, depth)
        if record.depth < depth or (record.is_anchor and record.depth):
            self._problem(f"{what}: depth {record.depth} is stated, {depth} records stand before it up to its anchor")
        if not record.is_anchor and record.parent != previous:
            self._problem(f"{what}: a delta whose base isn't the record before it")
            state = None
        if state is not None or record.is_anchor:
            try:
                state = st.fold(state or {}, record)
            except CorruptionError as error:
                self._problem(f"{what}: {error}")
                state = None
        for op in record.ops:
            self._uses(op.channel, 0 if isinstance(op, rec.Patch | rec.Drop) else op.reducer)
            values: tuple[sp.Spans, ...] = ()
            match op:
                case rec.Set():
                    values = (op.value.spans,)
                case rec.Patch():
                    values = (op.spans,)
                case rec.Fold():
                    values = tuple(write.spans for write in op.writes)
            for spans in values:
                self._need(rec.series_of(op.channel), spans, what)
        return state, depth

    def _uses(self, channel: int, reducer: int) -> None:
        if channel >= rec.FIRST_CHANNEL:
            self.used.add((keys.CHANNEL, channel))
        if reducer >= FIRST_INTERNED_REDUCER:
            self.used.add((keys.REDUCER, reducer))

    def _folds(self, state: st.State | None, what: str) -> None:
        """Fold what built-in reducers are still to fold, at the end of a chain."""
        for number, channel in (state or {}).items():
            try:
                self.view.folded(number, channel)
            except CorruptionError as error:
                self._problem(f"before {what}: {error}")

    def _unneeded(self, last: rec.Record | None, namespace: rows.Namespace) -> None:
        """Count a hidden record at the end of a chain: no delta stands on it."""
        if last is not None and last.is_hidden and namespace.front == rows.NATIVE:
            self.tally.garbage_records += 1

    def _parents(
        self, held: dict[bytes, rec.Record], namespace: rows.Namespace, header: rows.Header, where: str
    ) -> None:
        for ulid, record in held.items():
            # a deletion may lead the way to one that was put late, after what names it as parent
            moved = record.parent is not None and namespace.front != rows.NATIVE and header.deleted
            if record.parent is not None and record.parent >= ulid and not moved:
                self._problem(
                    f"{where}: the parent of {record.id or ulids.to_text(ulid)!r} is {ulids.to_text(record.parent)}, "
                    "which isn't older"
                )
        if namespace.front == rows.NATIVE:
            return  # a native checkpoint's parent may be deleted
        for ulid, record in held.items():
            if record.parent is not None and record.parent not in held:
                self._problem(f"{where}: the parent of {record.id!r} ({ulids.to_text(ulid)}) is missing")

    def _tip(self, namespace: rows.Namespace, visible: dict[str, bytes], last: bytes | None, where: str) -> None:
        if namespace.tip is not None and namespace.tip != last:
            self._problem(f"{where}: its tip isn't the last record")
        if namespace.count != len(visible):
            self._problem(f"{where}: {namespace.count} checkpoints are counted, {len(visible)} are there")
        if namespace.latest != max(visible, default=None):
            self._problem(
                f"{where}: its latest is {namespace.latest!r}; the greatest id is {max(visible, default=None)!r}"
            )

    def _ids(self, namespace: rows.Namespace, visible: dict[str, bytes], where: str) -> None:
        for id_, ulid in visible.items():
            if finding.find(self.view, namespace, id_) != ulid:
                self._problem(f"{where}: the id {id_!r} doesn't lead to its checkpoint")
        prefix = keys.ids(self.number, namespace.number)
        counted = packs = 0
        for key, row in self.tx.scan(prefix, keys.end_of(prefix)):
            entry = rows.decode_id_entry(key, unseal(key, row))
            counted += entry.ids
            packs += entry.smallest is not None
            if key[len(prefix) :].decode("utf-8", "backslashreplace") not in visible:
                self._problem(f"{where}: row {key.hex()} names a checkpoint that isn't there")
        if packs != namespace.id_packs:
            self._problem(f"{where}: {packs} record packs are listed by id, {namespace.id_packs} are counted")
        if counted != len(visible):
            self._problem(f"{where}: {counted} ids are listed, {len(visible)} checkpoints are there")

    def _tags(self, namespace: rows.Namespace, ids: set[str]) -> None:
        prefix = keys.tags(self.number, namespace.number)
        for key, row in self.tx.scan(prefix, keys.end_of(prefix)):
            try:
                entries = tagging.decode(key, unseal(key, row))
            except CorruptionError as error:
                self._problem(error)
                continue
            for name, id_ in entries:
                if keys.tag(self.number, namespace.number, name) != key:
                    self._problem(f"row {key.hex()} holds a tag that belongs elsewhere")
                if id_ not in ids:
                    self._problem(f"row {key.hex()} tags checkpoint {id_!r}, which isn't there")

    # --- writes

    def _writes(self, ids: dict[int, set[str]]) -> None:
        prefix = keys.all_writes(self.number)
        for key, row in self.tx.scan(prefix, keys.end_of(prefix)):
            rest = key[len(prefix) :]
            namespace = int.from_bytes(rest[: keys.NAMESPACE_BYTES], "big")
            if not keys.is_well_formed(key):
                continue  # reported already
            id_ = rest[keys.NAMESPACE_BYTES + 1 : -keys.HASH_BYTES].decode("utf-8", "backslashreplace")
            try:
                self._tasks(rows.decode_tasks(key, unseal(key, row)), f"writes of {id_!r}")
            except CorruptionError as error:
                self._problem(error)
            if namespace not in ids:
                self._problem(f"writes of {id_!r} belong to namespace {namespace}, which isn't there")
            elif id_ not in ids[namespace]:
                self.tally.writes_without_checkpoint += 1

    def _tasks(self, tasks: rows.Tasks, what: str) -> None:
        for writes in tasks.values():
            for write in writes.values():
                self._uses(write.channel, 0)
                self._need(0, write.value.spans, what)
