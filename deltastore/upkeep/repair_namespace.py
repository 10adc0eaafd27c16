"""A namespace under repair: its rows of records, ids, pending writes and tags, made to agree in the draft.

Imports records and chunks under repair, and log and below. The invariant: what is listed can be rebuilt, what can't is
quarantined and named, and every index is made of the records.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import ormsgpack

from deltastore import ulid as ulids
from deltastore.codec import recordrow
from deltastore.codec import records as rec
from deltastore.codec import spans as sp
from deltastore.codec.primitives import unseal
from deltastore.errors import CorruptionError
from deltastore.log import keys, rows, tagging
from deltastore.log.dictionaries import Dictionaries
from deltastore.log.reading import View
from deltastore.upkeep import marking, repair_records
from deltastore.upkeep.repair_chunks import Chunks
from deltastore.upkeep.repair_draft import Draft
from deltastore.upkeep.repair_plan import CUT, QUARANTINED, REBUILT, LostCheckpoint, Notes
from deltastore.upkeep.repair_records import Broken, Judged, id_of


@dataclass(frozen=True, slots=True)
class Context:
    """What the repair of a namespace works with."""

    draft: Draft
    thread: int
    name: str
    chunks: Chunks
    notes: Notes
    channel_name: Callable[[int], str]


@dataclass(slots=True)
class _Row:
    """A record row as found: what of it can be parsed."""

    key: bytes
    packed: bool
    ulids: list[bytes]
    writes: dict[str, dict[bytes, bytes]]
    whole: bool = True
    """Whether that is all of it."""


@dataclass(slots=True)
class NamespaceRepair:
    """The repair of one namespace. After `run`, what else the thread's header is told of."""

    context: Context
    namespace: rows.Namespace
    is_new: bool
    """Whether its row was lost, so that it counts nothing."""
    last_ulid: bytes = b""
    named_up_to: list[int] = field(default_factory=lambda: [0, 0])
    """By series, the greatest chunk number that anything names."""
    times: list[int] = field(default_factory=list)
    lost: int = 0
    """How many checkpoints are lost."""
    _rows: list[_Row] = field(default_factory=list)
    _records: dict[bytes, rec.Record] = field(default_factory=dict)
    _gone: dict[bytes, str] = field(default_factory=dict)
    """Records that can't be parsed, by ULID, with the reason."""
    _lost_writes: set[str] = field(default_factory=set)

    @property
    def _draft(self) -> Draft:
        return self.context.draft

    def run(self) -> None:
        """Mend all of it in the draft. Changes the namespace, unstored."""
        before = replace(self.namespace)
        ids = self._ids_by_ulid()
        self._read_records()
        bad_tasks, unfit = self._bad_tasks()
        view = View(self._draft, self.context.thread, self.context.name)
        judged = repair_records.judge(view, self.context.chunks, self._records, unfit)
        lost = self._lost(judged, ids)
        for id_ in self._lost_writes & judged.visible.keys():
            self._note(f"pending writes of {id_!r}", QUARANTINED, "they can't be read")
        repair_records.mend(
            view, self.context.chunks, self.namespace.front, self._records, judged, lost.keys(), self._lost_writes
        )
        for ulid in judged.cut:
            self._note(f"history of {id_of(ulid, judged.made[ulid])!r}", CUT, "what it needs of its parent was lost")
        self._drop_writes(bad_tasks, lost.keys() - judged.visible.keys())
        self._store_records(judged, bad_tasks)
        self._store_ids(judged)
        self._mend_tags(judged)
        self._count(before, judged, len(lost.keys() - judged.visible.keys()))

    @property
    def _where(self) -> str:
        return f"thread {self.context.name!r}, namespace {keys.decode_name(self.namespace.name)!r}"

    def _note(self, thing: str, action: str, reason: object) -> None:
        self.context.notes.note(self._where, thing, action, reason)

    # --- reading

    def _ids_by_ulid(self) -> dict[bytes, str]:
        """Return where by-id rows lead, before they are made anew: they may be all that tells a lost record's id."""
        prefix = keys.ids(self.context.thread, self.namespace.number)
        out: dict[bytes, str] = {}
        for key, row in self._draft.scan(prefix, keys.end_of(prefix)):
            try:
                entry = rows.decode_id_entry(key, unseal(key, row))
                out[entry.ulid] = key[len(prefix) :].decode()
            except (CorruptionError, UnicodeDecodeError):
                continue
        return out

    def _read_records(self) -> None:
        prefix = keys.records(self.context.thread, self.namespace.number)
        previous = b""
        for key, sealed in list(self._draft.scan(prefix, keys.end_of(prefix))):
            last = key[-ulids.ULID_BYTES :]
            self.last_ulid = max(self.last_ulid, last)
            try:
                found = recordrow.open_row(unseal(key, sealed), last, Dictionaries(self._draft))
                writes = dict(found.writes)
            except CorruptionError as error:
                self._note(f"record row up to {ulids.to_text(last)}", QUARANTINED, error)
                self._draft.quarantine(key, error)
                self._gone[last] = str(error)
                continue
            row = _Row(key, found.packed, [], writes)
            for place, ulid in enumerate(found.ulids):
                reason = f"it doesn't follow record {ulids.to_text(previous)}" if ulid <= previous else ""
                try:
                    record = found.records[place]
                except CorruptionError as error:
                    reason = str(error)
                if reason:
                    row.whole = False
                    if ulid not in self._records:
                        self._gone[ulid] = reason
                    continue
                row.ulids.append(ulid)
                self._records[ulid] = record
                previous = ulid
                self._name(spans for op in record.ops for spans in marking.spans_of(op))
                self.times.append(record.time_ms)
            self._rows.append(row)

    def _name(self, named: Iterable[tuple[int, sp.Spans]]) -> None:
        for channel, spans in named:
            series = rec.series_of(channel)
            for first, length in spans:
                self.named_up_to[series] = max(self.named_up_to[series], first + length - 1)

    def _can_read(self, key: bytes, row: bytes) -> str | None:
        """Return why a write row can't be read; None: it can."""
        try:
            tasks = rows.decode_tasks(key, row)
        except CorruptionError as error:
            return str(error)
        self._name(marking.written(tasks))
        for writes in tasks.values():
            self.times += [write.time_ms for write in writes.values()]
        for _, spans in marking.written(tasks):
            missing = self.context.chunks.missing(0, spans)
            if missing is not None:
                return f"chunk {missing} of series 0 is lost"
        return None

    def _bad_tasks(self) -> tuple[dict[tuple[str, bytes], str], dict[bytes, str]]:
        """Return the tasks whose writes can't all be read, by id and hash, and the remnants that hold such.

        A task goes as a whole: whoever resumes takes one that has any writes for done.
        """
        bad: dict[tuple[str, bytes], str] = {}
        unfit: dict[bytes, str] = {}
        for row in self._rows:
            remnants = {self._records[u].id: u for u in row.ulids if self._records[u].is_remnant}
            for id_, tasks in row.writes.items():
                for hashed, packed in tasks.items():
                    reason = self._can_read(row.key, packed)
                    if reason is not None and id_ in remnants:
                        unfit[remnants[id_]] = f"its writes: {reason}"
                    elif reason is not None:
                        bad[id_, hashed] = reason
        prefix = keys.all_writes(self.context.thread) + self.namespace.number.to_bytes(keys.NAMESPACE_BYTES, "big")
        for key, sealed in list(self._draft.scan(prefix, keys.end_of(prefix))):
            try:
                id_ = key[len(prefix) + 1 : -keys.HASH_BYTES].decode()
            except UnicodeDecodeError as error:
                self._note(f"row {key.hex()}", QUARANTINED, error)
                self._draft.quarantine(key, error)
                continue
            try:
                reason = self._can_read(key, unseal(key, sealed))
            except CorruptionError as error:
                reason = str(error)
            if reason is not None:
                bad[id_, key[-keys.HASH_BYTES :]] = reason
        self._lost_writes = {id_ for id_, _ in bad}
        return bad, unfit

    # --- what is lost

    def _lost(self, judged: Judged, ids: dict[bytes, str]) -> dict[str, Broken]:
        """Report the checkpoints that can't be rebuilt; return them by id."""
        lost: dict[str, Broken] = {}
        for ulid, broken in judged.broken.items():
            record = self._records[ulid]
            if not record.is_hidden:
                lost[id_of(ulid, record)] = broken
        native = self.namespace.front == rows.NATIVE
        for ulid, reason in self._gone.items():
            id_ = ulids.to_text(ulid) if native else ids.get(ulid)
            if id_ is not None:
                lost[id_] = Broken(reason)
        for ulid, id_ in ids.items():
            if ulid not in self._records and ulid not in self._gone:
                lost[id_] = Broken("its record is missing")
        for id_ in sorted(lost.keys() - judged.visible.keys()):
            broken = lost[id_]
            channels = tuple(map(self.context.channel_name, broken.channels))
            name = keys.decode_name(self.namespace.name)
            self.context.notes.lost.append(LostCheckpoint(self.context.name, name, id_, channels, broken.reason))
            self._note(f"checkpoint {id_!r}", QUARANTINED, broken.reason)
        return lost

    # --- storing

    def _drop_writes(self, bad: dict[tuple[str, bytes], str], lost: set[str]) -> None:
        """Quarantine the write rows of bad tasks, and of checkpoints that are lost."""
        for (id_, hashed), reason in bad.items():
            prefix = keys.writes(self.context.thread, self.namespace.number, id_.encode("utf-8", "surrogatepass"))
            self._draft.quarantine(prefix + hashed, reason)
        for id_ in lost:
            for key, _ in list(
                self._draft.scan(*keys.writes_of(self.context.thread, self.namespace.number, id_.encode()))
            ):
                self._draft.quarantine(key, f"checkpoint {id_!r} is lost")

    def _store_records(self, judged: Judged, bad: dict[tuple[str, bytes], str]) -> None:
        for row in self._rows:
            staying = [ulid for ulid in row.ulids if ulid in judged.made]
            ids = {id_of(ulid, self._records[ulid]) for ulid in staying}
            writes = {
                id_: {hashed: packed for hashed, packed in tasks.items() if (id_, hashed) not in bad}
                for id_, tasks in row.writes.items()
                if id_ in ids
            }
            writes = {id_: tasks for id_, tasks in writes.items() if tasks}
            lossless = row.whole and len(staying) == len(row.ulids) and writes == row.writes
            if lossless and all(judged.made[ulid] == self._records[ulid] for ulid in staying):
                continue
            if not lossless:
                gone = [ulid for ulid in row.ulids if ulid in judged.broken]
                self._draft.keep_copy(row.key, judged.broken[gone[0]].reason if gone else "a part of it can't be read")
            self._draft.remove(row.key)
            row.ulids, row.writes = staying, writes
            self._put(row, judged)

    def _put(self, row: _Row, judged: Judged) -> None:
        if not row.ulids:
            return
        row.key = keys.record(self.context.thread, self.namespace.number, row.ulids[-1])
        made = [judged.made[ulid] for ulid in row.ulids]
        if row.packed:
            packed = recordrow.RecordRow(True, tuple(row.ulids), tuple(made), row.writes)
            self._draft.put(row.key, recordrow.encode_pack(packed))
        else:
            self._draft.put(row.key, recordrow.encode_row(rec.encode_record(made[0]), (0, 0)))

    def _explode(self, row: _Row, judged: Judged) -> None:
        """Give the records of a pack rows of their own: another id stands between theirs."""
        self._draft.remove(row.key)
        for ulid in row.ulids:
            alone = _Row(b"", False, [ulid], {})
            self._put(alone, judged)
            self._rows.append(alone)
        for id_, tasks in row.writes.items():
            for hashed, packed in tasks.items():
                key = keys.writes(self.context.thread, self.namespace.number, keys.encode_id(id_)) + hashed
                loose = self._draft.get(key)
                if loose is None:
                    self._draft.put(key, packed)
                    continue
                found = rows.merge_tasks(rows.decode_tasks(key, packed), rows.decode_tasks(key, unseal(key, loose)))
                self._draft.put(key, rows.encode_tasks(found))
        self._rows.remove(row)

    def _entries(self, judged: Judged) -> dict[bytes, tuple[rows.IdEntry, _Row]]:
        """Return the by-id rows that the records ask for, by id."""
        out: dict[bytes, tuple[rows.IdEntry, _Row]] = {}
        listed = set(judged.visible.values())
        for row in self._rows:
            ids = [judged.made[ulid].id for ulid in row.ulids if ulid in listed]
            if ids and row.packed:
                out[max(ids).encode()] = (rows.IdEntry(row.ulids[-1], min(ids), len(ids)), row)
            elif ids:
                out[ids[0].encode()] = (rows.IdEntry(row.ulids[-1]), row)
        return out

    def _store_ids(self, judged: Judged) -> None:
        prefix = keys.ids(self.context.thread, self.namespace.number)
        wanted: dict[bytes, tuple[rows.IdEntry, _Row]] = {}
        if self.namespace.front != rows.NATIVE:
            wanted = self._entries(judged)
            before = b""
            crossing: list[_Row] = []
            for id_ in sorted(wanted):
                entry, row = wanted[id_]
                if entry.smallest is not None and entry.smallest.encode() <= before:
                    crossing.append(row)
                before = id_
            for row in crossing:
                self._explode(row, judged)
            if crossing:
                wanted = self._entries(judged)
        self.namespace.id_packs = sum(entry.smallest is not None for entry, _ in wanted.values())
        for key, sealed in list(self._draft.scan(prefix, keys.end_of(prefix))):
            found = wanted.get(key[len(prefix) :])
            try:
                entry = rows.decode_id_entry(key, unseal(key, sealed))
                if found is not None and entry == found[0]:
                    continue
                reason = "it doesn't lead where the records say"
            except CorruptionError as error:
                reason = str(error)
            self._note(f"row {key.hex()}", REBUILT if found else QUARANTINED, reason)
            self._draft.quarantine(key, reason)
        for id_, (entry, _) in wanted.items():
            if self._draft.get(prefix + id_) is None:
                self._note(f"id {id_.decode()!r}", REBUILT, "no row led to it")
                self._draft.put(prefix + id_, entry.encode())

    def _mend_tags(self, judged: Judged) -> None:
        prefix = keys.tags(self.context.thread, self.namespace.number)
        for key, sealed in list(self._draft.scan(prefix, keys.end_of(prefix))):
            try:
                entries = tagging.decode(key, unseal(key, sealed))
            except CorruptionError as error:
                self._note(f"tag row {key.hex()}", QUARANTINED, error)
                self._draft.quarantine(key, error)
                continue
            own = [
                entry
                for entry in entries
                if entry[1] in judged.visible and keys.tag(self.context.thread, self.namespace.number, entry[0]) == key
            ]
            if own == entries:
                continue
            shown = ", ".join(repr(name.decode("utf-8", "backslashreplace")) for name, _ in entries)
            self._note(f"tag {shown}", QUARANTINED, "the checkpoint that it names isn't there")
            self._draft.quarantine(key, "the checkpoint that it names isn't there")
            if own:
                self._draft.put(key, ormsgpack.packb([[name, rec.pack_id(id_)] for name, id_ in own]))

    def _count(self, before: rows.Namespace, judged: Judged, known: int) -> None:
        namespace = self.namespace
        namespace.count = len(judged.visible)
        namespace.latest = max(judged.visible, default=None)
        last = next(reversed(judged.made), None)
        if namespace.tip != last:
            namespace.tip = None
        self.lost = known
        untold = 0 if self.is_new else before.count - namespace.count - known
        if untold > 0:
            self.lost += untold
            self._note(f"{untold} checkpoints", REBUILT, f"{before.count} were counted; nothing else tells of these")
        if self.is_new:
            namespace.loose_before = sum(not row.packed for row in self._rows)
        if namespace != before:
            self._note("its counts", REBUILT, "they weren't those of its records")
