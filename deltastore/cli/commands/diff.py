"""`deltastore diff`: what differs between two checkpoints."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, Json, Namespace, Place, StorePath
from deltastore.cli.commands.show import Fold, Full, folded
from deltastore.cli.opening import open_store
from deltastore.cli.plain import plain
from deltastore.cli.rendering import lines_of, one_line
from deltastore.cli.session import Session
from deltastore.cli.text import escaped
from deltastore.diffing import ALL_DEPTHS, Change, Changes, diff_values
from deltastore.errors import InvalidInputError
from deltastore.upkeep.inspecting import Inspected, inspect

EXAMPLE = "deltastore diff runs.ds user-42@before-deploy user-42"
KEYS = {
    "old.thread": "the thread of the older side",
    "old.namespace": "its namespace",
    "old.id": "its checkpoint",
    "new.thread": "the thread of the newer side",
    "new.namespace": "its namespace",
    "new.id": "its checkpoint",
    "changes[].path": "a list: the channel, then keys, fields and places; a place is the new side's, where it has one",
    "changes[].kind": "`added`, `removed` or `changed`",
    "changes[].old": "the value there before; not of what was added",
    "changes[].new": "the value there now; not of what was removed",
}

Second = Annotated[
    str | None,
    typer.Argument(
        metavar="[THREAD[@CHECKPOINT]]",
        help="The newer one. Without: the first, against its parent.",
        show_default=False,
    ),
]


def command(
    context: typer.Context,
    path: StorePath,
    first: Place,
    second: Second = None,
    namespace: Namespace = None,
    by: Fold = None,
    full: Full = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what makes one checkpoint's state of another's: what was added, removed and changed."""
    session: Session = context.obj
    with open_store(path) as store:
        found = places.find_place(store, first, namespace)
        old = inspect(store.log, found.thread, found.namespace, found.id)
        if second is not None:
            there = places.find_place(store, second, namespace)
            new = inspect(store.log, there.thread, there.namespace, there.id)
        elif old.parent_id is not None:
            old, new = inspect(store.log, old.thread, old.namespace, old.parent_id), old
        else:
            raise InvalidInputError(f"{found.shown} has no parent; name the checkpoint to compare it with")
    sides = [{name: folded(value, by) for name, value in side.channels.items()} for side in (old, new)]
    changes = diff_values(*sides, depth=ALL_DEPTHS)
    document = {"old": _side(old), "new": _side(new), "changes": list(map(_document, changes))}
    session.answer(as_json, document, _lines(session, old, new, changes, full))


def _side(side: Inspected) -> dict[str, Any]:
    return {"thread": side.thread, "namespace": side.namespace, "id": side.id}


def _document(change: Change) -> dict[str, Any]:
    values = {name: plain(value) for name, _, value in _values(change)}
    return {"path": plain(list(change.path)), "kind": change.kind, **values}


def _values(change: Change) -> Iterator[tuple[str, str, Any]]:
    """Iterate over the sides that have the part: name, what the mark before it means, and value."""
    if change.kind != "added":
        yield "old", "removed", change.old
    if change.kind != "removed":
        yield "new", "added", change.new


def _lines(session: Session, old: Inspected, new: Inspected, changes: Changes, full: bool) -> Iterator[str]:
    yield session.styled(f"--- {escaped(old.thread)}@{escaped(old.id)}", "heading")
    yield session.styled(f"+++ {escaped(new.thread)}@{escaped(new.id)}", "heading")
    for change in changes:
        yield session.styled(_path(change.path), "heading")
        for _, meaning, value in _values(change):
            mark = "- " if meaning == "removed" else "+ "
            yield from (session.styled(mark + line, meaning) for line in lines_of(value, full=full))


def _path(path: tuple[Any, ...]) -> str:
    channel, *rest = path
    return escaped(channel) + "".join(f"[{one_line(step, full=False)}]" for step in rest)
