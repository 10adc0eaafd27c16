"""Transactions of the embedded storage: how each begins, what it reads, and how it ends. `writing` adds what changes.

Imports the port and its rules, the shared environments, the engine and the errors. The invariant: every transaction
looks at the moved row before anything else, unless none but this process can have written since it last did, so none
reads or writes an environment that another took the place of.
"""

from collections.abc import Iterator, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

from deltastore.errors import StorageError
from deltastore.storage import measuring
from deltastore.storage.directory import MOVED_KEY
from deltastore.storage.engine import EngineError, translate
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.port import RESERVED_PREFIX, Row, Wanted
from deltastore.storage.rules import RESERVED_END, unpack_counter, visible_ranges

if TYPE_CHECKING:
    from deltastore.storage.engine import Transaction

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


def _give_up(self: LmdbReadTransaction, shared: SharedEnvironment, txn: "Transaction | None", has_turn: bool) -> None:
    if txn is not None:
        txn.abort()
    if has_turn:
        shared.turns.leave()
    shared.leave(self)
