"""Which checkpoints of one namespace stay: retention rules applied to ids, times and parents.

Pure; imports the rules. The invariant: applied again to what stayed, at the same time, nothing more goes.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from deltastore.log.retention import Retention

HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 7 * 86_400_000
EPOCH_WEEKDAY_MS = 3 * DAY_MS
"""1970 began on a Thursday, three days after the beginning of its week."""


class Reason(Enum):
    """Why a checkpoint, a thread, or writes stay or go. The first that holds of those that keep is told."""

    LATEST = "latest"
    TAGGED = "tagged"
    PENDING_WRITES = "pending writes"
    FORK_HEAD = "fork head"
    KEEP_LAST = "keep_last"
    KEEP_WITHIN = "keep_within"
    KEEP_HOURLY = "keep_hourly"
    KEEP_DAILY = "keep_daily"
    KEEP_WEEKLY = "keep_weekly"
    NO_RULE = "no rule lets it go"
    WITH_ROOT = "with the root checkpoint that the call started from"
    EXPIRED = "expired"
    DROPPED_BRANCH = "dropped branch"
    OVER_MAX_BYTES = "over max_bytes"
    IDLE_THREAD = "idle thread"
    STRAY_WRITES = "writes of a checkpoint that never came"


ALWAYS_KEPT = frozenset((Reason.LATEST, Reason.TAGGED, Reason.PENDING_WRITES))
"""What no rule about single checkpoints lets go."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What rules look at in a checkpoint. `parent`: the nearest stored ancestor. `waits`: it has pending writes."""

    id: str
    parent: str | None
    time_ms: int
    tagged: bool
    waits: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something stays, and why."""

    stays: bool
    reason: Reason


def milliseconds(age: timedelta) -> int:
    """Return an age in milliseconds."""
    return age // timedelta(milliseconds=1)


def judge(checkpoints: Collection[Seen], rules: Retention, now_ms: int) -> dict[str, Verdict]:
    """Decide for each checkpoint of a namespace, by id; `max_bytes` isn't looked at."""
    by_id = {seen.id: seen for seen in checkpoints}
    if not by_id:
        return {}
    latest = max(by_id)
    ends = by_id.keys() - {seen.parent for seen in checkpoints}
    heads = {id_ for id_ in ends if _keeps_end(by_id[id_], rules, now_ms)} | {latest, max(ends, default=latest)}
    branches = _with_ancestors(heads, by_id)
    living = [by_id[id_] for id_ in sorted(branches, reverse=True)]
    kept = _kept(living, rules, now_ms) if rules.keeps_some else {}

    def verdict(seen: Seen) -> Verdict:
        if seen.id == latest:
            return Verdict(True, Reason.LATEST)
        if seen.tagged:
            return Verdict(True, Reason.TAGGED)
        if seen.id not in branches:
            return Verdict(False, Reason.DROPPED_BRANCH)
        if seen.id in ends:
            return Verdict(True, Reason.PENDING_WRITES if seen.waits else Reason.FORK_HEAD)
        if not rules.keeps_some:
            return Verdict(True, Reason.NO_RULE)
        reason = kept.get(seen.id)
        return Verdict(reason is not None, reason or Reason.EXPIRED)

    return {seen.id: verdict(seen) for seen in checkpoints}


def _keeps_end(seen: Seen, rules: Retention, now_ms: int) -> bool:
    """Tell whether the end of a branch is kept."""
    if isinstance(rules.keep_forks, timedelta):
        return now_ms - seen.time_ms <= milliseconds(rules.keep_forks)
    return rules.keep_forks == "all"


def _with_ancestors(heads: Iterable[str], by_id: dict[str, Seen]) -> set[str]:
    out: set[str] = set()
    for head in heads:
        id_: str | None = head
        while id_ is not None and id_ in by_id and id_ not in out:
            out.add(id_)
            id_ = by_id[id_].parent
    return out


def _kept(newest_first: Sequence[Seen], rules: Retention, now_ms: int) -> dict[str, Reason]:
    """Return what the keep rules keep, each with the first of them that does."""
    out: dict[str, Reason] = {}

    def keep(some: Iterable[Seen], reason: Reason) -> None:
        for seen in some:
            out.setdefault(seen.id, reason)

    keep(newest_first[: rules.keep_last], Reason.KEEP_LAST)
    if rules.keep_within:
        oldest = now_ms - milliseconds(rules.keep_within)
        keep((seen for seen in newest_first if seen.time_ms >= oldest), Reason.KEEP_WITHIN)
    keep(_periodic(newest_first, rules.keep_hourly, HOUR_MS, 0), Reason.KEEP_HOURLY)
    keep(_periodic(newest_first, rules.keep_daily, DAY_MS, 0), Reason.KEEP_DAILY)
    keep(_periodic(newest_first, rules.keep_weekly, WEEK_MS, EPOCH_WEEKDAY_MS), Reason.KEEP_WEEKLY)
    return out


def _periodic(newest_first: Sequence[Seen], count: int, length_ms: int, shift_ms: int) -> list[Seen]:
    """Return the newest of each of the last `count` periods that have one."""
    if not count:
        return []
    newest: dict[int, Seen] = {}
    for seen in newest_first:
        newest.setdefault((seen.time_ms + shift_ms) // length_ms, seen)
    return [newest[period] for period in sorted(newest, reverse=True)[:count]]
