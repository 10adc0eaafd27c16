"""What a copy writes: ranges of rows, in bounded transactions, each range read back and compared.

Knows the row that marks a copy as unfinished, and of the others nothing. Imports log and below. The invariant: a row
that is held back is there only where all others of its range are, and were found to be what was read of the source.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deltastore.errors import ConflictError, CopyDamagedError
from deltastore.log import keys, names, unfinished
from deltastore.log.unfinished import Unfinished
from deltastore.storage.digest import Digest, Digester
from deltastore.storage.port import ReadTransaction, Row, Storage, WriteTransaction

MAX_BATCH_ROWS = 1_000
MAX_BATCH_BYTES = 8 << 20
"""What one transaction writes at most, but for one larger row: it is held in memory until then, and a storage may lock
each row."""
MAX_BATCH_RANGES = 100
"""How many ranges one transaction writes to at most: a storage may lock each; their first rows are read together."""


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


class RowReader:
    """Rows of adjacent ranges, read in one scan: hardly more than one trip, where the storage is far away."""

    def __init__(self, tx: ReadTransaction, lower: bytes, upper: bytes) -> None:
        self._rows = tx.scan(lower, upper)
        self._ahead = next(self._rows, None)

    def below(self, upper: bytes) -> Iterator[Row]:
        """Iterate over the rows from where the last range ended to below a key."""
        while self._ahead is not None and self._ahead[0] < upper:
            yield self._ahead
            self._ahead = next(self._rows, None)


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
        return self._count >= MAX_BATCH_ROWS or self._size >= MAX_BATCH_BYTES or len(self._pieces) >= MAX_BATCH_RANGES

    def flush(self) -> None:
        """Write what was handed in, and compare it.

        Raises CopyDamagedError where something else is read back, ConflictError where another one took the copy over,
        StoreFullError, StorageError.
        """
        while self._pieces or self._compared:
            self._write()

    def finish(self, last: Row, counters: Mapping[bytes, int]) -> None:
        """Put the row that makes a store of it all, in place of the mark, and bring counters to what they give next.

        Raises as `flush` does.
        """
        self.flush()

        def work(tx: WriteTransaction) -> None:
            self._require_ours(tx)
            for key, following in counters.items():
                lacking = following - tx.following(key)
                if lacking > 0:
                    tx.mint(key, lacking)
            tx.put(*last)
            tx.delete(keys.UNFINISHED)

        names.in_write(self.destination, (), work)

    def _write(self) -> None:
        pieces, compared, forgotten = self._pieces, self._compared, self._forgotten
        threads = {int.from_bytes(piece.lower[: keys.THREAD_BYTES], "big") for piece in pieces} - {0}

        def work(tx: WriteTransaction) -> bool:
            self._require_ours(tx)
            for row in compared:
                tx.put(*row)
            for key, header in zip(forgotten, tx.get_many(forgotten), strict=True):
                if header is not None:
                    tx.delete(key)
            room = MAX_BATCH_ROWS
            # looked for together, for at first there is nothing in any of them
            for piece, first in zip(pieces, tx.seek_many([piece[:2] for piece in pieces]), strict=True):
                if first is not None:
                    room -= _amend(tx, piece, room)
                else:
                    _put(tx, piece.rows)
            return room > 0

        while not names.in_write(self.destination, sorted(threads), work):
            pass  # so much was to go that it takes another transaction
        self._pieces, self._forgotten, self._compared = [], [], []
        self._count = self._size = 0
        self._compare()
        self._told(self.bytes)

    def _compare(self) -> None:
        """Read back what is complete; what is as it has to be gets the row that was held back."""
        ended, self._ended = self._ended, []
        with self.destination.read() as tx:
            for run in _adjacent(ended):
                reader = RowReader(tx, run[0].lower, run[-1].upper)
                for one in run:
                    found = Digester()
                    for row in reader.below(one.upper):
                        if row[0] != one.held:
                            found.take(row)
                    self._require_same(one, found.digest())
                    if one.last is not None:
                        self._compared.append(one.last)

    def _require_same(self, ended: _Ended, found: Digest) -> None:
        if found != ended.digest:
            raise CopyDamagedError(
                f"{self.destination.location}, rows from {ended.lower.hex()}: {found.rows} of {found.size} bytes were "
                f"read back, with another digest than the {ended.digest.rows} of {ended.digest.size} bytes that were "
                "written; copy again, and if it comes again, look for another writer there, or for damage of its disk"
            )

    def _require_ours(self, tx: WriteTransaction) -> None:
        if unfinished.load(tx) != self._mark:
            raise ConflictError(
                f"{self.destination.location}: another copy of the store took over, or finished; let one go on alone"
            )


def _adjacent(ended: Sequence[_Ended]) -> list[list[_Ended]]:
    """Return ranges in runs in which each begins where the one before ends."""
    runs: list[list[_Ended]] = []
    for one in ended:
        if runs and runs[-1][-1].upper == one.lower:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _amend(tx: WriteTransaction, piece: _Piece, room: int) -> int:
    """Remove and put what differs; return how many rows went. If that is `room`, some may be left to be done."""
    wanted = dict(piece.rows)
    gone: list[tuple[bytes, bytes]] = []  # runs: the first and the last key of each
    count, follows = 0, False
    for key, value in tx.scan(piece.lower, piece.upper):
        if count >= room:
            break
        if key in wanted:
            follows = False
            if wanted[key] == value:
                del wanted[key]
            continue
        if follows:
            gone[-1] = (gone[-1][0], key)
        else:
            gone.append((key, key))
        count, follows = count + 1, True
    for first, last in gone:
        tx.delete_range(first, last + b"\0")
    if count < room:
        _put(tx, wanted.items())
    return count


def _put(tx: WriteTransaction, rows: Iterable[Row]) -> None:
    for key, value in rows:
        tx.put(key, value)
