"""Backup: a copy of a whole store, as of one moment, in a directory of its own, while others write.

Rows are copied as they are, the uuid too: a backup *is* the store, at that moment. Imports store and below. The
invariant: a backup is complete before `CURRENT` names it, so half of one is never opened as a store.
"""

import contextlib
import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from deltastore.errors import StorageError, StorePathError, UnavailableError
from deltastore.log import keys
from deltastore.opening import MEMORY, check_path
from deltastore.storage.port import ReadTransaction, Row
from deltastore.store import Store, check_open
from deltastore.upkeep.places import check_outside
from deltastore.upkeep.progress import Progress

_ALL = (b"", b"\xff" * (keys.THREAD_BYTES + 1))
"""From the first key to after the last one: thread numbers don't get near the end of six bytes."""

TOLD_BYTES = 4 << 20
"""How much is copied from one call of `progress` to the next."""


def backup(store: Store, path: str | PathLike[str], *, progress: Progress | None = None) -> int:
    """Copy a store, of any storage, into a directory that is new or empty; return how many rows that were.

    As of one moment; writers go on, but the pages that they free meanwhile aren't used again until the backup ends:
    the file grows by what they write, and a store near its `max_bytes` may be full until then. Damaged rows are copied
    as they are: run check on the backup. `progress` counts bytes.

    Raises StorePathError where something is there, or inside the store's own directory, StoreFullError, StorageError,
    ClosedError, InvalidInputError; then nothing is left. A kill leaves `env-1.filling` in the directory, which opens as
    nothing and is to be removed.
    """
    from deltastore.storage.directory import FIRST_ENVIRONMENT  # LMDB, which a store in memory can do without
    from deltastore.storage.filling import fill, prepare_empty
    from deltastore.storage.lmdb import LmdbStorage

    check_open(store)
    if store.log.storage.info().kind == "postgres":
        raise UnavailableError(
            f"{store.log.storage.location} is backed up by its server's means, as pg_dump is; "
            "`deltastore copy` copies it to any other place, `deltastore dump` to a file"
        )
    if check_path(path) == MEMORY:
        raise StorePathError(f"a backup can't be kept in {MEMORY}; name a directory, empty or to be made")
    check_outside(store, path)
    root = Path(os.path.realpath(path))
    with store.log.storage.read() as tx:  # first, so that a closed store leaves no directory
        made = prepare_empty(root)
        try:
            filled = fill(root / FIRST_ENVIRONMENT, _rows(tx, progress))
        except BaseException:
            if made:
                with contextlib.suppress(OSError):
                    root.rmdir()
            raise
    LmdbStorage(root).close()  # which names an environment that is there complete
    return filled.rows


def _rows(tx: ReadTransaction, progress: Progress | None) -> Iterator[Row]:
    """Iterate over all rows. Raises StorageError where they aren't as many as were counted."""
    expected, total = tx.measure(*_ALL)
    count = done = told = 0
    for key, row in tx.scan(*_ALL):
        yield key, row
        count += 1
        done += len(key) + len(row)
        if progress is not None and (done >= told + TOLD_BYTES or count == expected):
            told = done
            progress(done, total)
    if (count, done) != (expected, total):
        raise StorageError(f"{count} rows of {done} bytes were read where {expected} of {total} are; check the store")
