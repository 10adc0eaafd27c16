"""Copying a thread: its rows under a fresh number, then the name. Imports deleting and names.

The invariant: the source is read in one moment; until the last transaction nothing names the copy; a copy that dies
leaves a queue row from which `collect` finds it.
"""

from deltastore.codec.primitives import seal, unseal
from deltastore.errors import ConflictError, InvalidInputError, ThreadExistsError
from deltastore.log import dictionaries, keys, names, rows
from deltastore.log.deleting import require_thread
from deltastore.storage.port import Row, Storage, WriteTransaction

MAX_COPIED_ROWS = 1000
MAX_COPIED_BYTES = 4 * 1024 * 1024
"""What one transaction of a copy writes at most, so that other writers wait for milliseconds."""


def copy_thread(storage: Storage, source: str, target: str, now_ms: int) -> None:
    """Copy a thread with all its namespaces. Raises ThreadNotFoundError, ThreadExistsError, InvalidInputError."""
    if source == target:
        raise InvalidInputError(f"thread {source!r} can't be copied onto itself; name another target")
    with storage.read() as reader:
        number, _ = require_thread(reader, source)
        _refuse_taken(names.find(reader, keys.THREAD, keys.encode_name(target)), target)
        fresh = begin_filling(storage, now_ms)
        prefix, quarantined = keys.thread(number), keys.quarantine(number)
        batch: list[Row] = []
        size = 0
        needed: set[int] = set()
        for key, row in reader.scan(prefix, keys.end_of(prefix)):
            if key.startswith(quarantined):
                continue  # what can't be read stays with the original
            moved = keys.thread(fresh) + key[len(prefix) :]
            value = unseal(key, row)
            needed |= dictionaries.needed_by(key, value)
            if key == keys.header(number):
                header = rows.Header.decode(key, value)
                header.name, header.created_ms, header.updated_ms = keys.encode_name(target), now_ms, now_ms
                value = header.encode()
            batch.append((moved, seal(moved, value)))
            size += len(row)
            if len(batch) >= MAX_COPIED_ROWS or size >= MAX_COPIED_BYTES:
                _write(storage, source, fresh, batch)
                batch, size = [], 0

    def finish(tx: WriteTransaction) -> None:
        encoded = keys.encode_name(target)
        _refuse_taken(names.find(tx, keys.THREAD, encoded), target)
        require_filling(tx, fresh, f"the copy of {source!r}", "copy again")
        for key, row in batch:
            tx.put(key, row)
        dictionaries.touch(tx, needed)
        names.assign(tx, keys.THREAD, encoded, fresh)
        tx.delete(keys.queued(fresh))

    names.in_write(storage, (fresh,), finish)


def _write(storage: Storage, source: str, thread: int, batch: list[Row]) -> None:
    def work(tx: WriteTransaction) -> None:
        require_filling(tx, thread, f"the copy of {source!r}", "copy again")
        for key, row in batch:
            tx.put(key, row)

    names.in_write(storage, (thread,), work)


def begin_filling(storage: Storage, now_ms: int) -> int:
    """Return a fresh number for a thread's rows, queued so that a collection finds them until a name leads there."""

    def work(tx: WriteTransaction) -> int:
        fresh = names.new_number(tx, keys.THREAD)
        rows.enqueue(tx, rows.Queued(fresh, rows.FILLING, now_ms))
        return fresh

    return names.in_write(storage, (), work)


def require_filling(tx: WriteTransaction, thread: int, what: str, remedy: str) -> None:
    """Raise where a collection took this for abandoned: rows written after it would be found by nothing.

    Raises ConflictError.
    """
    row = rows.get(tx, keys.queued(thread))
    if row is None or rows.parse(keys.queued(thread), row)[0] != rows.FILLING:
        raise ConflictError(f"{what} took so long that it was collected as abandoned; {remedy}")


def _refuse_taken(number: int | None, target: str) -> None:
    if number is not None:
        raise ThreadExistsError(f"a thread is named {target!r} already; delete it first, or copy to another name")
