"""The storage port: ordered bytes in transactions, and nothing else.

A storage knows no threads, checkpoints or formats. Keys are ordered bytewise, at most `MAX_KEY_BYTES` long.
The invariant: a read transaction sees one moment; a write transaction happens wholly or not at all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from deltastore.storage.info import StorageInfo

MAX_KEY_BYTES = 511
"""LMDB's limit, in bytes; every key of the format is far below it."""

RESERVED_PREFIX = b"\0\0\0\0\0\0!"
"""Keys that begin so belong to the storage itself: they are never put, and no scan of the layers above meets them."""

SEAL_BYTES = 8
"""How many bytes at the end of a long row tell it from any other under its key."""

SyncMode = Literal["full", "meta", "none"]
"""What a finished write has survived: `full` a power cut; `meta` a crash of the process, and a power cut unless it was
the last of the whole store; `none` a crash of the process only: after a power cut the store may be silently wrong."""

Row = tuple[bytes, bytes]
"""A key and its value."""


class Believed(NamedTuple):
    """What somebody takes rows to be without a look. `gaps`: (lower, upper), ranges that hold no row.

    `sealed`: long rows that end with a checksum, so that their last `SEAL_BYTES` tell them from any other.
    """

    rows: Sequence[Row] = ()
    gaps: Sequence[tuple[bytes, bytes]] = ()
    sealed: Sequence[Row] = ()


class Wanted(NamedTuple):
    """What a transaction will be asked for. Only a hint: it promises nothing.

    `keys`: their rows. `runs`: (lower, last, upper), the rows from `lower` up to the first one at or after `last`,
    below `upper`. `ends`: (lower, upper, count), the last so many rows of a range. `counters`: a number of each.
    `believed`: all of it, as whoever asks takes it to be; None where it has to look.
    """

    keys: Sequence[bytes] = ()
    runs: Sequence[tuple[bytes, bytes, bytes]] = ()
    ends: Sequence[tuple[bytes, bytes, int]] = ()
    counters: Sequence[bytes] = ()
    believed: Believed | None = None


class ReadTransaction(Protocol):
    """One moment of the store. Used by one thread, and only inside its `with` block."""

    remote: ClassVar[bool]
    """Whether a look may cost a trip to another machine: then it pays to announce what will be looked at."""

    def prefetch(self, wanted: Wanted, *, now: bool = False) -> None:
        """Be told what will be asked for, so that it comes along with the next look, or `now`.

        Not called unless `remote`.
        """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[Row | None]:
        """Return, for each (lower, upper), the first row with lower <= key < upper."""

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with lower <= key < upper, in key order or against it.

        Lazy, and valid only inside the transaction; the range must not be written to meanwhile.
        """

    def measure(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """Return how many rows have lower <= key < upper, and the bytes of their keys and values together.

        Takes lengths only: it costs by the number of rows, not by their sizes.
        """

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Return what `measure` gives for each range."""

    def following(self, key: bytes) -> int:
        """Return the number that a counter gives next. Raises ChecksumError where it is damaged."""


Moment = tuple[int, int, int]
"""What is known by a number: a place for rows, a commit there, and what was written in it so far."""


class WriteTransaction(ReadTransaction, Protocol):
    """A read transaction that sees its own writes, committed when its block ends without an error."""

    def moment(self) -> Moment | None:
        """Return what a later transaction of the same process knows this one by; None where it can't be told."""

    def follows(self, moment: Moment) -> bool:
        """Tell whether nothing was written since that moment, by whomever, and nothing in this transaction so far."""

    def believe(self, believed: Believed) -> bool:
        """Take rows to be what somebody says, without a look; tell whether that is taken.

        Where one isn't, RetryTransaction is raised by the next look elsewhere or by the commit, and nothing is written;
        where nothing is looked at or written, nobody finds out.
        Not called unless `remote`.
        """

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value under a key, in place of any earlier one."""

    def delete(self, key: bytes) -> bool:
        """Remove a key, and tell whether it was there."""

    def delete_range(self, lower: bytes, upper: bytes, *, limit: int | None = None) -> int:
        """Remove the rows with lower <= key < upper, the first `limit` of them, and return how many went."""

    def mint(self, key: bytes, count: int = 1) -> int:
        """Return the first of `count` numbers that nobody got before from this counter (it starts at 1).

        Numbers may be skipped, never given twice. The row under `key` belongs to the storage.
        """


class Storage(Protocol):
    """A place for rows. Thread-safe; transactions are not."""

    remote: ClassVar[bool]
    """What its transactions' `remote` is."""

    @property
    def location(self) -> str:
        """Where the rows are, for messages."""

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """Begin a read transaction. Raises ClosedError, StorageError."""

    def write(self, threads: Sequence[int] = ()) -> AbstractContextManager[WriteTransaction]:
        """Begin a write transaction over the named threads' rows, waiting for its turn.

        Storages with one writer at a time ignore the names. Raises ClosedError, StoreFullError, StorageError.
        """

    def info(self) -> "StorageInfo":
        """Return sizes, without reading payloads."""

    def close(self) -> None:
        """Release what is held; closing twice is harmless. Later transactions raise ClosedError."""
