"""Transactions of the embedded storage.

Imports the port and its rules, the shared environments, the redo records, the engine and the errors. The invariant:
every transaction looks at the moved row before anything else, unless none but this process can have written since it
last did, so none reads or writes an environment that another took the place of.
"""

import contextlib
from collections.abc import Iterator, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

from deltastore.errors import CommitUnknownError, DeltastoreError, InvalidInputError, StorageError, StoreFullError
from deltastore.storage import directory, engine, measuring
from deltastore.storage.directory import MOVED_KEY
from deltastore.storage.engine import EngineError, translate
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.port import MAX_KEY_BYTES, RESERVED_PREFIX, Believed, Moment, Row, Wanted
from deltastore.storage.redo import ROW_BYTES, Change
from deltastore.storage.retry import RetryTransaction
from deltastore.storage.rules import (
    RESERVED_END,
    check_count,
    check_key,
    pack_counter,
    unpack_counter,
    visible_ranges,
)

if TYPE_CHECKING:
    from deltastore.storage.engine import Transaction

_TURN_KEY = RESERVED_PREFIX + b"turn"
"""A row without meaning, for a commit without content: LMDB skips a transaction that changed nothing."""

_NO_ROOM = -1
"""Of a transaction whose changes aren't all noted, so that it has no redo record."""

_MAX_BEGINS = 64
"""How often a transaction begins anew, after a move, a grown map or a fork, before it gives up: far more than happens
in a row, and an end to moves that lead in a circle."""


class Origin(Protocol):
    """What a transaction needs of the handle that made it."""

    @property
    def location(self) -> str:
        """The directory, for messages."""

    @property
    def shared(self) -> SharedEnvironment:
        """The environment to begin in, for now."""

    def reopen(self, shared: SharedEnvironment) -> None:
        """Make the handle usable again whose environment had its gate shut."""

    def follow(self, shared: SharedEnvironment, value: bytes) -> None:
        """Go to the environment that a moved row names."""

    def recover(self, shared: SharedEnvironment, error: EngineError, attempt: int) -> None:
        """Do what lets a transaction begin that the engine refused, or raise."""


class _Gone:
    """Stands for an engine transaction that is no longer there to be used."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python itself looks, as inspect and copy do
            raise AttributeError(name)
        raise StorageError(f"{self._why}; begin another one")

    def abort(self) -> None:
        """Do nothing: it was ended already, or isn't this process's to end."""


_ENDED: Any = _Gone("this transaction has ended")
_DISOWNED: Any = _Gone("this process was forked inside a transaction, which only its parent has")


class LmdbReadTransaction:
    """One moment of an LmdbStorage. Used by one thread, inside its `with` block."""

    __slots__ = ("_number", "_origin", "_shared", "_txn")

    _origin: Origin
    _shared: SharedEnvironment
    _txn: "Transaction"
    _number: int
    """The engine's: of the last commit that it sees, or of its own."""
    remote: ClassVar[bool] = False
    _writes = False

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> Self:
        origin = self._origin
        thread = get_ident()
        attempt = 0
        while attempt < _MAX_BEGINS:
            shared = origin.shared
            txn = moved = None
            has_turn = False
            shared.live[self] = thread
            try:
                if not shared.blocked or shared.may_pass(self):
                    if self._writes:
                        has_turn = shared.turns.take()
                    txn = shared.env.begin(write=self._writes)
                    number, own = txn.id(), shared.last_own
                    if own is None or number != own[0] + self._writes:  # else none but this process has written since
                        moved = txn.get(MOVED_KEY)
                    if moved is None:
                        self._number = number
                        self._txn = txn
                        self._shared = shared
                        return self
            except BaseException as error:
                _give_up(self, shared, txn, has_turn)
                if not isinstance(error, EngineError):
                    raise
                origin.recover(shared, error, attempt)
            else:
                _give_up(self, shared, txn, has_turn)
                if moved is None:
                    origin.reopen(shared)
                else:
                    origin.follow(shared, moved)
            attempt += 1
        raise StorageError(
            f"{origin.location}: no transaction could begin in {_MAX_BEGINS} tries; open the store again"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._txn.abort()
        self._leave()

    def _leave(self) -> None:
        self._txn = _ENDED  # the binding gives the reader slot back when its object goes
        shared = self._shared
        if self._writes:
            shared.turns.leave()
        del shared.live[self]
        if shared.blocked:
            shared.leave(self)

    def disown(self) -> object:
        """In a forked child: give up the inherited transaction, refuse further use, and return it."""
        inherited = getattr(self, "_txn", None)
        self._txn = _DISOWNED
        return inherited

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        try:
            return self._txn.get(key)
        except EngineError as error:
            raise translate(error, self._shared.location) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""
        get = self._txn.get
        try:
            return [get(key) for key in keys]
        except EngineError as error:
            raise translate(error, self._shared.location) from error

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[Row | None]:
        """Return, for each (lower, upper), the first row with lower <= key < upper."""
        rows: list[Row | None] = []
        try:
            cursor = self._txn.cursor()
            set_range, key_at, value_at = cursor.set_range, cursor.key, cursor.value
            for lower, upper in ranges:
                row = None
                if set_range(lower):
                    key = key_at()
                    if key.startswith(RESERVED_PREFIX):
                        key = key_at() if set_range(RESERVED_END) else upper
                    if key < upper:
                        row = (key, value_at())
                rows.append(row)
        except EngineError as error:
            raise translate(error, self._shared.location) from error
        return rows

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with lower <= key < upper, in key order or against it.

        Lazy, and valid only inside the transaction; the range must not be written to meanwhile.
        """
        step = self._backward if reverse else self._forward
        if lower >= RESERVED_END or upper <= RESERVED_PREFIX:
            return step(lower, upper)
        ranges = visible_ranges(lower, upper)
        return (row for part in (ranges[::-1] if reverse else ranges) for row in step(*part))

    def measure(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """Return how many rows have lower <= key < upper, and the bytes of their keys and values."""
        try:
            return measuring.measure(self._shared, self._txn, lower, upper)
        except EngineError as error:
            raise translate(error, self._shared.location) from error

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Return what `measure` gives for each range."""
        return [self.measure(lower, upper) for lower, upper in ranges]

    def following(self, key: bytes) -> int:
        """Return the number that a counter gives next. Raises ChecksumError where it is damaged."""
        return unpack_counter(key, self.get(key), self._shared.location)

    def prefetch(self, wanted: Wanted, *, now: bool = False) -> None:
        """Do nothing: all is at hand."""

    # Keys come first and values on demand, so that the row after the range is never copied, nor read from a cold disk.

    def _forward(self, lower: bytes, upper: bytes) -> Iterator[Row]:
        txn = self._txn
        try:
            cursor = txn.cursor()
            if not cursor.set_range(lower):
                return
            value_at = cursor.value
            for key in cursor.iternext(True, False):
                if key >= upper:
                    return
                if self._txn is not txn:
                    self._refuse_row()
                yield key, value_at()
        except EngineError as error:
            raise translate(error, self._shared.location) from error

    def _backward(self, lower: bytes, upper: bytes) -> Iterator[Row]:
        txn = self._txn
        try:
            cursor = txn.cursor()
            # Past the last key `prev` finds nothing: the position is lost then.
            if not (cursor.prev() if cursor.set_range(upper) else cursor.last()):
                return
            value_at = cursor.value
            for key in cursor.iterprev(True, False):
                if key < lower:
                    return
                if key < upper:
                    if self._txn is not txn:
                        self._refuse_row()
                    yield key, value_at()
        except EngineError as error:
            raise translate(error, self._shared.location) from error

    def _refuse_row(self) -> None:
        self._txn.id()


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
        self._room = shared.record_room
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
        self._room = _NO_ROOM
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
        shared, redo = self._shared, self._shared.redo
        number = self._txn.id()  # refused in a forked child, which has closed what it inherited
        if redo is not None:
            if self._room >= 0 and self._changes and self._is_whole:
                self._has_record = True
                redo.note(number, self._changed)
            else:
                redo.drop(number)  # of somebody who was killed before that commit
        self._txn.commit()
        try:
            if not self._is_whole:
                if shared.sync == "full":
                    shared.flush()
            elif self._has_record:
                shared.confirmed = number
            else:
                shared.confirm(number if self._changes else number - 1)  # else what made changes needless
        except (EngineError, StorageError) as error:
            raise CommitUnknownError(
                f"{shared.location}: what was written can be read, but the disk refused to flush it, and it may be "
                f"gone after a power cut ({error}); look after the disk, then read, and decide"
            ) from error

    def _take_back(self) -> bool:
        """Remove the record of a commit that wasn't made; tell whether it is sure that nobody does it again."""
        shared, redo = self._shared, self._shared.redo
        if redo is None or not self._has_record:
            return True
        self._txn.abort()
        try:
            txn = shared.env.begin(write=True)
            try:
                if txn.id() != self._number:  # there was a commit, by whomever
                    return False
                redo.drop(self._number)
            finally:
                txn.abort()
            shared.env.sync(True)
        except (EngineError, DeltastoreError):
            return False
        return True

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


def _give_up(self: LmdbReadTransaction, shared: SharedEnvironment, txn: "Transaction | None", has_turn: bool) -> None:
    if txn is not None:
        txn.abort()
    if has_turn:
        shared.turns.leave()
    shared.leave(self)
