"""What a copy writes: ranges of rows, in bounded transactions, each range read back and compared.

Knows the row that marks a copy as unfinished, and of the others nothing. Imports log and below. The invariant: a row
that is held back is there only where all others of its range are, and were found to be what was read of the source.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from deltastore.errors import ConflictError, CopyDamagedError
from deltastore.log import keys, names, unfinished
from deltastore.log.unfinished import Unfinished
from deltastore.storage.digest import Digest, Digester
from deltastore.storage.port import Row, Storage, WriteTransaction

MAX_BATCH_ROWS = 5_000
MAX_BATCH_BYTES = 8 << 20
"""What one transaction writes at most, but for one larger row: it is held in memory until then."""


class _Piece(NamedTuple):
    """From `lower` to below `upper` these rows are to stand and no others."""

    lower: bytes
    upper: bytes
    rows: list[Row]


class _Ended(NamedTuple):
    """A range whose rows are all handed in: what they have to be, without the one held back."""

    lower: bytes
    upper: bytes
    held: bytes | None
    last: Row | None
    digest: Digest


class CopiedRows:
    """Rows on their way into a destination. One owner at a time writes there; not thread-safe.

    `told` is called with the bytes taken so far, after each transaction.
    """

    def __init__(self, destination: Storage, mark: Unfinished, told: Callable[[int], object]) -> None:
        self.destination = destination
        self._mark = mark
        self._told = told
        self.rows = self.bytes = 0
        self._forgotten: list[bytes] = []
        self._pieces: list[_Piece] = []
        self._ended: list[_Ended] = []
        self._compared: list[Row] = []
        self._begin_batch()

    def _begin_batch(self) -> None:
        self._count = self._size = 0

    def replace(self, lower: bytes, upper: bytes, rows: Iterable[Row], held: bytes | None = None) -> None:
        """Let exactly these rows, in ascending order of their keys, stand from `lower` to below `upper`.

        The row under the key `held` goes at first, and comes back when the others were compared. Nothing is certain
        before `flush`. Raises what `flush` does.
        """
        digester, last = Digester(), None
        begin, batch = lower, list[Row]()
        if held is not None:
            self._forgotten.append(held)
        for row in rows:
            key, value = row
            self.rows += 1
            self.bytes += len(key) + len(value)
            if key == held:
                last = row
                continue
            digester.take(row)
            batch.append(row)
            if self._is_full(len(key) + len(value)):
                following = key + b"\0"
                self._pieces.append(_Piece(begin, following, batch))
                self._write()
                begin, batch = following, []
        self._pieces.append(_Piece(begin, upper, batch))
        self._ended.append(_Ended(lower, upper, held, last, digester.digest()))
        if self._is_full(0 if last is None else len(last[0]) + len(last[1])):
            self._write()

    def _is_full(self, size: int) -> bool:
        self._count += 1
        self._size += size
        return self._count >= MAX_BATCH_ROWS or self._size >= MAX_BATCH_BYTES

    def flush(self) -> None:
        """Write what was handed in, and compare it.

        Raises CopyDamagedError where something else is read back, ConflictError where another one took the copy over,
        StoreFullError, StorageError.
        """
        while self._pieces or self._compared:
            self._write()

    def finish(self, last: Row) -> None:
        """Put the row that makes a store of it all, in place of the mark. Raises as `flush` does."""
        self.flush()

        def work(tx: WriteTransaction) -> None:
            self._require_ours(tx)
            tx.put(*last)
            tx.delete(keys.UNFINISHED)

        names.in_write(self.destination, (), work)

    def _write(self) -> None:
        pieces, compared, forgotten = self._pieces, self._compared, self._forgotten
        touched = {int.from_bytes(piece.lower[: keys.THREAD_BYTES], "big") for piece in pieces} - {0}

        def work(tx: WriteTransaction) -> bool:
            self._require_ours(tx)
            for row in compared:
                tx.put(*row)
            for key in forgotten:
                tx.delete(key)
            room = MAX_BATCH_ROWS
            for piece in pieces:
                room -= _amend(tx, piece, room)
            return room > 0

        while not names.in_write(self.destination, sorted(touched), work):
            pass  # so much was to go that it takes another transaction
        self._pieces, self._forgotten, self._compared = [], [], []
        self._begin_batch()
        self._compare()
        self._told(self.bytes)

    def _compare(self) -> None:
        """Read back what is complete; what is as it has to be gets the row that was held back."""
        if not self._ended:
            return
        with self.destination.read() as tx:
            for ended in self._ended:
                found = Digester()
                for row in tx.scan(ended.lower, ended.upper):
                    if row[0] != ended.held:
                        found.take(row)
                if found.digest() != ended.digest:
                    raise CopyDamagedError(
                        f"{self.destination.location}, rows from {ended.lower.hex()}: {found.rows} of {found.size} "
                        f"bytes were read back, with another digest than the {ended.digest.rows} of "
                        f"{ended.digest.size} bytes that were written; copy again, and if it comes again, look for "
                        "another writer there, or for damage of its disk"
                    )
                if ended.last is not None:
                    self._compared.append(ended.last)
        self._ended = []

    def _require_ours(self, tx: WriteTransaction) -> None:
        if unfinished.load(tx) != self._mark:
            raise ConflictError(
                f"{self.destination.location}: another copy of the store took over, or finished; let one go on alone"
            )


def _amend(tx: WriteTransaction, piece: _Piece, room: int) -> int:
    """Remove and put what differs; return how many rows went. If that is `room`, some may be left to be done."""
    wanted = dict(piece.rows)
    gone: list[bytes] = []
    for key, value in tx.scan(piece.lower, piece.upper):
        if len(gone) >= room:
            break
        if key not in wanted:
            gone.append(key)
        elif wanted[key] == value:
            del wanted[key]
    for key in gone:
        tx.delete(key)
    if len(gone) < room:
        for key, value in wanted.items():
            tx.put(key, value)
    return len(gone)
