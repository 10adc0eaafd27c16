"""`deltastore stats`: what of a store takes how much room."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, Any

import typer

from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import columns, escaped, percent, size
from deltastore.storage.info import StorageInfo
from deltastore.upkeep.statistics import KINDS, RowBytes, Statistics, measure

EXAMPLE = "deltastore stats runs.ds --top 5 --keep-last 10"
KEYS = {
    "file_bytes": "size of the data file",
    "used_bytes": "of pages that hold rows",
    "oldest_reader.pid": "process of the oldest read transaction; `oldest_reader` is null where none is old",
    "oldest_reader.behind": "commits since it began: pages freed since can't be used again before it ends",
    "threads": "how many there are",
    "checkpoints": "of all threads",
    "bytes": "of all rows, as stored",
    "full_bytes": "about what every checkpoint's full state takes together, uncompressed",
    "garbage_bytes": "about what compaction removes: chunks that nothing needs",
    "base_bytes": "of chunks that only others are stored against",
    "orphan_bytes": "of rows of deleted threads, and of copies and loads that aren't done or were given up; not in "
    "`bytes`. `compact` removes them, those of copies and loads after an hour",
    "stray_writes": "pending writes whose checkpoint never came, or not yet; retain --stray-writes removes old ones",
    "freed_bytes": "about what would go with all but the last checkpoints, tagged ones kept; null without --keep-last",
    "kinds[].kind": "of rows: " + ", ".join(f"`{kind}`" for kind in (*KINDS, "store")),
    "kinds[].rows": "how many",
    "kinds[].bytes": "as stored",
    "channels[].channel": "a channel's name",
    "channels[].bytes": "of the chunks that it was the first of all channels to name",
    "largest[].thread": "a short hash, the same at every call for one store; with --names the name",
    "largest[].checkpoints": "of the thread",
    "largest[].bytes": "of its rows, as stored",
    "largest[].full_bytes": "as above, of the thread",
    "largest[].garbage_bytes": "as above, of the thread",
    "largest[].stray_writes": "as above, of the thread",
    "largest[].freed_bytes": "as above, of the thread",
}
HASH_BYTES = 5

Top = Annotated[int, typer.Option("--top", min=0, metavar="N", help="Show so many threads, and channels.")]
KeepLast = Annotated[
    int | None,
    typer.Option(
        "--keep-last", min=1, metavar="N", help="Estimate what keeping N checkpoints of each namespace would free."
    ),
]
Names = Annotated[bool, typer.Option("--names", help="Show the names of threads, which may be users'.")]


def command(
    context: typer.Context,
    path: StorePath,
    top: Top = 10,
    keep_last: KeepLast = None,
    names: Names = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what takes the room: threads, kinds of rows, channels, garbage.

    Made to be shown to others: threads are named by a hash unless --names is given. Reads only.
    """
    session: Session = context.obj
    with open_store(path) as store:
        found = store.info()
        with session.progress("measuring threads") as progress:
            statistics = measure(store, keep_last=keep_last, progress=progress)
        uuid = store.log.uuid
    document = _document(found, statistics, top, None if names else uuid)
    session.answer(as_json, document, _lines(session, document))


def _document(found: StorageInfo, statistics: Statistics, top: int, secret: bytes | None) -> dict[str, Any]:
    threads = statistics.threads
    kinds: dict[str, RowBytes] = {}
    for kind in KINDS:
        each = [thread.kinds[kind] for thread in threads]
        kinds[kind] = RowBytes(sum(one.rows for one in each), sum(one.bytes for one in each))
    kinds["store"] = statistics.store_rows
    channels: dict[str, int] = {}
    for thread in threads:
        for channel, held in thread.channels.items():
            channels[channel] = channels.get(channel, 0) + held
    freed = [thread.freed_bytes for thread in threads if thread.freed_bytes is not None]
    return {
        "file_bytes": found.file_bytes,
        "used_bytes": found.used_bytes,
        "oldest_reader": None
        if found.oldest_reader is None
        else {"pid": found.oldest_reader.pid, "behind": found.oldest_reader.behind},
        "threads": len(threads),
        "checkpoints": sum(thread.checkpoints for thread in threads),
        "bytes": sum(kind.bytes for kind in kinds.values()),
        "full_bytes": sum(thread.full_bytes for thread in threads),
        "garbage_bytes": sum(thread.garbage_bytes for thread in threads),
        "base_bytes": sum(thread.base_bytes for thread in threads),
        "orphan_bytes": statistics.orphans.bytes,
        "stray_writes": sum(thread.stray_writes for thread in threads),
        "freed_bytes": sum(freed) if freed else None,
        "kinds": [{"kind": kind, "rows": held.rows, "bytes": held.bytes} for kind, held in kinds.items()],
        "channels": [
            {"channel": channel, "bytes": held}
            for channel, held in sorted(channels.items(), key=lambda item: -item[1])[:top]
        ],
        "largest": [
            {
                "thread": thread.name if secret is None else _hidden(thread.name, secret),
                "checkpoints": thread.checkpoints,
                "bytes": thread.bytes,
                "full_bytes": thread.full_bytes,
                "garbage_bytes": thread.garbage_bytes,
                "stray_writes": thread.stray_writes,
                "freed_bytes": thread.freed_bytes,
            }
            for thread in threads[:top]
        ],
    }


def _hidden(name: str, secret: bytes) -> str:
    """Return what stands for a name: keyed by the store's uuid, so that names can't be guessed from it alone."""
    return blake2b(name.encode("utf-8", "surrogatepass"), key=secret, digest_size=HASH_BYTES).hexdigest()


def _lines(session: Session, document: dict[str, Any]) -> Iterator[str]:
    total, oldest = document["bytes"], document["oldest_reader"]
    ratio = f", {document['full_bytes'] / total:.1f} times as much" if total else ""
    facts = {
        "file": f"{size(document['file_bytes'])}, {size(document['used_bytes'])} used",
        "rows": f"{size(total)} of {document['checkpoints']} checkpoints in {document['threads']} threads",
        "full states": f"{size(document['full_bytes'])} if each checkpoint held its own{ratio}",
        "garbage": f"{size(document['garbage_bytes'])} ({percent(document['garbage_bytes'], total)})"
        + (", which compact removes" if document["garbage_bytes"] else ""),
        "oldest reader": f"process {oldest['pid']}, {oldest['behind']} commits behind" if oldest else "none is behind",
    }
    if document["orphan_bytes"]:
        facts["orphans"] = f"{size(document['orphan_bytes'])} besides, of threads deleted, or not yet copied or loaded"
    if document["stray_writes"]:
        facts["stray writes"] = f"{document['stray_writes']} pending ones, whose checkpoint never came, or not yet"
    if document["freed_bytes"] is not None:
        facts["would go"] = f"about {size(document['freed_bytes'])} ({percent(document['freed_bytes'], total)})"
    for name, value in facts.items():
        yield f"{name:<15}{value}"

    def table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
        yield ""
        first, *rest = columns(rows, heading=heading, right=range(1, len(heading)))
        yield session.styled(first, "heading")
        yield from rest

    yield from table(
        ("KIND", "ROWS", "SIZE", "SHARE"),
        [
            (each["kind"], str(each["rows"]), size(each["bytes"]), percent(each["bytes"], total))
            for each in document["kinds"]
        ],
    )
    yield from table(
        ("CHANNEL", "SIZE", "SHARE"),
        [
            (escaped(each["channel"]), size(each["bytes"]), percent(each["bytes"], total))
            for each in document["channels"]
        ],
    )
    yield from table(
        ("THREAD", "CHECKPOINTS", "SIZE", "FULL STATES", "GARBAGE", "WOULD GO"),
        [
            (
                escaped(each["thread"]),
                str(each["checkpoints"]),
                size(each["bytes"]),
                size(each["full_bytes"]),
                size(each["garbage_bytes"]),
                "-" if each["freed_bytes"] is None else size(each["freed_bytes"]),
            )
            for each in document["largest"]
        ],
    )
