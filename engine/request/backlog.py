"""The backlog: accepted requests that have not run yet. An engine limits their number and their prompts' tokens.

A preempted request waits in the scheduler's queue again. It is not counted here: it was accepted long ago.
"""

from __future__ import annotations

from draftline.engine.request.request import Request

_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 30.0
"""Bounds of the seconds after which a refused client should try again."""

_DECAY = 0.9
"""Weight of the previous mean in the moving average of the seconds between two starts."""


class Backlog:
    """Counts requests and their prompts' tokens from their arrival to their first step.

    Attributes:
        tokens: tokens of the prompts, once per request, whatever its ``n``.
    """

    def __init__(self) -> None:
        """Create an empty backlog."""
        self.tokens = 0
        self._tokens_of: dict[str, int] = {}
        self._interval = 0.0
        self._last_start = float("-inf")

    def __len__(self) -> int:
        """The number of waiting requests."""
        return len(self._tokens_of)

    def add(self, request: Request) -> None:
        """Count a request whose id is not counted yet."""
        self._tokens_of[request.request_id] = len(request.prompt_token_ids)
        self.tokens += len(request.prompt_token_ids)

    def start(self, request_id: str, now: float) -> None:
        """Note that a request runs. It may have run before.

        Args:
            request_id: the request.
            now: seconds, on any monotonic clock.
        """
        if request_id in self._tokens_of:
            self.drop(request_id)
            # After a longer interval the engine was idle: there was no request to start.
            interval = now - self._last_start
            if interval < _MAX_RETRY_S:
                self._interval = _DECAY * self._interval + (1 - _DECAY) * interval
            self._last_start = now

    def drop(self, request_id: str) -> None:
        """Note that a request has ended. It may have run or not."""
        self.tokens -= self._tokens_of.pop(request_id, 0)

    def retry_after(self) -> float:
        """Seconds after which a refused client should try again: about a quarter of the backlog will have started.

        There is room for one request much sooner, but many clients may have been refused.
        """
        return min(max(self._interval * len(self) / 4, _MIN_RETRY_S), _MAX_RETRY_S)
