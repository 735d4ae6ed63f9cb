"""``Histogram``: counts by fixed bounds, cheap enough for every step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

STEP_SECONDS = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Bounds for the time between two tokens."""


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """What a histogram holds: ``counts[i]`` observations up to ``bounds[i]``, the last those above all bounds."""

    bounds: tuple[float, ...] = STEP_SECONDS
    counts: tuple[int, ...] = (0,) * (len(STEP_SECONDS) + 1)
    total: float = 0.0


class Histogram:
    """Observations with weights. One thread adds; others may ask for the counts."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend; above the last there is one more bucket."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float, weight: int) -> None:
        """Count ``value`` so many times."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._total += value * weight

    def counts(self) -> HistogramCounts:
        """What was counted up to now."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)
