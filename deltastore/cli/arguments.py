"""The arguments and options that commands share."""

from typing import Annotated

import typer

from deltastore.cli.session import Session
from deltastore.upkeep.repacking import DEFAULT_LEVEL

STREAM = "-"
"""In place of a file's name: standard input or output."""


def _set_debug(context: typer.Context, wanted: bool) -> bool:
    session = context.find_root().obj
    if wanted and isinstance(session, Session):
        session.debug = True
    return wanted


StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="The store's directory, or its URL.", show_default=False)
]
ThreadName = Annotated[
    str,
    typer.Argument(metavar="THREAD", help="A thread, by its name, or as `threads` shows it.", show_default=False),
]
Place = Annotated[
    str,
    typer.Argument(
        metavar="THREAD[@CHECKPOINT]",
        help="A thread's latest checkpoint, or its one with this id or tag.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="The namespace, as of a sub-graph. Without: the root's."),
]
Json = Annotated[bool, typer.Option("--json", help="Give one JSON document, for programs.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, help="Show where in the program an error came from.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would go, and delete nothing.")]
Erase = Annotated[bool, typer.Option("--erase", help="Leave no byte of what nothing needs, whatever it costs.")]
Shrink = Annotated[
    bool,
    typer.Option(
        "--shrink", help="Then move the store into a file without free space; needs room for it beside the old one."
    ),
]
UseDictionary = Annotated[
    str | None,
    typer.Option(
        "--dictionary",
        metavar="KIND",
        help="What shortens small rows: `shape` (field names and the like), `content` (smaller still; only where all "
        "threads belong to one tenant) or `none`. Without: as asked for before, or `shape` if that pays.",
    ),
]
Level = Annotated[
    int,
    typer.Option("--level", min=1, max=19, metavar="N", help=f"zstd's, 1 to {DEFAULT_LEVEL}; lower ones are faster."),
]
