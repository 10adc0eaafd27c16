"""Deleting checkpoints and threads, and collecting what nothing names any more.

Imports choosing, removing and names. The invariant: a deletion is one transaction; the rows of a deleted thread go
later, in bounded ones, and can't come back, because its number is never used again.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from deltastore.errors import CheckpointNotFoundError, ThreadNotFoundError
from deltastore.log import choosing, finding, keys, names, removing, rows, tagging
from deltastore.log.reading import View
from deltastore.storage.port import ReadTransaction, Storage, WriteTransaction

MAX_COLLECTED_ROWS = 1000
"""Rows that one transaction of a collection removes at most, so that writers wait for milliseconds."""
ABANDONED_MS = 3_600_000
"""After which time a copy that isn't named yet counts as abandoned, in milliseconds."""


class Outcome(NamedTuple):
    """What a deletion did: checkpoints that are gone, and how many of them left something hidden for others."""

    deleted: int
    hidden: int


NOTHING = Outcome(0, 0)


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
    """Delete a checkpoint with its pending writes and tags. Raises ThreadNotFoundError, CheckpointNotFoundError."""
    thread, header = require_thread(tx, name)
    view = View(tx, thread, name)
    namespace = rows.load_namespace(tx, thread, keys.encode_name(namespace_name))
    ulid = None if namespace is None else finding.find(view, namespace, id_)
    if namespace is None or ulid is None:
        raise CheckpointNotFoundError(f"thread {name!r} has no checkpoint {id_!r}; see its history")
    if namespace.front != rows.NATIVE:
        apply_choice(tx, view, header, choosing.these({namespace_name: {ulid}})(view))
        return
    removing.hide_or_remove(tx, view, header, namespace, ulid, hide=False)
    tx.delete_range(*keys.writes_of(thread, namespace.number, keys.encode_id(id_)))
    tagging.remove(tx, thread, namespace.number, (id_,))
    namespace.count -= 1
    header.checkpoints -= 1
    header.deleted += 1
    if namespace.tip == ulid:
        namespace.tip = None
    if namespace.latest == id_:
        namespace.latest = next((found for found, _, _ in finding.ids_down(view, namespace, None)), None)
    rows.store_namespace(tx, thread, namespace)
    rows.store_header(tx, thread, header)


class Chosen(NamedTuple):
    """What was chosen at a moment of a thread: its number, and its header's count of changes."""

    thread: int
    changes: int
    choice: choosing.Choice


def choose(tx: ReadTransaction, name: str, chooser: choosing.Choose) -> Chosen | None:
    """Choose what goes, outside the transaction that deletes it; None where there is no such thread."""
    found = finding.find_thread(tx, name)
    return None if found is None else Chosen(found[0], found[1].changes, chooser(View(tx, found[0], name)))


def delete(tx: WriteTransaction, name: str, chooser: choosing.Choose, chosen: Chosen | None = None) -> Outcome:
    """Delete what is chosen of a thread, in all its namespaces; an unknown thread is none.

    `chosen` spares choosing anew, under everybody's eyes, where the thread is still as it was then.
    """
    found = finding.find_thread(tx, name)
    if found is None:
        return NOTHING
    thread, header = found
    view = View(tx, thread, name)
    if chosen is not None and (chosen.thread, chosen.changes) == (thread, header.changes):
        return apply_choice(tx, view, header, chosen.choice)
    return apply_choice(tx, view, header, chooser(view))


def apply_choice(tx: WriteTransaction, view: View, header: rows.Header, choice: choosing.Choice) -> Outcome:
    """Do what was chosen, in the transaction that it was chosen in, or while the thread is as it was then."""
    before, collected = header.checkpoints, header.collected
    hidden = 0
    for made in choice.plans:
        plan = made._replace(namespace=replace(made.namespace))  # a copy: the storage may ask to run this again
        if plan.removed or plan.rewritten or plan.visible:
            removing.apply(tx, view, header, plan)
            hidden += sum(map(len, plan.remnants))
            rows.store_namespace(tx, view.thread, plan.namespace)
    for namespace in choice.dropped:
        removing.drop_namespace(tx, view.thread, header, namespace)
    if header.collected != collected:  # else nothing went
        rows.store_header(tx, view.thread, header)
    return Outcome(before - header.checkpoints, hidden)


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
