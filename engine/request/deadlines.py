"""Which requests have run out of time. It knows neither steps nor queues: whoever asks ends them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from draftline.engine.request.request import Request

_FEW = 1024
"""Entries below which those of ended requests may lie until their time comes."""


class Deadlines:
    """The requests that must end by some time, first the most urgent."""

    def __init__(self) -> None:
        """Nobody is in a hurry."""
        self._heap: list[tuple[float, int, Request]] = []
        self._serial = count()  # so that requests themselves are never compared
        self._swept = _FEW

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline == math.inf:
            return
        if len(self._heap) >= self._swept:
            self._sweep()
        heappush(self._heap, (request.deadline, next(self._serial), request))

    def expired(self, now: float) -> Iterator[Request]:
        """The requests whose time is over, each once; some may have ended by other means."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]

    def _sweep(self) -> None:
        """Forget ended requests, so that long deadlines of short requests do not pile up."""
        self._heap = [entry for entry in self._heap if not all(each.finished for each in entry[2].sequences)]
        heapify(self._heap)
        self._swept = max(_FEW, 2 * len(self._heap))
