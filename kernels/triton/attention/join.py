"""The second part of attention with split histories (Flash-Decoding, Dao et al. 2023): joining the splits' results."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.attention.online_softmax import NO_KEY
from draftline.kernels.triton.overlap import launch_options, wait_for_previous


@triton.jit(do_not_specialize=["num_splits", "max_query"])
def _join_kernel(
    partial: tl.tensor,
    stats: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    num_splits: int,
    max_query: int,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Join the splits of one query token and head, each weighted by its share of the softmax's sum."""
    wait_for_previous(OVERLAP)
    pid = tl.program_id(0)
    head = pid % NUM_HEADS
    row = pid // NUM_HEADS // max_query
    row_query = pid // NUM_HEADS % max_query
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    if (row_query >= query_len) | (query_len > max_query):
        return
    flat = (row_start + row_query).to(tl.int64) * NUM_HEADS + head
    split = tl.arange(0, BLOCK_SPLITS)
    dim = tl.arange(0, BLOCK_D)[None, :]
    split_mask = split < num_splits
    part = flat * num_splits + split
    split_max = tl.load(stats + part * 2, mask=split_mask, other=NO_KEY)
    split_sum = tl.load(stats + part * 2 + 1, mask=split_mask, other=0.0)
    weight = tl.exp2(split_max - tl.max(split_max, axis=0))
    used = (split_sum > 0.0)[:, None] & (dim < HEAD_DIM)
    acc = tl.load(partial + part[:, None] * HEAD_DIM + dim, mask=used, other=0.0)
    result = tl.sum(acc * weight[:, None], axis=0) / tl.sum(weight * split_sum, axis=0)
    cols = tl.arange(0, BLOCK_D)
    tl.store(out + flat * HEAD_DIM + cols, result.to(out.dtype.element_ty), mask=cols < HEAD_DIM)


def join_splits(
    partial: Tensor, stats: Tensor, out: Tensor, query_starts: Tensor, rows: int, max_query: int, *, overlap: bool
) -> None:
    """Write the attention of all rows with up to ``max_query`` query tokens.

    Args:
        partial: [T, H, S, D] float32, each split's sum of values, weighted relative to its largest score; S a power of 2.
        stats: [T, H, S, 2] float32, that largest score (base 2) and the sum of weights, 0 for a split without keys.
        out: [T, H * D].
        query_starts: [rows + 1].
        rows: the number of rows.
        max_query: rows with more query tokens are left alone.
        overlap: start before the previous kernel has ended.
    """
    num_heads, splits, head_dim = partial.shape[1:]
    block_d = triton.next_power_of_2(head_dim)
    _join_kernel[(rows * max_query * num_heads,)](
        partial,
        stats,
        out,
        query_starts,
        splits,
        max_query,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_SPLITS=splits,
        OVERLAP=overlap,
        num_warps=2 if splits * block_d <= 1024 else 4,
        **launch_options(overlap),
    )
