"""Deadlines: which requests have run out of time. The caller ends them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from draftline.engine.request.request import Request

_MIN_SWEEP = 1024
"""The number of entries in the heap from which those of ended requests are removed. Fewer stay until their times."""


class Deadlines:
    """The requests that have a deadline, the earliest first. Those that are dropped are not kept in memory."""

    def __init__(self) -> None:
        """No request has one."""
        self._watched: dict[str, Request] = {}
        self._heap: list[tuple[float, str]] = []  # also of requests that were dropped

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline. No watched request has its id."""
        if request.deadline == math.inf:
            return
        self._watched[request.request_id] = request
        heappush(self._heap, (request.deadline, request.request_id))
        if len(self._heap) > max(_MIN_SWEEP, 2 * len(self._watched)):
            self._heap = [(each.deadline, request_id) for request_id, each in self._watched.items()]
            heapify(self._heap)

    def drop(self, request_id: str) -> None:
        """Note that a request has ended. It may have a deadline or not."""
        self._watched.pop(request_id, None)

    def expired(self, now: float) -> Iterator[Request]:
        """Drop and yield the requests whose deadlines have passed."""
        while self._heap and self._heap[0][0] <= now:
            deadline, request_id = heappop(self._heap)
            request = self._watched.get(request_id)
            if request is not None and request.deadline == deadline:  # else its id is a newer request's
                del self._watched[request_id]
                yield request
