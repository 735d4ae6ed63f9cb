"""Linear layers with few weight rows for up to 64 tokens, bound by reading the weight once: [M, K] times [N, K]^T.

A tile holds all rows of x, and the hardware copies tiles. So few weight rows would not occupy the device, so each part of K
(`k_parts.py`) has a program. The last program of a tile adds the parts up in their order. The addition to the residual
stream is part of the launch.

Not here: wide layers and more tokens (`gemm.py`), fewer tokens (`gemm_m16_parts.py`), quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.linear.k_parts import PARTS, part_size
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous

MAX_GEMM_SPLIT_K_ROWS = 64
"""The largest number of rows of x."""


@dataclass(frozen=True, slots=True)
class GemmSplitKConfig:
    """How one product is divided.

    Attributes:
        block_n: output columns a program.
        block_k: elements of K an iteration.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        ahead: where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel; a
            multiple of 64.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    ahead: int = 256


@triton.jit
def _pair(partial: tl.tensor, place: tl.tensor, mask: tl.tensor, part: tl.constexpr, SIZE: tl.constexpr) -> tl.tensor:
    """The sum of a part and the next one. Not through the L1 cache, which may lack other multiprocessors' stores."""
    first = tl.load(partial + part * SIZE + place, mask=mask, other=0.0, cache_modifier=".cg")
    return first + tl.load(partial + (part + 1) * SIZE + place, mask=mask, other=0.0, cache_modifier=".cg")


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
    PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    AHEAD: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
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
        acc = tl.dot(x.load([0, k]), tl.trans(weight.load([first, k])), acc)
    place = (tile * PARTS * BLOCK_M + m) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(partial + split * BLOCK_M * BLOCK_N + place, acc, mask=m < num_rows)
    # All threads' stores come before the one that announces them.
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
    if arrived < PARTS - 1:
        return
    tl.store(arrivals + tile, 0)
    first_pair = _pair(partial, place, m < num_rows, 0, BLOCK_M * BLOCK_N)
    acc = first_pair + _pair(partial, place, m < num_rows, 2, BLOCK_M * BLOCK_N)
    mask = (m < num_rows) & (n < N)
    offset = m * N + n
    acc = load_and_finish(
        acc, acc, bias, residual, n, offset, mask, out.dtype.element_ty, N, BIAS, False, ADD
    )  # fmt: skip
    tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)


def gemm_split_k_config(share: int) -> GemmSplitKConfig:
    """A good division for parts of ``share`` channels; `benchmarks/kernels.py` compares others."""
    return GemmSplitKConfig(block_n=32, block_k=128 if share % 128 == 0 else 64, num_warps=4, num_stages=4)


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
        arrivals: int32 zeros, left as zeros, at least one for each tile; no other stream may use them meanwhile.
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
    share = part_size(k)
    config = config or gemm_split_k_config(share)
    tiles = triton.cdiv(n, config.block_n)
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    size = (tiles, PARTS, MAX_GEMM_SPLIT_K_ROWS, config.block_n)
    partial = torch.empty(size, dtype=torch.float32, device=x.device)
    _gemm_split_k_kernel[(tiles, PARTS)](
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
        PARTS=PARTS,
        SHARE=share,
        AHEAD=config.ahead,
        BIAS=bias is not None,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
