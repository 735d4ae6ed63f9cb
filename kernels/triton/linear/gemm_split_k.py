"""Linear layers with few weight rows for up to 64 tokens, bound by reading the weight once: [M, K] times [N, K]^T.

As in `gemm_m64.py`, a tile holds all rows of x, and the hardware copies tiles. Where so few weight rows would not occupy
the device, K is split between programs. The last program of a tile adds the parts up, always in the same order. The
addition to the residual stream is part of the launch. A row's result does not depend on the other rows of x.

Not here: wide layers and gate-and-up (`gemm_m64.py`), fewer tokens, more tokens, and quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous

MAX_GEMM_SPLIT_K_ROWS = 64
"""The largest number of rows of x."""


@dataclass(frozen=True, slots=True)
class GemmSplitKConfig:
    """How one product is divided.

    Attributes:
        block_n: output columns a program.
        block_k: elements of K an iteration.
        splits: parts of K.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        ahead: where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel; a
            multiple of 64.
    """

    block_n: int
    block_k: int
    splits: int
    num_warps: int
    num_stages: int
    ahead: int = 256


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_split_k_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    weight_start: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
    num_rows: int,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    AHEAD: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    first = tile * BLOCK_N
    split = tl.program_id(1)
    begin = split * SHARE
    if OVERLAP and AHEAD > 0:
        rows = tl.minimum(first + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)[:, None] * K
        line = tl.minimum(begin + tl.arange(0, AHEAD // 64)[None, :] * 64, K - 1)
        prefetch(weight_start + rows + line)
    m = tl.arange(0, BLOCK_M)[:, None]
    n = first + tl.arange(0, BLOCK_N)[None, :]
    wait_for_previous(OVERLAP)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(begin, tl.minimum(begin + SHARE, K), BLOCK_K):
        acc = tl.dot(x.load([0, k]), tl.trans(weight.load([first, k])), acc, input_precision=PRECISION)
    if SPLITS > 1:
        offset = (tile * SPLITS * BLOCK_M + m) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        tl.store(partial + split * BLOCK_M * BLOCK_N + offset, acc, mask=m < num_rows)
        # All threads' stores come before the one that announces them.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals + tile, 0)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for part in tl.static_range(SPLITS):
            # Not through the L1 cache, which may lack other multiprocessors' stores.
            acc += tl.load(
                partial + part * BLOCK_M * BLOCK_N + offset, mask=m < num_rows, other=0.0, cache_modifier=".cg"
            )
    mask = (m < num_rows) & (n < N)
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    if ADD:
        acc += tl.load(residual + m.to(tl.int64) * N + n, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + m.to(tl.int64) * N + n, acc.to(out.dtype.element_ty), mask=mask)


def gemm_split_k_config(n: int, k: int) -> GemmSplitKConfig:
    """A good division for ``n`` weight rows of ``k`` elements; `benchmarks/kernels.py` compares others."""
    if n <= 1024 and k >= 2048:
        return GemmSplitKConfig(block_n=32, block_k=64, splits=4, num_warps=4, num_stages=5)
    return GemmSplitKConfig(block_n=32, block_k=128, splits=1, num_warps=4, num_stages=4)


def gemm_split_k(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    arrivals: Tensor,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: GemmSplitKConfig | None = None,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32.

    Args:
        x: [M, K].
        weight: [N, K]. A row is a multiple of 16 bytes.
        bias: [N], or None.
        arrivals: int32 zeros, left as zeros; no other stream may use them meanwhile. K is split for at most as many tiles.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemm_split_k_config`.

    Raises:
        ValueError: M is 0 or more than `MAX_GEMM_SPLIT_K_ROWS`.
    """
    num_rows, k = x.shape
    if not 1 <= num_rows <= MAX_GEMM_SPLIT_K_ROWS:
        raise ValueError(f"gemm_split_k: x has {num_rows} rows; it takes 1 to {MAX_GEMM_SPLIT_K_ROWS}")
    n = weight.shape[0]
    config = config or gemm_split_k_config(n, k)
    tiles = triton.cdiv(n, config.block_n)
    wanted = config.splits if tiles <= arrivals.shape[0] else 1
    share = triton.cdiv(triton.cdiv(k, wanted), config.block_k) * config.block_k
    splits = triton.cdiv(k, share)
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    partial = out
    if splits > 1:
        partial = torch.empty(
            (tiles, splits, MAX_GEMM_SPLIT_K_ROWS, config.block_n), dtype=torch.float32, device=x.device
        )
    _gemm_split_k_kernel[(tiles, splits)](
        TensorDescriptor(x, [num_rows, k], [k, 1], [MAX_GEMM_SPLIT_K_ROWS, config.block_k]),
        TensorDescriptor(weight, [n, k], [k, 1], [config.block_n, config.block_k]),
        weight,
        bias if bias is not None else x,
        residual if residual is not None else x,
        out,
        partial,
        arrivals,
        num_rows,
        N=n,
        K=k,
        BLOCK_M=MAX_GEMM_SPLIT_K_ROWS,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLITS=splits,
        SHARE=share,
        AHEAD=config.ahead,
        BIAS=bias is not None,
        ADD=residual is not None,
        OVERLAP=overlap,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
