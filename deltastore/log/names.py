"""Names and their numbers: threads, channels, reducers, tags.

Names are found by hash and compared in full. Numbers are never reused, so what was once read stays true and is cached,
except for threads, whose names come and go. Imports keys, rows and storage. Thread-safe.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import ormsgpack

from deltastore.codec.blobs import FIRST_INTERNED_TAG, LAST_TAG
from deltastore.codec.primitives import unseal
from deltastore.codec.records import FIRST_CHANNEL
from deltastore.errors import ChecksumError, InvalidInputError
from deltastore.log import keys, rows
from deltastore.reducers import FIRST_INTERNED_REDUCER
from deltastore.storage import RetryTransaction
from deltastore.storage.port import ReadTransaction, Storage, Wanted, WriteTransaction

MAX_RETRIES = 64
"""How often a transaction is run again: after the map grew, which doubles it, so 64 outlasts any disk; or after others
were in its way on a server."""
MAX_READS = 8
"""How often a read is done again; nobody else can be in its way."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.25
"""How long it waits, at most, before it runs the third time, and before any; a random part of it, so that those who
were in each other's way aren't again."""

T = TypeVar("T")
Q = ParamSpec("Q")
_FIRST = {
    keys.THREAD: 1,
    keys.CHANNEL: FIRST_CHANNEL,
    keys.REDUCER: FIRST_INTERNED_REDUCER,
    keys.TAG: FIRST_INTERNED_TAG,
    keys.DICTIONARY: 1,
}
COUNTED = tuple(_FIRST)
"""The kinds of what has numbers, each from a counter of its own."""


def in_write(storage: Storage, threads: Iterable[int], work: Callable[[WriteTransaction], T]) -> T:
    """Run `work` in a write transaction, again where the storage asks for it.

    Raises what `work` does, StoreFullError, StorageError, CommitUnknownError.
    """
    for attempt in range(MAX_RETRIES):
        try:
            with storage.write(tuple(threads)) as tx:
                return work(tx)
        except RetryTransaction:
            if attempt == MAX_RETRIES - 1:
                raise
            if attempt:
                pause = min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                time.sleep(pause * random.random())  # noqa: S311
    raise AssertionError("unreachable")


def again(read: Callable[Q, T]) -> Callable[Q, T]:
    """Make a function that reads in a transaction do so once more where the storage asks for it, as a server may whose
    connection was lost. It must change nothing before it returns.
    """

    @wraps(read)
    def run(*arguments: Q.args, **options: Q.kwargs) -> T:
        for _ in range(MAX_READS - 1):
            with contextlib.suppress(RetryTransaction):
                return read(*arguments, **options)
        return read(*arguments, **options)

    return run


def find(tx: ReadTransaction, kind: bytes, name: bytes) -> int | None:
    """Return the number of a name, or None. Raises ChecksumError."""
    key = keys.of_name(kind, name)
    return number_in(key, tx.get(key), name)


def number_in(key: bytes, sealed: bytes | None, name: bytes) -> int | None:
    """Return the number that a row of names, as stored, gives a name. Raises ChecksumError."""
    if sealed is None:
        return None
    return next((number for known, number in parse_entries(key, unseal(key, sealed)) if known == name), None)


def parse_entries(key: bytes, row: bytes) -> list[tuple[bytes, int]]:
    """Return the names that share a hash, each with its number. Raises ChecksumError."""
    found = rows.parse(key, row)
    entries = found if isinstance(found, list) else [None]
    out: list[tuple[bytes, int]] = []
    for entry in entries:
        match entry:
            case [bytes(name), int(number)] if 0 <= number < 1 << 8 * keys.NUMBER_BYTES:
                out.append((name, number))
            case _:
                raise ChecksumError(f"row {key.hex()} is no row of names")
    return out


def give(tx: WriteTransaction, kind: bytes, name: bytes) -> int:
    """Return the number of a name, a new one if it has none."""
    return find(tx, kind, name) or assign(tx, kind, name, new_number(tx, kind))


def _give_all(tx: WriteTransaction, kind: bytes, new: Sequence[bytes]) -> dict[bytes, int]:
    if tx.remote:
        # not of tags: there are few numbers of them, and one that isn't needed after all is lost
        counters = () if kind == keys.TAG else (keys.counter(kind),) * len(new)
        tx.prefetch(Wanted(keys=[keys.of_name(kind, name) for name in new], counters=counters))
    return {name: give(tx, kind, name) for name in new}


def first_number(kind: bytes) -> int:
    """Return the first number that is given to names of a kind."""
    return _FIRST[kind]


def new_number(tx: WriteTransaction, kind: bytes) -> int:
    """Return a number that nothing has."""
    return tx.mint(keys.counter(kind)) - 1 + _FIRST[kind]


def assign(tx: WriteTransaction, kind: bytes, name: bytes, number: int) -> int:
    """Make a name lead to a number, and return the number."""
    key = keys.of_name(kind, name)
    row = rows.get(tx, key)
    entries = [] if row is None else parse_entries(key, row)
    rows.put(tx, key, ormsgpack.packb([*entries, [name, number]]))
    rows.put(tx, keys.of_number(kind, number), name)
    return number


def remove(tx: WriteTransaction, kind: bytes, name: bytes, number: int) -> None:
    """Make a name lead nowhere. Its number stays used."""
    key = keys.of_name(kind, name)
    row = rows.get(tx, key)
    left = [entry for entry in (parse_entries(key, row) if row else ()) if entry[0] != name]
    if left:
        rows.put(tx, key, ormsgpack.packb(left))
    else:
        tx.delete(key)
    tx.delete(keys.of_number(kind, number))


class Names:
    """Numbers of channels, reducers and tags, cached for the life of a store handle. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._names: dict[tuple[bytes, int], bytes] = {}

    def numbers(self, kind: bytes, names: Iterable[str]) -> list[int]:
        """Return the numbers of names, giving new ones in a small transaction of their own.

        A number that stays unused is harmless.
        """
        encoded = [keys.encode_name(name) for name in names]
        missing = [name for name in encoded if (kind, name) not in self._numbers]
        if missing:
            with self._storage.read() as tx:
                if tx.remote:
                    tx.prefetch(Wanted(keys=[keys.of_name(kind, name) for name in missing]))
                found = {name: find(tx, kind, name) for name in missing}
            new = [name for name, number in found.items() if number is None]
            if new:
                found |= in_write(self._storage, (), lambda tx: _give_all(tx, kind, new))
            for name, number in found.items():
                if number is not None:
                    self._remember(kind, name, number)
        return [self._numbers[kind, name] for name in encoded]

    def known(self, kind: bytes, name: str) -> int | None:
        """Return the number of a name if it is in memory; nothing is read."""
        return self._numbers.get((kind, keys.encode_name(name)))

    def number(self, kind: bytes, name: str) -> int:
        """Return the number of one name, a new one if it has none."""
        (number,) = self.numbers(kind, (name,))
        if kind == keys.TAG and number > LAST_TAG:
            raise InvalidInputError(
                f"this store already names {LAST_TAG - FIRST_INTERNED_TAG + 1} kinds of serialized data; "
                f"{name!r} is one too many"
            )
        return number

    def name(self, tx: ReadTransaction, kind: bytes, number: int) -> str:
        """Return the name of a number. Raises ChecksumError where a record names a number that has no name."""
        name = self._names.get((kind, number))
        if name is None:
            row = rows.get(tx, keys.of_number(kind, number))
            if row is None:
                raise ChecksumError(f"number {number} of kind {kind.decode()} has no name: rows are missing; run check")
            name = row
            self._remember(kind, name, number)
        return keys.decode_name(name)

    def unknown(self, kind: bytes, numbers: Iterable[int]) -> list[int]:
        """Return the numbers whose names would have to be looked up."""
        return [number for number in numbers if (kind, number) not in self._names]

    def _remember(self, kind: bytes, name: bytes, number: int) -> None:
        self._numbers[kind, name] = number
        self._names[kind, number] = name
