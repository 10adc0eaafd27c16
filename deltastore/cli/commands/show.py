"""`deltastore show`: what a checkpoint holds, without the program that wrote it."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from deltastore.cli import places
from deltastore.cli.arguments import Debug, Json, Namespace, Place, StorePath
from deltastore.cli.folding import KnownReducer, fold
from deltastore.cli.opening import open_store
from deltastore.cli.plain import plain
from deltastore.cli.rendering import INDENT, kind_of, lines_of
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, moment, unescaped
from deltastore.codec.generic import SNAPSHOT, Built
from deltastore.errors import InvalidInputError, NotFoundError
from deltastore.upkeep.inspecting import Inspected, Unfolded, inspect

EXAMPLE = "deltastore show runs.ds user-42@before-deploy messages"
KEYS = {
    "thread": "the thread's name",
    "namespace": "the namespace's; the root's is empty",
    "front": "the API that it belongs to: `native` or `LangGraph`",
    "id": "the checkpoint's",
    "parent_id": "null: the first of a branch",
    "created_at": "ISO 8601, UTC",
    "is_anchor": "whether it states every channel in full",
    "tags": "names given to it",
    "metadata": "as put",
    "channels": "by name, the values; other forms than JSON's as below",
    "writes[].task": "of a pending write",
    "writes[].channel": "that it is for",
    "writes[].value": "as put",
}

Channel = Annotated[
    str | None, typer.Argument(metavar="[CHANNEL]", help="Only this channel's value.", show_default=False)
]
Fold = Annotated[
    KnownReducer | None,
    typer.Option(
        "--fold", metavar="REDUCER", help="Fold what only its own reducer can, as if that were append, merge or upsert."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Long texts and bytes whole.")]
Raw = Annotated[bool, typer.Option("--raw", help="A channel's text or bytes as they are, and nothing else.")]


def command(
    context: typer.Context,
    path: StorePath,
    place: Place,
    channel: Channel = None,
    namespace: Namespace = None,
    by: Fold = None,
    full: Full = False,
    raw: Raw = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the state of a checkpoint, its metadata and pending writes.

    Objects of any class are shown by its name and their fields; no class is imported. A channel that only its own
    reducer can fold, as LangGraph's DeltaChannel, is shown as a seed and the writes since.
    """
    session: Session = context.obj
    with open_store(path) as store:
        found = places.find_place(store, place, namespace)
        inspected = inspect(store.log, found.thread, found.namespace, found.id)
    channels = {name: folded(value, by) for name, value in inspected.channels.items()}
    if channel is not None:
        channels = _only(channels, channel, found)
    if raw:
        _write_raw(session, channels, channel)
        return
    document = {
        "thread": inspected.thread,
        "namespace": inspected.namespace,
        "front": inspected.front,
        "id": inspected.id,
        "parent_id": inspected.parent_id,
        "created_at": inspected.created_at.isoformat(),
        "is_anchor": inspected.is_anchor,
        "tags": list(inspected.tags),
        "metadata": plain(inspected.metadata),
        "channels": {name: plain(value) for name, value in channels.items()},
        "writes": [
            {"task": write.task, "channel": write.channel, "value": plain(write.value)} for write in inspected.writes
        ],
    }
    lines = _lines(session, inspected, channels, full) if channel is None else _values(session, channels, full)
    session.answer(as_json, document, lines)


def folded(value: Any, by: KnownReducer | None) -> Any:
    """Return a channel's value, folded if that is wanted and needed; a snapshot is as good as a fold."""
    if by is None:
        return value
    if isinstance(value, Built) and value.name == SNAPSHOT:
        return value.parts
    return fold(value, by) if isinstance(value, Unfolded) else value


def _only(channels: dict[str, Any], text: str, found: places.Found) -> dict[str, Any]:
    for name in (text, unescaped(text)):
        if name is not None and name in channels:
            return {name: channels[name]}
    there = ", ".join(map(escaped, channels)) or "none"
    raise NotFoundError(f"{found.shown} has no channel {text!r}; there are: {there}")


def _write_raw(session: Session, channels: dict[str, Any], channel: str | None) -> None:
    value = next(iter(channels.values())) if channel is not None else None
    match value:
        case str():
            data = value.encode("utf-8", "surrogatepass")
        case bytes() | bytearray():
            data = bytes(value)
        case _:
            raise InvalidInputError("--raw writes the text or bytes of one CHANNEL; for anything else there is --json")
    session.answer_raw(data)


def _lines(session: Session, found: Inspected, channels: dict[str, Any], full: bool) -> Iterator[str]:
    facts = {
        "thread": escaped(found.thread),
        "namespace": escaped(found.namespace) or "(root)",
        "checkpoint": escaped(found.id) + (" (anchor)" if found.is_anchor else ""),
        "parent": "none" if found.parent_id is None else escaped(found.parent_id),
        "time": moment(found.created_at),
        "written by": found.front,
        "tags": ", ".join(map(escaped, found.tags)) or "none",
    }
    for name, value in facts.items():
        yield f"{name:<12}{value}"
    first, *rest = lines_of(found.metadata, full=full)
    yield f"{'metadata':<12}{first}"
    yield from rest
    yield ""
    yield from _values(session, channels, full)
    for write in found.writes:
        yield session.styled(
            f"pending write of task {escaped(write.task) or '(none)'} to {escaped(write.channel)}", "heading"
        )
        yield from (INDENT + line for line in lines_of(write.value, full=full))


def _values(session: Session, channels: dict[str, Any], full: bool) -> Iterator[str]:
    for name, value in channels.items():
        yield session.styled(f"{escaped(name)} ({kind_of(value)})", "heading")
        yield from (INDENT + line for line in lines_of(value, full=full))
