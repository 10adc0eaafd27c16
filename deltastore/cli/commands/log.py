"""`deltastore log`: the history of a thread, with its branches."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from deltastore.cli import graph, places
from deltastore.cli.arguments import Debug, Json, Namespace, StorePath, ThreadName
from deltastore.cli.commands.threads import summary
from deltastore.cli.opening import open_store
from deltastore.cli.plain import plain
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, moment
from deltastore.codec.generic import GenericCodec
from deltastore.errors import NotFoundError
from deltastore.log import rows
from deltastore.log.answering import Entry
from deltastore.store import Store
from deltastore.terms import when
from deltastore.upkeep.inspecting import generic_codec

EXAMPLE = "deltastore log runs.ds user-42 --limit 20"
KEYS = {
    "thread": "the thread's name",
    "namespaces[].name": "the namespace's; the root's is empty",
    "namespaces[].front": "the API that it belongs to: `native` or `LangGraph`",
    "namespaces[].checkpoints[].id": "newest first",
    "namespaces[].checkpoints[].parent_id": "null: the first of a branch",
    "namespaces[].checkpoints[].created_at": "ISO 8601, UTC",
    "namespaces[].checkpoints[].is_anchor": "whether it states every channel in full",
    "namespaces[].checkpoints[].tags": "names given to it",
    "namespaces[].checkpoints[].metadata": "as put",
}
SHOWN_METADATA = 60
PAGE = 512
"""Checkpoints that are read in one transaction."""

Limit = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="At most so many of a namespace.")]
Everything = Annotated[bool, typer.Option("--all", help="All namespaces, not the root's alone.")]
Anchors = Annotated[bool, typer.Option("--anchors", help="Mark the checkpoints that state every channel in full.")]


def command(
    context: typer.Context,
    path: StorePath,
    thread: ThreadName,
    namespace: Namespace = None,
    everything: Everything = False,
    limit: Limit = None,
    anchors: Anchors = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the checkpoints of a thread, newest first, with its branches."""
    session: Session = context.obj
    with open_store(path) as store:
        name = places.find_thread(store, thread)
        known = places.namespaces(store, name)
        wanted = known if everything else known[:1] if namespace is None else [namespace]
        if namespace is not None and namespace not in known:
            raise NotFoundError(f"thread {name!r} has no namespace {namespace!r}; see deltastore log … --all")
        counted = session.counted("reading namespaces", wanted, len(wanted))
        histories = [_History(store, name, each, limit) for each in counted]
    document = {"thread": name, "namespaces": [history.document() for history in histories]}

    def lines() -> Iterator[str]:
        for history in histories:
            if history.namespace or len(known) > 1:
                yield session.styled(f"namespace {escaped(history.namespace) or '(root)'}", "heading")
            yield from history.lines(session, anchors)

    session.answer(as_json, document, lines())
    if not as_json and len(wanted) < len(known) and namespace is None:
        session.note(f"{len(known) - len(wanted)} more namespaces: --all, or --namespace NAME")


class _History:
    """The checkpoints of one namespace, as of now."""

    def __init__(self, store: Store, thread: str, namespace: str, limit: int | None) -> None:
        self.namespace = namespace
        native = namespace in store.log.namespaces(thread, rows.NATIVE)
        self.front = rows.FRONT_NAMES[rows.NATIVE if native else rows.LANGGRAPH]
        self.codec: GenericCodec = generic_codec(store.log)
        self.entries = list(islice(_entries(store, thread, namespace), limit))
        self.metadata = [self.codec.decode(entry.record.metadata) for entry in self.entries]
        self.tags: dict[str, list[str]] = {}
        for tag, id_ in store.log.keeping.tags(thread, namespace).items():
            self.tags.setdefault(id_, []).append(tag)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.namespace,
            "front": self.front,
            "checkpoints": [
                {
                    "id": entry.id,
                    "parent_id": entry.parent_id,
                    "created_at": when(entry.record.time_ms).isoformat(),
                    "is_anchor": entry.record.is_anchor,
                    "tags": self.tags.get(entry.id, []),
                    "metadata": plain(metadata),
                }
                for entry, metadata in zip(self.entries, self.metadata, strict=True)
            ],
        }

    def lines(self, session: Session, anchors: bool) -> Iterator[str]:
        drawing = list(graph.draw((entry.id, entry.parent_id) for entry in self.entries))
        width = max((len(beside) for _, beside in drawing), default=0)
        ids = max((len(escaped(entry.id)) for entry in self.entries), default=0)
        for entry, metadata, (before, beside) in zip(self.entries, self.metadata, drawing, strict=True):
            yield from before
            marks = [f"[{escaped(tag)}]" for tag in self.tags.get(entry.id, [])]
            if anchors and entry.record.is_anchor:
                marks.append("(anchor)")
            cells = [
                beside.ljust(width),
                escaped(entry.id).ljust(ids),
                moment(when(entry.record.time_ms)),
                *(session.styled(mark, "mark") for mark in marks),
                _summary(metadata),
            ]
            yield "  ".join(cells).rstrip()


def _entries(store: Store, thread: str, namespace: str) -> Iterator[Entry]:
    before: str | None = None
    while page := store.log.page(thread, namespace, before, PAGE):
        yield from page
        before = page[-1].id


def _summary(metadata: Any) -> str:
    """Return what a line says of a checkpoint: LangGraph's step and source, else all metadata, as far as they fit."""
    if isinstance(metadata, Mapping) and "step" in metadata and "source" in metadata:
        return f"step {metadata['step']}  {escaped(str(metadata['source']))}"
    return summary(metadata, SHOWN_METADATA)
