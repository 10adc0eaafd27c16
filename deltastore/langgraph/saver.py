"""DeltaSaver: LangGraph's checkpoint saver on a deltastore.

Its methods stand in saving (put), reading and keeping (delete, copy, tag); here is how it is opened and closed.
Imports these.
"""

import random
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from langgraph.checkpoint.serde.base import SerializerProtocol

from deltastore.langgraph.base import off_loop
from deltastore.langgraph.keeping import KeepingSaver
from deltastore.langgraph.saving import SavingSaver
from deltastore.log.heads import DEFAULT_CACHE_BYTES
from deltastore.opening import check_url
from deltastore.opening import open as open_store
from deltastore.storage.port import SyncMode

if TYPE_CHECKING:
    from deltastore.log.retention import Retention


class DeltaSaver(SavingSaver, KeepingSaver):
    """A LangGraph checkpoint saver that stores what changed. Sync and async; thread-safe; no set-up call.

    ::

        with DeltaSaver.from_path("runs.ds") as saver:
            graph = builder.compile(checkpointer=saver)

    Thread ids may be any text; ints and UUIDs are taken as their text, as other savers do. The saver refuses
    others, but of those in a graph's config LangGraph makes text before the saver sees them.
    """

    @classmethod
    def from_path(
        cls,
        path: str | PathLike[str],
        *,
        snapshot_frequency: int | None = None,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        validate: bool = False,
        fenced: bool = False,
        retention: "Retention | None" = None,
        sync: SyncMode = "full",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        schema: str | None = None,
        pool_size: int | None = None,
    ) -> Self:
        """Open the store in a directory or behind a URL, making it if there is none; closing the saver closes it.

        `snapshot_frequency`, `sync`, `cache_bytes`, `schema` and `pool_size` are those of `deltastore.open`, the others
        those of the class. Raises what `deltastore.open` does.
        """
        store = open_store(
            path,
            snapshot_frequency=snapshot_frequency,
            sync=sync,
            cache_bytes=cache_bytes,
            schema=schema,
            pool_size=pool_size,
        )
        try:
            saver = cls(store, serde=serde, strict=strict, validate=validate, fenced=fenced, retention=retention)
        except BaseException:
            store.close()
            raise
        saver._owns_store = True
        return saver

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Open the store on a PostgreSQL server, by a URL as `postgresql://user@host/database`.

        Options and errors are those of `from_path`; only a URL is taken.
        """
        return cls.from_path(check_url(url), **options)

    def close(self) -> None:
        """End what runs in the background, and close the store if `from_path` opened it. Closing twice is harmless."""
        if self._tidier is not None and self._owns_tidier:
            self._tidier.close()
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await off_loop(self.close)

    def with_allowlist(self, extra_allowlist: Any) -> "DeltaSaver":
        """Return a saver over the same store whose serializer also takes these types; it doesn't own closing."""
        clone = cast(DeltaSaver, super().with_allowlist(extra_allowlist))
        if clone is not self:
            clone._owns_store = clone._owns_tidier = False
        return clone

    def get_next_version(self, current: str | float | None, channel: None) -> str:
        """Return the version after `current`; the random tail keeps those of two branches apart."""
        if current is None:
            number = 0
        elif isinstance(current, (int, float)):
            number = int(current)
        else:
            number = int(current.split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311
