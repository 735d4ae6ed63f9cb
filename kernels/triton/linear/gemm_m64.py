"""Wide linear layers for up to 64 tokens, still bound by reading the weight once: [M, K] times [N, K] transposed.

One tile holds all rows of x, so that each weight is read by one program. The hardware copies tiles, several ahead (tensor
descriptors; fast from compute capability 9.0 on). SwiGLU's activation is part of the launch. A row's result does not
depend on the other rows of x.

Not here: weights with few rows (`gemm_split_k.py`), fewer tokens (`gemv.py`, `gemm_m16.py`), more tokens, which are bound
by arithmetic, and quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous

# Where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel.
_AHEAD = tl.constexpr(256)

MAX_GEMM_M64_ROWS = 64
"""The largest number of rows of x."""


@dataclass(frozen=True, slots=True)
class GemmM64Config:
    """How one product is divided.

    Attributes:
        block_n: output columns a program.
        block_k: elements of K an iteration.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_m64_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    weight_start: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K]: gates first."""
    first = tl.program_id(0) * BLOCK_N
    if OVERLAP:
        rows = tl.minimum(first + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)[:, None] * K
        line = tl.minimum(tl.arange(0, _AHEAD // 64)[None, :] * 64, K - 1)
        prefetch(weight_start + rows + line)
        if SWIGLU:
            prefetch(weight_start + N * K + rows + line)
    wait_for_previous(OVERLAP)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        value = x.load([0, k])
        acc = tl.dot(value, tl.trans(weight.load([first, k])), acc, input_precision=PRECISION)
        if SWIGLU:
            up = tl.dot(value, tl.trans(weight.load([N + first, k])), up, input_precision=PRECISION)
    m = tl.arange(0, BLOCK_M)[:, None]
    n = first + tl.arange(0, BLOCK_N)[None, :]
    acc = load_and_finish(acc, up, bias, None, n, None, None, N, BIAS, SWIGLU, False)
    tl.store(out + m.to(tl.int64) * N + n, acc.to(out.dtype.element_ty), mask=(m < num_rows) & (n < N))


def gemm_m64_config(n: int, *, swiglu: bool) -> GemmM64Config:
    """A good division for ``n`` output columns; `benchmarks/kernels.py` compares others."""
    if n < 8192:
        return GemmM64Config(block_n=32, block_k=128, num_warps=4, num_stages=4)
    return GemmM64Config(block_n=64 if swiglu else 128, block_k=64, num_warps=4, num_stages=4)


def gemm_m64(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    swiglu: bool = False,
    overlap: bool = False,
    config: GemmM64Config | None = None,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32.

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first. A row is a multiple of 16 bytes.
        bias: [weight rows], or None.
        swiglu: return ``silu(gate) * up``.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemm_m64_config`.

    Raises:
        ValueError: M is 0 or more than `MAX_GEMM_M64_ROWS`.
    """
    num_rows, k = x.shape
    if not 1 <= num_rows <= MAX_GEMM_M64_ROWS:
        raise ValueError(f"gemm_m64: x has {num_rows} rows; it takes 1 to {MAX_GEMM_M64_ROWS}")
    n = weight.shape[0] // 2 if swiglu else weight.shape[0]
    config = config or gemm_m64_config(n, swiglu=swiglu)
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    _gemm_m64_kernel[(triton.cdiv(n, config.block_n),)](
        TensorDescriptor(x, [num_rows, k], [k, 1], [MAX_GEMM_M64_ROWS, config.block_k]),
        TensorDescriptor(weight, [weight.shape[0], k], [k, 1], [config.block_n, config.block_k]),
        weight,
        bias if bias is not None else x,
        out,
        num_rows,
        N=n,
        K=k,
        BLOCK_M=MAX_GEMM_M64_ROWS,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        OVERLAP=overlap,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
