"""`deltastore check`: whether every checkpoint can be rebuilt."""

from collections.abc import Iterator
from dataclasses import fields

import typer

import deltastore
from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.exits import PROBLEMS
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, size
from deltastore.upkeep.report import CheckReport

EXAMPLE = "deltastore check runs.ds"
KEYS = {
    "ok": "whether nothing is wrong; garbage isn't wrong",
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
}


def command(context: typer.Context, path: StorePath, as_json: Json = False, debug: Debug = False) -> None:
    """Read every row and prove that every checkpoint can be rebuilt. Writes nothing.

    Exit code 1 where something is wrong.
    """
    session: Session = context.obj
    with open_store(path) as store, session.progress("checking threads") as progress:
        report = deltastore.check(store, progress=progress)
    counts = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "problems"}
    problems = [{"where": problem.where, "what": problem.what} for problem in report.problems]
    session.answer(as_json, {"ok": report.ok, **counts, "problems": problems}, _lines(report))
    session.code = 0 if report.ok else PROBLEMS


def _lines(report: CheckReport) -> Iterator[str]:
    for problem in report.problems:
        yield f"{escaped(problem.where)}: {escaped(problem.what)}"
    yield (
        f"{len(report.problems) or 'no'} problems; {report.threads} threads, {report.checkpoints} checkpoints, "
        f"{report.chunks} chunks of {size(report.chunk_bytes)}"
    )
    yield f"garbage: {report.garbage_chunks} chunks of {size(report.garbage_bytes)}, {report.garbage_records} records"
