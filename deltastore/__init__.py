"""deltastore: a delta-encoded, append-only checkpoint log store for AI agents.

with deltastore.open("runs.ds") as store:
    thread = store.thread("user-42")
    checkpoint = thread.append({"messages": [{"role": "user", "content": "hi"}]})
    thread.state(at=checkpoint)
"""

import importlib as _importlib
import typing as _typing

from deltastore.codec.strict import REMOVE_ALL, Remove
from deltastore.errors import (
    BrokenChainError,
    CheckpointNotFoundError,
    ChecksumError,
    ClosedError,
    CodecMismatchError,
    CommitUnknownError,
    ConflictError,
    ContentionError,
    CopyDamagedError,
    CorruptionError,
    DegradedValueWarning,
    DeltastoreError,
    EncodeError,
    FormatError,
    FrontMismatchError,
    InvalidIdError,
    InvalidInputError,
    MismatchError,
    NotFoundError,
    ReducerMismatchError,
    StorageError,
    StoreFullError,
    StorePathError,
    SyncModeError,
    ThreadExistsError,
    ThreadNotFoundError,
    TypeLostError,
    TypeRefusedError,
    UnavailableError,
    UnfinishedCopyError,
)
from deltastore.opening import open  # noqa: A004
from deltastore.reducers import Reducer
from deltastore.store import Store, Thread
from deltastore.terms import Checkpoint, PendingWrite, ThreadInfo

if _typing.TYPE_CHECKING:
    from deltastore.diffing import Change
    from deltastore.log.activity import StoreStats
    from deltastore.log.forks import Fork
    from deltastore.log.retention import Retention
    from deltastore.upkeep.backup import backup
    from deltastore.upkeep.check import CheckReport, check
    from deltastore.upkeep.compaction import CompactReport, compact
    from deltastore.upkeep.copying import CopyPlan, CopyReport, copy_store, plan_copy
    from deltastore.upkeep.dumping import dump
    from deltastore.upkeep.loading import load
    from deltastore.upkeep.maintenance import MaintainReport, maintain
    from deltastore.upkeep.repair import apply_repair, plan_repair, repair
    from deltastore.upkeep.repair_plan import LostCheckpoint, RepairAction, RepairPlan, RepairReport
    from deltastore.upkeep.retention import RetentionPlan, RetentionReport
    from deltastore.upkeep.retention import apply as apply_retention
    from deltastore.upkeep.retention import plan as plan_retention
    from deltastore.upkeep.shrinking import ShrinkReport, shrink

_LATER = {
    "Change": "diffing",
    "CheckReport": "upkeep.check",
    "CompactReport": "upkeep.compaction",
    "CopyPlan": "upkeep.copying",
    "CopyReport": "upkeep.copying",
    "Fork": "log.forks",
    "LostCheckpoint": "upkeep.repair_plan",
    "MaintainReport": "upkeep.maintenance",
    "RepairAction": "upkeep.repair_plan",
    "RepairPlan": "upkeep.repair_plan",
    "RepairReport": "upkeep.repair_plan",
    "Retention": "log.retention",
    "RetentionPlan": "upkeep.retention",
    "RetentionReport": "upkeep.retention",
    "ShrinkReport": "upkeep.shrinking",
    "StoreStats": "log.activity",
    "apply_repair": "upkeep.repair",
    "backup": "upkeep.backup",
    "check": "upkeep.check",
    "compact": "upkeep.compaction",
    "copy_store": "upkeep.copying",
    "dump": "upkeep.dumping",
    "load": "upkeep.loading",
    "maintain": "upkeep.maintenance",
    "plan_copy": "upkeep.copying",
    "plan_repair": "upkeep.repair",
    "repair": "upkeep.repair",
    "shrink": "upkeep.shrinking",
}
"""Where the names stand that are imported when they are first asked for: a program that puts and reads needs none."""
_RENAMED = {"apply_retention": ("upkeep.retention", "apply"), "plan_retention": ("upkeep.retention", "plan")}


def __getattr__(name: str) -> _typing.Any:
    module, own = _RENAMED.get(name) or (_LATER.get(name), name)
    if module is None:
        raise AttributeError(f"module 'deltastore' has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(f"deltastore.{module}"), own)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "REMOVE_ALL",
    "BrokenChainError",
    "Change",
    "CheckReport",
    "Checkpoint",
    "CheckpointNotFoundError",
    "ChecksumError",
    "ClosedError",
    "CodecMismatchError",
    "CommitUnknownError",
    "CompactReport",
    "ConflictError",
    "ContentionError",
    "CopyDamagedError",
    "CopyPlan",
    "CopyReport",
    "CorruptionError",
    "DegradedValueWarning",
    "DeltastoreError",
    "EncodeError",
    "Fork",
    "FormatError",
    "FrontMismatchError",
    "InvalidIdError",
    "InvalidInputError",
    "LostCheckpoint",
    "MaintainReport",
    "MismatchError",
    "NotFoundError",
    "PendingWrite",
    "Reducer",
    "ReducerMismatchError",
    "Remove",
    "RepairAction",
    "RepairPlan",
    "RepairReport",
    "Retention",
    "RetentionPlan",
    "RetentionReport",
    "ShrinkReport",
    "StorageError",
    "Store",
    "StoreFullError",
    "StorePathError",
    "StoreStats",
    "SyncModeError",
    "Thread",
    "ThreadExistsError",
    "ThreadInfo",
    "ThreadNotFoundError",
    "TypeLostError",
    "TypeRefusedError",
    "UnavailableError",
    "UnfinishedCopyError",
    "apply_repair",
    "apply_retention",
    "backup",
    "check",
    "compact",
    "copy_store",
    "dump",
    "load",
    "maintain",
    "open",
    "plan_copy",
    "plan_repair",
    "plan_retention",
    "repair",
    "shrink",
]
