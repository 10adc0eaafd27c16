"""What a write stands on: its thread's own rows, as a transaction reads them or as this process's last write left them.

A write that is prepared from memory alone reads nothing before it is applied; `apply` finds out whether others changed
the thread meanwhile. Imports rows, dictionaries and finding. The invariant: what is remembered was committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, NoReturn

from deltastore.codec.dictionary import Dictionary
from deltastore.log import announcing, dictionaries, finding, keys, names, rows
from deltastore.log.announcing import Known, Look
from deltastore.log.dictionaries import Opened
from deltastore.storage.port import Moment, ReadTransaction, Wanted, WriteTransaction

Seen = tuple[tuple[bytes, ...], Sequence[bytes | None]]
"""The keys of a thread's name, header and namespace, and these rows as they are stored."""


class Standing(NamedTuple):
    """A thread's number and header, a namespace of it, and the newest dictionary; None is what isn't there.

    Nobody changes these. `remembered`: they are of an earlier moment than the write's own. `seen`: as they are stored,
    where that is known; `at`: when they were. `own`: a write of this process left them.
    """

    thread: int | None
    header: rows.Header | None
    namespace: rows.Namespace | None
    newest: Opened | None
    remembered: bool = False
    seen: Seen | None = None
    at: Moment | None = None
    own: bool = False

    @property
    def dictionary(self) -> Dictionary | None:
        """The dictionary for new rows, or None."""
        return self.newest.for_new_rows if self.newest else None

    @property
    def collected(self) -> int:
        """The thread's `collected`."""
        return self.header.collected if self.header else 0

    @property
    def next_chunk(self) -> tuple[int, int]:
        """The thread's next chunk number in each series."""
        return (self.header.next_chunk[0], self.header.next_chunk[1]) if self.header else (1, 1)

    @property
    def recency(self) -> tuple[int, int, bool, bool]:
        """Ascends with time among those of the same name, and with what is known at a time."""
        return self.thread or 0, self.header.changes if self.header else 0, self.seen is not None, self.own

    @property
    def known(self) -> Known | None:
        """Where the namespace was, for those who look again."""
        return None if self.thread is None or self.namespace is None else Known(self.thread, self.namespace.number)


def read(tx: ReadTransaction, thread: str, namespace: str, look: Look, known: Known | None = None) -> Standing:
    """Return what a transaction sees; `look` is what its caller goes on to, `known` where that was once.

    Raises ChecksumError.
    """
    if tx.remote:
        announcing.thread(tx, thread, namespace, known, look)
    number, header = finding.find_thread(tx, thread) or (None, None)
    found = None if number is None else rows.load_namespace(tx, number, keys.encode_name(namespace))
    there = None if number is None or found is None else as_stored(tx, thread, namespace, number)
    return Standing(number, header, found, dictionaries.newest(tx), seen=there)


def as_stored(tx: ReadTransaction, thread: str, namespace: str, number: int) -> Seen | None:
    """Return a thread's own rows, just read, for a transaction that is to believe them; None where all have to look."""
    if not tx.remote:
        return None
    of_rows = _keys(number, keys.encode_name(thread), keys.encode_name(namespace))
    return of_rows, tx.get_many(of_rows)


def _keys(thread: int, name: bytes, namespace: bytes) -> tuple[bytes, bytes, bytes]:
    return keys.of_name(keys.THREAD, name), keys.header(thread), keys.namespace(thread, namespace)


@dataclass(slots=True, repr=False)
class Current:
    """A thread's rows in a write transaction, to be changed and stored. `thread` None: it has no number yet."""

    thread: int | None
    header: rows.Header
    namespace: rows.Namespace | None
    newest: Opened | None
    keys: tuple[bytes, ...] = ()
    name_row: bytes | None = None

    def store(self, tx: WriteTransaction, thread: int, namespace: rows.Namespace) -> Standing:
        """Store header and namespace, and return what the next write of the thread stands on."""
        namespace_row = rows.store_namespace(tx, thread, namespace)
        header_row = rows.store_header(tx, thread, self.header)
        if self.thread is None:  # it has just been named
            self.keys = _keys(thread, self.header.name, namespace.name)
            self.name_row = tx.get(self.keys[0])
        seen = (self.keys, [self.name_row, header_row, namespace_row]) if self.name_row is not None else None
        return Standing(
            thread, self.header, namespace, self.newest, remembered=True, seen=seen, at=tx.moment(), own=True
        )


def find(tx: WriteTransaction, standing: Standing, thread: str, namespace: str, now_ms: int) -> Current | str:
    """Return the rows as they are now, a new header where there was no thread.

    A text says why what was prepared doesn't stand any more. Raises ChecksumError.
    """
    if standing.at is not None and tx.follows(standing.at):
        newest, is_so = standing.newest, True
    else:
        newest, is_so = dictionaries.newest(tx), False
    if _number(newest) != _number(standing.newest):
        return "another dictionary came into use meanwhile"
    if standing.seen is not None and standing.header is not None and standing.namespace is not None:
        of_rows, seen = standing.seen
        if is_so or tx.get_many(of_rows) == seen:  # nobody else wrote to the thread
            copies = standing.header.copy(), standing.namespace.copy()
            return Current(standing.thread, *copies, newest, of_rows, seen[0])
    name, namespace_name = keys.encode_name(thread), keys.encode_name(namespace)
    name_key = keys.of_name(keys.THREAD, name)
    name_row = tx.get(name_key)
    if names.number_in(name_key, name_row, name) != standing.thread:
        return "the thread was created, deleted or replaced meanwhile"
    if standing.thread is None:
        return Current(None, rows.Header(name, now_ms, now_ms), None, newest)
    header = rows.load_header(tx, standing.thread)
    if header is None or header.collected != standing.collected:
        return "something was collected meanwhile"
    found = rows.load_namespace(tx, standing.thread, namespace_name)
    return Current(standing.thread, header, found, newest, _keys(standing.thread, name, namespace_name), name_row)


def wanted_by(standing: Standing, thread: str, namespace: str) -> Wanted:
    """Return what `find` looks at, and a number for the thread where there is none."""
    ends = (announcing.DICTIONARY_IN_USE,)
    name = keys.encode_name(thread)
    if standing.thread is None:
        return Wanted(keys=(keys.of_name(keys.THREAD, name),), ends=ends, counters=(keys.counter(keys.THREAD),))
    believed = None
    if standing.seen is not None:
        own_rows = [(key, row) for key, row in zip(*standing.seen, strict=True) if row is not None]
        believed = dictionaries.believed(standing.newest)._replace(rows=own_rows)
    own = _keys(standing.thread, name, keys.encode_name(namespace))
    return Wanted(keys=own, ends=ends, believed=believed)


def _number(newest: Opened | None) -> int:
    """Return the number of the dictionary for new rows, 0 for none."""
    dictionary = newest.for_new_rows if newest else None
    return dictionary.number if dictionary else 0


class NotInMemory(Exception):
    """A write can't be prepared from memory alone."""


class Nothing:
    """Stands for a transaction where nothing is read: whoever asks for a row is sent to a real one."""

    remote: ClassVar[bool] = False

    def prefetch(self, wanted: Wanted, *, now: bool = False) -> None:
        """Do nothing."""

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

    def measure_many(self, ranges: Sequence[tuple[bytes, bytes]]) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory

    def following(self, key: bytes) -> NoReturn:
        """Raise NotInMemory."""
        raise NotInMemory


NOTHING = Nothing()
