"""The device's clock, which kernels read: marks of time that need no event and no call of the driver."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.sums import INTERPRETED


@triton.jit
def nanoseconds() -> tl.tensor:
    """The device's clock, int64; 0 where the interpreter runs the kernels. It steps by 32 ns to a microsecond."""
    if INTERPRETED:
        return tl.full([], 0, tl.int64)
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["index"])
def _note_time_kernel(moments: tl.tensor, index: int) -> None:
    tl.store(moments + index, nanoseconds())


def note_time(moments: Tensor, index: int) -> None:
    """``Ops.note_time`` by one kernel."""
    _note_time_kernel[(1,)](moments, index, num_warps=1)
