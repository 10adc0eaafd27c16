"""What retention would do, and what it did, for people and for programs. Pure; imports the reports of upkeep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deltastore.cli.session import Session
from deltastore.cli.text import columns, escaped, size
from deltastore.upkeep.retention import Reason, RetentionPlan, RetentionReport, ThreadPlan


@dataclass(frozen=True, slots=True)
class Planned:
    """What would go."""

    plan: RetentionPlan
    dry_run: bool

    @property
    def changes(self) -> list[ThreadPlan]:
        """The threads that lose something."""
        return [thread for thread in self.plan.threads if thread.changes]

    @property
    def question(self) -> str:
        """What to ask before it is done."""
        whole = sum(thread.whole is not None for thread in self.changes)
        also = f", {_number(whole, 'of them')} whole" if whole else ""
        strays = f" and {_number(self.plan.stray_writes, 'stray write')}" if self.plan.stray_writes else ""
        going = _number(self.plan.going, "checkpoint")
        return f"Delete {going}{strays} of {_number(len(self.changes), 'thread')}{also}?"

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        by_reason: dict[Reason, int] = {}
        for thread in self.plan.threads:
            for reason, count in thread.by_reason(stays=False).items():
                by_reason[reason] = by_reason.get(reason, 0) + count
        return {
            "applied": False,
            "looked_at": len(self.plan.threads),
            "changed": len(self.changes),
            "dropped": sum(thread.whole is not None for thread in self.plan.threads),
            "checkpoints": self.plan.going,
            "stray_writes": self.plan.stray_writes,
            "freed_bytes": self.plan.freed_bytes,
            "by_reason": {reason.name.lower(): count for reason, count in by_reason.items()},
            "more": False,
            "damaged": [{"thread": name, "error": error} for name, error in self.plan.damaged],
            "note": self.plan.note,
            "plan": [_thread_document(thread) for thread in self.plan.threads],
        }

    def table(self, session: Session, *, detailed: bool) -> Iterator[str]:
        """Tell people what goes from which thread and why; `detailed`: of each checkpoint."""
        rows = [
            (
                escaped(thread.thread),
                str(thread.going),
                str(thread.staying),
                size(thread.freed_bytes),
                _reasons(thread),
            )
            for thread in self.changes
        ]
        if rows:
            heading = ("THREAD", "GO", "STAY", "SIZE", "WHY")
            first, *rest = columns(rows, heading=heading, right=(1, 2, 3))
            yield session.styled(first, "heading")
            yield from rest
        for thread in self.plan.threads if detailed else ():
            yield from _detail(session, thread)

    def lines(self, session: Session, *, detailed: bool) -> Iterator[str]:
        """Tell people of the plan, whose table they saw before they were asked."""
        if self.dry_run:
            yield from self.table(session, detailed=detailed)
        going = _number(self.plan.going, "checkpoint")
        verb = "would go" if self.dry_run else "stayed, as you answered: nothing was deleted"
        yield (
            f"{going} in {_number(len(self.changes), 'thread')} {verb}; {_number(self.plan.staying, 'other')} of "
            f"{_number(len(self.plan.threads), 'thread')} with rules stay"
        )
        yield from _remarks(self.plan.damaged, self.plan.note)


@dataclass(frozen=True, slots=True)
class Applied:
    """What went."""

    report: RetentionReport

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        return report_document(self.report)

    def lines(self, session: Session, *, detailed: bool) -> Iterator[str]:
        """Tell people what went."""
        return report_lines(self.report)


def report_document(report: RetentionReport) -> dict[str, Any]:
    """Return what a sweep did, for programs."""
    return {
        "applied": True,
        "looked_at": report.looked_at,
        "changed": report.changed,
        "dropped": report.dropped,
        "checkpoints": report.checkpoints,
        "stray_writes": report.stray_writes,
        "freed_bytes": report.freed_bytes,
        "by_reason": {reason.name.lower(): count for reason, count in report.by_reason.items()},
        "more": report.more,
        "damaged": [{"thread": name, "error": error} for name, error in report.damaged],
        "note": report.note,
        "plan": None,
    }


def report_lines(report: RetentionReport) -> Iterator[str]:
    """Tell people what a sweep did."""
    strays = f" and {_number(report.stray_writes, 'stray write')}" if report.stray_writes else ""
    yield (
        f"{_number(report.checkpoints, 'checkpoint')}{strays} deleted in {_number(report.changed, 'thread')} of "
        f"{report.looked_at} with rules; {_number(report.dropped, 'thread')} went whole; "
        f"{size(report.freed_bytes)} of rows"
    )
    for reason, count in report.by_reason.items():
        yield f"  {count} {reason.value}"
    if report.more:
        yield "stopped at its limit; others may be due"
    yield from _remarks(report.damaged, report.note)


def _thread_document(plan: ThreadPlan) -> dict[str, Any]:
    return {
        "thread": plan.thread,
        "whole": plan.whole is not None,
        "going": plan.going,
        "staying": plan.staying,
        "stray_writes": plan.stray_writes,
        "freed_bytes": plan.freed_bytes,
        "checkpoints": [
            {"namespace": one.namespace, "id": one.id, "stays": one.stays, "reason": one.reason.name.lower()}
            for one in plan.checkpoints
        ],
        "calls": [
            {
                "namespace": call.namespace,
                "checkpoints": call.checkpoints,
                "stays": call.stays,
                "reason": call.reason.name.lower(),
            }
            for call in plan.calls
        ],
    }


def _reasons(plan: ThreadPlan) -> str:
    parts = [f"{count} {reason.value}" for reason, count in plan.by_reason(stays=False).items()]
    if plan.stray_writes:
        parts.append(_number(plan.stray_writes, "stray write"))
    return ", ".join(parts)


def _detail(session: Session, plan: ThreadPlan) -> Iterator[str]:
    """Iterate over a line for each checkpoint of a thread, the newest of a namespace first."""
    yield ""
    yield session.styled(escaped(plan.thread), "heading")
    if plan.whole:
        yield session.styled(f"- all {plan.total}: {plan.whole.value}", "removed")
    for one in reversed(plan.checkpoints):
        where = f"{escaped(one.namespace)} " if one.namespace else ""
        line = f"{'+' if one.stays else '-'} {where}{escaped(one.id)}  {one.reason.value}"
        yield line if one.stays else session.styled(line, "removed")
    for call in plan.calls:
        line = (
            f"{'+' if call.stays else '-'} {escaped(call.namespace)}, {_number(call.checkpoints, 'checkpoint')}: "
            f"{call.reason.value}"
        )
        yield line if call.stays else session.styled(line, "removed")
    yield ""


def _remarks(damaged: Sequence[tuple[str, str]], note: str) -> Iterator[str]:
    for name, error in damaged:
        yield f"left as it is, for it can't be read: {escaped(name)}: {escaped(error)}"
    if note:
        yield note


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 or what == 'of them' else 's'}"
