"""The dictionaries of a store: one in use for new rows, earlier ones as long as rows need them.

Imports keys, names and rows. The invariant: a row is written only while the dictionary that it needs is in use, and a
dictionary is removed only when it isn't and nothing that is stored needs it.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import ormsgpack

from deltastore.codec import chunkrow, recordrow
from deltastore.codec.dictionary import Dictionary
from deltastore.codec.primitives import unseal
from deltastore.errors import ChecksumError, ConflictError
from deltastore.log import keys, names, rows
from deltastore.storage.port import Believed, ReadTransaction, Row, WriteTransaction

SHAPE, CONTENT, NONE = "shape", "content", "none"
KINDS = (SHAPE, CONTENT, NONE)
"""What a dictionary was trained on: field names and the like alone, or all that is stored; or that none is wanted."""
_CACHED = 64
"""How many dictionaries a process keeps ready; a store needs one or two."""


class Stored(NamedTuple):
    """A dictionary as stored. `touched` counts copies of rows that need it, made since it went out of use."""

    number: int
    kind: str
    made_ms: int
    in_use: bool
    touched: int
    content: bytes

    def encode(self) -> bytes:
        """Return the stored form."""
        return ormsgpack.packb([KINDS.index(self.kind), self.made_ms, self.in_use, self.touched, self.content])


def decode(key: bytes, data: bytes) -> Stored:
    """Undo `Stored.encode`. Raises ChecksumError."""
    match rows.parse(key, data):
        case [int(kind), int(made_ms), bool(in_use), int(touched), bytes(content)] if 0 <= kind < len(KINDS):
            number = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
            return Stored(number, KINDS[kind], made_ms, in_use, touched, content)
    raise ChecksumError(f"row {key.hex()} is no dictionary")


class Opened(NamedTuple):
    """A dictionary's row as stored, what it says, and the dictionary ready for use; the same for equal rows."""

    row: Row
    stored: Stored
    ready: Dictionary

    @property
    def for_new_rows(self) -> Dictionary | None:
        """The dictionary if new rows need it, were it the newest."""
        return self.ready if self.stored.in_use and self.stored.kind != NONE else None


@lru_cache(_CACHED)
def _open(key: bytes, sealed: bytes) -> Opened:
    found = decode(key, unseal(key, sealed))
    return Opened((key, sealed), found, Dictionary(found.number, found.content))


class Dictionaries:
    """A store's dictionaries, by number, as one transaction sees them. Not thread-safe."""

    def __init__(self, tx: ReadTransaction) -> None:
        self._tx = tx
        self._known: dict[int, Dictionary] = {}

    def __call__(self, number: int) -> Dictionary:
        """Return a dictionary. Raises ChecksumError where it isn't there."""
        known = self._known.get(number)
        if known is None:
            key = keys.dictionary(number)
            sealed = self._tx.get(key)
            if sealed is None:
                raise ChecksumError(
                    f"a row needs dictionary {number}, which is missing: rows were lost or damaged; "
                    "run check, and restore from a backup"
                )
            known = self._known[number] = _open(key, sealed).ready
        return known


def newest(tx: ReadTransaction) -> Opened | None:
    """Return the dictionary that was made last, in use or not; None where there is none. Raises ChecksumError."""
    row = next(tx.scan(keys.DICTIONARIES, keys.end_of(keys.DICTIONARIES), reverse=True), None)
    return None if row is None else _open(*row)


def in_use(tx: ReadTransaction) -> Dictionary | None:
    """Return the dictionary for new rows, or None. Raises ChecksumError."""
    found = newest(tx)
    return None if found is None else found.for_new_rows


def believed(found: Opened | None) -> Believed:
    """Return what says that a dictionary is still the newest and as it was."""
    end = keys.end_of(keys.DICTIONARIES)
    if found is None:
        return Believed(gaps=[(keys.DICTIONARIES, end)])
    return Believed(sealed=[found.row], gaps=[(found.row[0] + b"\0", end)])


def all_of(tx: ReadTransaction) -> list[Stored]:
    """Return all dictionaries, in the order they were made. Raises ChecksumError."""
    return [_open(key, sealed).stored for key, sealed in tx.scan(keys.DICTIONARIES, keys.end_of(keys.DICTIONARIES))]


def is_in_use(tx: ReadTransaction, dictionary: Dictionary | None) -> bool:
    """Tell whether rows that need a dictionary may be written; what needs none always may. Raises ChecksumError."""
    if dictionary is None:
        return True
    key = keys.dictionary(dictionary.number)
    sealed = tx.get(key)
    return sealed is not None and _open(key, sealed).stored.in_use


def replace_by(tx: WriteTransaction, kind: str, content: bytes | None, now_ms: int) -> int | None:
    """Take all dictionaries out of use, and store a new one unless it is None; return its number."""
    for stored in all_of(tx):
        if stored.in_use:
            _put(tx, stored._replace(in_use=False))
    if content is None:
        return None
    number = names.new_number(tx, keys.DICTIONARY)
    _put(tx, Stored(number, kind, now_ms, True, 0, content))
    return number


def needed_by(key: bytes, value: bytes) -> set[int]:
    """Return the dictionary that a thread's row needs, given its key and unsealed value. Raises ChecksumError."""
    number: int | None = None
    match key[keys.THREAD_BYTES : keys.THREAD_BYTES + 1]:
        case b"c":
            number = chunkrow.dictionary_of_row(value, int.from_bytes(key[-keys.NUMBER_BYTES :], "big"))
        case b"r":
            number = recordrow.dictionary_of_row(value)
    return set() if number is None else {number}


def touch(tx: WriteTransaction, needed: Collection[int]) -> None:
    """Note that rows that need these dictionaries were copied. Raises ConflictError where one is gone by now."""
    found = {stored.number: stored for stored in all_of(tx)}
    for number in needed:
        stored = found.get(number)
        if stored is None:
            raise ConflictError(f"dictionary {number} was removed while rows that need it were copied; copy again")
        if not stored.in_use:
            _put(tx, stored._replace(touched=stored.touched + 1))


def remove(tx: WriteTransaction, unneeded: Collection[Stored]) -> int:
    """Remove dictionaries that were seen out of use and unneeded, as far as that still holds; return how many."""
    found = set(all_of(tx))
    gone = [stored for stored in unneeded if stored in found and not stored.in_use]
    for stored in gone:
        tx.delete(keys.dictionary(stored.number))
    return len(gone)


def _put(tx: WriteTransaction, stored: Stored) -> None:
    rows.put(tx, keys.dictionary(stored.number), stored.encode())
