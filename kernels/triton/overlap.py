"""Starting a kernel while the one before it still runs: programmatic dependent launch (compute capability 9.0 on).

A decode step's launches are short. Without overlap each waits for its predecessor's last program, starts up, then loads
its first weights. With overlap a kernel starts when all programs of its predecessor let it (`AT_ONCE`, `PREPARED`, `WAITED`). It
prefetches data that no running kernel writes (weights, the cache's history), and only then waits. See "Programmatic Dependent
Launch" in the CUDA C++ Programming Guide.

Three rules make this safe. In every launch at least one program waits before it ends, so a kernel's end implies the end of
all earlier ones. Nothing is stored before the wait. And what kernels read before they wait is written by kernels that no later one
overlaps: a batch (its lengths, positions and block tables) and the slots' parameters. Several kernels may have started and wait for
each other, and would read what was there before. A batch's tokens are no part of this: a pass of drafts writes those of the next one.

Two kernels that do not depend on each other can run at the same time (`begin`, `end`). The first lets the second start only after
its own wait. So when the second starts, all that both read has been stored. The second waits for the first as its last act, which
keeps the first rule. It stores before that, but nothing that the first one or an earlier kernel uses.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.device import DeviceLimits

FEW_ROWS = 64
"""Rows of activations up to which launches overlap, however wide they are."""

SHORT = 2 << 20
"""Elements of activations up to which a launch takes some microseconds, and its start counts."""

AT_ONCE, PREPARED, WAITED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""When a kernel lets the next one start: as its first act; when it has asked for what it reads early; or when its own wait is over.

Earlier is not always better. Kernels that have started and wait take the room of those whose turn it is, and a kernel that starts late
loads its weights late. Which one is fastest depends on the room that its neighbours take
(docs/tuning.md#when-the-next-kernel-starts).
"""


@triton.jit
def start_next(NEXT: tl.constexpr, OVERLAP: tl.constexpr) -> None:
    """The first act of a kernel that may let the next one start AT_ONCE."""
    if OVERLAP and NEXT == AT_ONCE:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr, NEXT: tl.constexpr = PREPARED) -> None:
    """Wait until all stores of earlier kernels are visible. Let the next kernel start before or after that."""
    if OVERLAP:
        if NEXT == PREPARED:
            tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
        if NEXT == WAITED:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_unfollowed(OVERLAP: tl.constexpr) -> None:
    """Wait likewise, but let the next kernel start only when this one has ended: for kernels that write a batch."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


ALONE, FIRST, SECOND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""The places of a kernel: in no pair, or in a pair of two that run at the same time."""


@triton.jit
def begin(PLACE: tl.constexpr, OVERLAP: tl.constexpr, NEXT: tl.constexpr = PREPARED) -> None:
    """`wait_for_previous`, or the beginning of a kernel of a pair."""
    if PLACE == FIRST:
        wait_for_previous(True, WAITED)
    elif PLACE == SECOND:
        tl.extra.cuda.gdc_launch_dependents()
        # What earlier kernels stored is visible to programs that waited. These have not: they forget what they may have cached.
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.b32 $0, $1;", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        wait_for_previous(OVERLAP, NEXT)


@triton.jit
def end(PLACE: tl.constexpr) -> None:
    """The end of a kernel that may be one of a pair: the second waits for the first."""
    if PLACE == SECOND:
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


def few_overlap(x: Tensor, limits: DeviceLimits) -> bool:
    """Whether the launch of a few rows [T, …] overlaps with its neighbours."""
    return limits.overlaps and x.shape[0] <= FEW_ROWS


def overlaps(x: Tensor, limits: DeviceLimits) -> bool:
    """The same of few rows, or of more where launches stay short."""
    return few_overlap(x, limits) or (limits.overlaps and x.numel() <= SHORT)
