"""Lengths of rows in LMDB, without the rows.

The binding decides for a whole transaction whether it hands out copies or views. Copies are what everybody else wants,
so lengths are taken in a second transaction, of the same moment. Imports the engine and the shared environments.
The invariant: an answer is about the moment of the transaction that asked.
"""

from threading import get_ident
from typing import TYPE_CHECKING

from deltastore.storage.engine import EngineError
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.rules import visible_ranges

if TYPE_CHECKING:
    from deltastore.storage.engine import Transaction, Views


class _Views:
    """A read transaction that hands out views; an inmate of the environment of its own, for the case of a fork."""

    txn: "Views | None" = None

    def disown(self) -> object:
        """In a forked child: give up the inherited transaction, and return it."""
        inherited, self.txn = self.txn, None
        return inherited


def measure(shared: SharedEnvironment, txn: "Transaction", lower: bytes, upper: bytes) -> tuple[int, int]:
    """Return how many rows have lower <= key < upper, and the bytes of their keys and values.

    Pages that hold only payload aren't touched, unless somebody committed between the beginning of `txn` and this, or
    `txn` writes: then another transaction sees another moment, and rows are copied as they are by a scan.
    Raises the engine's own errors.
    """
    moment = txn.id()
    views = _Views()
    # While `txn` lives, whoever needs quiet waits; so this one may begin though the gate be shut.
    shared.live[views] = get_ident()
    try:
        views.txn = _begin(shared)
        same = views.txn is not None and views.txn.id() == moment
        return _sum(views.txn if same and views.txn is not None else txn, lower, upper)
    finally:
        if views.txn is not None:
            views.txn.abort()
            views.txn = None  # the binding gives the reader slot back when its object goes
        shared.leave(views)


def _begin(shared: SharedEnvironment) -> "Views | None":
    """Begin a transaction that hands out views; None where there is no slot or no map for it now."""
    try:
        return shared.env.begin(buffers=True)
    except EngineError:
        return None


def _sum(txn: "Transaction | Views", lower: bytes, upper: bytes) -> tuple[int, int]:
    count = size = 0
    for start, end in visible_ranges(lower, upper):
        cursor = txn.cursor()
        if not cursor.set_range(start):
            continue
        for key, value in cursor.iternext():
            if bytes(key) >= end:
                break
            count += 1
            size += len(key) + len(value)
    return count, size
