"""`deltastore dump`: threads as a stream of a documented format, to be loaded into any store."""

from typing import Annotated

import typer

import deltastore
from deltastore.cli import exits, places
from deltastore.cli.arguments import STREAM, Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, size
from deltastore.errors import InvalidInputError, StorageError

EXAMPLE = "deltastore dump runs.ds user-42.dump user-42"
KEYS = {
    "file": "what was written; where it is `-`, this document goes to standard error",
    "threads": "that it holds",
    "checkpoints": "of these threads",
    "bytes": "of the dump",
}

File = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A file to be made; - is standard output.", show_default=False),
]
Threads = Annotated[
    list[str] | None,
    typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False),
]


def command(
    context: typer.Context,
    path: StorePath,
    file: File,
    threads: Threads = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write all threads, or some, to FILE, for load. What was deleted isn't in it. Others may write meanwhile.

    Each thread is as of one moment. No file is left where a thread can't be read.
    """
    session: Session = context.obj
    streamed = file == STREAM
    if streamed and session.out.isatty():
        raise InvalidInputError("a dump is no text for a terminal; name a file, or pipe it")
    with open_store(path) as store:
        chosen = [places.find_thread(store, thread) for thread in threads] if threads else None
        with session.progress("dumping threads") as progress:
            try:
                made = deltastore.dump(store, session.out.buffer if streamed else file, chosen, progress=progress)
            except BrokenPipeError:  # typer would end with a code of its own
                raise typer.Exit(exits.BROKEN_PIPE) from None
            except OSError as error:
                if not streamed:
                    raise
                raise StorageError(
                    f"standard output can't be written: {error}; what it got is no whole dump"
                ) from error
    document = {"file": file, "threads": made.threads, "checkpoints": made.checkpoints, "bytes": made.bytes}
    where = "standard output" if streamed else escaped(file)
    lines = [f"{made.threads} threads, {made.checkpoints} checkpoints dumped to {where}, {size(made.bytes)}"]
    session.answer(as_json, document, lines, aside=streamed)
