"""``RetryPolicy``: whether and when a client sends a request again. It computes delays; it neither waits nor calls."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from draftline.engine.errors import EngineStoppedError, QueueFullError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, and never earlier than the server allows.

    Two errors are tried again: a full queue (RESOURCE_EXHAUSTED), and a server that is away or draining (UNAVAILABLE).

    Attributes:
        attempts: max times that a request is sent; 1 never tries again.
        initial_s: delay before the second attempt, in seconds.
        factor: ratio of each delay to the one before.
        max_s: max delay, in seconds. A longer delay that the server asks for is kept.
        jitter: each delay grows by a random share up to this one, so that many clients do not return at once.
        rng: the source of the jitter.
    """

    attempts: int = 6
    initial_s: float = 0.1
    factor: float = 2.0
    max_s: float = 10.0
    jitter: float = 0.25
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, failed: int, error: Exception) -> float | None:
        """Compute the seconds to wait after attempt number ``failed`` (from 1) ended with ``error``; None gives up."""
        if failed >= self.attempts:
            return None
        match error:
            case QueueFullError():
                asked = error.retry_after_s
            case EngineStoppedError():
                asked = 0.0
            case _:
                return None
        backoff = min(self.max_s, self.initial_s * self.factor ** (failed - 1))
        return max(asked, backoff) * (1 + self.jitter * self.rng.random())
