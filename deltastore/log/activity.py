"""What a handle tells of what it did. Imports what a storage tells; whoever puts and reads needs none of it."""

from dataclasses import dataclass

from deltastore.storage.info import StorageInfo


@dataclass(frozen=True, slots=True)
class Timing:
    """How long calls took, in milliseconds; medians and percentiles to within a fifth."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Activity:
    """What one handle did since it was opened.

    `put_bytes`: of the rows of new records and chunks, as stored. `longest_chain`: the most records that a checkpoint
    put or read stands on, itself included. `largest_commit`: the most puts that shared one.
    """

    puts: Timing
    put_writes: Timing
    gets: Timing
    put_bytes: int
    longest_chain: int
    commits: int
    puts_per_commit: float
    largest_commit: int
    cache_hits: int
    cache_misses: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a handle did since it was opened, and the storage as it is now."""

    activity: Activity
    storage: StorageInfo

    @property
    def map_use(self) -> float:
        """What share of the address space that is reserved for the file is in use, 0 to 1."""
        return self.storage.used_bytes / self.storage.map_bytes if self.storage.map_bytes else 0.0
