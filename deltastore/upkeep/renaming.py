"""The names that threads of a dump get where they are loaded: their own, or those that a caller gives.

Imports store and below. The invariant: with a mapping, every name in it is of a thread of the dump, or it is said.
"""

from collections.abc import Callable, Iterable, Mapping

from deltastore.errors import InvalidIdError, InvalidInputError, ThreadNotFoundError
from deltastore.log import keys
from deltastore.store import check_name

Rename = Mapping[str, str] | Callable[[str], str]
"""New names by old ones, those that aren't in it staying; or a function that gives the name here for a name there."""

SHOWN_NAMES = 10
"""How many names of a dump an error shows."""


class Renaming:
    """What a caller wants threads to be called, and which of these names were met. Not thread-safe."""

    def __init__(self, rename: Rename | None) -> None:
        """Take the caller's wish. Raises InvalidInputError where it is none, or gives one name to two threads."""
        if rename is not None and not isinstance(rename, Mapping) and not callable(rename):
            raise InvalidInputError(f"rename={rename!r}; expected a mapping of old names to new ones, or a function")
        self._rename = rename
        self._met: list[str] = []
        self._wanted: dict[str, str] = {}
        if isinstance(rename, Mapping):
            for old, new in rename.items():
                self._wanted[_checked(old)] = _checked(new)
        given: dict[str, str] = {}
        for old, new in self._wanted.items():
            if new in given:
                raise InvalidInputError(f"threads {given[new]!r} and {old!r} can't both be renamed to {new!r}")
            given[new] = old

    @property
    def names_threads(self) -> bool:
        """Whether it is about certain threads, which the dump may lack."""
        return bool(self._wanted)

    def name(self, stored: bytes) -> str:
        """Return what a thread of the dump is to be called here. Raises InvalidInputError."""
        try:
            name = keys.decode_name(stored)
        except InvalidIdError as error:
            raise InvalidInputError(f"a thread can't be named so: {error}") from error
        self._met.append(name)
        if callable(self._rename):
            return _checked(self._rename(name))
        return self._wanted.get(name, name)

    def check_all_met(self, loaded: int) -> None:
        """Raise ThreadNotFoundError where a thread that was to be renamed isn't in the dump, which was all read."""
        missing = sorted(self._wanted.keys() - set(self._met))
        if missing:
            also = "nothing of it was loaded" if not loaded else f"{loaded} threads of it were loaded"
            raise ThreadNotFoundError(
                f"the dump has no thread named {_shown(missing)}, which was to be renamed; it holds "
                f"{_shown(self._met) or 'none'}; {also}"
            )


def _checked(name: str) -> str:
    try:
        return check_name(name, "thread")
    except InvalidIdError as error:
        raise InvalidInputError(f"a thread can't be renamed so: {error}") from error


def _shown(names: Iterable[str]) -> str:
    some = [repr(name) for name in names]
    more = f" and {len(some) - SHOWN_NAMES} more" if len(some) > SHOWN_NAMES else ""
    return ", ".join(some[:SHOWN_NAMES]) + more
