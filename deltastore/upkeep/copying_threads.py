"""Which threads of a store a copy of it lacks, page by page: their headers tell, for every change counts there.

Reads only; imports log and below. The invariant: every thread that has rows is looked at, named or not, but for those
that are queued: deleted, or not there yet.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from deltastore.errors import ChecksumError
from deltastore.log import keys
from deltastore.storage.port import ReadTransaction, Storage

PAGE = 200
"""Threads that are looked at together; a name takes 64 KiB at most."""
_END = b"\xff" * keys.THREAD_BYTES
"""After the last thread: numbers don't get near."""


class Beside(NamedTuple):
    """A thread's header in the source and in the copy, as stored; None where there is none."""

    number: int
    header: bytes | None
    copied: bytes | None

    @property
    def differs(self) -> bool:
        """Whether the copy isn't of the thread as it is. A thread without a header is damaged, and can't tell."""
        return self.header != self.copied


class Page(NamedTuple):
    """Some threads in the order of their numbers; what the copy has beyond them; where the next page begins."""

    threads: list[Beside]
    extra: list[int]
    following: int | None


def pages(tx: ReadTransaction, copy: Storage | None) -> Iterator[Page]:
    """Iterate over all threads of a source in its transaction, beside those of a copy, which is read page by page."""
    first: int | None = 1
    while first is not None:
        page = look(tx, copy, first)
        yield page
        first = page.following


def look(tx: ReadTransaction, copy: Storage | None, first: int) -> Page:
    """Look at the threads from a number on, in the source and in the copy, if there is one. Raises ChecksumError."""
    prefix = keys.numbers_of(keys.THREAD)
    some = islice(tx.scan(keys.of_number(keys.THREAD, first), keys.end_of(prefix)), PAGE)
    named = [int.from_bytes(key[len(prefix) :], "big") for key, _ in some]
    following = named[-1] + 1 if len(named) == PAGE else None
    end = _END if following is None else keys.thread(following)
    nameless = _with_rows(tx, _gaps(keys.thread(first), end, named)) - set(queued(tx))
    numbers = sorted({*named, *nameless})
    headers = [keys.header(number) for number in numbers]
    stored = tx.get_many(headers)
    copied: list[bytes | None] = [None] * len(numbers)
    extra: set[int] = set()
    if copy is not None:
        with copy.read() as held:
            copied = held.get_many(headers)
            extra = _with_rows(held, _gaps(keys.thread(first), end, numbers))
    return Page(list(map(Beside, numbers, stored, copied)), sorted(extra), following)


def queued(tx: ReadTransaction) -> list[int]:
    """Return the numbers in the queue."""
    scan = tx.scan(keys.QUEUE, keys.end_of(keys.QUEUE))
    return [int.from_bytes(key[len(keys.QUEUE) :], "big") for key, _ in scan]


def _gaps(lower: bytes, upper: bytes, numbers: list[int]) -> list[tuple[bytes, bytes]]:
    """Return what lies between the threads of these numbers, which ascend; most follow each other without a gap."""
    begins = [lower, *(keys.thread(number + 1) for number in numbers)]
    ends = [*map(keys.thread, numbers), upper]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]


def _with_rows(tx: ReadTransaction, gaps: list[tuple[bytes, bytes]]) -> set[int]:
    """Return the numbers of the threads that have rows in some gaps."""
    out: set[int] = set()
    while gaps:
        left: list[tuple[bytes, bytes]] = []
        for row, (_, upper) in zip(tx.seek_many(gaps), gaps, strict=True):
            if row is None:
                continue
            if len(row[0]) <= keys.THREAD_BYTES:
                raise ChecksumError(f"row {row[0].hex()}: its key isn't of this format; run check, and repair")
            number = int.from_bytes(row[0][: keys.THREAD_BYTES], "big")
            out.add(number)
            if keys.thread(number + 1) < upper:
                left.append((keys.thread(number + 1), upper))
        gaps = left
    return out
