"""`deltastore compact`: rows packed as well as they can be, without what nothing needs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, percent, size
from deltastore.upkeep.compaction import CompactReport, compact

EXAMPLE = "deltastore compact runs.ds"
KEYS = {
    "threads": "compacted",
    "rows_before": "of these threads",
    "rows_after": "of these threads",
    "bytes_before": "of rows, as stored",
    "bytes_after": "of rows, as stored",
    "chunks_dropped": "that nothing needed",
    "skipped": "threads whose dead chunks stay for the next time, because others wrote to them all the while",
}

Threads = Annotated[
    list[str] | None, typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False)
]
Erase = Annotated[bool, typer.Option("--erase", help="Leave no byte of what nothing needs, whatever it costs.")]


def command(
    context: typer.Context,
    path: StorePath,
    threads: Threads = None,
    erase: Erase = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Pack rows anew, and remove what deletions left behind. Others may read and write meanwhile.

    Checkpoints read as before. The file keeps its size: its free pages are used again.
    """
    session: Session = context.obj
    with open_store(path) as store:
        chosen = [places.find_thread(store, thread) for thread in threads] if threads else None
        with session.progress("compacting threads") as progress:
            report = compact(store, threads=chosen, erase=erase, progress=progress)
    session.answer(as_json, asdict(report), _lines(report))


def _lines(report: CompactReport) -> Iterator[str]:
    saved = report.bytes_before - report.bytes_after
    yield f"{report.threads} threads compacted, {report.chunks_dropped} chunks dropped"
    yield f"rows   {report.rows_before} before, {report.rows_after} after"
    yield (
        f"bytes  {size(report.bytes_before)} before, {size(report.bytes_after)} after "
        f"({percent(saved, report.bytes_before)} less)"
    )
    for name in report.skipped:
        yield f"skipped, for others wrote to it all the while: {escaped(name)}"
