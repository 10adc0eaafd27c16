"""What retention decides about one thread, in one transaction: which checkpoints, sub-graph calls and writes go.

Reads only. Imports retention_rules, retention_sizes, log and below. The invariant: what a thread holds in one moment
and the time decide, so deciding again in the transaction that deletes gives what is right then.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from deltastore import ulid as ulids
from deltastore.codec.primitives import unseal
from deltastore.codec.records import Record
from deltastore.log import choosing, finding, keys, rows, tagging, walking
from deltastore.log.reading import View
from deltastore.log.retention import Retention
from deltastore.upkeep.retention_rules import ALWAYS_KEPT, Reason, Seen, Verdict, judge, milliseconds
from deltastore.upkeep.retention_sizes import Weights, tasks_of

PROTECTED = 1 << 62
"""The rank of what no size lets go."""


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What becomes of a checkpoint, and why."""

    namespace: str
    id: str
    stays: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What becomes of a sub-graph call's namespace, which stays or goes whole, and how many checkpoints it has."""

    namespace: str
    checkpoints: int
    stays: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """What becomes of a thread.

    `whole`: it goes with all that it holds, and nothing of it is looked at singly. `checkpoints` are all those that
    rules look at singly: none where no rule does. `calls` are sub-graph calls that follow their root checkpoint.
    `stray_writes` counts writes that go because their checkpoint never came. `freed_bytes`: of the rows that go;
    values that they alone name, and what stays hidden for others, aren't counted: compaction frees the former.
    """

    thread: str
    whole: Reason | None = None
    checkpoints: tuple[CheckpointPlan, ...] = ()
    calls: tuple[CallPlan, ...] = ()
    stray_writes: int = 0
    freed_bytes: int = 0
    total: int = 0
    """Checkpoints of all its namespaces."""

    @property
    def changes(self) -> bool:
        """Whether anything goes."""
        return bool(self.whole or self.stray_writes or self.going)

    @property
    def going(self) -> int:
        """How many checkpoints go."""
        return self.total if self.whole else sum(self.by_reason(stays=False).values())

    @property
    def staying(self) -> int:
        """How many checkpoints stay."""
        return self.total - self.going

    def by_reason(self, *, stays: bool) -> dict[Reason, int]:
        """Return how many checkpoints stay, or go, for each reason; those that no rule looks at aren't counted."""
        out: dict[Reason, int] = {}
        if self.whole and not stays:
            out[self.whole] = self.total
        for one in self.checkpoints:
            if one.stays == stays:
                out[one.reason] = out.get(one.reason, 0) + 1
        for call in self.calls:
            if call.stays == stays and call.checkpoints:
                out[call.reason] = out.get(call.reason, 0) + call.checkpoints
        return out


@dataclass(frozen=True, slots=True)
class Decision:
    """A thread's plan, and the same as deletions take it: what stays, and the keys of write rows that go."""

    plan: ThreadPlan
    kept: choosing.Kept = field(default_factory=lambda: choosing.Kept({}, ()))
    stray_rows: tuple[bytes, ...] = ()


def decide(view: View, header: rows.Header, rules: Retention, now_ms: int) -> Decision:
    """Decide what goes of a thread. Raises BrokenChainError, ChecksumError."""
    if rules.drop_idle and now_ms - header.updated_ms > milliseconds(rules.drop_idle):
        prefix = keys.thread(view.thread)
        _, size = view.tx.measure(prefix, keys.end_of(prefix))
        plan = ThreadPlan(view.name, whole=Reason.IDLE_THREAD, freed_bytes=size, total=header.checkpoints)
        return Decision(plan)
    return _Thread(view, header, rules, now_ms).decide()


@dataclass(slots=True)
class _Space:
    """A namespace whose checkpoints are looked at."""

    namespace: rows.Namespace
    start: str | None
    """For a sub-graph call: the root checkpoint that it started from."""
    tags: frozenset[str]
    seen: dict[str, Seen] = field(default_factory=dict)
    ulids: dict[str, bytes] = field(default_factory=dict)
    row_bytes: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)


class _Thread:
    """One thread's namespaces in one transaction, and what is decided about them."""

    def __init__(self, view: View, header: rows.Header, rules: Retention, now_ms: int) -> None:
        self.view = view
        self.header = header
        self.rules = rules
        self.now_ms = now_ms
        self.namespaces = rows.load_namespaces(view.tx, view.thread)
        self.root = choosing.root_of(self.namespaces)
        self.spaces: list[_Space] = []
        self.calls: list[_Space] = []
        self.whole_calls: dict[int, Verdict] = {}
        self.write_rows: dict[tuple[int, str], list[tuple[bytes, bytes]]] = defaultdict(list)

    def decide(self) -> Decision:
        self._load_writes()
        if self.rules.looks_at_checkpoints:
            self._load()
            for space in self.spaces:
                space.verdicts = judge(space.seen.values(), self.rules, self.now_ms)
            self._follow_roots()
            if self.rules.max_bytes:
                self._shrink()
        gone = frozenset(number for number, verdict in self.whole_calls.items() if not verdict.stays)
        strays = self._strays(gone)
        plan = ThreadPlan(
            self.view.name,
            None,
            tuple(self._checkpoint_plans()),
            tuple(self._call_plans()),
            sum(_count(key, sealed) for key, sealed in strays),
            self._freed(gone) + sum(len(key) + len(sealed) for key, sealed in strays),
            self.header.checkpoints,
        )
        kept: dict[int, frozenset[str]] = {}
        for space in self._single():
            staying = frozenset(id_ for id_, verdict in space.verdicts.items() if verdict.stays)
            if len(staying) < len(space.verdicts):
                kept[space.namespace.number] = staying
        dropped = gone | self._emptied({key for key, _ in strays})
        return Decision(plan, choosing.Kept(kept, dropped), tuple(key for key, _ in strays))

    # --- what is there

    def _load_writes(self) -> None:
        prefix = keys.all_writes(self.view.thread)
        for key, sealed in self.view.tx.scan(prefix, keys.end_of(prefix)):
            rest = key[len(prefix) :]
            id_ = rest[keys.NAMESPACE_BYTES + 1 : -keys.HASH_BYTES].decode("utf-8", "backslashreplace")
            self.write_rows[int.from_bytes(rest[: keys.NAMESPACE_BYTES], "big"), id_].append((key, sealed))

    def _load(self) -> None:
        for namespace in self.namespaces:
            start = None if self.root is None else choosing.start_of(self.view, self.root, namespace)
            tags = frozenset(tagging.load(self.view.tx, self.view.thread, namespace.number).values())
            space = _Space(namespace, start, tags)
            if start is None:
                self._load_checkpoints(space)
                self.spaces.append(space)
            else:
                self.calls.append(space)

    def _load_checkpoints(self, space: _Space) -> None:
        namespace = space.namespace
        records: dict[bytes, Record] = {}
        packed_writes: set[str] = set()
        for found in self.view.record_rows(namespace.number):
            share = (len(found.key) + len(found.sealed)) // len(found.row.ulids)
            packed_writes.update(found.row.writes)
            for ulid, record in zip(found.row.ulids, found.row.records, strict=True):
                records[ulid] = record
                if not record.is_hidden:
                    id_ = record.id or ulids.to_text(ulid)
                    space.ulids[id_], space.row_bytes[id_] = ulid, share
        for id_, ulid in space.ulids.items():
            waits = id_ in packed_writes or (namespace.number, id_) in self.write_rows
            parent = self._ancestor(space, records, ulid)
            space.seen[id_] = Seen(id_, parent, records[ulid].time_ms, id_ in space.tags, waits)

    def _ancestor(self, space: _Space, records: Mapping[bytes, Record], ulid: bytes) -> str | None:
        """Return the id of the nearest ancestor that isn't hidden. Raises BrokenChainError."""
        passed = {ulid}
        at: bytes | None = ulid
        while at is not None:
            at = self._parent(space, records, at)
            if at in passed:
                return None
            if at is not None and not records[at].is_hidden:
                return records[at].id or ulids.to_text(at)
            if at is not None:
                passed.add(at)
        return None

    def _parent(self, space: _Space, records: Mapping[bytes, Record], ulid: bytes) -> bytes | None:
        if space.namespace.front == rows.NATIVE:
            parent = records[ulid].parent
            return parent if parent in records else None
        found = walking.parent_of(self.view, ulid, records[ulid], records.get, space.ulids.get)
        return None if found is None else found[0]

    # --- what follows from what was decided

    def _single(self) -> Iterator[_Space]:
        """Iterate over the namespaces whose checkpoints are decided one by one."""
        yield from self.spaces
        yield from (call for call in self.calls if call.namespace.number not in self.whole_calls)

    def _root_verdicts(self) -> dict[str, Verdict]:
        return next((space.verdicts for space in self.spaces if space.namespace is self.root), {})

    def _follow_roots(self) -> None:
        """Let each call stay or go with the root checkpoint that it started from; what is tagged in it stays."""
        roots = self._root_verdicts()
        for call in self.calls:
            stays = roots.get(call.start or "", Verdict(True, Reason.NO_RULE)).stays
            if stays or not call.tags:
                self.whole_calls[call.namespace.number] = Verdict(stays, Reason.WITH_ROOT)
                continue
            self.whole_calls.pop(call.namespace.number, None)
            self._load_checkpoints(call)
            for id_ in call.seen:
                call.verdicts[id_] = Verdict(False, Reason.WITH_ROOT)
            call.verdicts |= {id_: Verdict(True, Reason.TAGGED) for id_ in call.tags}
            call.verdicts[call.namespace.latest or ""] = Verdict(True, Reason.LATEST)

    def _shrink(self) -> None:
        """Let the oldest go until what the others name, and their rows, are within `max_bytes`."""
        weights = Weights(self.view)
        order = self._oldest_first()
        ranks = {(space.namespace.number, id_): rank for rank, (space, id_) in enumerate(order)}
        root = self.root.number if self.root else 0
        for space in (*self.spaces, *self.calls):
            number = space.namespace.number
            if not space.seen:
                self._load_checkpoints(space)
            of_call = number in self.whole_calls
            if of_call and not self.whole_calls[number].stays:
                continue
            rank_of: dict[str, int] = {}
            for id_ in space.seen:
                if of_call:
                    lasting = space.tags and (id_ in space.tags or id_ == space.namespace.latest)
                    own = PROTECTED if lasting else ranks.get((root, space.start or ""), PROTECTED)
                elif not space.verdicts[id_].stays:
                    continue
                else:
                    own = ranks.get((number, id_), PROTECTED)
                rank_of[id_] = own
            weights.add(space.namespace, {space.ulids[id_]: rank for id_, rank in rank_of.items()})
            for id_, rank in rank_of.items():
                if space.seen[id_].waits:
                    weights.add_writes(rank, *tasks_of(self.view, space.namespace, id_))
        free = weights.by_rank()
        left = sum(free.values())
        for rank, (space, id_) in enumerate(order):
            if left <= self.rules.max_bytes:
                break
            left -= free.get(rank, 0)
            space.verdicts[id_] = Verdict(False, Reason.OVER_MAX_BYTES)
        self._follow_roots()

    def _oldest_first(self) -> list[tuple[_Space, str]]:
        """Return the checkpoints that may go for their size, in the order that they were put."""
        found = [
            (space.ulids[id_], space, id_)
            for space in self.spaces
            for id_, verdict in space.verdicts.items()
            if verdict.stays and verdict.reason not in ALWAYS_KEPT
        ]
        return [(space, id_) for _, space, id_ in sorted(found, key=lambda item: item[0])]

    def _strays(self, dropped: frozenset[int]) -> list[tuple[bytes, bytes]]:
        """Return the rows of writes whose checkpoint isn't there and that are all older than the rules allow."""
        age = milliseconds(self.rules.stray_age)
        if not age:
            return []
        by_number = {namespace.number: namespace for namespace in self.namespaces}
        out: list[tuple[bytes, bytes]] = []
        for (number, id_), found in self.write_rows.items():
            namespace = by_number.get(number)
            if namespace is None or number in dropped or finding.find(self.view, namespace, id_) is not None:
                continue
            newest = max(
                (write.time_ms for key, sealed in found for write in _writes(key, sealed)), default=self.now_ms - age
            )
            if self.now_ms - newest > age:
                out.extend(found)
        return out

    def _emptied(self, strays: Collection[bytes]) -> frozenset[int]:
        """Return the namespaces that held nothing but stray writes."""
        left: dict[int, bool] = defaultdict(bool)
        for (number, _), found in self.write_rows.items():
            left[number] |= any(key not in strays for key, _ in found)
        return frozenset(
            namespace.number
            for namespace in self.namespaces
            if not namespace.count and namespace.front == rows.LANGGRAPH and left.get(namespace.number) is False
        )

    # --- what is told

    def _checkpoint_plans(self) -> Iterator[CheckpointPlan]:
        for space in self._single():
            name = keys.decode_name(space.namespace.name)
            for id_, verdict in sorted(space.verdicts.items()):
                yield CheckpointPlan(name, id_, verdict.stays, verdict.reason)

    def _call_plans(self) -> Iterator[CallPlan]:
        for call in self.calls:
            verdict = self.whole_calls.get(call.namespace.number)
            if verdict is not None:
                name = keys.decode_name(call.namespace.name)
                yield CallPlan(name, call.namespace.count, verdict.stays, verdict.reason)

    def _freed(self, dropped: frozenset[int]) -> int:
        total = 0
        for space in self._single():
            for id_, verdict in space.verdicts.items():
                if not verdict.stays:
                    found = self.write_rows.get((space.namespace.number, id_), ())
                    total += space.row_bytes[id_] + sum(len(key) + len(sealed) for key, sealed in found)
        for number in dropped:
            for prefix in keys.of_namespace(self.view.thread, number):
                total += self.view.tx.measure(prefix, keys.end_of(prefix))[1]
        return total


def _writes(key: bytes, sealed: bytes) -> Iterator[rows.StoredWrite]:
    for writes in rows.decode_tasks(key, unseal(key, sealed)).values():
        yield from writes.values()


def _count(key: bytes, sealed: bytes) -> int:
    return sum(1 for _ in _writes(key, sealed))
