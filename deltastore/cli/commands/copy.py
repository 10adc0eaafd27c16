"""`deltastore copy`: a store to another place, or a thread of it under another name."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

import deltastore
from deltastore.cli import places
from deltastore.cli.arguments import Debug, Json, StorePath
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.text import escaped, size
from deltastore.errors import InvalidIdError, InvalidInputError, NotFoundError
from deltastore.store import Store, check_name
from deltastore.upkeep.copying import DEFAULT_PASSES, CopyPlan, CopyReport

EXAMPLE = "deltastore copy runs.ds /new/disk/runs.ds"
KEYS = {
    "thread": "the thread's name; this and the next with three arguments, the others with two",
    "copy": "the new thread's name",
    "location": "where the copy is, or is to be",
    "applied": "whether anything was copied; false with --dry-run",
    "resumes": "with --dry-run, whether a copy was begun there, so that the counts are of what is left to do",
    "finished": "whether the copy is a store now; this and the last five are null with --dry-run",
    "threads": "that the copy has, or with --dry-run that are to be copied",
    "rows": "of these, and of the store itself",
    "bytes": "of keys and values of these rows",
    "copied_threads": "by this call; threads that others changed meanwhile more than once",
    "copied_rows": "by this call: read, written where they differed, and compared",
    "copied_bytes": "by this call",
    "passes": "how often it went over the threads",
    "changed_since": "threads that others changed in the source after they were copied; that isn't in the copy",
}

What = Annotated[
    str,
    typer.Argument(
        metavar="TARGET|THREAD",
        help="Where the store is to be copied to: a place where nothing is, or where its copy was begun. With NEW, a "
        "thread, by its name, or as `threads` shows it.",
        show_default=False,
    ),
]
New = Annotated[str | None, typer.Argument(metavar="NEW", help="The name of the copy of a thread.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Of a store: tell what would be copied, and write nothing.")]
Prepare = Annotated[
    bool,
    typer.Option(
        "--prepare",
        help="Of a store: leave the copy unfinished, to be brought up to date by copying again, which takes little "
        "time, when those who write to the store have ended.",
    ),
]
Passes = Annotated[
    int | None,
    typer.Option(
        "--passes",
        min=1,
        metavar="N",
        help="Of a store: how often at most what others change meanwhile is copied, before the last of it is copied "
        f"as of one moment. Without: {DEFAULT_PASSES}.",
    ),
]


def command(
    context: typer.Context,
    path: StorePath,
    what: What,
    new: New = None,
    dry_run: DryRun = False,
    prepare: Prepare = False,
    passes: Passes = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Copy the store to TARGET (two arguments), or a THREAD of it under the name NEW (three).

    A store is copied with all that it holds, row by row, to any storage, and each thread is read back and compared.
    Others may read and write meanwhile: the copy is the store as of one moment. It opens as nothing until it is
    finished; where it ends early, the same command goes on. To add threads to a store that is there, use dump and load.
    A thread is copied with all namespaces, pending writes and tags.
    """
    session: Session = context.obj
    if new is None:
        _copy_store(session, path, what, dry_run=dry_run, prepare=prepare, passes=passes, as_json=as_json)
        return
    if dry_run or prepare or passes is not None:
        raise InvalidInputError("--dry-run, --prepare and --passes are for copying a store, which takes two arguments")
    with open_store(path) as store:
        name = places.find_thread(store, what)
        store.log.keeping.copy_thread(name, check_name(new, "thread"))
    session.answer(as_json, {"thread": name, "copy": new}, [f"copied {escaped(name)} to {escaped(new)}"])


def _copy_store(
    session: Session, path: str, target: str, *, dry_run: bool, prepare: bool, passes: int | None, as_json: bool
) -> None:
    made: CopyPlan | CopyReport
    with open_store(path) as store:
        _refuse_thread(store, path, target)
        if dry_run:
            made = deltastore.plan_copy(store, target)
        else:
            with session.progress("copying bytes") as progress:
                made = deltastore.copy_store(
                    store, target, passes=passes or DEFAULT_PASSES, finish=not prepare, progress=progress
                )
    session.answer(as_json, _document(made), _lines(made))


def _refuse_thread(store: Store, path: str, target: str) -> None:
    """Refuse what is rather meant to be a thread, whose new name was forgotten. Raises InvalidInputError."""
    if os.sep in target or "/" in target or os.path.lexists(target):
        return
    try:
        places.find_thread(store, target)
    except (NotFoundError, InvalidIdError):
        return
    raise InvalidInputError(
        f"{target} is a thread of {path}: give the name of its copy too; "
        f"to copy the whole store to a directory of that name, write ./{target}"
    )


def _document(made: CopyPlan | CopyReport) -> dict[str, Any]:
    if isinstance(made, CopyReport):
        return {"applied": True, "resumes": None, **asdict(made)}
    none = dict.fromkeys(("finished", "copied_threads", "copied_rows", "copied_bytes", "passes", "changed_since"), None)
    return {"applied": False, **asdict(made), **none}


def _lines(made: CopyPlan | CopyReport) -> Iterator[str]:
    counts = f"{made.threads} threads, {made.rows} rows of {size(made.bytes)}"
    if isinstance(made, CopyPlan):
        left = ", where a copy was begun" if made.resumes else ""
        yield f"{counts} would be copied to {escaped(made.location)}{left}"
        return
    yield f"{made.copied_threads} threads, {made.copied_rows} rows of {size(made.copied_bytes)} copied and compared"
    if made.finished:
        yield f"{escaped(made.location)} is a store now, of {counts}"
    else:
        yield f"{escaped(made.location)} is unfinished, with {counts}; copy again to bring it up to date and finish it"
    if made.changed_since:
        yield f"others changed {made.changed_since} threads since; that isn't in the copy"
