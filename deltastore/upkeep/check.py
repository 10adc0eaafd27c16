"""Check: proves that every checkpoint rebuilds, and that every row is needed, counted as garbage, or reported.

Reads everything once, in one read transaction, and writes nothing; user objects are never decoded. Before any row the
pages of the file are looked at. This module checks the store's own rows, `check_thread` each thread's. Imports opening
and below. The invariant: it reports damage as problems and raises only what keeps it from reading at all.
"""

from collections.abc import Callable, Iterable, Iterator
from os import PathLike

from deltastore.codec.primitives import unseal
from deltastore.errors import CorruptionError, MismatchError
from deltastore.log import dictionaries, keys, names, retention, rows
from deltastore.opening import check_path, is_url
from deltastore.opening import open as open_store
from deltastore.storage.port import ReadTransaction, Storage
from deltastore.store import Store
from deltastore.upkeep.check_thread import ThreadCheck, check_quarantine, nameless
from deltastore.upkeep.progress import Progress
from deltastore.upkeep.report import MAX_PROBLEMS, CheckReport, Problem, Tally

__all__ = ["MAX_PROBLEMS", "CheckReport", "Problem", "check"]


KINDS = (keys.THREAD, keys.CHANNEL, keys.REDUCER, keys.TAG)
"""The kinds of names."""


Stage = Callable[[str], object]


def check(
    store: Store | str | PathLike[str],
    *,
    progress: Progress | None = None,
    isolated: bool = False,
    stage: Stage | None = None,
) -> CheckReport:
    """Check a whole store, given open or by its path. `progress` is told of threads, `stage` of the steps between.

    `isolated`: in a process of its own, for on a file whose tree is damaged in a way that the look at its pages doesn't
    see the engine may crash; that is a problem of the report then. `stage` is not told there; a store in memory, or on
    a server, has no file, and is checked here. Raises ClosedError, StorageError, and for a path what `open` does;
    damage is in the report, but for what keeps the store from being opened.
    """
    if isinstance(store, Store):
        location, in_file = store.log.storage.location, _has_file(store.log.storage)
    else:
        location = check_path(store)
        in_file = not is_url(location)
    if isolated and in_file:
        from deltastore.upkeep.isolated import check_isolated

        return check_isolated(location, progress)
    if isinstance(store, Store):
        return _check(store, progress, stage or (lambda _: None))
    with open_store(location, create=False) as opened:
        return _check(opened, progress, stage or (lambda _: None))


def _has_file(storage: Storage) -> bool:
    from deltastore.storage.memory import MemoryStorage

    return not isinstance(storage, MemoryStorage) and not is_url(storage.location)


def _check(store: Store, progress: Progress | None, stage: Stage) -> CheckReport:
    tally = Tally()
    stage("the pages of the file were read")
    for what in _damaged_places(store.log.storage):
        tally.file_damaged = True
        tally.problem("file", what)
    if tally.file_damaged:
        tally.problem("file", "so the rows weren't looked at, for the engine may crash on it; restore from a backup")
        return tally.report()
    stage("the store's own rows were read")
    with store.log.storage.read() as tx:
        named, queued, known = _check_store_rows(tx, tally)
        tally.queued_threads = len(queued)
        total = len(named)
        for number in _thread_numbers(tx, tally):
            if number in named and number in queued:
                tally.problem(f"thread {named[number]!r}", "it is named, and queued to be removed")
            if number in named:
                if progress is not None:
                    progress(tally.threads, total)
                tally.threads += 1
                thread = ThreadCheck(tx, number, named.pop(number), tally)
                try:
                    thread.run()
                except (CorruptionError, MismatchError) as error:
                    tally.problem(f"thread {number}", error)
                for what in nameless(thread.used, known):
                    tally.problem(thread.where, what)
            elif number not in queued:
                tally.problem(f"thread {number}", "rows of a thread that nothing names and nothing queues")
        for number, name in named.items():
            tally.problem(f"thread {name!r}", f"its number {number} has no rows")
    return tally.report()


def _damaged_places(storage: Storage) -> list[str]:
    """Return what is wrong with the pages of a storage's file; nothing where it has none."""
    if not _has_file(storage):
        return []
    from deltastore.storage.lmdb import LmdbStorage

    return storage.damaged_places() if isinstance(storage, LmdbStorage) else []


def _thread_numbers(tx: ReadTransaction, tally: Tally) -> Iterator[int]:
    """Iterate over the numbers of threads that have rows; report rows whose keys hold none."""
    place, end = b"", b"\xff" * keys.THREAD_BYTES
    while True:
        (found,) = tx.seek_many([(place, end)])
        if found is None:
            return
        key, _ = found
        if len(key) <= keys.THREAD_BYTES:
            tally.problem(key.hex(), "a row whose key isn't of this format")
            place = key + b"\0"
            continue
        number = int.from_bytes(key[: keys.THREAD_BYTES], "big")
        if number:  # 0 is the store itself
            yield number
        place = keys.thread(number + 1)


def _check_store_rows(tx: ReadTransaction, tally: Tally) -> tuple[dict[int, str], set[int], set[tuple[bytes, int]]]:
    """Check names both ways; return the named threads, the queued ones, and all numbers that have names, by kind."""
    by_name: dict[tuple[bytes, int], bytes] = {}
    by_number: dict[tuple[bytes, int], bytes] = {}
    queued: set[int] = set()
    for key, row in tx.scan(keys.STORE, keys.thread(1)):
        kind, rest = key[keys.THREAD_BYTES : keys.THREAD_BYTES + 1], key[keys.THREAD_BYTES + 1 :]
        try:
            match kind:
                case b"H":
                    by_name |= _names(key, unseal(key, row), rest[:1], tally)
                case b"N":
                    by_number[rest[:1], int.from_bytes(rest[1:], "big")] = unseal(key, row)
                case b"Q":
                    rows.parse(key, unseal(key, row))
                    if len(rest) != keys.THREAD_BYTES:
                        tally.problem(key.hex(), "a queue row without a thread's number")
                    queued.add(int.from_bytes(rest, "big"))
                case b"F":
                    rows.parse(key, unseal(key, row))
                case b"C" | b"q":
                    pass  # each looked at apart
                case b"K":
                    retention.decode(key, unseal(key, row))
                case b"D":
                    dictionaries.decode(key, unseal(key, row))
                case _:
                    tally.problem(key.hex(), "a store row of unknown kind")
        except CorruptionError as error:
            tally.problem(key.hex(), error)
    check_quarantine(tx, 0, "store", tally)
    _check_counters(tx, by_number, tally)
    for entry in by_name.items() ^ by_number.items():
        (kind, number), name = entry
        shown = name.decode("utf-8", "backslashreplace")
        tally.problem(f"name {shown!r}", f"number {number} of kind {kind!r} is named one way only")
    threads = {number: keys.decode_name(name) for (kind, number), name in by_name.items() if kind == keys.THREAD}
    return threads, queued, set(by_number)


def _check_counters(tx: ReadTransaction, named: Iterable[tuple[bytes, int]], tally: Tally) -> None:
    """Report counters that would give a number again."""
    greatest: dict[bytes, int] = {}
    for kind, number in named:
        greatest[kind] = max(number, greatest.get(kind, 0))
    for kind in KINDS:
        key = keys.counter(kind)
        try:
            following = tx.following(key) + names.first_number(kind) - 1
        except CorruptionError as error:
            tally.problem("store", error)
            continue
        used = greatest.get(kind, 0)
        if following <= used:
            tally.problem("store", f"number {used} of kind {kind.decode()} has a name, and would be given again")


def _names(key: bytes, row: bytes, kind: bytes, tally: Tally) -> dict[tuple[bytes, int], bytes]:
    """Return the names that a row lists, by kind and number. Raises ChecksumError."""
    entries = names.parse_entries(key, row)
    if not entries:
        tally.problem(key.hex(), "a row of names without a name")
    for name, _ in entries:
        text = keys.decode_name(name)
        if keys.of_name(kind, name) != key:
            tally.problem(key.hex(), f"the name {text!r} stands under another's hash")
    return {(kind, number): name for name, number in entries}
