"""`deltastore threads`: which threads there are."""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.plain import plain
from deltastore.cli.rendering import one_line
from deltastore.cli.session import Session
from deltastore.cli.text import columns, escaped, moment, size
from deltastore.errors import InvalidInputError
from deltastore.log import rows
from deltastore.log.listing import ThreadRow
from deltastore.store import Store
from deltastore.terms import ThreadInfo, check_limit, thread_info, thread_metadata
from deltastore.upkeep.inspecting import generic_codec

EXAMPLE = "deltastore threads runs.ds --filter user_id=u1 --limit 20"
KEYS = {
    "threads[].name": "the thread's name",
    "threads[].checkpoints": "of all its namespaces",
    "threads[].created_at": "ISO 8601, UTC",
    "threads[].updated_at": "of the last write",
    "threads[].bytes": "of its rows, as stored",
    "threads[].metadata": "of the latest checkpoint of its root namespace, without what LangGraph says of a step",
}
SHOWN_METADATA = 60
"""Characters of metadata in a line."""


class Order(StrEnum):
    """What threads are sorted by; all but the name the greatest first."""

    CREATED = "created"
    UPDATED = "updated"
    CHECKPOINTS = "checkpoints"
    BYTES = "bytes"
    NAME = "name"


Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="KEY=VALUE",
        help="Only threads whose metadata have this; may be given again. VALUE is JSON (42, true, null, "
        "'\"42\"'), and text where it isn't. Compared type by type; null is also a key that is missing.",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="At most so many.")]
Sort = Annotated[
    Order,
    typer.Option("--sort", metavar="KEY", help="created, updated, checkpoints, bytes (the greatest first), or name."),
]


def command(
    context: typer.Context,
    path: StorePath,
    filters: Filters = None,
    limit: Limit = None,
    sort: Sort = Order.CREATED,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the threads that have checkpoints, the newest created first."""
    session: Session = context.obj
    wanted = dict(map(_parse_filter, filters or ()))
    with open_store(path) as store:
        few = limit if sort is Order.CREATED else None
        found = _sorted(list(session.counted("reading threads", _threads(store, wanted, few), few)), sort)
    found = found[: len(found) if limit is None else limit]
    session.answer(as_json, {"threads": [_document(thread) for thread in found]}, _lines(found))


def _threads(store: Store, wanted: Mapping[str, Any], limit: int | None) -> Iterator[ThreadInfo]:
    check_limit(limit)
    codec = generic_codec(store.log)

    def accept(row: ThreadRow) -> Mapping[str, Any] | None:
        encoded = row.metadata
        if encoded is None:  # its root isn't LangGraph's
            latest = store.log.page(row.name, "", None, 1)
            encoded = latest[0].record.metadata if latest else None
            metadata = {} if encoded is None else codec.decode(encoded)
        else:
            metadata = codec.decode(encoded)
            metadata = thread_metadata(metadata) if isinstance(metadata, dict) else {"": metadata}
        return metadata if all(_same(metadata.get(key), value) for key, value in wanted.items()) else None

    for row, metadata, stored in store.log.threads(rows.LANGGRAPH, accept, before=None, limit=limit):
        yield thread_info(row, metadata, stored)


def _parse_filter(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(f"filter {text!r}; expected KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _same(found: Any, wanted: Any) -> bool:
    """Compare as JSON does, where 1, 1.0, true and "1" differ, and dicts have no order."""
    return json.dumps(plain(found), sort_keys=True) == json.dumps(plain(wanted), sort_keys=True)


def _sorted(found: list[ThreadInfo], order: Order) -> list[ThreadInfo]:
    match order:
        case Order.CREATED:
            return found
        case Order.NAME:
            return sorted(found, key=lambda thread: thread.name)
        case Order.UPDATED:
            return sorted(found, key=lambda thread: thread.updated_at, reverse=True)
        case Order.CHECKPOINTS:
            return sorted(found, key=lambda thread: thread.checkpoints, reverse=True)
        case Order.BYTES:
            return sorted(found, key=lambda thread: thread.bytes, reverse=True)


def _document(thread: ThreadInfo) -> dict[str, Any]:
    return {
        "name": thread.name,
        "checkpoints": thread.checkpoints,
        "created_at": thread.created_at.isoformat(),
        "updated_at": thread.updated_at.isoformat(),
        "bytes": thread.bytes,
        "metadata": plain(thread.metadata),
    }


def _lines(found: list[ThreadInfo]) -> list[str]:
    table = [
        (
            escaped(thread.name),
            str(thread.checkpoints),
            moment(thread.updated_at),
            size(thread.bytes),
            summary(thread.metadata, SHOWN_METADATA),
        )
        for thread in found
    ]
    return columns(table, heading=("THREAD", "CHECKPOINTS", "LAST WRITE", "SIZE", "METADATA"), right=(1, 3))


def summary(metadata: Any, width: int) -> str:
    """Return metadata in so many characters."""
    if not isinstance(metadata, Mapping):
        return one_line(metadata)[:width]
    shown = " ".join(
        f"{escaped(str(key))}={escaped(item) if isinstance(item, str) else one_line(item)}"
        for key, item in metadata.items()
    )
    return shown if len(shown) <= width else shown[: width - 1] + "…"
