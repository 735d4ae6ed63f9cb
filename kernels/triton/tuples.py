"""``no_tensors``: an empty tuple, which a kernel's loop appends tensors to."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def no_tensors() -> tl.tensor:
    """An empty tuple of tensors. A literal one is a constant, which cannot be appended to."""
    return ()
