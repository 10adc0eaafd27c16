"""deltastore: a delta-encoded, append-only checkpoint log store for AI agents.

with deltastore.open("runs.ds") as store:
    thread = store.thread("user-42")
    checkpoint = thread.append({"messages": [{"role": "user", "content": "hi"}]})
    thread.state(at=checkpoint)
"""

from deltastore.codec.strict import REMOVE_ALL, Remove
from deltastore.diffing import Change
from deltastore.errors import (
    BrokenChainError,
    CheckpointNotFoundError,
    ChecksumError,
    ClosedError,
    CodecMismatchError,
    ConflictError,
    ContentionError,
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
)
from deltastore.log.forks import Fork
from deltastore.log.retention import Retention
from deltastore.opening import open  # noqa: A004
from deltastore.reducers import Reducer
from deltastore.store import Store, Thread
from deltastore.terms import Checkpoint, PendingWrite, StoreStats, ThreadInfo
from deltastore.upkeep.backup import backup
from deltastore.upkeep.check import CheckReport, check
from deltastore.upkeep.compaction import CompactReport, compact
from deltastore.upkeep.dumping import dump
from deltastore.upkeep.loading import load
from deltastore.upkeep.maintenance import MaintainReport, maintain
from deltastore.upkeep.repair import apply_repair, plan_repair, repair
from deltastore.upkeep.repair_plan import LostCheckpoint, RepairAction, RepairPlan, RepairReport
from deltastore.upkeep.retention import RetentionPlan, RetentionReport
from deltastore.upkeep.retention import apply as apply_retention
from deltastore.upkeep.retention import plan as plan_retention
from deltastore.upkeep.shrinking import ShrinkReport, shrink

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
    "CompactReport",
    "ConflictError",
    "ContentionError",
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
    "apply_repair",
    "apply_retention",
    "backup",
    "check",
    "compact",
    "dump",
    "load",
    "maintain",
    "open",
    "plan_repair",
    "plan_retention",
    "repair",
    "shrink",
]
