"""What a scheduler runs every now and then: retention, compaction, and a smaller file if asked for.

Imports retention, compaction and shrinking. The invariant: each step stands alone, so stopping between two, or within
one, leaves a whole store.
"""

from dataclasses import dataclass

from deltastore.log.retention import Retention
from deltastore.store import Store
from deltastore.upkeep import compaction, repacking, retention, shrinking


@dataclass(frozen=True, slots=True)
class MaintainReport:
    """What was done, step by step; `shrink` None: not asked for."""

    retention: retention.RetentionReport
    compact: compaction.CompactReport
    shrink: shrinking.ShrinkReport | None


def maintain(
    store: Store,
    rules: Retention | None = None,
    *,
    erase: bool = False,
    shrink: bool = False,
    level: int = repacking.DEFAULT_LEVEL,
) -> MaintainReport:
    """Apply retention rules, the stored ones by default, compact what is left, and shrink the file if asked for.

    Others may read and write meanwhile. For `erase` and `level` see `compact`; bytes of deleted text are out of the
    file only with both `erase` and `shrink`. Raises what the steps raise.
    """
    compaction.check_level(level)
    retained = retention.apply(store, rules)
    compacted = compaction.compact(store, erase=erase, level=level)
    return MaintainReport(retained, compacted, shrinking.shrink(store) if shrink else None)
