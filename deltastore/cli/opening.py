"""Opening the store that a command is about, for its length."""

from collections.abc import Iterator
from contextlib import contextmanager

import deltastore
from deltastore.errors import InvalidInputError
from deltastore.opening import MEMORY
from deltastore.store import Store


@contextmanager
def open_store(path: str) -> Iterator[Store]:
    """Open a store that is there; none is ever made.

    Raises StorePathError naming what was found instead, InvalidInputError for a store in memory: it would be empty.
    """
    if path == MEMORY:
        raise InvalidInputError(f"{MEMORY} lives in the process that opened it; name a directory, or a URL")
    with deltastore.open(path, create=False) as store:
        yield store
