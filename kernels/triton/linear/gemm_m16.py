"""Linear layers for up to 16 tokens, bound by reading the weight once: [M, K] times [N, K] transposed.

The weight's tile is the left matrix of the product, so that one instruction multiplies 64 weight rows, and all 16 tokens
fit the right one. The hardware copies tiles, several ahead (tensor descriptors; fast from compute capability 9.0 on). SwiGLU's
activation and the addition to the residual stream are part of the launch.

Not here: more tokens (`gemm.py`), quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.linear.smaller import smaller_product
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous

MAX_GEMM_M16_ROWS = 16
"""The largest number of rows of x."""

_FETCHED = 2**23
"""Bytes of a weight to prefetch."""


@dataclass(frozen=True, slots=True)
class GemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: output columns (weight rows) a program.
        block_k: channels an iteration.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        ahead: where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    ahead: int = 0

    def smaller(self) -> GemmM16Config | None:
        """See `Division`."""
        return smaller_product(self, least_k=64)

    def shared_bytes(self, limits: DeviceLimits, itemsize: int, *, swiglu: bool) -> int:
        """Shared memory of a program."""
        rows = MAX_GEMM_M16_ROWS + (2 if swiglu else 1) * self.block_n
        return limits.loop_bytes(rows * self.block_k * itemsize, self.num_stages)


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_m16_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    weight_start: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K]: gates first."""
    first = tl.program_id(0) * BLOCK_N
    if OVERLAP and AHEAD > 0:
        rows = tl.minimum(first + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)[:, None] * K
        line = tl.minimum(tl.arange(0, AHEAD // 64)[None, :] * 64, K - 1)
        prefetch(weight_start + rows + line)
        if SWIGLU:
            prefetch(weight_start + N * K + rows + line)
    wait_for_previous(OVERLAP)
    m = tl.arange(0, BLOCK_M)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        value = tl.trans(x.load([0, k]))
        acc = tl.dot(weight.load([first, k]), value, acc)
        if SWIGLU:
            up = tl.dot(weight.load([N + first, k]), value, up)
    acc = tl.trans(acc)
    up = tl.trans(up)
    n = first + tl.arange(0, BLOCK_N)[None, :]
    mask = (m < num_rows)[:, None] & (n < N)
    offset = m[:, None] * N + n
    result = load_and_finish(
        acc, up, bias, residual, n, offset, mask, out.dtype.element_ty, N, BIAS, SWIGLU, ADD
    )  # fmt: skip
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def gemm_m16_config(rows: int, k: int, *, swiglu: bool) -> GemmM16Config:
    """A good division for ``rows`` weight rows of ``k`` channels; `benchmarks/kernels.py` compares others."""
    # While the previous kernel ends, memory is idle: fetch what fits the L2 cache easily.
    ahead = min(max(_FETCHED // (2 * rows) // 64 * 64, 64), 512)
    if swiglu and k > 1024:
        return GemmM16Config(block_n=64, block_k=256, num_warps=4, num_stages=3, ahead=ahead)
    if swiglu:
        return GemmM16Config(block_n=64, block_k=128, num_warps=4, num_stages=4, ahead=ahead)
    if rows > 4096:
        return GemmM16Config(block_n=64, block_k=256, num_warps=4, num_stages=3 if k > 1024 else 4, ahead=ahead)
    return GemmM16Config(block_n=64, block_k=256, num_warps=4, num_stages=4 if k <= 1024 else 5, ahead=ahead)


def gemm_m16(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: GemmM16Config | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, of 16-bit floats.

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first. A row is a multiple of 16 bytes.
        bias: [weight rows], or None.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemm_m16_config`.
        limits: the device's.

    Raises:
        ValueError: M is 0 or more than `MAX_GEMM_M16_ROWS`.
    """
    num_rows, k = x.shape
    if not 1 <= num_rows <= MAX_GEMM_M16_ROWS:
        raise ValueError(f"gemm_m16: x has {num_rows} rows; it takes 1 to {MAX_GEMM_M16_ROWS}")
    n = weight.shape[0] // 2 if swiglu else weight.shape[0]
    config = config or fitting(
        gemm_m16_config(weight.shape[0], k, swiglu=swiglu),
        lambda one: one.shared_bytes(limits, x.element_size(), swiglu=swiglu),
        limits,
    )
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    _gemm_m16_kernel[(triton.cdiv(n, config.block_n),)](
        TensorDescriptor(x, [num_rows, k], [k, 1], [MAX_GEMM_M16_ROWS, config.block_k]),
        TensorDescriptor(weight, [weight.shape[0], k], [k, 1], [config.block_n, config.block_k]),
        weight,
        bias if bias is not None else x,
        residual if residual is not None else x,
        out,
        num_rows,
        N=n,
        K=k,
        BLOCK_M=MAX_GEMM_M16_ROWS,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        AHEAD=config.ahead,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
