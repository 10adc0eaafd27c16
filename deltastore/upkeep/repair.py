"""Repair: what can't be read is quarantined, and every index is made anew of what it is about. Nothing is invented.

Works beside readers and writers: a plan is made in one read transaction, and applied in bounded ones, each of which
leaves a store that check and repair can go on from. Imports the other modules of repair. The invariant: a checkpoint
that could be read is read as before, and one that can't is named in the report.
"""

from dataclasses import replace

from deltastore.codec.primitives import seal
from deltastore.log import keys, names
from deltastore.storage.port import WriteTransaction
from deltastore.store import Store, check_open
from deltastore.upkeep.progress import Progress
from deltastore.upkeep.repair_plan import Change, Notes, RepairPlan, RepairReport, StorePart, ThreadPart, quarantined_by
from deltastore.upkeep.repair_store import plan_store
from deltastore.upkeep.repair_thread import plan_thread

MAX_CHANGED_ROWS = 500
MAX_CHANGED_BYTES = 2 * 1024 * 1024
"""What one transaction of a repair changes at most, so that other writers wait for milliseconds."""
MAX_TRIES = 5
"""How often what others changed meanwhile is planned anew."""
STORE = "store"
"""How the store's own rows are called among what was skipped."""


def plan_repair(store: Store, *, progress: Progress | None = None) -> RepairPlan:
    """Find out what a repair would do, without writing. `progress` is told of threads.

    Raises ClosedError, StorageError, InvalidInputError.
    """
    check_open(store)
    parts: list[ThreadPart] = []
    left: list[str] = []
    with store.log.storage.read() as tx:
        now_ms = store.log.now_ms()
        store_part, known = plan_store(tx, now_ms)
        threads = sorted((number, name) for (kind, number), name in known.items() if kind == keys.THREAD)
        for done, (number, name) in enumerate(threads, 1):
            part, problems = plan_thread(tx, number, name, known, now_ms)
            parts += [part] if part is not None else []
            left += problems
            if progress is not None:
                progress(done, len(threads))
    return RepairPlan(store_part, tuple(parts), tuple(left))


def apply_repair(store: Store, plan: RepairPlan) -> RepairReport:
    """Do what a plan says, but for what others changed since: that is left as it is, and named in the report.

    Others may read and write meanwhile. May be killed at any moment, and run again.
    Raises StoreFullError, StorageError.
    """
    check_open(store)
    done: list[Notes] = []
    skipped: list[str] = []
    quarantined = 0
    if plan.store is not None:
        part = plan.store
        if names.in_write(store.log.storage, (), lambda tx: _apply_store(tx, part)):
            done.append(part.notes)
            quarantined += quarantined_by(part.changes)
        else:
            skipped.append(STORE)
    for thread in plan.threads:
        if _apply_thread(store, thread):
            done.append(thread.notes)
            quarantined += quarantined_by(thread.changes)
        else:
            skipped.append(thread.name)
    return RepairReport(
        tuple(action for notes in done for action in notes.actions),
        tuple(lost for notes in done for lost in notes.lost),
        quarantined,
        tuple(skipped),
        plan.left,
    )


def repair(store: Store, *, progress: Progress | None = None) -> RepairReport:
    """Plan a repair and apply it, and plan anew what others changed meanwhile, a few times.

    Raises what `plan_repair` and `apply_repair` raise.
    """
    plan = plan_repair(store, progress=progress)
    report = apply_repair(store, plan)
    for _ in range(MAX_TRIES - 1):
        if not report.skipped:
            break
        plan = _plan_again(store, report.skipped)
        again = apply_repair(store, plan)
        report = replace(
            again,
            actions=report.actions + again.actions,
            lost=report.lost + again.lost,
            quarantined=report.quarantined + again.quarantined,
            left=tuple(dict.fromkeys(report.left + again.left)),
        )
    return report


def _plan_again(store: Store, skipped: tuple[str, ...]) -> RepairPlan:
    """Plan what was skipped: one thread at a time is planned faster than others write to it."""
    if STORE in skipped:
        return plan_repair(store)
    parts: list[ThreadPart] = []
    left: list[str] = []
    with store.log.storage.read() as tx:
        now_ms = store.log.now_ms()
        _, known = plan_store(tx, now_ms)
        for name in skipped:
            number = names.find(tx, keys.THREAD, keys.encode_name(name))
            part, problems = (None, []) if number is None else plan_thread(tx, number, name, known, now_ms)
            parts += [part] if part is not None else []
            left += problems
    return RepairPlan(None, tuple(parts), tuple(left))


def _is_as_seen(tx: WriteTransaction, changes: tuple[Change, ...]) -> bool:
    return tx.get_many([change.key for change in changes]) == [change.before for change in changes]


def _write(tx: WriteTransaction, changes: tuple[Change, ...]) -> None:
    for change in changes:
        if change.after is None:
            tx.delete(change.key)
        else:
            tx.put(change.key, change.after)


def _apply_store(tx: WriteTransaction, part: StorePart) -> bool:
    """Write the store's rows, all or none: names lead both ways in every moment."""
    if not _is_as_seen(tx, part.changes):
        return False
    _write(tx, part.changes)
    for kind, used in part.counters:
        behind = used - names.new_number(tx, kind)
        if behind > 0:
            tx.mint(keys.counter(kind), behind)
    return True


def _apply_thread(store: Store, part: ThreadPart) -> bool:
    """Write a thread's rows in bounded transactions; False where it isn't as it was seen any more."""
    header_key = keys.header(part.number)
    seen = part.seen
    for nth, batch in enumerate(_batches(part.changes), 1):
        # every transaction that changes a row counts, and what caches hold of this thread isn't so any more
        header = replace(part.header, changes=part.header.changes + nth, collected=part.header.collected + nth)
        made = seal(header_key, header.encode())
        change = Change(header_key, seen, made)

        def work(tx: WriteTransaction, changes: tuple[Change, ...] = (change, *batch)) -> bool:
            number = names.find(tx, keys.THREAD, keys.encode_name(part.name))
            if number != part.number or not _is_as_seen(tx, changes):
                return False
            _write(tx, changes)
            return True

        if not names.in_write(store.log.storage, (part.number,), work):
            return False
        seen = made
    return True


def _batches(changes: tuple[Change, ...]) -> list[tuple[Change, ...]]:
    """Cut changes into what one transaction may do; one at least, for the header."""
    out: list[list[Change]] = [[]]
    size = 0
    for change in changes:
        if out[-1] and (len(out[-1]) >= MAX_CHANGED_ROWS or size >= MAX_CHANGED_BYTES):
            out.append([])
            size = 0
        out[-1].append(change)
        size += len(change.after or b"")
    return [tuple(batch) for batch in out]
