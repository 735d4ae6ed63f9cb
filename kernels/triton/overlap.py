"""Starting a kernel while the one before it still runs: programmatic dependent launch (compute capability 9.0 on).

In a decode step the launches are short, and each would wait for the last program of the one before, then start up, then
ask for its first weights. With overlap a kernel is started as soon as all programs of its predecessor have, asks for
what no running kernel writes (weights, the cache's history), and only then waits. See "Programmatic Dependent Launch"
in the CUDA C++ Programming Guide.

The rules that make this safe: in every launch at least one program waits before it ends, so that a kernel's end implies
the end of all before it; and nothing is stored before the wait.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr) -> None:
    """Let the next kernel start, and wait until all that earlier ones have stored can be read."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointer: tl.tensor) -> None:
    """Ask for the 128-byte lines at these addresses, into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointer.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


def launch_options(overlap: bool) -> dict[str, bool]:
    """The launch attribute that overlap needs, which does not exist before compute capability 9.0."""
    return {"launch_pdl": True} if overlap else {}
