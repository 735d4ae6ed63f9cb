"""Starting a kernel while the one before it still runs: programmatic dependent launch (compute capability 9.0 on).

A decode step's launches are short. Without overlap each waits for its predecessor's last program, starts up, then loads
its first weights. With overlap a kernel starts as soon as all programs of its predecessor have started. It prefetches
data that no running kernel writes (weights, the cache's history), and only then waits. See "Programmatic Dependent
Launch" in the CUDA C++ Programming Guide.

Three rules make this safe. In every launch at least one program waits before it ends, so a kernel's end implies the end of
all earlier ones. Nothing is stored before the wait. And a batch (its lengths and block tables), which attention reads before it
waits, is written by kernels that no later one overlaps: several kernels may have started and wait for each other, and attention
would read what was there before.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr) -> None:
    """Let the next kernel start, and wait until all stores of earlier kernels are visible."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def wait_unfollowed(OVERLAP: tl.constexpr) -> None:
    """Wait likewise, but let the next kernel start only when this one has ended: for kernels that write a batch."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointer: tl.tensor) -> None:
    """Prefetch the 128-byte lines at these addresses into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointer.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


def launch_options(overlap: bool) -> dict[str, bool]:
    """How every kernel of the forward pass is compiled and launched.

    The compiler fuses no multiplication with an addition: it would choose by a kernel's other code, and so round the same
    arithmetic in different ways. `tl.fma` says where a kernel fuses. Overlap is a launch attribute, which exists from
    compute capability 9.0 on.
    """
    return {"enable_fp_fusion": False, **({"launch_pdl": True} if overlap else {})}
