"""`deltastore load`: the threads of a dump."""

from collections.abc import Sequence
from typing import Annotated

import typer

import deltastore
from deltastore.cli.arguments import STREAM, Debug, Json, StorePath
from deltastore.cli.session import Session
from deltastore.cli.text import unescaped
from deltastore.errors import InvalidInputError
from deltastore.upkeep import loading

EXAMPLE = "deltastore load runs.ds runs.dump --rename user-42=user-42-before"
KEYS = {
    "threads": "that were loaded",
    "skipped": "left out, because their names were in use",
    "checkpoints": "of the threads that were loaded",
}

File = Annotated[str, typer.Argument(metavar="FILE", help="What dump wrote; - is standard input.", show_default=False)]
SkipExisting = Annotated[
    bool, typer.Option("--skip-existing", help="Leave out threads whose names are in use, in place of ending there.")
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="Load thread OLD under the name NEW; may be given again. OLD is as `threads` shows it, with \\x3d for a = "
        "in it.",
        show_default=False,
    ),
]


def command(
    context: typer.Context,
    path: StorePath,
    file: File,
    skip_existing: SkipExisting = False,
    rename: Rename = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Load the threads of a dump, each whole or not at all. Makes the store if it isn't there.

    Where it ends early, the threads before stay: run it again with --skip-existing.
    """
    session: Session = context.obj
    source = session.input.buffer if file == STREAM else file
    # the dump first, so that what is none leaves no store
    with (
        loading.opened(source, _names(rename or ())) as dump,
        deltastore.open(path) as store,
        session.progress("loading threads") as told,
    ):
        loaded = loading.load_opened(store, dump, skip_existing=skip_existing, progress=told)
    document = {"threads": loaded.threads, "skipped": loaded.skipped, "checkpoints": loaded.checkpoints}
    also = f", {loaded.skipped} left out, whose names are in use" if loaded.skipped else ""
    session.answer(as_json, document, [f"{loaded.threads} threads, {loaded.checkpoints} checkpoints loaded{also}"])


def _names(given: Sequence[str]) -> dict[str, str]:
    """Return new names by old ones. Raises InvalidInputError."""
    out: dict[str, str] = {}
    for text in given:
        shown, equals, new = text.partition("=")
        if not (shown and equals and new):
            raise InvalidInputError(f"--rename {text!r}; expected OLD=NEW, the name in the dump and the one here")
        old = unescaped(shown)
        old = shown if old is None else old
        if old in out:
            raise InvalidInputError(f"--rename gives {old!r} two names, {out[old]!r} and {new!r}; give it one")
        out[old] = new
    return out
