"""Loading a dump: its threads, each new in this store, and there when it is whole.

Imports loading_thread, dumpframes, renaming, and store and below. The invariant: a thread's name leads to it after its
checksum was met, in its last transaction; until then its rows stand in the queue, for a collection to find.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from deltastore.errors import (
    ChecksumError,
    CorruptionError,
    DeltastoreError,
    InvalidInputError,
    StorageError,
    ThreadExistsError,
)
from deltastore.log import deleting, keys, names
from deltastore.store import Store, check_open
from deltastore.upkeep.dumpframes import FrameReader, Seekable, Source
from deltastore.upkeep.loading_thread import ThreadLoad
from deltastore.upkeep.progress import Progress
from deltastore.upkeep.renaming import Rename, Renaming


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: threads, those left out because their names were in use, and checkpoints."""

    threads: int
    skipped: int
    checkpoints: int


def load(
    store: Store,
    file: str | PathLike[str] | Source,
    *,
    rename: Rename | None = None,
    skip_existing: bool = False,
    progress: Progress | None = None,
) -> Loaded:
    """Load the threads of a dump, from a file's path or an open binary one; each is there whole, or not at all.

    Writers go on meanwhile. A name in use raises before anything of that thread is written, or with `skip_existing`
    leaves it out. `rename` maps names in the dump to names here, the others staying, or is a function that gives the
    name here for a name there. `progress` counts threads, of how many isn't known.

    What it raises leaves the threads before it loaded: ThreadExistsError; ChecksumError naming the thread where the
    dump is damaged or ends early; FormatError where it is another version or no dump; InvalidInputError where the file
    can't be read; ConflictError where a collection took it for abandoned; StoreFullError, StorageError. A name to be
    renamed that the dump lacks is a ThreadNotFoundError, before anything is loaded unless the file is a pipe.
    A kill leaves rows that `collect` removes, an hour after they were written.
    """
    check_open(store)
    with opened(file, rename) as dump:
        return load_opened(store, dump, skip_existing=skip_existing, progress=progress)


@dataclass(frozen=True, slots=True)
class OpenedDump:
    """A dump that begins as one does, and what its threads are to be called."""

    frames: FrameReader
    renaming: Renaming


@contextmanager
def opened(file: str | PathLike[str] | Source, rename: Rename | None = None) -> Iterator[OpenedDump]:
    """Open a dump and read how it begins, before any store is made for it; `rename` as in `load`.

    Raises FormatError, ChecksumError, InvalidInputError, ThreadNotFoundError, StorageError.
    """
    renaming = Renaming(rename)
    with _opened(file) as source:
        if renaming.names_threads and isinstance(source, Seekable) and source.seekable():
            place = source.tell()
            _look_for_names(source, rename)
            source.seek(place)
        yield OpenedDump(FrameReader(source), renaming)


def load_opened(
    store: Store, dump: OpenedDump, *, skip_existing: bool = False, progress: Progress | None = None
) -> Loaded:
    """Load the threads of an opened dump, as `load` does."""
    threads = skipped = checkpoints = 0
    while True:
        match dump.frames.next():
            case ["thread", bytes(name), *facts]:
                found = dump.renaming.name(name)
                try:
                    loaded = _load_thread(store, dump.frames, found, facts, skip_existing, threads)
                except CorruptionError as error:
                    raise ChecksumError(
                        f"thread {found!r}: {error}; nothing of it was loaded, and {threads} threads before it "
                        "were. Dump it again, or load another copy of the dump"
                    ) from error
                if loaded is None:
                    skipped += 1
                else:
                    threads, checkpoints = threads + 1, checkpoints + loaded
                if progress is not None:
                    progress(threads + skipped, None)
            case ["end", int(count)] if count == threads + skipped:
                dump.renaming.check_all_met(threads)
                return Loaded(threads, skipped, checkpoints)
            case item:
                raise ChecksumError(
                    f"malformed dump: {item[0]!r} after {threads + skipped} threads; those before it are loaded"
                )


def _look_for_names(source: Source, rename: Rename | None) -> None:
    """Read a dump to its end for the names in it, so that one that is lacking is told before anything is loaded."""
    frames, renaming = FrameReader(source), Renaming(rename)
    with contextlib.suppress(CorruptionError):  # loading it will tell, and which threads are whole
        while True:
            match frames.next():
                case ["thread", bytes(name), *_]:
                    renaming.name(name)
                case ["end", *_]:
                    renaming.check_all_met(0)
                    return


@contextmanager
def _opened(file: str | PathLike[str] | Source) -> Iterator[Source]:
    if not isinstance(file, (str, PathLike)):
        if not callable(getattr(file, "read", None)):
            raise InvalidInputError(f"a file of type {type(file).__name__}; expected a path, or a file open for bytes")
        yield file
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 - closed below; an error of opening is another one than of reading
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"no dump can be read at {fspath(file)!r}: {error}") from error
    try:
        with source:
            yield source
    except OSError as error:
        raise StorageError(f"{file}: the operating system refused: {error}") from error


def _load_thread(
    store: Store, frames: FrameReader, name: str, facts: list[Any], skip_existing: bool, before: int
) -> int | None:
    """Load one thread; return how many checkpoints it has, or None where its name is in use."""
    storage = store.log.storage
    with storage.read() as tx:
        taken = names.find(tx, keys.THREAD, keys.encode_name(name)) is not None
    if taken and not skip_existing:
        raise ThreadExistsError(
            f"a thread is named {name!r} already; {before} threads before it were loaded. Load it under another name "
            "with rename, leave out what exists with skip-existing, or delete it first"
        )
    if taken:
        _skip(frames)
        return None
    loading = ThreadLoad(store.log, name, facts)
    try:
        return _items(frames, loading)
    except BaseException:
        with contextlib.suppress(DeltastoreError):  # what is wrong already shall be told
            loading.abandon()
            deleting.collect(storage, store.log.now_ms())
        raise


def _items(frames: FrameReader, loading: ThreadLoad) -> int:
    while True:
        match frames.next():
            case ["thread end", int(checkpoints), bytes(digest)]:
                frames.check(digest)
                if checkpoints != loading.header.checkpoints:
                    raise ChecksumError(
                        f"malformed dump: {loading.header.checkpoints} checkpoints where {checkpoints} are stated"
                    )
                loading.finish()
                return checkpoints
            case item:
                loading.take(item)


def _skip(frames: FrameReader) -> None:
    while True:
        match frames.next():
            case ["thread end", int(), bytes(digest)]:
                frames.check(digest)
                return
            case ["thread" | "end" as kind, *_]:
                raise ChecksumError(f"malformed dump: {kind!r} within a thread")
