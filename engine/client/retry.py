"""``RetryPolicy``: whether and when a client sends a request again. It computes delays; it neither waits nor calls."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from draftline.engine.errors import EngineStoppedError, QueueFullError

_LAST_ATTEMPT = 0.8
"""The part of the time left after which the last attempt is made."""

_MIN_TIME_S = 0.05
"""With less time left there is no other attempt."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, and never earlier than the server allows.

    Two errors are tried again: a full queue (RESOURCE_EXHAUSTED), and a server that is away or draining (UNAVAILABLE).
    A request with a timeout is tried again until its time is over.

    Attributes:
        attempts: max times that a request without a timeout is sent; 1 never tries any request again. Refusals do not
            count while the server finishes other requests of the same client.
        initial_s: delay before the second attempt, in seconds.
        factor: ratio of each delay to the one before.
        max_s: max delay, in seconds. A longer delay that the server asks for is kept.
        jitter: each delay grows by a random share up to this one, so that many clients do not return at once.
        rng: the source of the jitter.
    """

    attempts: int = 6
    initial_s: float = 0.1
    factor: float = 2.0
    max_s: float = 5.0
    jitter: float = 0.25
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, failed: int, error: Exception, *, time_left: float | None = None) -> float | None:
        """Compute the seconds to wait before the next attempt.

        Args:
            failed: how many attempts have failed, from 1.
            error: the error of the last one.
            time_left: the seconds until the request's deadline; None without one.

        Returns:
            The seconds; None to give up.
        """
        if failed >= self.attempts and (time_left is None or self.attempts == 1):
            return None
        match error:
            case QueueFullError():
                asked = error.retry_after_s
            case EngineStoppedError():
                asked = 0.0
            case _:
                return None
        backoff = self.initial_s
        for _ in range(failed - 1):
            backoff = min(self.max_s, backoff * self.factor)
        wait = max(asked, backoff) * (1 + self.jitter * self.rng.random())
        if time_left is None or wait < time_left:
            return wait
        # The last attempt comes shortly before the deadline, if the server allows that.
        return time_left * _LAST_ATTEMPT if asked < time_left * _LAST_ATTEMPT and time_left > _MIN_TIME_S else None
