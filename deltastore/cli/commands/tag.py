"""`deltastore tag`: names that checkpoints are kept under."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, Json, Namespace, Place, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import columns, escaped
from deltastore.errors import InvalidInputError, NotFoundError
from deltastore.store import check_name

EXAMPLE = "deltastore tag runs.ds user-42 before-deploy"
KEYS = {
    "thread": "the thread's name",
    "namespace": "the namespace's; the root's is empty",
    "tags": "of the namespace, afterwards: name to checkpoint id",
}

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The tag. Without: list the tags.", show_default=False)
]
Delete = Annotated[bool, typer.Option("--delete", help="Take the name away; the checkpoint stays.")]


def command(
    context: typer.Context,
    path: StorePath,
    place: Place,
    name: Name = None,
    delete: Delete = False,
    namespace: Namespace = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give a checkpoint a name that keeps it from being pruned; list and take away such names.

    A name stands for one checkpoint of a namespace: giving it again moves it.
    """
    session: Session = context.obj
    with open_store(path) as store:
        found = places.find_place(store, place, namespace)
        if delete and name is None:
            raise InvalidInputError("--delete needs the NAME to take away")
        if name is not None and delete:
            if not store.log.keeping.untag(found.thread, found.namespace, check_name(name, "tag")):
                raise NotFoundError(f"thread {found.thread!r} has no tag {name!r}")
        elif name is not None:
            store.log.keeping.tag(found.thread, found.namespace, found.id, check_name(name, "tag"))
        tags = store.log.keeping.tags(found.thread, found.namespace)
    document = {"thread": found.thread, "namespace": found.namespace, "tags": tags}
    session.answer(as_json, document, _lines(tags))


def _lines(tags: Mapping[str, str]) -> Iterator[str]:
    table = [(escaped(name), escaped(id_)) for name, id_ in tags.items()]
    yield from columns(table, heading=("TAG", "CHECKPOINT"))
