"""``HangWatch``: whether an engine hangs. It has requests, but finishes no step, and may not know that itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftline.engine.protocol import EngineClient

_MAX_INTERVAL_S = 1.0


class HangWatch:
    """Looks at an engine again and again, once each `interval_s`.

    Attributes:
        interval_s: seconds between two looks.
    """

    def __init__(self, engine: EngineClient, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """A watch that begins now.

        Args:
            engine: what is watched.
            timeout_s: seconds without a finished step after which a replica with requests hangs.
            clock: gives seconds.
        """
        self.interval_s = min(_MAX_INTERVAL_S, timeout_s / 4)
        self._engine = engine
        self._timeout_s = timeout_s
        self._clock = clock
        self._steps = [-1 for _ in engine.stats_by_replica()]
        self._progress_at = [clock() for _ in self._steps]

    def hangs(self) -> bool:
        """Look. True if all replicas that have not ended hang, so that no request can be served."""
        now = self._clock()
        engine = self._engine
        for index, (stats, has_work) in enumerate(
            zip(engine.stats_by_replica(), engine.replicas_with_work(), strict=True)
        ):
            if not has_work or stats.steps != self._steps[index]:
                self._steps[index], self._progress_at[index] = stats.steps, now
        running = [at for at, runs in zip(self._progress_at, engine.replicas_running(), strict=True) if runs]
        return bool(running) and all(now - at >= self._timeout_s for at in running)
