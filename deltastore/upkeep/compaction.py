"""Compaction: rows packed as well as they can be, without what nothing needs any more.

Works beside readers and writers, a thread at a time. Imports compaction_thread and training. The invariant: whenever
it is stopped, each checkpoint reads as before; running it again goes on where something is left to do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deltastore.errors import CorruptionError, InvalidInputError
from deltastore.log import dictionaries
from deltastore.log.listing import readable_threads
from deltastore.store import Store, check_open, check_several
from deltastore.upkeep import repacking, training
from deltastore.upkeep.compaction_thread import ThreadCompaction, ThreadOutcome, drop_quarantined
from deltastore.upkeep.progress import Progress

MAX_LEVEL = 19
"""The highest of zstd's levels that doesn't need far more memory, of who reads too."""

_NO_DICTIONARY = "no dictionary, as asked for"


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did. Bytes are those of rows, as stored."""

    threads: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    chunks_dropped: int
    quarantined_dropped: int
    """Quarantined rows, which only erasing removes."""
    skipped: tuple[str, ...]
    """Threads of which something stays for the next time, because others wrote to them all the while."""
    damaged: dict[str, str]
    """Threads that can't be compacted, as far as it went, and what was found."""
    dictionary: str
    """What was decided of a dictionary, and why."""


def compact(
    store: Store,
    *,
    threads: Iterable[str] | None = None,
    erase: bool = False,
    level: int = repacking.DEFAULT_LEVEL,
    dictionary: str | None = None,
    progress: Progress | None = None,
) -> CompactReport:
    """Compact all threads of a store, or these; unknown ones are none. Others may read and write meanwhile.

    `erase`: no pack may keep a chunk that nothing needs, however much else is in it, nor may a dictionary that was
    trained on content; quarantined rows go too, for what was deleted may stand in them. `level`: zstd's, 1 to 19;
    lower ones are faster. `dictionary`: `"shape"` (field names and the like, nothing that anybody wrote), `"content"`
    (smaller still; only where all threads belong to one tenant) or `"none"`; what was asked for stays, and a store
    that was never asked for one gets one of shape if it pays. `progress` counts threads. A damaged thread is told of
    in the report, and the others are compacted.
    Raises InvalidInputError, StorageError, StoreFullError.
    """
    check_open(store)
    check_level(level)
    check_several(threads, "threads")
    store.collect()
    decided = _settle(store, dictionary, erase=erase, whole=threads is None)
    chosen = list(threads) if threads is not None else [row.name for row in readable_threads(store.log.storage)]
    outcomes: dict[str, ThreadOutcome] = {}
    damaged: dict[str, str] = {}
    for done, name in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        try:
            outcome = ThreadCompaction(store, name, erase=erase, level=level).run()
        except CorruptionError as error:
            damaged[name] = str(error)
            continue
        if outcome is not None:
            outcomes[name] = outcome
    quarantined = sum(outcome.quarantined_dropped for outcome in outcomes.values())
    if erase and threads is None:
        quarantined += drop_quarantined(store.log.storage, 0)
    if not damaged:
        training.remove_unneeded(store)
    if progress is not None:
        progress(len(chosen), len(chosen))
    found = outcomes.values()
    return CompactReport(
        len(outcomes),
        sum(outcome.rows_before for outcome in found),
        sum(outcome.rows_after for outcome in found),
        sum(outcome.bytes_before for outcome in found),
        sum(outcome.bytes_after for outcome in found),
        sum(outcome.chunks_dropped for outcome in found),
        quarantined,
        tuple(name for name, outcome in outcomes.items() if outcome.skipped),
        damaged,
        decided,
    )


def check_level(level: int) -> None:
    """Refuse what is no level of compression. Raises InvalidInputError."""
    if type(level) is not int or not 1 <= level <= MAX_LEVEL:
        raise InvalidInputError(f"level is {level!r}; expected an int from 1 to {MAX_LEVEL}")


def _settle(store: Store, wanted: str | None, *, erase: bool, whole: bool) -> str:
    """See to it that the dictionary in use is of the kind wanted; return what was decided."""
    if wanted is not None and wanted not in dictionaries.KINDS:
        raise InvalidInputError(f"dictionary {wanted!r}; expected one of {', '.join(dictionaries.KINDS)}")
    kind = training.kind_in_use(store)
    forgets = erase and kind == dictionaries.CONTENT
    if forgets and not whole:
        raise InvalidInputError(
            "some threads alone can't be erased: the store's dictionary was trained on the content of all. "
            "Compact all threads, or go over to dictionary='shape' first"
        )
    wanted = wanted or kind or dictionaries.SHAPE
    if wanted == kind and not forgets:
        return _NO_DICTIONARY if kind == dictionaries.NONE else f"the dictionary in use stays ({kind})"
    none = training.Training(dictionaries.NONE, b"", _NO_DICTIONARY)
    made = none if wanted == dictionaries.NONE else training.plan(store, wanted)
    training.apply(store, made)
    return made.reason
