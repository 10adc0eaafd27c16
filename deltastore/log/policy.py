"""Anchor or delta, and when to pack: decisions as pure functions that return a record with a reason.

Imports nothing of the project.
"""

from enum import Enum
from typing import NamedTuple

DEFAULT_SNAPSHOT_FREQUENCY = 50
"""Checkpoints from one anchor to the next: what a read folds at most. Anchors are spans only, so a low
number costs little."""
MAX_SNAPSHOT_FREQUENCY = 10_000

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
    CHANGED = "only what changed"


class Decision(NamedTuple):
    """What a put writes, and why."""

    anchor: bool
    reason: Reason


def decide(
    *, parent_named: bool, parent_stored: bool, parent_is_tip: bool, parent_depth: int, snapshot_frequency: int
) -> Decision:
    """Decide whether a put writes an anchor."""
    if not parent_named:
        return Decision(True, Reason.FIRST)
    if not parent_stored:
        return Decision(True, Reason.PARENT_MISSING)
    if not parent_is_tip:  # no chain crosses a fork
        return Decision(True, Reason.FORK)
    if parent_depth + 1 >= snapshot_frequency:  # bounds what a read folds
        return Decision(True, Reason.DUE)
    return Decision(False, Reason.CHANGED)


def should_pack_chunks(loose_rows: int, loose_bytes: int) -> bool:
    """Decide whether a put packs the oldest loose chunk rows of a series."""
    return loose_rows >= 2 and (loose_rows >= MIN_LOOSE_ROWS or loose_bytes >= MIN_LOOSE_BYTES)


def should_pack_records(loose_before_anchor: int) -> bool:
    """Decide whether a put packs the records before the namespace's last anchor."""
    return loose_before_anchor >= MIN_LOOSE_ROWS
