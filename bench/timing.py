"""Durations in seconds, and what of them stands in a result: medians with their spread, in milliseconds."""

from collections.abc import Sequence
from typing import Any

PERCENTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
WINDOW = 0.1
"""The share of a series that counts as its start, and as its end."""
POINTS = 20
"""How many points a curve has."""


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[round(share * (len(ranked) - 1))]


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def summarise(durations: Sequence[float]) -> dict[str, Any]:
    """Give the spread of a series in milliseconds, and the medians of its start and its end."""
    window = max(1, round(len(durations) * WINDOW))
    return {
        "n": len(durations),
        **{f"{label}_ms": ms(percentile(durations, share)) for label, share in PERCENTILES.items()},
        "start_p50_ms": ms(percentile(durations[:window], 0.5)),
        "end_p50_ms": ms(percentile(durations[-window:], 0.5)),
        "total_s": round(sum(durations), 3),
    }


def spread_ms(durations: Sequence[float]) -> dict[str, float]:
    """Give the median, the least and the most of a few durations, in milliseconds."""
    return {"p50_ms": ms(percentile(durations, 0.5)), "least_ms": ms(min(durations)), "most_ms": ms(max(durations))}


def curve_ms(durations: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Give the median of each of some twenty windows of (position, seconds), with its last position."""
    size = max(1, -(-len(durations) // POINTS))
    windows = [durations[first : first + size] for first in range(0, len(durations), size)]
    return [(window[-1][0], ms(percentile([took for _, took in window], 0.5))) for window in windows]
