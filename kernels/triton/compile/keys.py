"""``settle_keys``: a kernel's key in Triton's cache, the same in every process.

The key covers the global constants of a kernel and of all functions that it calls. Triton 3.6 asks a called function for its constants
before it has looked for them. So it misses them at the first call, and finds them at the next: keys depend on which kernels came first.
Processes that launch kernels in different orders then compile for themselves what others have compiled. Triton 3.9 looks first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.runtime.jit import DependenciesFinder


@cache
def settle_keys() -> None:
    """Let Triton look for the constants of a called function first, in this process."""
    take_over = getattr(DependenciesFinder, "_update_hash", None)
    if take_over is None:  # a Triton that has no such step
        return

    def look_and_take_over(finder: Any, function: Any) -> None:
        _ = function.cache_key
        take_over(finder, function)

    DependenciesFinder._update_hash = look_and_take_over
