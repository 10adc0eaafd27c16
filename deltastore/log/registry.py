"""Reducers that the user registered, and the numbers that records know them by.

Imports names. Thread-safe once made.
"""

from collections.abc import Collection, Iterable

from deltastore import reducers as rd
from deltastore.errors import ChecksumError, InvalidInputError, ReducerMismatchError
from deltastore.log import keys
from deltastore.log.names import Names
from deltastore.storage.port import ReadTransaction

HIDDEN_NAMES = {1: "channel_versions", 2: "versions_seen"}


class Registry:
    """Which reducers are at hand, by name."""

    def __init__(self, names: Names, registered: Iterable[rd.Reducer]) -> None:
        self.names = names
        self._registered: dict[str, rd.Reducer] = {}
        for reducer in registered:
            if reducer.name in self._registered:
                raise InvalidInputError(f"two reducers are named {reducer.name!r}")
            self._registered[reducer.name] = reducer

    @property
    def registered(self) -> list[rd.Reducer]:
        """The user's reducers."""
        return list(self._registered.values())

    def number(self, name: str) -> int:
        """Return the number of a built-in or registered reducer. Raises InvalidInputError."""
        if name in rd.BUILT_IN:
            return rd.BUILT_IN[name]
        reducer = self._registered.get(name)
        if reducer is None:
            at_hand = ", ".join([*rd.BUILT_IN, *self._registered])
            raise InvalidInputError(f"no reducer is named {name!r}; at hand are {at_hand}")
        return self.names.number(keys.REDUCER, _stored_name(reducer))

    def reducer(self, tx: ReadTransaction, number: int, channel: str) -> rd.Reducer:
        """Return the registered reducer of a number. Raises ReducerMismatchError naming stored and registered."""
        name, version = self._stored(tx, number)
        reducer = self._registered.get(name)
        if reducer is None:
            raise ReducerMismatchError(
                f"channel {channel!r} was written for reducer {name!r} version {version}, which isn't registered. "
                f"Open the store with reducers=[Reducer({name!r}, {version}, …)]"
            )
        if reducer.version != version:
            raise ReducerMismatchError(
                f"channel {channel!r} was written for reducer {name!r} version {version}; "
                f"version {reducer.version} is registered. Register the version that wrote it, or put the state anew"
            )
        return reducer

    def describe(self, tx: ReadTransaction, number: int) -> str:
        """Return a reducer's name, and its version if it is a user's, for messages."""
        if number < rd.FIRST_INTERNED_REDUCER:
            return repr(rd.name_of(number))
        name, version = self._stored(tx, number)
        return f"{name!r} version {version}"

    def channel_name(self, tx: ReadTransaction, number: int) -> str:
        """Return a channel's name."""
        return HIDDEN_NAMES.get(number) or self.names.name(tx, keys.CHANNEL, number)

    def is_wanted(self, tx: ReadTransaction, number: int, wanted: Collection[str]) -> bool:
        """Tell whether a channel is among those that are wanted by name."""
        return self.channel_name(tx, number) in wanted

    def _stored(self, tx: ReadTransaction, number: int) -> tuple[str, int]:
        name, _, version = self.names.name(tx, keys.REDUCER, number).partition("\0")
        if not version.isdecimal():
            raise ChecksumError(f"reducer {number} is stored as {name!r} without a version; run check")
        return name, int(version)


def _stored_name(reducer: rd.Reducer) -> str:
    return f"{reducer.name}\0{reducer.version}"
