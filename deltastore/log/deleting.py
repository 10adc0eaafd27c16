"""Deleting checkpoints and threads, and collecting what nothing names any more.

Imports removing and names. The invariant: a deletion is one small transaction; the rows of a deleted thread go later,
in bounded ones, and can't come back, because its number is never used again.
"""

from dataclasses import dataclass

from deltastore.errors import CheckpointNotFoundError, FrontMismatchError, ThreadNotFoundError
from deltastore.log import finding, keys, names, rows
from deltastore.log.reading import View
from deltastore.log.removing import hide_or_remove
from deltastore.storage.port import ReadTransaction, Storage, WriteTransaction

MAX_COLLECTED_ROWS = 1000
"""Rows that one transaction of a collection removes at most, so that writers wait for milliseconds."""
ABANDONED_MS = 3_600_000
"""After which time a copy that isn't named yet counts as abandoned, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed."""

    threads: int
    rows: int


def require_thread(tx: ReadTransaction, name: str) -> tuple[int, rows.Header]:
    """Return a thread's number and header. Raises ThreadNotFoundError."""
    found = finding.find_thread(tx, name)
    if found is None:
        raise ThreadNotFoundError(f"no thread is named {name!r}; see the store's threads")
    return found


def delete_checkpoint(tx: WriteTransaction, name: str, namespace_name: str, id_: str) -> None:
    """Delete a checkpoint with its pending writes.

    Raises ThreadNotFoundError, CheckpointNotFoundError, FrontMismatchError.
    """
    thread, header = require_thread(tx, name)
    view = View(tx, thread, name)
    namespace = rows.load_namespace(tx, thread, keys.encode_name(namespace_name))
    ulid = None if namespace is None else finding.find(view, namespace, id_)
    if namespace is None or ulid is None:
        raise CheckpointNotFoundError(f"thread {name!r} has no checkpoint {id_!r}; see its history")
    if namespace.front != rows.NATIVE:
        # its delta channels are rebuilt by walks over ancestors and their writes, which only the graph can fold away
        raise FrontMismatchError(
            f"thread {name!r}, namespace {namespace_name!r} is written by the {rows.FRONT_NAMES[namespace.front]} API, "
            "whose checkpoints can't be deleted one by one yet; delete the thread"
        )
    hide_or_remove(tx, view, header, namespace, ulid, hide=False)
    prefix = keys.writes(thread, namespace.number, keys.encode_id(id_))
    tx.delete_range(prefix, prefix + b"\xff" * (keys.HASH_BYTES + 1))
    namespace.count -= 1
    header.checkpoints -= 1
    if namespace.tip == ulid:
        namespace.tip = None
    if namespace.latest == id_:
        namespace.latest = next((found for found, _, _ in finding.ids_down(view, namespace, None)), None)
    rows.store_namespace(tx, thread, namespace)
    rows.store_header(tx, thread, header)


def delete_thread(tx: WriteTransaction, name: str, now_ms: int) -> bool:
    """Make a thread's name lead nowhere and queue its rows; tell whether there was one."""
    encoded = keys.encode_name(name)
    thread = names.find(tx, keys.THREAD, encoded)
    if thread is None:
        return False
    names.remove(tx, keys.THREAD, encoded, thread)
    rows.enqueue(tx, rows.Queued(thread, rows.DELETED, now_ms))
    return True


def collect(storage: Storage, now_ms: int) -> Collected:
    """Remove the rows of deleted threads and abandoned copies, in bounded transactions. May be killed and run again."""
    with storage.read() as tx:
        queue = rows.load_queue(tx)
    threads = removed = 0
    for queued in queue:
        if queued.state == rows.FILLING and now_ms - queued.since_ms < ABANDONED_MS:
            continue
        removed += _collect_thread(storage, queued)
        threads += 1
    return Collected(threads, removed)


def _collect_thread(storage: Storage, queued: rows.Queued) -> int:
    thread = queued.thread
    prefix = keys.thread(thread)

    def some(tx: WriteTransaction) -> int:
        if rows.get(tx, keys.queued(thread)) is None:
            return 0  # the copy was finished, or others collected it
        rows.enqueue(tx, rows.Queued(thread, rows.DELETED, queued.since_ms))  # so that a copy can't go on
        count = tx.delete_range(prefix, keys.end_of(prefix), limit=MAX_COLLECTED_ROWS)
        if count < MAX_COLLECTED_ROWS:
            tx.delete(keys.queued(thread))
        return count

    removed = 0
    while True:
        count = names.in_write(storage, (thread,), some)
        removed += count
        if count < MAX_COLLECTED_ROWS:
            return removed
