"""`deltastore backup`: the whole store, as of one moment, in a directory of its own."""

from typing import Annotated

import typer

import deltastore
from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, size

EXAMPLE = "deltastore backup runs.ds /backup/runs-monday.ds"
KEYS = {
    "target": "the backup's directory",
    "rows": "that were copied",
    "file_bytes": "size of the backup's data file",
}

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A directory that is empty, or to be made.", show_default=False)
]


def command(
    context: typer.Context, path: StorePath, target: Target, as_json: Json = False, debug: Debug = False
) -> None:
    """Copy the whole store into the directory TARGET, as of one moment. Others may write meanwhile.

    To restore, close the store everywhere and put the backup in its place.
    """
    session: Session = context.obj
    with open_store(path) as store, session.progress("copying bytes") as progress:
        rows = deltastore.backup(store, target, progress=progress)
    with open_store(target) as made:
        file_bytes = made.info().file_bytes
    document = {"target": target, "rows": rows, "file_bytes": file_bytes}
    session.answer(as_json, document, [f"{rows} rows copied to {escaped(target)}, {size(file_bytes)}"])
