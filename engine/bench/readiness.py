"""Measurements begin when an engine compiles no kernels and captures no CUDA graphs any more."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftline.engine.stats import EngineStats

_PAUSE_S = 0.1


def wait_until_ready(stats: Callable[[], EngineStats]) -> None:
    """Wait until an engine has the kernels that few requests need, and its CUDA graphs.

    Kernels are compiled beside its steps after a machine's first start, graphs are captured while it has no work.
    Meanwhile, steps may take longer (docs/tuning.md#behind-a-start).

    Args:
        stats: the engine's state now.
    """
    while stats().getting_ready:
        time.sleep(_PAUSE_S)
