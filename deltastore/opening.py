"""Opening a store by its path or URL: which storage stands behind it.

Imports store and below. The invariant: a storage is imported only when it is opened, and closed again where the store
can't be.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple

from deltastore.errors import InvalidInputError, StorePathError, UnavailableError
from deltastore.log.format import check_frequency
from deltastore.log.heads import DEFAULT_CACHE_BYTES
from deltastore.reducers import Reducer
from deltastore.storage.port import Storage, SyncMode
from deltastore.store import Store

MEMORY = ":memory:"
"""The path of a store that lives in this process only, for tests and trials."""
URLS = ("postgresql://", "postgres://")
"""What the URL of a store on PostgreSQL begins with."""


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
    schema: str | None = None,
    pool_size: int | None = None,
) -> Store:
    """Open the store in a directory, making it if there is none; its parent directory must exist. Or on a PostgreSQL
    server, by a URL as `postgresql://user@host/database`, making its tables if there are none.

    `snapshot_frequency`: checkpoints from one anchor to the next at most, kept as the store's own when it is made
    (default 50), else for this handle. `sync`: what a finished put has survived, see SyncMode. `cache_bytes`: memory
    for heads and packs. `max_bytes`: the most the file may grow to. `reducers`: your own. `channels`: the reducer of a
    channel, by name: replace, append, merge, upsert, or yours. `create=False`: a path without a store is an error.
    `schema` and `pool_size` are PostgreSQL's: where the tables stand (default "deltastore"), and how many connections
    the handle opens at most (default 8).

    Raises StorePathError, SyncModeError, StorageError, FormatError, CorruptionError, InvalidInputError.
    """
    if snapshot_frequency is not None:
        check_frequency(snapshot_frequency)  # before anything is made
    check_bytes("cache_bytes", cache_bytes)
    storage = open_storage(path, sync=sync, max_bytes=max_bytes, create=create, schema=schema, pool_size=pool_size)
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
    path: str | PathLike[str],
    *,
    sync: SyncMode = "full",
    max_bytes: int | None = None,
    create: bool = True,
    schema: str | None = None,
    pool_size: int | None = None,
) -> Storage:
    """Return the storage behind a path or URL; `":memory:"` is one that lives in this process only."""
    place = check_path(path)
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    if is_url(place):
        if max_bytes is not None:
            raise InvalidInputError("max_bytes is for stores in a directory; limit a database on its server")
        return _open_postgres(place, schema, pool_size, sync, create)
    for name, value in (("schema", schema), ("pool_size", pool_size)):
        if value is not None:
            raise InvalidInputError(f"{name} is for stores on PostgreSQL, and {place!r} isn't its URL; leave it out")
    if place == MEMORY:
        from deltastore.storage.memory import MemoryStorage

        return MemoryStorage()
    from deltastore.storage.lmdb import LmdbStorage

    return LmdbStorage(path, sync=sync, max_bytes=max_bytes, create=create)


def check_path(path: str | PathLike[str]) -> str:
    """Return the path or URL of a store as text. Raises InvalidInputError for another type, StorePathError."""
    place = fspath(path) if isinstance(path, PathLike) else path
    if not isinstance(place, str):
        raise InvalidInputError(
            f"a path of type {type(place).__name__} ({place!r}); expected a str or a Path: a directory, or a URL"
        )
    if not place:
        raise StorePathError(
            "an empty path, which is most often an unset variable; name a directory, '.' for the current one"
        )
    scheme, separator, _ = place.partition("://")
    if (separator and scheme.replace("+", "").isalnum() and not is_url(place)) or place.startswith("file:"):
        raise StorePathError(
            f"{place!r} is no URL of a store; expected one that begins with {' or '.join(URLS)}, or a directory's path"
        )
    if place.startswith("~") and not Path(place).parent.is_dir():
        raise StorePathError(
            f"there is no directory {Path(place).parent}, for ~ isn't expanded; use os.path.expanduser"
        )
    return place


def check_url(url: str) -> str:
    """Return the URL of a store on PostgreSQL. Raises InvalidInputError for anything else, StorePathError."""
    if not is_url(check_path(url)):
        raise InvalidInputError(f"{url!r} is no URL of a store; expected postgresql://user@host:port/database")
    return url


def check_bytes(name: str, value: int) -> None:
    """Refuse what is no number of bytes. Raises InvalidInputError."""
    if type(value) is not int or value < 0:
        raise InvalidInputError(f"{name} is {value!r}; expected a number of bytes, an int from 0 on")


def is_url(place: str) -> bool:
    """Tell whether this is the URL of a store on PostgreSQL, rather than a path."""
    return place.startswith(URLS)


class Migration(NamedTuple):
    """What was done to the tables of a store on PostgreSQL, or would be: their versions, and the statements."""

    location: str
    found: int
    version: int
    statements: tuple[str, ...]


def migrate(url: str, *, schema: str | None = None, role: str | None = None, dry_run: bool = False) -> Migration:
    """Make the tables of a store on PostgreSQL, or bring them up to date; `dry_run`: only tell how.

    `role`: is given what a role needs to use the store and no more.
    Raises FormatError, StorageError, StorePathError, InvalidInputError.
    """
    check_url(url)
    with _postgres():
        from deltastore.storage.postgres import migrating
    return Migration(*migrating.migrate(url, schema=schema, role=role, dry_run=dry_run))


def _open_postgres(url: str, schema: str | None, pool_size: int | None, sync: SyncMode, create: bool) -> Storage:
    with _postgres():
        from deltastore.storage.postgres.storage import PostgresStorage
    return PostgresStorage(url, schema=schema, pool_size=pool_size, sync=sync, create=create)


@contextmanager
def _postgres() -> Iterator[None]:
    """Say what to install where importing shows that it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise UnavailableError(
            "stores on PostgreSQL need psycopg, which isn't installed; pip install '.[postgres]' in a clone of "
            "deltastore"
        ) from error
