"""Write transactions of the embedded storage.

Imports transaction, and with it the port and its rules, the environments, what makes them durable, the engine and the
errors. The invariant: what a transaction wrote is committed as a whole, durably as its mode says, or not at all; where
that can't be told, CommitUnknownError says so.
"""

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from deltastore.errors import CommitUnknownError, DeltastoreError, InvalidInputError, StorageError, StoreFullError
from deltastore.storage import directory, engine
from deltastore.storage.directory import MOVED_KEY
from deltastore.storage.durability import NO_ROOM
from deltastore.storage.engine import EngineError, translate
from deltastore.storage.port import MAX_KEY_BYTES, RESERVED_PREFIX, Believed, Moment
from deltastore.storage.redo import ROW_BYTES, Change
from deltastore.storage.retry import RetryTransaction
from deltastore.storage.rules import RESERVED_END, check_count, check_key, pack_counter, visible_ranges
from deltastore.storage.transaction import LmdbReadTransaction

if TYPE_CHECKING:
    from deltastore.storage.engine import Transaction

_TURN_KEY = RESERVED_PREFIX + b"turn"
"""A row without meaning, for a commit without content: LMDB skips a transaction that changed nothing."""


class LmdbWriteTransaction(LmdbReadTransaction):
    """A transaction that sees its own writes, committed when its block ends without an error.

    Used by the OS thread that began it. Its operations and its end raise RetryTransaction when the map was too small
    and has grown: nothing was written, and the block can be run again. They raise StoreFullError when it can't grow.
    """

    __slots__ = ("_changed", "_changes", "_ended", "_has_record", "_is_whole", "_moves", "_pages", "_room")

    _writes = True

    def __enter__(self) -> Self:
        super().__enter__()
        self._ended = self._moves = self._has_record = False
        self._is_whole = True  # False: an operation was cut short, and nothing but the engine knows what it did
        self._changes = 0
        self._changed: list[Change] = []
        shared = self._shared
        self._room = shared.durability.room
        try:
            shared.check_in_place()
            self._pages = used_pages(self._txn) if shared.page_limit else 0
        except BaseException:
            super().__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            if kind is None:
                raise StorageError(
                    f"{self._shared.location}: an earlier error ended this transaction; nothing was written"
                )
            return
        if kind is not None:
            super().__exit__(kind, error, trace)
            return
        shrank = False
        try:
            if self._shared.page_limit:
                shrank = self._check_limit()
            self._commit()
        except EngineError as failure:
            self._fail(failure)
        except BaseException:
            try:
                self._take_back()
            finally:
                super().__exit__(kind, error, trace)
            raise
        if self._changes:
            self._shared.last_own = (self._number, self._changes) if self._is_whole and not self._moves else None
        self._leave()
        if shrank:
            self._release_pages()

    def moment(self) -> Moment:
        """Return what a later transaction of the same process knows this one by."""
        return self._shared.serial, self._number, self._changes

    def follows(self, moment: Moment) -> bool:
        """Tell whether nothing was written since that moment, by whomever, and nothing in this transaction so far."""
        own = self._shared.last_own
        return (
            not self._changes
            and own is not None
            and own[0] == self._number - 1
            and moment == (self._shared.serial, *own)
        )

    def believe(self, _believed: Believed) -> bool:
        """Take nothing: all is at hand."""
        return False

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value under a key, in place of any earlier one."""
        if key < RESERVED_END or len(key) > MAX_KEY_BYTES:
            check_key(key)
        self._put(key, value)

    def delete(self, key: bytes) -> bool:
        """Remove a key, and tell whether it was there."""
        if key < RESERVED_END or len(key) > MAX_KEY_BYTES:
            check_key(key)
        was_whole, self._is_whole = self._is_whole, False
        try:
            was_there = self._txn.delete(key)
        except EngineError as error:
            self._fail(error)
        if was_there:
            self._note(key, None)
        self._is_whole = was_whole
        return was_there

    def delete_range(self, lower: bytes, upper: bytes, *, limit: int | None = None) -> int:
        """Remove the rows with lower <= key < upper, the first `limit` of them, and return how many went."""
        gone = 0
        was_whole, self._is_whole = self._is_whole, False
        try:
            cursor = self._txn.cursor()
            for start, end in visible_ranges(lower, upper):
                found = cursor.set_range(start)
                while found and gone != limit and (key := cursor.key()) < end:
                    cursor.delete()
                    self._note(key, None)
                    gone += 1
                    found = bool(cursor.key())  # the next row; an empty key is none
        except EngineError as error:
            self._fail(error)
        self._is_whole = was_whole
        return gone

    def mint(self, key: bytes, count: int = 1) -> int:
        """Return the first of `count` numbers that nobody got before from this counter (it starts at 1).

        Raises ChecksumError when the counter's row is damaged.
        """
        check_count(count)
        first = self.following(key)
        self.put(key, pack_counter(key, first + count))
        return first

    def move_to(self, name: str) -> None:
        """Send every later transaction, of all processes, on to another environment of the same store.

        The last write into this one: what the other lacks must be in it, durably, before this commits.
        """
        target = self._shared.path.parent / name
        value = directory.moved_value(name)
        if directory.identify(target) is None or target == self._shared.path:
            raise InvalidInputError(f"{target} is no other environment with data; make it before moving there")
        self._moves = True
        # Done again later, after a kill, it would lead to what somebody else has removed since.
        self._room = NO_ROOM
        self._put(MOVED_KEY, value)

    def _put(self, key: bytes, value: bytes) -> None:
        was_whole, self._is_whole = self._is_whole, False
        try:
            self._txn.put(key, value)
        except EngineError as error:
            self._fail(error)
        self._note(key, value)
        self._is_whole = was_whole

    def _note(self, key: bytes, value: bytes | None) -> None:
        """Note a change that was made, for the redo record if there is room."""
        self._changes += 1
        self._room -= len(key) + ROW_BYTES + (0 if value is None else len(value))
        if self._room >= 0:
            self._changed.append((key, value))

    def _commit(self) -> None:
        """Commit, and let it survive what the mode says.

        Raises CommitUnknownError where it can be read and wasn't flushed; with any other error, but for an
        interruption, nothing was written.
        """
        durability = self._shared.durability
        number = self._txn.id()  # refused in a forked child, which has closed what it inherited
        self._has_record = self._room >= 0 and self._changes > 0 and self._is_whole
        durability.prepare(number, self._changed if self._has_record else None)
        self._txn.commit()
        if self._is_whole:
            last = number if self._changes else number - 1  # what made changes needless must last as well
            durability.settle(last, has_record=self._has_record)
        else:
            durability.settle_unknown()

    def _take_back(self) -> bool:
        """Remove the record of a commit that wasn't made; tell whether it is sure that nobody does it again."""
        if not self._has_record:
            return True
        self._txn.abort()
        return self._shared.durability.take_back(self._number)

    def _check_limit(self) -> bool:
        """Tell whether pages became free that the file has no others for. Raises StoreFullError past the limit."""
        shared = self._shared
        pages = used_pages(self._txn)
        if pages > shared.page_limit and pages > self._pages:
            raise StoreFullError(
                f"{shared.location} is full: {pages * shared.page_bytes} bytes would be used, and max_bytes="
                f"{shared.max_bytes} allows {shared.page_limit * shared.page_bytes} (the rest is kept for deleting); "
                "nothing of this transaction was written; delete something or raise max_bytes"
            )
        return pages < self._pages and shared.env.info()["last_pgno"] >= shared.page_limit

    def _release_pages(self) -> None:
        """Commit once more, so that the pages just freed can be used by the very next transaction.

        LMDB keeps them for one commit longer; a capped store would be full still after everything was deleted.
        """
        # What was asked for is done already, so nobody shall hear of a failure here.
        with contextlib.suppress(DeltastoreError), LmdbWriteTransaction(self._origin) as turn:
            turn._put(_TURN_KEY, b"")

    def _fail(self, error: EngineError) -> NoReturn:
        """End the transaction after an error of the engine: it could write no more in any case."""
        shared = self._shared
        seen_bytes = shared.map_bytes  # can't change before the transaction leaves
        self._ended = True
        try:
            is_gone = self._take_back()
        finally:
            super().__exit__(None, None, None)
        if not is_gone:
            raise CommitUnknownError(
                f"{shared.location}: a commit failed ({error}), and what was to be written may be there later all the "
                "same; look after the disk, then open the store again, read, and decide"
            ) from error
        if not isinstance(error, engine.MapFullError):
            raise translate(error, shared.location) from error
        shared.enlarge(seen_bytes)
        raise RetryTransaction(
            f"{shared.location}: the map was full and has grown; nothing was written; run the transaction again"
        ) from error


def used_pages(txn: "Transaction") -> int:
    """Count the pages that hold rows, as the transaction sees them."""
    stat = txn.stat()
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
