"""`deltastore copy`: a thread under another name."""

from typing import Annotated

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, Json, StorePath, ThreadName
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped
from deltastore.store import check_name

EXAMPLE = "deltastore copy runs.ds user-42 user-42-experiment"
KEYS = {"thread": "the thread's name", "copy": "the new thread's name"}

New = Annotated[str, typer.Argument(metavar="NEW", help="The name of the copy.", show_default=False)]


def command(
    context: typer.Context, path: StorePath, thread: ThreadName, new: New, as_json: Json = False, debug: Debug = False
) -> None:
    """Copy a thread with all namespaces, pending writes and tags under a NEW name."""
    session: Session = context.obj
    with open_store(path) as store:
        name = places.find_thread(store, thread)
        store.log.keeping.copy_thread(name, check_name(new, "thread"))
    session.answer(as_json, {"thread": name, "copy": new}, [f"copied {escaped(name)} to {escaped(new)}"])
