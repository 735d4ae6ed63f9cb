"""``RetryPolicy``: whether and when a client tries again. Arithmetic alone: it neither waits nor calls."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from draftline.engine.errors import EngineStoppedError, QueueFullError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, and never sooner than the server says.

    Only what another attempt can change is tried again: a full queue (RESOURCE_EXHAUSTED) and a server that is away or
    draining (UNAVAILABLE).

    Attributes:
        attempts: how often a request is sent at most; 1 never tries again.
        first_s: wait before the second attempt, in seconds.
        factor: how much longer each wait is than the one before.
        most_s: longest wait, but for one that the server asks for.
        jitter: each wait is up to this share longer, so that many clients do not come back at once.
    """

    attempts: int = 6
    first_s: float = 0.1
    factor: float = 2.0
    most_s: float = 10.0
    jitter: float = 0.25
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, failed: int, error: Exception) -> float | None:
        """Seconds to wait after ``error`` ended attempt number ``failed`` (from 1), or None: give up."""
        if failed >= self.attempts:
            return None
        match error:
            case QueueFullError():
                told = error.retry_after_s
            case EngineStoppedError():
                told = 0.0
            case _:
                return None
        backoff = min(self.most_s, self.first_s * self.factor ** (failed - 1))
        return max(told, backoff) * (1 + self.jitter * self.rng.random())
