"""What a handle on a store did since it was opened: how often, how long, how much.

Counts cost a lock and some additions each, far below a put's own work. Pure but for the lock. The invariant: nothing
that is counted changes what is done.
"""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltastore.log.activity import Timing

BUCKETS_PER_DOUBLING = 4
"""How finely durations are told apart: 19 %."""
_LEAST_S = 1e-6
_BUCKETS = 40 * BUCKETS_PER_DOUBLING
"""From a microsecond to days."""


class Meter:
    """Durations of one kind of call, and bytes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets = [0] * _BUCKETS
        self.count = 0
        self.total_s = 0.0
        self.max_s = 0.0
        self.bytes = 0
        self.most = 0
        """The greatest of what a call told beside its duration: the length of a chain."""

    def record(self, seconds: float, size: int = 0, depth: int = 0) -> None:
        """Count a call."""
        bucket = min(_BUCKETS - 1, _bucket_of(max(0.0, seconds)))
        with self._lock:
            self._buckets[bucket] += 1
            self.count += 1
            self.total_s += seconds
            self.max_s = max(self.max_s, seconds)
            self.bytes += size
            self.most = max(self.most, depth)

    def timing(self) -> "Timing":
        """Return what was counted so far."""
        from deltastore.log.activity import Timing  # seldom asked for

        with self._lock:
            buckets, count, total, longest = list(self._buckets), self.count, self.total_s, self.max_s
        if not count:
            return Timing(0, 0.0, 0.0, 0.0, 0.0)
        p50, p99 = (min(longest, _percentile(buckets, count, share)) * 1e3 for share in (0.5, 0.99))
        return Timing(count, total / count * 1e3, p50, p99, longest * 1e3)


def _bucket_of(seconds: float) -> int:
    """Return a bucket: within a doubling they are equally wide, which takes no logarithm."""
    steps = int(seconds / _LEAST_S)
    if steps < BUCKETS_PER_DOUBLING:
        return steps
    shift = steps.bit_length() - BUCKETS_PER_DOUBLING.bit_length()
    return shift * BUCKETS_PER_DOUBLING + (steps >> shift)


def _end_of(bucket: int) -> float:
    """Return the seconds that a bucket's calls took at most."""
    bucket += 1
    if bucket < 2 * BUCKETS_PER_DOUBLING:
        return bucket * _LEAST_S
    shift = bucket // BUCKETS_PER_DOUBLING - 1
    return float((bucket - shift * BUCKETS_PER_DOUBLING) << shift) * _LEAST_S


def _percentile(buckets: list[int], count: int, share: float) -> float:
    """Return the end of the bucket in which this share of the calls is reached."""
    left = share * count
    for bucket, held in enumerate(buckets):
        left -= held
        if held and left <= 0:
            return _end_of(bucket)
    return _end_of(len(buckets) - 1)
