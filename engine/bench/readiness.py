"""Measurements begin when an engine compiles no kernels any more."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftline.engine.stats import EngineStats

_PAUSE_S = 0.1


def wait_for_kernels(stats: Callable[[], EngineStats]) -> None:
    """Wait until an engine has the kernels that few requests need: after a machine's first start they are compiled beside its steps.

    Meanwhile, steps may take longer (docs/tuning.md#while-rare-kernels-compile).

    Args:
        stats: the engine's state now.
    """
    while stats().kernels_compiling:
        time.sleep(_PAUSE_S)
