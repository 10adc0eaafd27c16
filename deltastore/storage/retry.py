"""The one storage error that asks for a repeat; imports only `deltastore.errors`."""

from typing import ClassVar

from deltastore.errors import StorageError


class RetryTransaction(StorageError):
    """Nothing was written, what stood in the way is gone, and the same transaction run again will pass it.

    Raised by a write transaction that met the end of the memory map: the map has grown meanwhile. Or that a server
    undid, for others were in its way, or the connection broke before the commit. A `with` block can't be run again from
    within, so whoever wrote the block does.
    """

    code: ClassVar[str] = "retry-transaction"
