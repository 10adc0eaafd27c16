"""Where what is made of a store may be kept. Imports store and below.

The invariant: nothing that belongs to a user is put where shrinking takes away what the store doesn't need.
"""

import os
from os import PathLike
from pathlib import Path

from deltastore.errors import InvalidInputError, StorePathError
from deltastore.opening import check_path, is_url
from deltastore.store import Store


def check_outside(store: Store, path: str | PathLike[str]) -> None:
    """Refuse a path within the directory of a store. Raises StorePathError, InvalidInputError."""
    place = check_path(path)
    if is_url(place):
        return
    try:
        parents = Path(os.path.realpath(place)).parents
    except ValueError as error:
        raise InvalidInputError(f"the path {place!r} can't be one: {error}") from error
    if Path(store.log.storage.location) in parents:
        raise StorePathError(
            f"{place} is inside the store {store.log.storage.location}, which removes from its directory what it "
            "doesn't need; name a place outside"
        )
