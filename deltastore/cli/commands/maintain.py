"""`deltastore maintain`: what a scheduler runs: stored rules, compaction, and a smaller file if asked for."""

from dataclasses import asdict

import typer

from deltastore.cli import exits
from deltastore.cli.arguments import Debug, DryRun, Erase, Json, Level, Shrink, StorePath, Yes
from deltastore.cli.commands import compact, retain
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.sweeping import Planned
from deltastore.errors import CorruptionError
from deltastore.upkeep import compaction
from deltastore.upkeep.repacking import DEFAULT_LEVEL

EXAMPLE = "deltastore maintain runs.ds --yes --shrink"
KEYS = {
    "retention": "as `retain` gives it, without `rules` and `own`",
    "compact": "as `compact` gives it, without `shrink`; null where nothing was done",
    "shrink": "as `compact` gives it; null without --shrink",
}


def command(
    context: typer.Context,
    path: StorePath,
    erase: Erase = False,
    shrink: Shrink = False,
    level: Level = DEFAULT_LEVEL,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete what the stored rules don't keep, then compact. For schedulers: with --yes, nightly.

    Deleted text is out of the file only with both --erase and --shrink. Others may read and write meanwhile.
    """
    session: Session = context.obj
    compacted = None
    with open_store(path) as store:
        swept = retain.sweep(session, store, retain.Wish(None, None, None, dry_run, yes))
        lines = list(swept.lines(session, detailed=False))
        document = {"retention": swept.document(), "compact": None, "shrink": None}
        if not isinstance(swept, Planned):
            with session.progress("compacting threads") as progress:
                compacted = compaction.compact(store, erase=erase, level=level, progress=progress)
            shrunk = compact.shrink_file(store, session) if shrink else None
            document |= {"compact": asdict(compacted), "shrink": None if shrunk is None else asdict(shrunk)}
            lines += [*compact.compact_lines(compacted), *compact.shrink_lines(shrunk)]
    session.answer(as_json, document, lines)
    if swept.document()["damaged"] or (compacted is not None and compacted.damaged):
        session.code = exits.OF_ERRORS[CorruptionError]
