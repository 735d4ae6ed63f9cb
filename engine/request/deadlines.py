"""Deadlines: which requests have run out of time. The caller ends them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from draftline.engine.request.request import Request

_MIN_SWEEP = 1024
"""The number of entries from which those of ended requests are removed. Fewer stay until their deadlines."""


class Deadlines:
    """The requests that have a deadline, the earliest first."""

    def __init__(self) -> None:
        """Create an empty heap."""
        self._heap: list[tuple[float, int, Request]] = []
        self._serial = count()  # breaks ties, so that requests themselves are never compared
        self._sweep_at = _MIN_SWEEP

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline == math.inf:
            return
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heappush(self._heap, (request.deadline, next(self._serial), request))

    def expired(self, now: float) -> Iterator[Request]:
        """Remove and yield the requests whose deadlines have passed. Some may have ended before."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]

    def _sweep(self) -> None:
        """Remove ended requests, so that long deadlines of short requests do not pile up."""
        self._heap = [entry for entry in self._heap if not all(each.finished for each in entry[2].sequences)]
        heapify(self._heap)
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._heap))
