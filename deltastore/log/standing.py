"""What a write stands on: its thread's own rows, as a transaction reads them or as this process's last write left them.

A write that is prepared from memory alone reads nothing before it is applied; `apply` finds out whether others changed
the thread meanwhile. Imports rows, dictionaries and finding. The invariant: what is remembered was committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from deltastore.codec.dictionary import Dictionary
from deltastore.log import dictionaries, finding, keys, names, rows
from deltastore.storage.port import ReadTransaction, WriteTransaction


@dataclass(frozen=True, slots=True)
class Standing:
    """A thread's number and header, a namespace of it, and the dictionary for new rows; None is what isn't there.

    Nobody changes these. `remembered`: they are of an earlier moment than the write's own.
    """

    thread: int | None
    header: rows.Header | None
    namespace: rows.Namespace | None
    dictionary: Dictionary | None
    remembered: bool = False

    @property
    def collected(self) -> int:
        """The thread's `collected`."""
        return self.header.collected if self.header else 0

    @property
    def next_chunk(self) -> tuple[int, int]:
        """The thread's next chunk number in each series."""
        return (self.header.next_chunk[0], self.header.next_chunk[1]) if self.header else (1, 1)

    def is_later_than(self, other: "Standing") -> bool:
        """Tell whether this is of a later moment than another one of the same name."""
        if self.header is None or other.header is None:
            return other.header is None
        return ((self.thread or 0), self.header.changes) > ((other.thread or 0), other.header.changes)


def read(tx: ReadTransaction, thread: str, namespace: str) -> Standing:
    """Return what a transaction sees. Raises ChecksumError."""
    number, header = finding.find_thread(tx, thread) or (None, None)
    found = None if number is None else rows.load_namespace(tx, number, keys.encode_name(namespace))
    return Standing(number, header, found, dictionaries.in_use(tx))


def find(
    tx: WriteTransaction, standing: Standing, thread: str, namespace: str, now_ms: int
) -> tuple[rows.Header, rows.Namespace | None] | str:
    """Return header and namespace as they are now, a new header where there was no thread; to be changed and stored.

    A text says why what was prepared doesn't stand any more. Raises ChecksumError.
    """
    name = keys.encode_name(thread)
    if names.find(tx, keys.THREAD, name) != standing.thread:
        return "the thread was created, deleted or replaced meanwhile"
    if _number(dictionaries.in_use(tx)) != _number(standing.dictionary):
        return "another dictionary came into use meanwhile"
    if standing.thread is None:
        return rows.Header(name, now_ms, now_ms), None
    header = rows.load_header(tx, standing.thread)
    if header is None or header.collected != standing.collected:
        return "something was collected meanwhile"
    return header, rows.load_namespace(tx, standing.thread, keys.encode_name(namespace))


def _number(dictionary: Dictionary | None) -> int:
    return dictionary.number if dictionary else 0


class NotInMemory(Exception):
    """A write can't be prepared from memory alone."""


class Nothing:
    """Stands for a transaction where nothing is read: whoever asks for a row is sent to a real one."""

    def get(self, key: bytes) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory

    def get_many(self, keys: Sequence[bytes]) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory

    def seek_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory

    def measure(self, lower: bytes, upper: bytes) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory


NOTHING = Nothing()
