"""``FairShares``: the place of a caller's requests in the queue: no caller's many requests hold up another's few.

It is start-time fair queueing (Goyal, Vin and Cheng 1996) on the queue's own clock. A request's place is its arrival,
or the time at which the requests that its caller has queued before would be done if the caller had the engine to
itself. So the requests of a caller with many are spread over the time that they take, and those of other callers come
between them.

A place is given once and never changes, as the scheduler needs it. It is finite, and new requests come at their arrival
or later: so every request is the first one day.
"""

from __future__ import annotations

_DECAY = 0.9
"""Weight of the previous mean in the moving average of the seconds of a token."""

_MIN_SWEEP = 4096
"""The number of flows from which those that are over are forgotten."""


class FairShares:
    """The queued work of each caller. One thread uses it.

    Attributes:
        seconds_per_token: the mean time that the engine takes for a token, of prompt or output.
    """

    def __init__(self, seconds_per_token: float = 0.005) -> None:
        """No caller has work. ``seconds_per_token`` holds until it is measured."""
        self.seconds_per_token = seconds_per_token
        self._done_at: dict[tuple[str, float], float] = {}
        self._sweep_at = _MIN_SWEEP

    def order(self, caller: str, weight: float, head_start_s: float, tokens: int, now: float) -> float:
        """The place of a new request in the queue, in seconds; smaller comes first.

        Args:
            caller: whose request it is.
            weight: the caller's share, relative to other callers.
            head_start_s: what its priority buys. Requests of one priority keep their order.
            tokens: the most that it computes, of prompt and outputs.
            now: the time of its arrival.
        """
        flow = caller, head_start_s
        start = max(now, self._done_at.get(flow, now))
        if len(self._done_at) >= self._sweep_at:
            self._done_at = {flow: done for flow, done in self._done_at.items() if done > now}
            # However many have work, a request looks through a few on average.
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._done_at))
        self._done_at[flow] = start + tokens * self.seconds_per_token / weight
        return start - head_start_s

    def measure(self, tokens: int, seconds: float) -> None:
        """Note that a step computed ``tokens`` in ``seconds``."""
        if tokens:
            self.seconds_per_token = _DECAY * self.seconds_per_token + (1 - _DECAY) * seconds / tokens
