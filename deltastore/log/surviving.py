"""What outlives a deletion: which records of a namespace go, what of them stays hidden, and which of the others change.

LangGraph's DeltaChannels are rebuilt by walks over ancestors, which only the graph can fold, and the store can't know
which channels are of that kind: so of a record that goes, the values and writes stay that a walk from another one
would come for. Reads only; `removing` applies the plan. Imports walking, finding and reading. The invariant: each
checkpoint that stays reads as before, and so does the history of each channel that has a version there and no value.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from deltastore.codec import records as rec
from deltastore.errors import BrokenChainError
from deltastore.log import keys, policy, rows, walking
from deltastore.log import state as st
from deltastore.log.reading import FoundRow, View

_LASTING_FLAGS = rec.PARENT_MISSING | rec.PARENT_DELETED | rec.HISTORY_ENDS | rec.HISTORY_LOST
_LOST_FLAGS = rec.PARENT_DELETED | rec.HISTORY_LOST
"""Walks raise here, at least if the parent isn't found."""


class Remnant(NamedTuple):
    """What stays of a record that goes: its values and writes that others' histories need."""

    record: rec.Record
    writes: dict[bytes, bytes]


class Plan(NamedTuple):
    """What becomes of a namespace's records, by ULID. Those named nowhere stay as they are.

    `removed` were visible or hidden until now; `remnants` are what is left of some. `rewritten` become anchors because
    what they stood on goes, or get another parent. `visible` are the ids of the removed ones that were visible.
    """

    namespace: rows.Namespace
    touched: tuple[FoundRow, ...]
    """The rows that hold any of them."""
    removed: frozenset[bytes]
    """Empty where remnants are all that goes, and come again as they are."""
    remnants: tuple[tuple[tuple[bytes, Remnant], ...], ...]
    """In runs that nothing stands between, in ULID order."""
    rewritten: dict[bytes, rec.Record]
    visible: frozenset[str]
    latest: str | None
    """The greatest id that stays."""
    needs: dict[bytes, frozenset[int]]
    """For each checkpoint that stays: the channels whose history leads over remnants. Empty unless asked for."""


def plan(
    view: View,
    namespace: rows.Namespace,
    is_doomed: Callable[[str, bytes], bool],
    settled: Collection[bytes] = (),
    *,
    with_needs: bool = False,
) -> Plan:
    """Decide what a LangGraph namespace keeps when visible checkpoints go: `is_doomed` is given their id and ULID.

    `settled` are checkpoints, by ULID, that stay and get all values that they lack: nobody will ask for their history;
    they become anchors. `with_needs`: find out what each checkpoint's history needs of what goes.
    Raises BrokenChainError where records are missing.
    """
    return _Namespace(view, namespace, is_doomed, frozenset(settled)).plan(with_needs)


class _Namespace:
    """All records of a namespace, and what is found out about them."""

    def __init__(
        self,
        view: View,
        namespace: rows.Namespace,
        is_doomed: Callable[[str, bytes], bool],
        settled: frozenset[bytes],
    ) -> None:
        self.view = view
        self.namespace = namespace
        self.settled = settled
        self.records: dict[bytes, rec.Record] = {}
        self.own_writes: dict[bytes, dict[bytes, bytes]] = {}
        self.rows = list(view.record_rows(namespace.number))
        for found in self.rows:
            for ulid, record in zip(found.row.ulids, found.row.records, strict=True):
                self.records[ulid] = record
                if record.is_remnant:
                    self.own_writes[ulid] = found.row.writes.get(record.id, {})
        self.ids = {record.id: ulid for ulid, record in self.records.items() if not record.is_hidden}
        self._require_whole()
        self.staying = {ulid for id_, ulid in self.ids.items() if not is_doomed(id_, ulid)}
        self.present = self._present()
        self.remnants: dict[bytes, Remnant] = {}
        self._held_by: dict[bytes, set[int]] = {}

    def _require_whole(self) -> None:
        """Raise BrokenChainError where the namespace's row tells of records that aren't there.

        Deleting by what is left would delete more, and make the loss look meant.
        """
        namespace = self.namespace
        counted, greatest = len(self.ids), max(self.ids, default=None)
        last = next(reversed(self.records), None)
        if counted != namespace.count or greatest != namespace.latest or namespace.tip not in (None, last):
            raise BrokenChainError(
                f"thread {self.view.name!r}, namespace {keys.decode_name(namespace.name)!r}: {namespace.count} "
                f"checkpoints up to {namespace.latest!r} are expected, {counted} up to {greatest!r} are there. Rows "
                "were lost or damaged, and nothing was deleted; run check, then restore a backup or delete the thread"
            )

    def plan(self, with_needs: bool) -> Plan:
        arriving = self._arriving()
        for ulid in sorted(arriving.keys() - self.staying):  # in the order of their rows, each decoded once
            remnant = self._remnant(ulid, arriving[ulid])
            if remnant is not None:
                self.remnants[ulid] = remnant
        kept = self.staying | self._pointers()
        removed = frozenset(ulid for ulid in self.records if ulid not in kept)
        rewritten = self._rewritten(kept)
        runs = self._runs(kept)
        if not rewritten and self._is_as_stored(removed, runs):
            removed = frozenset()
        return Plan(
            self.namespace,
            tuple(found for found in self.rows if any(u in removed or u in rewritten for u in found.row.ulids)),
            removed,
            runs,
            rewritten,
            frozenset(id_ for id_, ulid in self.ids.items() if ulid not in self.staying),
            max((id_ for id_, ulid in self.ids.items() if ulid in self.staying), default=None),
            self._needs() if with_needs and self.remnants else {},
        )

    def _runs(self, kept: set[bytes]) -> tuple[tuple[tuple[bytes, Remnant], ...], ...]:
        """Return the remnants, linked, in the runs that rows can hold together."""
        runs: list[list[tuple[bytes, Remnant]]] = [[]]
        for ulid in self.records:
            if ulid in kept:
                runs.append([])
            elif ulid in self.remnants:
                remnant = self.remnants[ulid]
                ids = [held.record.id for _, held in runs[-1]]
                if remnant.record.id in ids or len(ids) >= policy.MAX_PACK_RECORDS:
                    runs.append([])
                runs[-1].append((ulid, remnant._replace(record=self._linked(ulid, remnant.record))))
        return tuple(tuple(run) for run in runs if run)

    def _is_as_stored(self, removed: Collection[bytes], runs: tuple[tuple[tuple[bytes, Remnant], ...], ...]) -> bool:
        """Tell whether remnants are all that goes, and come again as they are."""
        again = {ulid: (remnant.record, remnant.writes) for run in runs for ulid, remnant in run}
        return again == {ulid: (self.records[ulid], self.own_writes.get(ulid)) for ulid in removed}

    def _present(self) -> dict[bytes, frozenset[int]]:
        """Return which channels have a value, by record: folding names only."""
        out: dict[bytes, frozenset[int]] = {}
        now: frozenset[int] = frozenset()
        for ulid, record in self.records.items():
            if record.is_anchor:
                now = frozenset(op.channel for op in record.ops)
            else:
                added = {op.channel for op in record.ops if not isinstance(op, rec.Drop)}
                dropped = {op.channel for op in record.ops if isinstance(op, rec.Drop)}
                if dropped or not added <= now:
                    now = (now | added) - dropped
            out[ulid] = now
        return out

    def _parent(self, ulid: bytes) -> bytes | None:
        found = walking.parent_of(self.view, ulid, self.records[ulid], self.records.get, self.ids.get)
        return None if found is None else found[0]

    def _absent(self, ulid: bytes) -> set[int]:
        """Return the channels whose history may be asked for at a checkpoint that stays."""
        return set() if ulid in self.settled else {channel for channel, _ in self.records[ulid].seeds}

    def _arriving(self) -> dict[bytes, set[int]]:
        """Return, for each record that walks pass or end at, the channels that they come for."""
        arriving: dict[bytes, set[int]] = {}
        work = [(ulid, self._absent(ulid)) for ulid in self.staying]
        while work:
            ulid, passing = work.pop()
            parent = self._parent(ulid) if passing else None
            if parent is None:
                continue
            known = arriving.setdefault(parent, set())
            new = passing - known
            if new:  # else a walk for these was here already
                known |= new
                work.append((parent, new - self.present[parent]))
        return arriving

    def _remnant(self, ulid: bytes, channels: set[int]) -> Remnant | None:
        """Return what walks for these channels need of a record; None: nothing but the way."""
        record = self.records[ulid]
        wanted = channels & self.present[ulid]
        writes = self._writes(ulid, channels)
        # a walk for these must raise here; those that began later have no version here, and end
        raising = channels if record.flags & rec.HISTORY_LOST else channels & {channel for channel, _ in record.seeds}
        lost = record.flags & _LOST_FLAGS and raising - wanted and self._parent(ulid) is None
        if not wanted and not writes and not lost:
            return None
        state = {number: channel for number, channel in self._state(ulid).items() if number in wanted} if wanted else {}
        kept = record._replace(
            flags=rec.ANCHOR | rec.HIDDEN | rec.REMNANT | record.flags & _LASTING_FLAGS,
            depth=0,
            root=None,
            frame=None,
            metadata=b"",
            ops=st.set_ops(state),
            order=None,
            seeds=tuple(seed for seed in record.seeds if seed[0] in channels),
        )
        return Remnant(kept, writes)

    def _writes(self, ulid: bytes, channels: set[int]) -> dict[bytes, bytes]:
        by_hash: dict[bytes, rows.Tasks] = {}
        tasks = walking.tasks_at(self.view, self.namespace, ulid, self.records[ulid])
        for task, writes in tasks.items():
            kept = {idx: write for idx, write in writes.items() if write.channel in channels}
            if kept:
                by_hash.setdefault(keys.task_hash(keys.encode_name(task)), {})[task] = kept
        return {hashed: rows.encode_packed_tasks(kept) for hashed, kept in by_hash.items()}

    def _state(self, ulid: bytes) -> st.State:
        state = self.view.state(self.namespace.number, ulid)
        return {number: self.view.folded(number, channel) for number, channel in state.items()}

    def _pointers(self) -> set[bytes]:
        """Return the hidden records, taken over by a later put of their id, over which a parent is still found."""
        out: set[bytes] = set()
        work = list(self.staying)
        while work:
            ulid = work.pop()
            held = self.records[ulid].parent
            if held is None or held in self.staying or held in out or held not in self.records:
                continue
            earlier = self.records[held]
            if earlier.is_hidden and not earlier.is_remnant and self._parent(ulid) in self.staying:
                out.add(held)
                work.append(held)
        return out

    def _nearest(self, ulid: bytes) -> bytes | None:
        """Return the nearest ancestor that stays, be it hidden."""
        seen = {ulid}
        parent = self._parent(ulid)
        while parent is not None and parent not in seen:
            if parent in self.staying or parent in self.remnants:
                return parent
            seen.add(parent)
            parent = self._parent(parent)
        return None

    def _linked(self, ulid: bytes, record: rec.Record) -> rec.Record:
        """Return a record with the parent that a walk now goes to."""
        parent = self._nearest(ulid)
        flags = record.flags
        if self._parent(ulid) is not None:  # it was put again by then, if it had been deleted
            flags &= ~rec.PARENT_DELETED
            flags |= rec.HISTORY_ENDS if parent is None else 0
        return record._replace(parent=parent, flags=flags)

    def _rewritten(self, kept: set[bytes]) -> dict[bytes, rec.Record]:
        out: dict[bytes, rec.Record] = {}
        for ulid in kept:
            record = self.records[ulid]
            target = self._parent(ulid)
            if target is not None and target not in self.staying:
                changed = self._linked(ulid, record)
                if changed.parent != record.parent or changed.flags != record.flags:
                    out[ulid] = changed
            elif record.flags & rec.HISTORY_LOST and record.parent is not None and record.parent not in kept:
                out[ulid] = record._replace(parent=None)  # walks raise here in any case
            base = None if record.is_anchor else record.parent
            if ulid in self.settled or (base is not None and (base not in kept or base in self.settled)):
                ops = st.set_ops(self._state(ulid))
                now = out.get(ulid, record)
                flags = now.flags | rec.ANCHOR | (rec.SETTLED if ulid in self.settled else 0)
                out[ulid] = now._replace(flags=flags, depth=0, ops=ops, order=None)
        return out

    def _needs(self) -> dict[bytes, frozenset[int]]:
        """Return which checkpoints' histories lead over a remnant, and for which channels."""
        known: dict[tuple[bytes, int], bool] = {}
        out: dict[bytes, frozenset[int]] = {}
        for ulid in self.staying:
            needed = frozenset(channel for channel in self._absent(ulid) if self._is_lacking(ulid, channel, known))
            if needed:
                out[ulid] = needed
        return out

    def _is_lacking(self, ulid: bytes, channel: int, known: dict[tuple[bytes, int], bool]) -> bool:
        """Tell whether a walk for a channel comes over a remnant that holds something of it."""
        passed = [ulid]
        parent = self._parent(ulid)
        lacking = False
        while parent is not None and parent not in passed:
            if (parent, channel) in known:
                lacking = known[parent, channel]
                break
            passed.append(parent)
            if parent in self.remnants and channel in self._held(parent):
                lacking = True
                break
            if channel in self.present[parent]:
                break
            parent = self._parent(parent)
        for each in passed[1:]:
            known[each, channel] = lacking
        return lacking

    def _held(self, ulid: bytes) -> set[int]:
        """Return the channels that a remnant keeps anything of, be it that their history is lost."""
        if ulid not in self._held_by:
            remnant = self.remnants[ulid]
            held = {op.channel for op in remnant.record.ops}
            for hashed, row in remnant.writes.items():
                for writes in rows.decode_tasks(hashed, row).values():
                    held |= {write.channel for write in writes.values()}
            if remnant.record.flags & _LOST_FLAGS:
                held |= {channel for channel, _ in remnant.record.seeds}
            self._held_by[ulid] = held
        return self._held_by[ulid]
