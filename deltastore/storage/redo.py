"""The redo record: what a commit changes, written where the commit's own flush takes it along.

LMDB flushes the pages of a commit, then writes the page that names them, its meta page; that one survives a power cut
only once it is flushed too. Here the second flush is left out. Before a commit, what it changes is written into the
unused rest of the meta page that names the commit before, in the same file, so the first flush makes it durable. If a
power cut takes the later meta page, the earlier one still stands, with its pages intact, for LMDB writes to no page
that either of the last two commits uses; beside it stands what came next, and whoever opens the file does it again.

Imports the errors and the engine's translation of them. The invariant: a record is done again only on the very commit
that it was written after: it is tied to that one's number and page, and records that come to nothing are removed.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ormsgpack import packb, unpackb
from xxhash import xxh3_64_intdigest

from deltastore.errors import StorageError
from deltastore.storage.engine import translate_os

_SECTOR: Final = 512
"""What a disk writes wholly or not at all. The engine's own part of a meta page lies within the first one."""

_HEAD: Final = struct.Struct(">QIQ")
"""The number of the commit, the length of what follows, and the checksum."""
_NUMBER: Final = struct.Struct(">Q")
_NONE: Final = bytes(_NUMBER.size)

ROW_BYTES: Final = 8
"""What a change takes beyond its key and value, at most."""

Change = tuple[bytes, bytes | None]
"""A key, and its new value; None: it is deleted."""


class Redo:
    """The places for redo records in one data file. Not thread-safe: what changes them needs the file's write lock."""

    def __init__(self, file: Path, page_bytes: int) -> None:
        """Open the file. Raises StorageError."""
        self._location = os.fspath(file)
        self._page_bytes = page_bytes
        self.room = page_bytes - _SECTOR - _HEAD.size - ROW_BYTES
        """The bytes that the changes of one record may have, `ROW_BYTES` for each of them included."""
        try:
            self._descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise translate_os(error, self._location) from error

    @staticmethod
    def is_possible(page_bytes: int) -> bool:
        """Tell whether pages have a rest, and the system writes to places in files. Else commits are flushed twice."""
        return hasattr(os, "pwrite") and page_bytes >= 4 * _SECTOR

    def note(self, number: int, changes: Sequence[Change]) -> None:
        """Write down what a commit is about to change; its flush makes it durable. Raises StorageError."""
        body = packb(changes)
        place = self._place(number - 1)
        named = self._read(place, _SECTOR)
        self._write(place + _SECTOR, _HEAD.pack(number, len(body), _checksum(named, number, body)) + body)

    def has(self, number: int) -> bool:
        """Tell whether a commit that was made has a record, and so survives a power cut. Raises StorageError."""
        return self._number_at(self._place(number - 1)) == number

    def drop(self, number: int) -> None:
        """Remove the record of a commit that wasn't made, if there is one. Raises StorageError."""
        if self.has(number):
            self._clear(self._place(number - 1))

    def is_ahead(self, last: int) -> bool:
        """Tell whether there is a record of a commit after the last one. Raises StorageError."""
        return any(self._number_at(self._place(number)) > last for number in (0, 1))

    def lost(self, number: int) -> list[Change]:
        """Return what a commit changed that was the next and is missing; nothing where none was, or not durably.

        Other records of its number and later ones go: they were written after a commit that isn't there. Raises
        StorageError.
        """
        later = self._place(number)
        if self._number_at(later) > number:
            self._clear(later)
        place = self._place(number - 1)
        page = self._read(place, self._page_bytes)
        found, length, checksum = _HEAD.unpack_from(page, _SECTOR)
        start = _SECTOR + _HEAD.size
        body = page[start : start + length]
        if found == number and checksum == _checksum(page[:_SECTOR], number, body):
            return [(key, value) for key, value in unpackb(body)]
        if found >= number:
            self._clear(place)
        return []

    def close(self) -> None:
        """Give the file back; a forked child does so too."""
        descriptor, self._descriptor = self._descriptor, -1  # first, for the system gives its number away again
        if descriptor >= 0:
            os.close(descriptor)

    def _place(self, number: int) -> int:
        """Return where the meta page of a commit begins: they take turns."""
        return (number & 1) * self._page_bytes

    def _number_at(self, place: int) -> int:
        found: int = _NUMBER.unpack(self._read(place + _SECTOR, _NUMBER.size))[0]
        return found

    def _clear(self, place: int) -> None:
        self._write(place + _SECTOR, _NONE)

    def _read(self, place: int, count: int) -> bytes:
        try:
            found = os.pread(self._descriptor, count, place)
        except OSError as error:
            raise translate_os(error, self._location) from error
        if len(found) < count:
            raise StorageError(f"{self._location}: the file ends at {place + len(found)}, within its first two pages")
        return found

    def _write(self, place: int, what: bytes) -> None:
        try:
            written = os.pwrite(self._descriptor, what, place)
        except OSError as error:
            raise translate_os(error, self._location) from error
        if written < len(what):
            raise StorageError(f"{self._location}: the operating system wrote {written} of {len(what)} bytes")


def _checksum(named: bytes, number: int, body: bytes) -> int:
    """Return the checksum of a record, over the sector that names the commit before as well."""
    return xxh3_64_intdigest(named + _NUMBER.pack(number) + body)
