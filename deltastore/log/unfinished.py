"""The row that a place has in place of a format row while a store is being copied to it.

Imports keys and rows. The invariant: a place has this row or a format row, never both, so what is copied in part is
never opened as a store.
"""

import os
from typing import NamedTuple

import ormsgpack

from deltastore.errors import ChecksumError
from deltastore.log import keys, rows
from deltastore.storage.port import ReadTransaction, WriteTransaction

TOKEN_BYTES = 16


class Unfinished(NamedTuple):
    """Which store is being copied here, by uuid and by where it was; by whom, by a random token; and since when."""

    uuid: bytes
    source: str
    token: bytes
    since_ms: int


def new_token() -> bytes:
    """Return a token that nobody has: whoever puts it into the row takes the copy over from whoever had it."""
    return os.urandom(TOKEN_BYTES)


def load(tx: ReadTransaction) -> Unfinished | None:
    """Return what is being copied here, or None. Raises ChecksumError."""
    row = rows.get(tx, keys.UNFINISHED)
    if row is None:
        return None
    match rows.parse(keys.UNFINISHED, row):
        case [bytes(uuid), str(source), bytes(token), int(since_ms)]:
            return Unfinished(uuid, source, token, since_ms)
    raise ChecksumError(f"row {keys.UNFINISHED.hex()} doesn't tell of a copy; remove what is there, and copy again")


def store(tx: WriteTransaction, found: Unfinished) -> None:
    """Note what is being copied here."""
    rows.put(tx, keys.UNFINISHED, ormsgpack.packb(list(found)))
