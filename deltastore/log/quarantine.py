"""Quarantine: rows that a repair took out of their places, with their bytes as found.

Imports keys and rows. The invariant: a quarantined row keeps what it was and why it isn't in its place, and nothing
that reads checkpoints ever looks at it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import ormsgpack

from deltastore.codec.primitives import seal, unseal
from deltastore.errors import ChecksumError
from deltastore.log import keys, rows
from deltastore.storage.port import ReadTransaction, Row, WriteTransaction


class Quarantined(NamedTuple):
    """A row as it was found: its key, its stored bytes, why it was taken out of its place, and when."""

    key: bytes
    row: bytes
    reason: str
    since_ms: int


def sealed(thread: int, found: Quarantined) -> Row:
    """Return the quarantine row of a thread, or of the store (0), as it is to be stored."""
    key = keys.quarantined(thread, found.key, found.row)
    reason = found.reason.encode("utf-8", "surrogatepass")
    return key, seal(key, ormsgpack.packb([found.key, found.row, reason, found.since_ms]))


def decode(key: bytes, row: bytes) -> Quarantined:
    """Undo `sealed`. Raises ChecksumError."""
    match rows.parse(key, unseal(key, row)):
        case [bytes(place), bytes(held), bytes(reason), int(since_ms)]:
            return Quarantined(place, held, reason.decode("utf-8", "backslashreplace"), since_ms)
    raise ChecksumError(f"row {key.hex()} is no quarantine row")


def scan(tx: ReadTransaction, thread: int) -> Iterator[Row]:
    """Iterate over the quarantine rows of a thread, or of the store (0)."""
    prefix = keys.quarantine(thread)
    return tx.scan(prefix, keys.end_of(prefix))


def count(tx: ReadTransaction, thread: int) -> int:
    """Return how many rows of a thread, or of the store (0), are quarantined."""
    prefix = keys.quarantine(thread)
    return tx.measure(prefix, keys.end_of(prefix))[0]


def drop(tx: WriteTransaction, thread: int, limit: int) -> int:
    """Remove up to so many quarantine rows of a thread, or of the store (0); return how many."""
    prefix = keys.quarantine(thread)
    count = tx.delete_range(prefix, keys.end_of(prefix), limit=limit)
    header = rows.load_header(tx, thread) if count and thread else None
    if header is not None:
        rows.store_header(tx, thread, header)
    return count
