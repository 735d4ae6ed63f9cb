"""``Progress``: how far each rank has come. ``Stalls``: which rank the others wait for, and for how long.

All ranks begin the same exchanges in the same order: plans, drafts and samples, on a CPU also sums. So the ranks that
have begun fewer than another are those that it waits for. A rank can hang while its process is well otherwise, and says
so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


class Progress:
    """One rank's count of exchanges, in memory that the ranks share."""

    def __init__(self, counts: np.ndarray, rank: int) -> None:
        """``counts`` [ranks] int64 has those of all ranks, in their order."""
        self._counts, self._rank = counts, rank

    def advance(self) -> None:
        """Count an exchange that this rank begins. No other process writes this count."""
        self._counts[self._rank] += 1


@dataclass(slots=True)
class _Wait:
    """A rank that others wait for: at which count, since when, and since when it was not seen to run."""

    count: int
    since: float
    idle_since: float


class Stalls:
    """Finds ranks that others wait for too long."""

    def __init__(
        self,
        counts: np.ndarray,
        can_run: Callable[[int], bool],
        *,
        idle_s: float,
        busy_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start where no rank waits for another.

        Args:
            counts: [ranks] int64, how far each rank is.
            can_run: whether a rank runs, or waits for nothing but a processor.
            idle_s: seconds after which a rank that others wait for, and that never runs, has stalled.
            busy_s: the same for one that runs.
            clock: tells seconds.
        """
        self._counts, self._can_run, self._clock = counts, can_run, clock
        self._idle_s, self._busy_s = idle_s, busy_s
        self._waits: dict[int, _Wait] = {}

    def find(self) -> tuple[int, float] | None:
        """A rank other than 0 that has stalled, and for how many seconds. To be called several times a second."""
        now, counts = self._clock(), self._counts.tolist()
        furthest = max(counts)
        for rank, count in enumerate(counts):
            wait = self._waits.get(rank)
            if not rank or count == furthest:
                self._waits.pop(rank, None)
            elif wait is None or wait.count != count:
                self._waits[rank] = _Wait(count, now, now)
            else:
                if self._can_run(rank):
                    wait.idle_since = now
                if now - wait.idle_since > self._idle_s or now - wait.since > self._busy_s:
                    return rank, now - wait.since
        return None
