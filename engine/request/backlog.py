"""``Backlog``: the requests that were accepted but have not run yet, which is what an engine bounds.

One that was preempted waits in the scheduler's queue again, but it was accepted long ago and is not counted here.
"""

from __future__ import annotations

from draftline.engine.request.request import Request

_SHORTEST_S = 0.1
_LONGEST_S = 30.0
"""Bounds of what a refused client is told to wait."""

_MEMORY = 0.9
"""How much the mean interval between two starts keeps of itself at the next."""


class Backlog:
    """Counts requests and their prompts' tokens from their arrival to their first step.

    Attributes:
        tokens: of their prompts, once a request, whatever its ``n``.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self.tokens = 0
        self._tokens_of: dict[str, int] = {}
        self._interval = 0.0
        self._last_start = float("-inf")

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._tokens_of)

    def add(self, request: Request) -> None:
        """Count a request, whose id is not counted yet."""
        self._tokens_of[request.request_id] = len(request.prompt_token_ids)
        self.tokens += len(request.prompt_token_ids)

    def start(self, request_id: str, now: float) -> None:
        """The request runs; it may have run before."""
        if request_id in self._tokens_of:
            self.drop(request_id)
            waited = now - self._last_start
            if waited < _LONGEST_S:  # else there was nobody to start
                self._interval = _MEMORY * self._interval + (1 - _MEMORY) * waited
            self._last_start = now

    def drop(self, request_id: str) -> None:
        """The request has ended; it may have run or not."""
        self.tokens -= self._tokens_of.pop(request_id, 0)

    def retry_after(self) -> float:
        """Seconds in which about a quarter of those who wait will have started: when to try again, if there is no room.

        One place is free much sooner, but whoever was refused is not alone.
        """
        return min(max(self._interval * len(self) / 4, _SHORTEST_S), _LONGEST_S)
