"""`deltastore delete`: a thread, or one checkpoint."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, DryRun, Json, Namespace, StorePath, Yes
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped
from deltastore.errors import InvalidInputError
from deltastore.log import choosing, finding, keys, rows
from deltastore.log.reading import View
from deltastore.store import Store

EXAMPLE = "deltastore delete runs.ds user-42 --dry-run"
KEYS = {
    "thread": "the thread's name",
    "namespace": "the checkpoint's; null where the whole thread goes",
    "id": "the checkpoint's; null where the whole thread goes",
    "checkpoints": "that go, or would go: with a root checkpoint the sub-graph calls it started",
    "deleted": "whether they are gone",
}

Doomed = Annotated[
    str,
    typer.Argument(
        metavar="THREAD[@CHECKPOINT]",
        help="The whole thread, or its checkpoint with this id or tag.",
        show_default=False,
    ),
]


def command(
    context: typer.Context,
    path: StorePath,
    place: Doomed,
    namespace: Namespace = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete a thread with all its checkpoints, or one checkpoint.

    Other checkpoints read as before. The bytes of a checkpoint leave the file with the next compaction.
    """
    session: Session = context.obj
    with open_store(path) as store:
        found = places.find_place(store, place, namespace)
        if found.id is None and namespace is not None:
            raise InvalidInputError("a namespace can't be deleted by itself; name one of its checkpoints")
        count = _count(store, found)
        question = f"Delete {found.shown}, {count} checkpoint{'s' if count != 1 else ''}?"
        gone = not dry_run and session.confirm(question, yes=yes)
        if gone and found.id is None:
            store.delete(found.thread)
        elif gone and found.id is not None:
            store.log.keeping.delete_checkpoint(found.thread, found.namespace, found.id)
    document = {
        "thread": found.thread,
        "namespace": None if found.id is None else found.namespace,
        "id": found.id,
        "checkpoints": count,
        "deleted": gone,
    }
    session.answer(as_json, document, _lines(document, found))


def _count(store: Store, found: places.Found) -> int:
    """Count the checkpoints that go."""
    with store.log.storage.read() as tx:
        located = finding.find_thread(tx, found.thread)
        if located is None:  # gone meanwhile
            return 0
        number, header = located
        if found.id is None:
            return header.checkpoints
        view = View(tx, number, found.thread)
        namespace = rows.load_namespace(tx, number, keys.encode_name(found.namespace))
        ulid = None if namespace is None else finding.find(view, namespace, found.id)
        if namespace is None or ulid is None or namespace.front == rows.NATIVE:
            return 1
        choice = choosing.these({found.namespace: {ulid}})(view)
        return sum(len(plan.visible) for plan in choice.plans) + sum(each.count for each in choice.dropped)


def _lines(document: dict[str, Any], found: places.Found) -> Iterator[str]:
    count = document["checkpoints"]
    verb = "deleted" if document["deleted"] else "not deleted"
    what = f"{count} checkpoint{'s' if count != 1 else ''}"
    where = f" in namespace {escaped(found.namespace)}" if document["namespace"] else ""
    yield f"{verb}: {found.shown}{where}, {what}"
