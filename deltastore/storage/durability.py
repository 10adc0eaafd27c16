"""How commits of one environment survive a power cut: by a redo record, or by being flushed a second time.

Imports the engine, the directory rules, the redo records and the errors. The invariant: with `full`, a commit that was
acknowledged, or that somebody who opens the environment can see, is there after a power cut. Not thread-safe, but for
`room`: all that changes anything is done by whoever has the environment's write lock, or opens it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from deltastore.errors import CommitUnknownError, DeltastoreError, StorageError, StoreFullError
from deltastore.storage import directory, engine
from deltastore.storage.port import SyncMode
from deltastore.storage.redo import Change, Redo

NO_ROOM = -1
"""Of a commit, or of all, for which there is no redo record."""


class Opened(Protocol):
    """What this needs of an open environment."""

    path: Path
    location: str
    sync: SyncMode
    max_bytes: int | None
    page_bytes: int
    env: engine.Environment

    def widen(self) -> None:
        """Make the map larger, while nobody else has the environment."""

    def reopen(self, mode: SyncMode) -> None:
        """Open the environment anew in another mode, while nobody else has it."""


class Durability:
    """What is known of an environment's last commits, and the places for their redo records."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._redo: Redo | None = None
        self.room = NO_ROOM
        """Bytes that a commit may change to have a redo record; `NO_ROOM` in a mode or on a system that has none."""
        self._confirmed = 0
        """The last commit that is known to survive a power cut, or to need it not in this mode."""
        self._flush_error: engine.EngineError | None = None

    def open(self) -> None:
        """Open the places for redo records. Raises StorageError."""
        opened = self._opened
        if Redo.is_possible(opened.page_bytes):
            self._redo = Redo(opened.path / directory.DATA_FILE, opened.page_bytes)
            if opened.sync == "full":
                self.room = self._redo.room

    def close(self) -> None:
        """Give the file back; a forked child does so too."""
        if self._redo is not None:
            self._redo.close()

    # A commit: `prepare` it, let the engine make it, then `settle` it; or `take_back`.

    def prepare(self, number: int, changes: Sequence[Change] | None) -> None:
        """Write down what a commit is about to change; None: it is to have no record. Raises StorageError."""
        if self._redo is None:
            return
        if changes is None:
            self._redo.drop(number)  # of somebody who was killed before that commit
        else:
            self._redo.note(number, changes)

    def settle(self, number: int, *, has_record: bool) -> None:
        """Let a commit that was made survive a power cut, and all before it. Raises CommitUnknownError where it can't.

        `has_record`: its own was written before it.
        """
        if has_record:
            self._confirmed = number
            return
        with _telling(self._opened.location):
            self._confirm(number)

    def settle_unknown(self) -> None:
        """Do the same for a commit of which nobody but the engine knows what it changed."""
        if self._opened.sync == "full":
            with _telling(self._opened.location):
                self._flush()

    def take_back(self, number: int) -> bool:
        """Remove the record of a commit that wasn't made; tell whether it is sure that nobody does it again."""
        if self._redo is None:
            return True
        env = self._opened.env
        try:
            txn = env.begin(write=True)
            try:
                if txn.id() != number:  # there was a commit, by whomever
                    return False
                self._redo.drop(number)
            finally:
                txn.abort()
            env.sync(True)
        except (engine.EngineError, DeltastoreError):
            return False
        return True

    def _confirm(self, number: int) -> None:
        """Flush the file, with `full`, unless that commit is known to survive a power cut.

        Once a flush has failed this raises for good: the system reports an error once, and then knows no more of the
        pages. Raises the engine's errors, StorageError.
        """
        if self._opened.sync == "full" and number > self._confirmed and not self._has_record(number):
            self._flush()
        self._confirmed = number

    def _has_record(self, number: int) -> bool:
        return self._redo is not None and self._redo.has(number)

    def _flush(self) -> None:
        """Flush the file. Raises the engine's errors, and the first one again ever after."""
        if self._flush_error is not None:
            raise self._flush_error
        try:
            self._opened.env.sync(True)
        except engine.EngineError as error:
            self._flush_error = error
            raise

    # Opening.

    def confirm_last(self) -> None:
        """What is found here others may have seen already that were killed before they flushed it."""
        try:
            self._confirm(self._opened.env.info()["last_txnid"])
        except engine.EngineError as error:
            raise engine.translate(error, self._opened.location) from error

    def redo_lost(self) -> None:
        """Do again what a power cut took back of the last commit that returned. Before the first transaction of all.

        Also what a process was about to commit when it was killed, which nobody was told of.
        """
        opened = self._opened
        if self._redo is None or not self._redo.is_ahead(opened.env.info()["last_txnid"]):
            return
        try:
            if opened.sync == "none":  # it would let the disk name what isn't there yet
                opened.reopen("meta")
            while not self._do_again(self._redo):
                if opened.max_bytes is not None:
                    raise StoreFullError(
                        f"{opened.location} is full: max_bytes={opened.max_bytes} has no room to do its last write "
                        "again, and nothing of that is lost; raise max_bytes"
                    )
                opened.widen()
            if opened.sync == "none":
                opened.reopen("none")
        except engine.EngineError as error:
            raise engine.translate(error, opened.location) from error

    def _do_again(self, redo: Redo) -> bool:
        """Do again what is missing, durably; tell whether the map had room for it."""
        env = self._opened.env
        txn = env.begin(write=True)
        try:
            for key, value in redo.lost(txn.id()):
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
            txn.commit()
        except engine.MapFullError:
            return False
        finally:
            txn.abort()
        env.sync(True)
        return True


@contextlib.contextmanager
def _telling(location: str) -> Iterator[None]:
    """Raise CommitUnknownError for what goes wrong after a commit was made."""
    try:
        yield
    except (engine.EngineError, StorageError) as error:
        raise CommitUnknownError(
            f"{location}: what was written can be read, but the disk refused to flush it, and it may be gone after a "
            f"power cut ({error}); look after the disk, then read, and decide"
        ) from error
