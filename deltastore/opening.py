"""Opening a store by its path: which storage stands behind it.

Imports store and below. The invariant: a storage is imported only when it is opened, and closed again where the store
can't be.
"""

from collections.abc import Iterable, Mapping
from os import PathLike, fspath

from deltastore.log.format import check_frequency
from deltastore.log.heads import DEFAULT_CACHE_BYTES
from deltastore.reducers import Reducer
from deltastore.storage.port import Storage, SyncMode
from deltastore.store import Store

MEMORY = ":memory:"
"""The path of a store that lives in this process only, for tests and trials."""


def open(  # noqa: A001 - users write deltastore.open, as they write gzip.open
    path: str | PathLike[str],
    *,
    snapshot_frequency: int | None = None,
    sync: SyncMode = "full",
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    max_bytes: int | None = None,
    reducers: Iterable[Reducer] = (),
    channels: Mapping[str, str] | None = None,
    create: bool = True,
) -> Store:
    """Open the store in a directory, making it if there is none; its parent directory must exist.

    `snapshot_frequency`: checkpoints from one anchor to the next, kept as the store's own when it is made (default 50),
    else for this handle. `sync`: what a finished put has survived, see SyncMode. `cache_bytes`: memory for heads and
    packs. `max_bytes`: the most the file may grow to. `reducers`: your own. `channels`: the reducer of a channel, by
    name: replace, append, merge, upsert, or yours. `create=False`: a path without a store is an error.

    Raises StorePathError, SyncModeError, FormatError, CorruptionError, InvalidInputError.
    """
    if snapshot_frequency is not None:
        check_frequency(snapshot_frequency)  # before anything is made
    storage = open_storage(path, sync=sync, max_bytes=max_bytes, create=create)
    try:
        return Store(
            storage,
            snapshot_frequency=snapshot_frequency,
            cache_bytes=cache_bytes,
            reducers=reducers,
            channels=channels,
        )
    except BaseException:
        storage.close()
        raise


def open_storage(
    path: str | PathLike[str], *, sync: SyncMode = "full", max_bytes: int | None = None, create: bool = True
) -> Storage:
    """Return the storage behind a path; `":memory:"` is one that lives in this process only."""
    if fspath(path) == MEMORY:
        from deltastore.storage.memory import MemoryStorage

        return MemoryStorage()
    from deltastore.storage.lmdb import LmdbStorage

    return LmdbStorage(path, sync=sync, max_bytes=max_bytes, create=create)
