"""Copying a whole store to another place, of any storage, while others use it: rows as they are, thread by thread.

Passes over the threads copy those that changed, each as of one moment; the last pass reads in one moment what is still
to do, so that the copy is the store at that moment. Imports opening and below. The invariant: the copy is no store
before all of it is there and was compared, and until then it can be gone on with, by the same source alone.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath

from deltastore.errors import CopyDamagedError, InvalidInputError, StorePathError
from deltastore.log import keys, names, unfinished
from deltastore.log.unfinished import Unfinished
from deltastore.opening import MEMORY, check_path, open_storage
from deltastore.opening import open as open_store
from deltastore.storage.port import ReadTransaction, Row, Storage, WriteTransaction
from deltastore.store import Store
from deltastore.upkeep.copying_rows import CopiedRows, RowReader
from deltastore.upkeep.copying_threads import Beside, look, pages, queued
from deltastore.upkeep.places import check_outside
from deltastore.upkeep.progress import Progress

DEFAULT_PASSES = 5
"""How often threads that changed are copied in many moments, before the last pass copies the rest in one."""
FEW_THREADS = 8
"""So few changed threads are left to the last pass: it reads in one transaction, which holds pages back meanwhile."""
MOMENT_BYTES = 64 << 20
"""How much is copied in one transaction of the source, but for one larger thread, before the last pass."""

Span = tuple[bytes, bytes]
"""A range of keys, from the first to before the second."""
_ALL: Span = (b"", b"\xff" * (keys.THREAD_BYTES + 1))
_COUNTERS: Span = (keys.COUNTERS, keys.end_of(keys.COUNTERS))
"""What numbers are minted from, which each storage keeps as it likes."""
_MARK: Span = (keys.UNFINISHED, keys.UNFINISHED + b"\0")
_FORMAT: Span = (keys.FORMAT, keys.FORMAT + b"\0")
_QUEUE: Span = (keys.QUEUE, keys.end_of(keys.QUEUE))
_STORE: tuple[Span, ...] = ((b"", _COUNTERS[0]), (_COUNTERS[1], _MARK[0]), (_MARK[1], keys.thread(1)))
"""The store's own rows."""

Source = Store | str | PathLike[str]
Destination = Storage | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is to be copied to `location`: threads, rows, and the bytes of their keys and values.

    `resumes`: whether a copy of the store is there in part, which what is to be copied is lacking of.
    """

    location: str
    resumes: bool
    threads: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A copy of a store at `location`, and what was done for it.

    `threads`, `rows` and `bytes` (of keys and values) are what the copy holds; `copied_…` what this call read of the
    source, wrote where it differed, and compared, threads that changed meanwhile more than once. `passes`: how often it
    went over the threads. `finished`: it is a store now, as of one moment. `changed_since`: how many threads others
    made, changed or deleted in the source since they were copied; what they did isn't in the copy.
    """

    location: str
    finished: bool
    threads: int
    rows: int
    bytes: int
    copied_threads: int
    copied_rows: int
    copied_bytes: int
    passes: int
    changed_since: int


def copy_store(
    source: Source,
    destination: Destination,
    *,
    passes: int = DEFAULT_PASSES,
    finish: bool = True,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy a store, open or by its path, to a place where nothing is, or where a copy of it was begun.

    Rows are copied as they are, the uuid too, by up to `passes` passes while others write, and a last one as of one
    moment; only deleted threads and unfinished copies of threads stay behind. Each thread is read back and compared.
    Where it ends early, by an error or a kill, the same call goes on with what is there. `finish=False`: leave it to be
    gone on with; end the writers then, and the next call has little left to do. `progress` counts bytes.

    Raises StorePathError where a store or anything else is there, or inside the source's own directory,
    CopyDamagedError where something else is read back than was written, ConflictError where another process copies to
    the same place, InvalidInputError, StoreFullError, StorageError, and what `open` does; nothing of the source
    changes, and the copy opens as nothing then: UnfinishedCopyError.
    """
    if passes < 1:
        raise InvalidInputError(f"passes is {passes!r}; expected at least 1")
    with _opened_source(source) as store, _opened(store, destination) as target:
        return _copy(store, target, passes, progress, finish=finish)


def plan_copy(source: Source, destination: Destination) -> CopyPlan:
    """Tell what `copy_store` would copy. Writes nothing, and makes no store; raises what that does before it begins."""
    with _opened_source(source) as store, _opened_if_there(store, destination) as target:
        location = fspath(destination) if isinstance(destination, str | PathLike) else destination.location
        resumes = False
        if target is not None:
            location = target.location
            with target.read() as tx:
                resumes = _look_at(tx, target, store.log.uuid) is not None
        with store.log.storage.read() as tx:
            return _plan(tx, target if resumes else None, location)


def _plan(tx: ReadTransaction, copy: Storage | None, location: str) -> CopyPlan:
    threads = rows = size = 0
    for page in pages(tx, copy):
        for thread in page.threads:
            if _is_due(thread, is_first=True):
                found = tx.measure(*_span(thread.number))
                threads, rows, size = threads + 1, rows + found[0], size + found[1]
    for span in _STORE:
        for key, row in _store_rows(tx, span):
            rows, size = rows + 1, size + len(key) + len(row)
    return CopyPlan(location, copy is not None, threads, rows, size)


# --- places


@contextmanager
def _opened_source(source: Source) -> Iterator[Store]:
    if isinstance(source, Store):
        yield source
        return
    with open_store(source, create=False) as store:
        yield store


@contextmanager
def _opened(store: Store, destination: Destination) -> Iterator[Storage]:
    if not isinstance(destination, str | PathLike):
        yield destination
        return
    _check_place(store, destination)
    with contextlib.closing(open_storage(destination)) as storage:
        yield storage


@contextmanager
def _opened_if_there(store: Store, destination: Destination) -> Iterator[Storage | None]:
    """Open a place to be looked at; None where nothing is yet."""
    if not isinstance(destination, str | PathLike):
        yield destination
        return
    _check_place(store, destination)
    try:
        storage = open_storage(destination, create=False)
    except StorePathError:
        if not _is_free(destination):
            raise
        yield None
        return
    with contextlib.closing(storage):
        yield storage


def _is_free(destination: str | PathLike[str]) -> bool:
    from deltastore.storage.directory import is_free  # LMDB, which another storage can do without

    return is_free(destination)


def _check_place(store: Store, destination: str | PathLike[str]) -> None:
    if check_path(destination) == MEMORY:
        raise StorePathError(f"a copy can't be kept in {MEMORY}; name a place that outlives this process")
    check_outside(store, destination)


def _look_at(tx: ReadTransaction, destination: Storage, uuid: bytes) -> Unfinished | None:
    """Return the copy that was begun at a place, None where nothing is. Raises StorePathError for anything else."""
    stored = tx.get(keys.FORMAT)
    if stored is not None:
        is_same = uuid in stored
        what = ", and this very one: the copy was finished, or it is the store itself" if is_same else ""
        raise StorePathError(
            f"{destination.location} is a store already{what}; name a place without one, "
            "or take threads along with dump and load"
        )
    found = unfinished.load(tx)
    if found is None:
        if next(tx.scan(*_ALL), None) is not None:
            raise StorePathError(f"{destination.location} holds rows that are no store's; name another place")
    elif found.uuid != uuid:
        raise StorePathError(
            f"{destination.location} is an unfinished copy of another store, {found.source}; "
            "go on with that one, or remove what is there, or name another place"
        )
    return found


# --- copying


def _copy(source: Store, destination: Storage, passes: int, progress: Progress | None, *, finish: bool) -> CopyReport:
    mark = _begin(source, destination)
    copy = _Copy(source.log.storage, destination, mark, progress)
    while copy.passes < passes and copy.go_over() > FEW_THREADS:
        pass
    if finish:
        copy.finish()
    threads, changed_since = copy.compare()
    rows, size = copy.measure()
    return CopyReport(
        destination.location,
        finish,
        threads,
        rows,
        size,
        copy.copied,
        copy.rows.rows,
        copy.rows.bytes,
        copy.passes,
        changed_since,
    )


def _begin(source: Store, destination: Storage) -> Unfinished:
    """Make a place the destination of a copy, or take over the one that was begun there."""

    def work(tx: WriteTransaction) -> Unfinished:
        found = _look_at(tx, destination, source.log.uuid)
        since_ms = source.log.now_ms() if found is None else found.since_ms
        mark = Unfinished(source.log.uuid, source.log.storage.location, unfinished.new_token(), since_ms)
        unfinished.store(tx, mark)
        return mark

    return names.in_write(destination, (), work)


class _Copy:
    """One call's copying. Not thread-safe."""

    def __init__(self, source: Storage, destination: Storage, mark: Unfinished, progress: Progress | None) -> None:
        self._source = source
        self._destination = destination
        self._progress = progress
        self._total = 0
        if progress is not None:
            with source.read() as tx:
                self._total = _plan(tx, destination, "").bytes
        self.rows = CopiedRows(destination, mark, self._tell)
        self.copied = self.passes = 0

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._total = max(self._total, done)  # what changed is copied again
            self._progress(done, self._total)

    def go_over(self) -> int:
        """Copy the threads that differ, in as many moments as it takes; return how many these were."""
        before = self.copied
        place: int | None = 1
        while place is not None:
            with self._source.read() as tx:
                place = self._go_on(tx, place)
        self.rows.flush()
        self.passes += 1
        return self.copied - before

    def _go_on(self, tx: ReadTransaction, first: int) -> int | None:
        """Copy from a thread on what differs in one page, or until enough was copied; return where to go on."""
        page = look(tx, self._destination, first)
        self._remove(page.extra)
        last = self._copy_due(tx, page.threads, MOMENT_BYTES)
        return page.following if last is None else last + 1

    def finish(self) -> None:
        """Copy all that still differs and the store's own rows, as of one moment, and make a store of the copy."""
        with self._source.read() as tx:
            expected = _expected(tx)
            for page in pages(tx, self._destination):
                self._remove(page.extra)
                self._copy_due(tx, page.threads, None)
            self.passes += 1
            for span in _STORE:
                self.rows.replace(*span, _store_rows(tx, span))
            self.rows.flush()
            found = self.measure()
            stored = tx.get(keys.FORMAT)
            counters = {key: tx.following(key) for key in map(keys.counter, names.COUNTED)}
        if stored is None or found != expected:
            raise CopyDamagedError(
                f"{self._destination.location}: {found[0]} rows of {found[1]} bytes are there, where the source has "
                f"{expected[0]} of {expected[1]}; check the source, then copy to another place"
            )
        self.rows.finish((keys.FORMAT, stored), counters)

    def _copy_due(self, tx: ReadTransaction, threads: list[Beside], enough: int | None) -> int | None:
        """Copy the threads that are due; return the last one's number where enough bytes were copied before the end."""
        limit = None if enough is None else self.rows.bytes + enough
        due = [thread.number for thread in threads if _is_due(thread, is_first=self.passes == 0)]
        for first, last in _runs(due):
            reader = RowReader(tx, *_span(first, last))
            for number in range(first, last + 1):
                span = _span(number)
                self.rows.replace(*span, reader.below(span[1]), keys.header(number))
                self.copied += 1
                if limit is not None and self.rows.bytes >= limit:
                    return number
        return None

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            self.rows.replace(*_span(number), (), keys.header(number))

    def compare(self) -> tuple[int, int]:
        """Return how many threads the copy has, and how many aren't in the source as they are in the copy."""
        threads = changed = 0
        with self._source.read() as tx:
            for page in pages(tx, self._destination):
                for thread in page.threads:
                    threads += thread.copied is not None
                    changed += thread.differs
                threads += len(page.extra)
                changed += len(page.extra)
        return threads, changed

    def measure(self) -> tuple[int, int]:
        """Return the copy's rows, and their bytes."""
        with self._destination.read() as tx:
            return _measure_without(tx, _MARK, _COUNTERS)


def _is_due(thread: Beside, *, is_first: bool) -> bool:
    """Tell whether a thread is to be copied; one without a header, which nothing can be put to, once in each call."""
    return thread.differs or (thread.header is None and is_first)


def _span(first: int, last: int | None = None) -> Span:
    return keys.thread(first), keys.thread((first if last is None else last) + 1)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return ascending numbers in runs without gaps: the first and the last of each."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _store_rows(tx: ReadTransaction, span: Span) -> Iterator[Row]:
    """Iterate over the store's own rows without its queue, which stays behind, and its format row, which comes last."""
    for key, row in tx.scan(*span):
        if key != keys.FORMAT and not key.startswith(keys.QUEUE):
            yield key, row


def _expected(tx: ReadTransaction) -> tuple[int, int]:
    """Return how many rows a copy has before the format row, and their bytes."""
    # one that is named all the same comes along
    unnamed = [number for number in queued(tx) if tx.get(keys.of_number(keys.THREAD, number)) is None]
    return _measure_without(tx, _FORMAT, _QUEUE, _COUNTERS, *map(_span, unnamed))


def _measure_without(tx: ReadTransaction, *spans: Span) -> tuple[int, int]:
    """Return how many rows there are outside of some spans, and their bytes."""
    rows, size = tx.measure(*_ALL)
    for span in spans:
        found = tx.measure(*span)
        rows, size = rows - found[0], size - found[1]
    return rows, size
