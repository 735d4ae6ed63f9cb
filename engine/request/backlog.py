"""The backlog: accepted requests that have not run yet. An engine limits their number and their prompts' tokens.

A preempted request waits in the scheduler's queue again. It is not counted here: it was accepted long ago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

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
        self._requests: dict[str, Request] = {}
        self._interval = 0.0
        self._last_start = float("-inf")

    def __len__(self) -> int:
        """The number of waiting requests."""
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Count a request whose id is not counted yet."""
        self._requests[request.request_id] = request
        self.tokens += len(request.prompt_token_ids)

    def start(self, request_id: str, now: float) -> None:
        """Note that a request runs. It may have run before.

        Args:
            request_id: the request.
            now: seconds, on any monotonic clock.
        """
        if request_id in self._requests:
            self.drop(request_id)
            # After a longer interval the engine was idle: there was no request to start.
            interval = now - self._last_start
            if interval < _MAX_RETRY_S:
                self._interval = _DECAY * self._interval + (1 - _DECAY) * interval
            self._last_start = now

    def drop(self, request_id: str) -> None:
        """Note that a request has ended. It may have run or not."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.tokens -= len(request.prompt_token_ids)

    def has(self, request_id: str) -> bool:
        """Whether a request waits for its first step."""
        return request_id in self._requests

    def waiting(self) -> list[Request]:
        """The requests that wait, in the order of their arrival. Any thread may ask."""
        return list(self._requests.values())

    def retry_after(self) -> float:
        """Seconds after which a refused client should try again: about a quarter of the backlog will have started.

        There is room for one request much sooner, but many clients may have been refused.
        """
        return min(max(self._interval * len(self) / 4, _MIN_RETRY_S), _MAX_RETRY_S)


def displaced_by(request: Request, waiting: Seq[Request]) -> Request | None:
    """The waiting request to be displaced by a new one where there is room for one of them only.

    It is the last one of the lowest priority of the caller with the most tokens waiting. A caller displaces requests of
    a caller that has more waiting even without it, and its own of a lower priority.

    Returns:
        None if the new request is itself the one that there is no room for.
    """
    tokens: dict[str, int] = defaultdict(int)
    for other in waiting:
        tokens[other.caller] += other.max_tokens
    heaviest = max(tokens, key=tokens.__getitem__, default=request.caller)
    if tokens[heaviest] <= tokens[request.caller] + request.max_tokens:
        heaviest = request.caller
    rivals = [other for other in waiting if other.caller == heaviest]
    if not rivals:
        return None
    lowest = min(other.head_start_s for other in rivals)
    if heaviest == request.caller and lowest >= request.head_start_s:
        return None
    return next(other for other in reversed(rivals) if other.head_start_s == lowest)
