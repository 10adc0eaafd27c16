"""One open environment, which all handles of a process share: the gate before its transactions, and its map.

Imports the engine, the turns, the durability, the directory rules and the errors. The invariant: while the map is
replaced or the environment is closed, no transaction of this process is alive in it; an open environment holds all that
was acknowledged, also before a power cut.

The gate costs a transaction two dict operations and two looks at a flag. A transaction enters itself into `live`,
*then* looks at `blocked`; whoever needs quiet sets `blocked`, *then* waits for an empty `live`. One sees the other.
"""

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deltastore.errors import StorageError, StoreFullError
from deltastore.storage import datafile, directory, engine
from deltastore.storage.directory import Identity
from deltastore.storage.durability import Durability
from deltastore.storage.port import SyncMode
from deltastore.storage.turns import Turns

_MIB = 1 << 20

_serials = itertools.count()
"""Tell environments of this process apart, also those that follow each other in one place."""

RESERVED_MAP_BYTES = 1 << 40
"""Address space asked for at first, 1 TiB: costs nothing where pointers are 64 bits wide, for the file stays sparse,
and spares growing the map, during which all transactions stand still."""

STEP_BYTES = 64 * _MIB
"""First size, and smallest growth worth a standstill, of a map where the address space is limited."""

_SMALLEST_MAP_BYTES = 8 * _MIB
"""What is tried last; less isn't worth opening."""

_OPENING_TRIES = 8
"""How often all sizes are tried: another process may grow the file beyond a map between two steps of opening it."""

MIN_MAX_BYTES = _MIB
"""The smallest cap on a store: below it the reserve would be most of it."""

_RESERVE_SHARE = 8
_RESERVE_BYTES = 256 * 1024
"""Part of a capped map, 1/8 and at least 256 KiB, that growing writes leave alone. A delete first copies the pages that
it changes, so a store filled to the last page couldn't be emptied."""

_META_PAGES = 2


class Inmate(Protocol):
    """A transaction, as the gate knows it."""

    def disown(self) -> object:
        """In a forked child: give up the inherited engine transaction, refuse further use, and return it."""


class SharedEnvironment:
    """An open environment. Thread-safe. Made and kept by `sharing`."""

    def __init__(
        self,
        path: Path,
        sync: SyncMode,
        max_bytes: int | None,
        *,
        forked: bool,
        when_idle: Callable[["SharedEnvironment"], None],
    ) -> None:
        """Open it. `forked`: by a child that may have inherited it; `when_idle`: called once its users may be gone.

        Raises StorageError, CorruptionError, StoreFullError.
        """
        self.path = path
        self.location = os.fspath(path)
        self.sync = sync
        self.max_bytes = max_bytes
        self.serial = next(_serials)
        self.last_own: tuple[int, int] | None = None
        """The engine's number of this process's last commit, if it wrote anything and didn't move the store, and how
        often it wrote. While the next transaction's number follows it, nobody else has written."""
        self.live: dict[Inmate, int] = {}
        self.blocked = False
        self.inherited = False
        self.references = 0
        self._resizing = False
        self._changed = threading.Condition()
        self._mode = sync
        self._forked = forked
        self._when_idle = when_idle
        self.env = self._open()
        self.turns = Turns(path)
        self.map_bytes = self.env.info()["map_size"]
        self.page_bytes = self.env.stat()["psize"]
        self.page_limit = 0 if max_bytes is None else (max_bytes - _reserve(max_bytes)) // self.page_bytes
        self.durability = Durability(self)
        try:
            self.identity = self._identify()
            self.env.reader_check()
            self.durability.open()
            self.turns.enter(self.durability.redo_lost)
            self.durability.confirm_last()
        except BaseException:
            self._close()
            raise

    def _identify(self) -> Identity:
        identity = directory.identify(self.path)
        if identity is None:
            raise StorageError(f"{self.path} lost its data file while it was opened; open it again")
        return identity

    def _open(self) -> engine.Environment:
        # Elsewhere than on POSIX the file takes the size of its map at once.
        sizes = (RESERVED_MAP_BYTES, STEP_BYTES, _SMALLEST_MAP_BYTES)[0 if os.name == "posix" else 1 :]
        if self.max_bytes is not None:
            sizes = (self.max_bytes, min(_SMALLEST_MAP_BYTES, self.max_bytes))
        for size in sizes * _OPENING_TRIES:
            try:
                datafile.check_openable(self.path / directory.DATA_FILE)
                engine.check_lock_room(self.path)
                return engine.open_environment(self.path, size, self._mode, forked=self._forked)
            except (engine.NoMemoryError, engine.MapResizedError, OverflowError) as error:
                refusal: Exception = error
            except engine.EngineError as error:
                raise engine.translate(error, self.location) from error
            except OSError as error:
                raise engine.translate_os(error, self.location) from error
        raise StorageError(f"{self.location}: no address space even for a small map ({refusal}); raise the limit")

    # The gate. `Transaction.__enter__` does its first half itself, for speed.

    def may_pass(self, inmate: Inmate) -> bool:
        """Tell whether a transaction that found the gate shut may begin all the same; else it is no longer in `live`.

        A thread that is inside a transaction may: whoever shut the gate waits for that one anyway, and would for ever.
        """
        with self._changed:
            thread = self.live[inmate]
            if not self.inherited and any(own == thread and other is not inmate for other, own in self._inmates()):
                return True
        self.leave(inmate)
        return False

    def wait(self) -> None:
        """Wait until a map being replaced is there again."""
        with self._changed:
            while self._resizing:
                self._changed.wait()

    def leave(self, inmate: Inmate) -> None:
        """Note the end of a transaction."""
        self.live.pop(inmate, None)
        if self.blocked and not self.inherited:
            with self._changed:
                self._changed.notify_all()
            self._when_idle(self)

    def refer(self, by: int) -> None:
        """Count handles; without any the gate stays shut."""
        with self._changed:
            self.references += by
            self.blocked = self._resizing or self.references == 0

    def close_if_unused(self) -> bool:
        """Close when no handle and no transaction is left, and tell whether that was so."""
        with self._changed:
            if self.references or self.live or self._resizing:
                return False
            self._close()
            return True

    def _close(self) -> None:
        self.env.close()
        self._close_files()

    def disown(self) -> None:
        """In a forked child: shut the gate for good, and give back what the child can. Nobody else is in it then."""
        self._changed = threading.Condition()  # the inherited one may be held by a thread that isn't here
        self.inherited = self.blocked = True
        self._close_files()
        if self.live:
            engine.keep_for_ever((self.env, [inmate.disown() for inmate in list(self.live)]))

    def _close_files(self) -> None:
        """Give back what was opened beside the engine."""
        self.turns.close()
        self.durability.close()

    def _inmates(self) -> list[tuple[Inmate, int]]:
        return list(self.live.items())  # one step, as others come and go without the lock

    # The map.

    def enlarge(self, seen_bytes: int) -> None:
        """Make the map larger than the caller saw it. The caller has ended its transaction, and nothing was written.

        Raises StoreFullError at `max_bytes` or when no address space is left, StorageError where it can't be done now.
        """
        if self.max_bytes is not None and seen_bytes >= self.max_bytes:
            raise StoreFullError(
                f"{self.location} is full: max_bytes is {self.max_bytes}, and nothing of this transaction was written; "
                "delete something, end transactions that have been open for long, or raise max_bytes"
            )
        self._replace_map(seen_bytes)

    def adopt(self) -> None:
        """Make the map as large as another process made the file."""
        self._replace_map(None)

    def _replace_map(self, seen_bytes: int | None) -> None:
        with self._changed:
            if threading.get_ident() in self.live.values():
                raise StorageError(
                    f"{self.location}: the map must grow, but this thread is inside another transaction of the store; "
                    "end it first"
                )
            while self._resizing:
                self._changed.wait()
            if self.map_bytes > (self._file_bytes() if seen_bytes is None else seen_bytes):
                return
            self._resizing = self.blocked = True
            try:
                while self.live:
                    self._changed.wait()
                self.widen()
            except engine.EngineError as error:
                raise engine.translate(error, self.location) from error
            finally:
                self._resizing = False
                self.blocked = self.references == 0
                self._changed.notify_all()
        if self.blocked:
            self._when_idle(self)

    def _file_bytes(self) -> int:
        return (self.env.info()["last_pgno"] + 1) * self.page_bytes

    def widen(self) -> None:
        """Make the map larger, while nobody of this process uses it. Raises StoreFullError, or the engine's errors."""
        # A file grown by another process decides; not the map that process chose, for it may have more address space.
        least = max(self.map_bytes, self._file_bytes())
        sizes = [least * 2, least + STEP_BYTES]
        if self.max_bytes is not None:
            sizes = [min(size, max(least, self.max_bytes)) for size in sizes]
        for size in sizes:
            if size <= self.map_bytes or not engine.can_map(size - self.map_bytes):
                continue
            try:
                self.env.set_mapsize(size)
            except engine.EngineError:
                # Somebody else took the space meanwhile, and the old map is gone too.
                self.env.close()
                self.env = self._open()
            mapped = self.env.info()["map_size"]
            if mapped > self.map_bytes:
                self.map_bytes = mapped
                return
        raise StoreFullError(
            f"{self.location}: the process has no address space for more than {self.map_bytes} bytes of the store, and "
            "nothing of this transaction was written; raise its limit of virtual memory"
        )

    def reopen(self, mode: SyncMode) -> None:
        """Open the engine anew in another mode, while nobody of this process uses it."""
        self.env.close()
        self._mode = mode
        self.env = self._open()
        self.map_bytes = self.env.info()["map_size"]

    # The file.

    def check_in_place(self) -> None:
        """Raise StorageError when the data file was deleted or replaced, for a write would go nowhere."""
        if directory.identify(self.path) != self.identity:
            raise StorageError(
                f"{self.path / directory.DATA_FILE} was deleted or replaced while it was open; nothing was written; "
                "close this store and open it again"
            )

    def make_durable(self) -> None:
        """Flush the file and its directory: before a new environment is named anywhere."""
        try:
            self.env.sync(True)
            for path in (self.path, self.path.parent, self.path.parent.parent):
                directory.sync_directory(path)
        except engine.EngineError as error:
            raise engine.translate(error, self.location) from error
        except OSError as error:
            raise engine.translate_os(error, self.location) from error


def _reserve(max_bytes: int) -> int:
    return max(max_bytes // _RESERVE_SHARE, _RESERVE_BYTES)
