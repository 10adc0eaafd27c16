"""Anchor or delta, and when to pack: decisions as pure functions that return a record with a reason.

Imports nothing of the project.
"""

from enum import Enum
from typing import NamedTuple

DEFAULT_SNAPSHOT_FREQUENCY = 50
"""Checkpoints from one anchor to the next at most: what a read folds. Anchors are spans only, so a low
number costs little."""
MAX_SNAPSHOT_FREQUENCY = 10_000
SMALL_SPANS = 16
"""Spans of a state, for each checkpoint since the last anchor, that an anchor is little for: it states them all again,
in some three bytes each, compressed with others' once packed."""
MIN_SMALL = 4
"""Checkpoints from one anchor to the next, at least, while the state is small."""

MIN_LOOSE_ROWS = 32
"""Rows of chunks, or records before an anchor, from which on a put packs: fewer compress badly and cost
a page half full each."""
MIN_LOOSE_BYTES = 256 * 1024
MAX_PACK_BYTES = 512 * 1024
"""Plain bytes that one put packs at most, so that no put takes much longer than the others."""
MAX_PACK_RECORDS = 256


class Reason(Enum):
    """Why a put writes an anchor, or a delta."""

    FIRST = "no parent"
    PARENT_MISSING = "the parent isn't stored"
    FORK = "the parent isn't the namespace's tip"
    DUE = "snapshot_frequency reached"
    SMALL = "an anchor is little beside the deltas since the last"
    CHANGED = "only what changed"


class Decision(NamedTuple):
    """What a put writes, and why."""

    anchor: bool
    reason: Reason


def decide(
    *,
    parent_named: bool,
    parent_stored: bool,
    parent_is_tip: bool,
    parent_depth: int,
    parent_spans: int | None,
    snapshot_frequency: int,
) -> Decision:
    """Decide whether a put writes an anchor.

    `parent_spans`: of all channels of the parent, None where reducers would have to run to state them.
    """
    if not parent_named:
        return Decision(True, Reason.FIRST)
    if not parent_stored:
        return Decision(True, Reason.PARENT_MISSING)
    if not parent_is_tip:  # no chain crosses a fork
        return Decision(True, Reason.FORK)
    if parent_depth + 1 >= snapshot_frequency:  # bounds what a read folds
        return Decision(True, Reason.DUE)
    if parent_spans is not None and parent_depth + 1 >= max(MIN_SMALL, parent_spans // SMALL_SPANS):
        return Decision(True, Reason.SMALL)
    return Decision(False, Reason.CHANGED)


def should_pack_chunks(loose_rows: int, loose_bytes: int) -> bool:
    """Decide whether a put packs the oldest loose chunk rows of a series."""
    return loose_rows >= 2 and (loose_rows >= MIN_LOOSE_ROWS or loose_bytes >= MIN_LOOSE_BYTES)


def should_pack_records(loose_before_anchor: int) -> bool:
    """Decide whether a put packs the records before the namespace's last anchor."""
    return loose_before_anchor >= MIN_LOOSE_ROWS
