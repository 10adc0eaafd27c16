"""Threads in pages, the newest created first, each with what describes it; no chunk is read.

Imports finding, reading, names and rows. The invariant: what a listing needs of a page's threads is read together, in a
short transaction; a thread that can't be read raises when it is reached, naming it, and hides none before it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from deltastore import ulid as ulids
from deltastore.codec.glance import glance
from deltastore.codec.primitives import unseal
from deltastore.errors import BrokenChainError, ChecksumError, CorruptionError, DeltastoreError, ThreadNotFoundError
from deltastore.log import finding, keys, names, rows
from deltastore.log.announcing import DICTIONARY_IN_USE
from deltastore.log.dictionaries import Dictionaries
from deltastore.log.reading import View, require
from deltastore.storage.port import ReadTransaction, Row, Storage, Wanted

PAGE = 100
"""Threads that are read in one transaction: a few milliseconds."""

M = TypeVar("M")


class ThreadRow(NamedTuple):
    """A thread as stored. `metadata`: that of the checkpoint that describes it, encoded; None where there is none."""

    number: int
    name: str
    header: rows.Header
    metadata: bytes | None = None


class Damaged(NamedTuple):
    """A thread that can't be read, by the name that leads to it, as far as that can be read."""

    number: int
    name: str
    error: CorruptionError


def list_threads(
    storage: Storage,
    front: int,
    accept: Callable[[ThreadRow], M | None],
    *,
    before: int | None,
    limit: int | None,
) -> Iterator[tuple[ThreadRow, M, int]]:
    """Iterate over threads that have checkpoints: each with what `accept` makes of it, and its stored bytes.

    `accept` runs outside transactions, and returns None to leave a thread out: only those that stay are measured.
    What it raises is raised when the thread is reached. Raises ChecksumError, BrokenChainError.
    """
    left = limit
    while left != 0:
        page = _read_page(storage, before, front)
        kept: list[tuple[ThreadRow, M]] = []
        failure: DeltastoreError | None = None
        for row in page:
            before = row.number
            try:
                if isinstance(row, Damaged):
                    raise row.error
                made = accept(row) if row.header.checkpoints else None
            except DeltastoreError as error:
                failure = _naming(row.name, error)
                break
            if made is not None:
                kept.append((row, made))
            if len(kept) == left:
                break
        for (row, made), size in zip(kept, _sizes(storage, [row.number for row, _ in kept]), strict=True):
            if size:  # else deleted since
                yield row, made, size
                left = None if left is None else left - 1
        if failure is not None:
            raise failure
        if len(page) < PAGE:
            return


def all_threads(storage: Storage) -> Iterator[ThreadRow]:
    """Iterate over all threads by their headers alone. Raises ChecksumError when it reaches a damaged one."""
    for row in readable_threads(storage):
        if isinstance(row, Damaged):
            raise _naming(row.name, row.error)
        yield row


def readable_threads(storage: Storage) -> Iterator[ThreadRow | Damaged]:
    """Iterate over all threads by their headers alone, the newest created first, damaged ones among them."""
    before: int | None = None
    while True:
        page = _read_page(storage, before, None)
        for row in page:
            before = row.number
            yield row
        if len(page) < PAGE:
            return


@names.again
def number_of(storage: Storage, name: str) -> int:
    """Return a thread's number, also of a damaged one. Raises ThreadNotFoundError."""
    with storage.read() as tx:
        number = names.find(tx, keys.THREAD, keys.encode_name(name))
    if number is None:
        raise ThreadNotFoundError(f"no thread is named {name!r}, so none stands before it; list from the beginning")
    return number


def _naming(name: str, error: DeltastoreError) -> DeltastoreError:
    """Return an error as of the thread that it is about."""
    named = type(error)(f"thread {name!r}: {error}")
    named.__cause__ = error
    return named


@names.again
def _read_page(storage: Storage, before: int | None, front: int | None) -> list[ThreadRow | Damaged]:
    with storage.read() as tx:
        return _page(tx, before, PAGE, front)


@names.again
def _sizes(storage: Storage, numbers: Sequence[int]) -> list[int]:
    """Return the stored bytes of threads; 0 where a thread is gone."""
    if not numbers:
        return []
    with storage.read() as tx:
        return [size for _, size in tx.measure_many([(keys.thread(n), keys.thread(n + 1)) for n in numbers])]


def _page(tx: ReadTransaction, before: int | None, limit: int, front: int | None) -> list[ThreadRow | Damaged]:
    """Return up to `limit` threads with numbers below `before`, the greatest first; given a front, with metadata."""
    prefix = keys.numbers_of(keys.THREAD)
    upper = keys.end_of(prefix) if before is None else keys.of_number(keys.THREAD, before)
    if tx.remote:
        tx.prefetch(Wanted(ends=((prefix, upper, limit),)))
    named = list(islice(tx.scan(prefix, upper, reverse=True), limit))
    numbers = [int.from_bytes(key[-keys.NUMBER_BYTES :], "big") for key, _ in named]
    if tx.remote and front is not None:
        tx.prefetch(Wanted(keys=[keys.namespace(number, b"") for number in numbers], ends=(DICTIONARY_IN_USE,)))
    out: list[ThreadRow | Damaged] = []
    for name, number, sealed in zip(named, numbers, tx.get_many(list(map(keys.header, numbers))), strict=True):
        try:
            out.append(_header(number, sealed))
        except CorruptionError as error:
            out.append(Damaged(number, _name(name, number), error))
    return out if front is None else _describe(tx, out, front)


def _header(number: int, sealed: bytes | None) -> ThreadRow:
    key = keys.header(number)
    if sealed is None:
        raise ChecksumError(f"number {number} has a name but no header: rows are missing; run check")
    header = rows.Header.decode(key, unseal(key, sealed))
    return ThreadRow(number, keys.decode_name(header.name), header)


def _name(named: Row, number: int) -> str:
    """Return the name of a thread whose header doesn't tell it."""
    try:
        return keys.decode_name(unseal(*named))
    except ChecksumError:
        return f"number {number}"


def _describe(tx: ReadTransaction, found: Iterable[ThreadRow | Damaged], front: int) -> list[ThreadRow | Damaged]:
    """Add the metadata of the latest checkpoint of each thread's root namespace."""
    out = {row.number: row for row in found}
    filled = [row for row in out.values() if isinstance(row, ThreadRow) and row.header.checkpoints]
    located: list[tuple[ThreadRow, rows.Namespace]] = []
    roots = tx.get_many([keys.namespace(row.number, b"") for row in filled])
    for row, sealed in zip(filled, roots, strict=True):
        try:
            namespace = _namespace(tx, row.number, sealed, front)
        except CorruptionError as error:
            out[row.number] = Damaged(row.number, row.name, error)
        else:
            if namespace is not None:
                located.append((row, namespace))
    tips = tx.seek_many([_tip_range(row.number, namespace) for row, namespace in located])
    for (row, namespace), tip in zip(located, tips, strict=True):
        try:
            out[row.number] = ThreadRow(row.number, row.name, row.header, _metadata(tx, row, namespace, tip))
        except CorruptionError as error:
            out[row.number] = Damaged(row.number, row.name, error)
    return list(out.values())


def _namespace(tx: ReadTransaction, thread: int, sealed: bytes | None, front: int) -> rows.Namespace | None:
    """Return the namespace whose latest checkpoint describes a thread.

    The root's; of LangGraph's threads that lack one, the first. A thread without a native root is LangGraph's as a
    rule, perhaps with thousands of namespaces, so for the native API nobody looks further.
    """
    key = keys.namespace(thread, b"")
    found = [] if sealed is None else rows.decode_namespaces(key, unseal(key, sealed))
    root = [namespace for namespace in found if namespace.name == b""]
    for namespace in root if front == rows.NATIVE else chain(root, _others(tx, thread)):
        finding.check_latest(namespace)
        if namespace.front == front and namespace.latest is not None:
            return namespace
    return None


def _others(tx: ReadTransaction, thread: int) -> Iterator[rows.Namespace]:
    """Iterate over a thread's namespaces; they are read when the first is asked for."""
    yield from rows.load_namespaces(tx, thread)


def _tip_range(thread: int, namespace: rows.Namespace) -> tuple[bytes, bytes]:
    prefix = keys.records(thread, namespace.number)
    return (prefix, prefix) if namespace.tip is None else (prefix + namespace.tip, keys.end_of(prefix))


def _metadata(tx: ReadTransaction, row: ThreadRow, namespace: rows.Namespace, tip: Row | None) -> bytes:
    """Return the metadata of the latest checkpoint: mostly the tip, which is always in a row of its own."""
    latest = namespace.latest or ""
    if tip is not None and tip[0][-ulids.ULID_BYTES :] == namespace.tip:
        seen = glance(unseal(*tip), Dictionaries(tx))
        if seen is not None and not seen.is_hidden and (seen.id or ulids.to_text(namespace.tip)) == latest:
            return seen.metadata
    view = View(tx, row.number, row.name)
    ulid = finding.find(view, namespace, latest)
    if ulid is None:
        raise BrokenChainError(
            f"the latest checkpoint {latest!r} is missing. "
            "Rows were lost or damaged; run check, and restore from a backup"
        )
    return require(view, namespace, ulid).metadata
