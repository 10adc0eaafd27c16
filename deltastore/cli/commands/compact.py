"""`deltastore compact`: rows packed as well as they can be, without what nothing needs; and a smaller file."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, Erase, Json, Level, Shrink, StorePath, UseDictionary
from deltastore.cli.exits import OF_ERRORS
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, percent, size
from deltastore.errors import CorruptionError
from deltastore.store import Store
from deltastore.upkeep import shrinking
from deltastore.upkeep.compaction import CompactReport, compact
from deltastore.upkeep.repacking import DEFAULT_LEVEL
from deltastore.upkeep.shrinking import ShrinkReport

EXAMPLE = "deltastore compact runs.ds --shrink"
KEYS = {
    "threads": "compacted",
    "rows_before": "of these threads",
    "rows_after": "of these threads",
    "bytes_before": "of rows, as stored",
    "bytes_after": "of rows, as stored",
    "chunks_dropped": "that nothing needed",
    "quarantined_dropped": "rows that a repair had set aside; with --erase alone",
    "skipped": "threads of which something stays for the next time, because others wrote to them all the while",
    "damaged": "by thread, what is damaged; the others are compacted",
    "dictionary": "what was decided of one, and why",
    "shrink.bytes_before": "of the data file; `shrink` is null without --shrink",
    "shrink.bytes_after": "of the data file",
}

Threads = Annotated[
    list[str] | None, typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False)
]


def command(
    context: typer.Context,
    path: StorePath,
    threads: Threads = None,
    erase: Erase = False,
    shrink: Shrink = False,
    level: Level = DEFAULT_LEVEL,
    dictionary: UseDictionary = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Pack rows anew, and remove what deletions left behind. Others may read and write meanwhile.

    Checkpoints read as before. The file keeps its size, its free pages are used again, unless --shrink is given.
    """
    session: Session = context.obj
    with open_store(path) as store:
        chosen = [places.find_thread(store, thread) for thread in threads] if threads else None
        with session.progress("compacting threads") as progress:
            report = compact(store, threads=chosen, erase=erase, level=level, dictionary=dictionary, progress=progress)
        shrunk = shrink_file(store, session) if shrink else None
    document = {**asdict(report), "shrink": None if shrunk is None else asdict(shrunk)}
    session.answer(as_json, document, [*compact_lines(report), *shrink_lines(shrunk)])
    if report.damaged:
        session.code = OF_ERRORS[CorruptionError]


def shrink_file(store: Store, session: Session) -> ShrinkReport:
    """Move a store into a file without free space, with progress."""
    with session.progress("moving bytes") as progress:
        return shrinking.shrink(store, progress=progress)


def compact_lines(report: CompactReport) -> Iterator[str]:
    """Tell people of a compaction."""
    saved = report.bytes_before - report.bytes_after
    yield f"{report.threads} threads compacted, {report.chunks_dropped} chunks dropped"
    if report.quarantined_dropped:
        yield f"{report.quarantined_dropped} quarantined rows dropped"
    yield f"rows   {report.rows_before} before, {report.rows_after} after"
    yield (
        f"bytes  {size(report.bytes_before)} before, {size(report.bytes_after)} after "
        f"({percent(saved, report.bytes_before)} less)"
    )
    yield report.dictionary
    for name in report.skipped:
        yield f"something stays for the next time, for others wrote to it all the while: {escaped(name)}"
    for name, what in report.damaged.items():
        yield f"damaged: {escaped(name)}: {escaped(what)}"


def shrink_lines(report: ShrinkReport | None) -> Iterator[str]:
    """Tell people of a shrinking, if there was one."""
    if report is not None:
        saved = report.bytes_before - report.bytes_after
        yield (
            f"file   {size(report.bytes_before)} before, {size(report.bytes_after)} after "
            f"({percent(saved, report.bytes_before)} less)"
        )
