"""`deltastore load`: the threads of a dump."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

import deltastore
from deltastore.cli.arguments import STREAM, Debug, Json, StorePath
from deltastore.cli.session import Session
from deltastore.errors import InvalidInputError

EXAMPLE = "deltastore load restored.ds runs.dump --skip-existing"
KEYS = {
    "threads": "that were loaded",
    "skipped": "left out, because their names were in use",
    "checkpoints": "of the threads that were loaded",
}

File = Annotated[str, typer.Argument(metavar="FILE", help="What dump wrote; - is standard input.", show_default=False)]
SkipExisting = Annotated[
    bool, typer.Option("--skip-existing", help="Leave out threads whose names are in use, in place of ending there.")
]


def command(
    context: typer.Context,
    path: StorePath,
    file: File,
    skip_existing: SkipExisting = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Load the threads of a dump, each whole or not at all. Makes the store if it isn't there.

    Where it ends early, the threads before stay: run it again with --skip-existing.
    """
    session: Session = context.obj
    # the dump first, so that a mistyped name leaves no store
    with _source(session, file) as source, deltastore.open(path) as store, session.progress("loading threads") as told:
        loaded = deltastore.load(store, source, skip_existing=skip_existing, progress=told)
    document = {"threads": loaded.threads, "skipped": loaded.skipped, "checkpoints": loaded.checkpoints}
    also = f", {loaded.skipped} left out, whose names are in use" if loaded.skipped else ""
    session.answer(as_json, document, [f"{loaded.threads} threads, {loaded.checkpoints} checkpoints loaded{also}"])


@contextmanager
def _source(session: Session, file: str) -> Iterator[BinaryIO]:
    """Open a dump. Raises InvalidInputError."""
    if file == STREAM:
        yield session.input.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 - errors of the block aren't errors of opening
    except OSError as error:
        raise InvalidInputError(f"no dump can be read at {file}: {error}") from error
    with source:
        yield source
