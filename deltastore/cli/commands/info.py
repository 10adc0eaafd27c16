"""`deltastore info`: what a store is, how large, who reads it."""

from collections.abc import Iterator
from typing import Any

import typer

from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, percent, size
from deltastore.log import quarantine
from deltastore.log.format import open_format
from deltastore.store import Store

EXAMPLE = "deltastore info runs.ds"
KEYS = {
    "location": "the directory",
    "kind": "the storage",
    "format_version": "the version of the stored form",
    "uuid": "drawn when the store was made",
    "options": "what the store was made with, where not the default",
    "snapshot_frequency": "checkpoints from one anchor to the next, at most",
    "threads": "how many there are",
    "checkpoints": "of all threads and namespaces",
    "quarantined": "rows that a repair took out of their places",
    "file_bytes": "size of the data file",
    "used_bytes": "of pages that hold rows; the others of the file are used again",
    "map_bytes": "what the file may grow to before the map must",
    "readers": "slots of read transactions in use, over all processes",
    "oldest_reader.pid": "process of the oldest read transaction; `oldest_reader` is null where none is old",
    "oldest_reader.behind": "commits since it began: pages freed since can't be used again before it ends",
}


def command(context: typer.Context, path: StorePath, as_json: Json = False, debug: Debug = False) -> None:
    """Show what a store is: format, sizes, threads, readers."""
    session: Session = context.obj
    with open_store(path) as store:
        document = _document(session, store)
    session.answer(as_json, document, _lines(document))


def _document(session: Session, store: Store) -> dict[str, Any]:
    found = store.info()
    version, uuid, options = open_format(store.log.storage, None)
    threads = checkpoints = 0
    quarantined = _quarantined(store, 0)
    for row in session.counted("reading threads", store.log.all_threads()):
        threads += 1
        checkpoints += row.header.checkpoints
        quarantined += _quarantined(store, row.number)
    oldest = found.oldest_reader
    return {
        "location": found.location,
        "kind": found.kind,
        "format_version": version,
        "uuid": uuid.hex(),
        "options": options,
        "snapshot_frequency": store.log.snapshot_frequency,
        "threads": threads,
        "checkpoints": checkpoints,
        "quarantined": quarantined,
        "file_bytes": found.file_bytes,
        "used_bytes": found.used_bytes,
        "map_bytes": found.map_bytes,
        "readers": found.readers,
        "oldest_reader": None if oldest is None else {"pid": oldest.pid, "behind": oldest.behind},
    }


def _quarantined(store: Store, thread: int) -> int:
    with store.log.storage.read() as tx:
        return quarantine.count(tx, thread)


def _lines(document: dict[str, Any]) -> Iterator[str]:
    oldest = document["oldest_reader"]
    used, held = document["used_bytes"], document["file_bytes"]
    facts = {
        "location": escaped(document["location"]),
        "storage": document["kind"],
        "format": f"version {document['format_version']}",
        "uuid": document["uuid"],
        "options": ", ".join(f"{name} {value}" for name, value in document["options"].items()) or "defaults",
        "anchors": f"every {document['snapshot_frequency']} checkpoints at least",
        "threads": str(document["threads"]),
        "checkpoints": str(document["checkpoints"]),
        "quarantined": f"{document['quarantined']} rows" if document["quarantined"] else "nothing",
        "file": f"{size(held)}, {size(used)} used ({percent(used, held)})",
        "map": size(document["map_bytes"]),
        "readers": str(document["readers"]),
        "oldest reader": f"process {oldest['pid']}, {oldest['behind']} commits behind" if oldest else "none is behind",
    }
    for name, value in facts.items():
        yield f"{name:<15}{value}"
