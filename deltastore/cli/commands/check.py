"""`deltastore check`: whether every checkpoint can be rebuilt, and the repair of what can't."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

import deltastore
from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.exits import FILE_DAMAGED, LOST, OK, PROBLEMS
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, size
from deltastore.errors import InvalidInputError
from deltastore.store import Store
from deltastore.upkeep.repair_plan import RepairPlan, RepairReport
from deltastore.upkeep.report import CheckReport

EXAMPLE = "deltastore check runs.ds"
KEYS = {
    "ok": "whether nothing is wrong; garbage isn't wrong",
    "file_damaged": "whether the pages of the file are damaged, so that no row was looked at",
    "threads": "looked at",
    "checkpoints": "that are listed",
    "hidden": "that are kept only for what others need of them",
    "chunks": "pieces of values",
    "chunk_bytes": "before compression",
    "garbage_chunks": "that nothing needs, until compaction",
    "garbage_bytes": "before compression",
    "garbage_records": "that nothing needs",
    "writes_without_checkpoint": "pending writes whose checkpoint isn't stored, or not yet",
    "queued_threads": "deleted ones whose rows are still there",
    "quarantined": "rows that a repair took out of their places",
    "max_depth": "the most records that a read folds",
    "problems[].where": "what is damaged",
    "problems[].what": "what was found in place of what",
    "repair": "null without --repair; what is above is as of after it, or of now with --dry-run",
    "repair.actions[].where": "the thread and namespace, or the store",
    "repair.actions[].thing": "what it is about",
    "repair.actions[].action": "`quarantined`, `rebuilt`, `named`, or `cut`: a history that raises from now on",
    "repair.actions[].reason": "why",
    "repair.lost[].thread": "of a checkpoint that can't be rebuilt",
    "repair.lost[].namespace": "its namespace",
    "repair.lost[].id": "its id",
    "repair.lost[].channels": "those that can't be read; none named: nothing of it can",
    "repair.lost[].reason": "why",
    "repair.quarantined": "rows taken out of their places",
    "repair.skipped": "threads that others wrote to all the while; `store` for its own rows",
    "repair.left": "problems without a remedy",
}

Repair = Annotated[bool, typer.Option("--repair", help="Then mend what can be, and quarantine what can't be read.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --repair: tell what it would do, and write nothing.")]


def command(
    context: typer.Context,
    path: StorePath,
    repair: Repair = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read every row and prove that every checkpoint can be rebuilt. Writes nothing without --repair.

    --repair moves rows that can't be read into quarantine, with their bytes as found, makes indexes and counts anew of
    what they are about, and takes checkpoints out of the lists that can't be rebuilt. It invents nothing, and what can
    be read now is read as before. Make a backup first; others may read and write meanwhile.
    The check runs in a process of its own, for the storage engine may crash on a file whose pages are damaged.
    Then nothing is repaired, and the exit code is 9.
    Exit code 1 where something is wrong, or is left so; 8 where a repair left nothing wrong, but something was lost.
    """
    session: Session = context.obj
    if dry_run and not repair:
        raise InvalidInputError("--dry-run is for --repair; check alone writes nothing")
    # Nothing of the store is read in this process before it was read to its end, unharmed, in another one.
    report, outcome = _checked(session, path, "checking threads"), None
    if repair and not report.file_damaged:
        with open_store(path) as store:
            outcome = _repair(session, store, dry_run=dry_run)
        if not dry_run:
            report = _checked(session, path, "checking threads once more")
    counts = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "problems"}
    problems = [{"where": problem.where, "what": problem.what} for problem in report.problems]
    document = {"ok": report.ok, **counts, "problems": problems, "repair": outcome and _document(outcome)}
    session.answer(as_json, document, _lines(report, outcome, dry_run=dry_run))
    if report.file_damaged:
        session.code = FILE_DAMAGED
    elif not report.ok:
        session.code = PROBLEMS
    else:
        session.code = OK if outcome is None or outcome.is_lossless else LOST


def _checked(session: Session, path: str, what: str) -> CheckReport:
    with session.progress(what) as progress:
        return deltastore.check(path, progress=progress, isolated=True)


def _repair(session: Session, store: Store, *, dry_run: bool) -> RepairReport:
    with session.progress("planning the repair of threads") as progress:
        if not dry_run:
            return deltastore.repair(store, progress=progress)
        plan: RepairPlan = deltastore.plan_repair(store, progress=progress)
    return RepairReport(plan.actions, plan.lost, plan.quarantined, (), plan.left)


def _document(outcome: RepairReport) -> dict[str, Any]:
    return asdict(outcome)


def _lines(report: CheckReport, outcome: RepairReport | None, *, dry_run: bool) -> Iterator[str]:
    if outcome is not None:
        yield from _repair_lines(outcome, dry_run=dry_run)
    for problem in report.problems:
        yield f"{escaped(problem.where)}: {escaped(problem.what)}"
    yield (
        f"{len(report.problems) or 'no'} problems; {report.threads} threads, {report.checkpoints} checkpoints, "
        f"{report.chunks} chunks of {size(report.chunk_bytes)}"
    )
    yield f"garbage: {report.garbage_chunks} chunks of {size(report.garbage_bytes)}, {report.garbage_records} records"
    if report.quarantined:
        yield f"quarantined: {report.quarantined} rows"


def _repair_lines(outcome: RepairReport, *, dry_run: bool) -> Iterator[str]:
    for action in outcome.actions:
        yield escaped(f"{action.where}: {action.thing}: {action.action}: {action.reason}")
    for lost in outcome.lost:
        place = f"thread {lost.thread!r}, namespace {lost.namespace!r}, checkpoint {lost.id!r}"
        yield escaped(f"lost: {place}, {', '.join(lost.channels) or 'all of it'}: {lost.reason}")
    for name in outcome.skipped:
        yield f"skipped, for others wrote to it all the while: {escaped(name)}"
    for what in outcome.left:
        yield f"no remedy: {escaped(what)}"
    verb = "would be" if dry_run else "were"
    yield (
        f"repair: {len(outcome.actions)} things {verb} mended or set aside, {outcome.quarantined} rows quarantined, "
        f"{len(outcome.lost)} checkpoints lost"
    )
