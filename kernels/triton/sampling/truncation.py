"""What truncation needs of a row: its large logits, a tile at a time, and the weight that top-k leaves.

Not here: which groups of tokens can hold large logits (`top_groups.py`), and the search for a survivor (`sample.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.sampling.scaled_logits import read_scaled
from draftline.kernels.triton.sampling.top_groups import from_ordered, kth_group, ordered, select_groups


@triton.jit
def truncates(
    slot: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor, VOCAB: tl.constexpr
) -> tl.tensor:
    """Whether a slot's sequence excludes tokens by top-k, top-p or min-p, if its temperature is above 0."""
    k = tl.load(top_ks + slot)
    return ((k > 0) & (k < VOCAB)) | (tl.load(top_ps + slot) < 1.0) | (tl.load(min_ps + slot) > 0.0)


@triton.jit
def read_tile(
    logits: tl.tensor,
    mask: tl.tensor,
    selected: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    divisor: tl.tensor,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A tile of listed groups, from entry ``first`` on: their indices, their ids and their scaled logits."""
    entry = first + tl.arange(0, TILE_GROUPS)
    listed = entry < count
    group = tl.load(selected + entry, mask=listed, other=0)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    valid = listed[:, None] & (ids < VOCAB)
    return group, ids, read_scaled(logits, mask, ids, valid, divisor, MASKED)


@triton.jit
def weight(scaled: tl.tensor, top: tl.tensor) -> tl.tensor:
    """``exp(scaled - top)`` as float64, for sums of weights."""
    return tl.exp(scaled - top).to(tl.float64)


@triton.jit
def top_k_mass(
    logits: tl.tensor,
    mask: tl.tensor,
    group_max: tl.tensor,
    selected: tl.tensor,
    k: tl.tensor,
    top: tl.tensor,
    divisor: tl.tensor,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PADDED: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """The weight of the k most likely tokens, by bisection for the k-th largest logit."""
    least = kth_group(group_max, k, NUM_GROUPS, PADDED)
    count = select_groups(group_max, selected, least, NUM_GROUPS, PADDED)
    low = ordered(least).to(tl.int64)
    high = ordered(top).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        reached = 0
        for first in range(0, count, TILE_GROUPS):
            _, _, scaled = read_tile(logits, mask, selected, count, first, divisor, VOCAB, GROUP, TILE_GROUPS, MASKED)
            reached += tl.sum(tl.sum((ordered(scaled) >= middle).to(tl.int32), axis=1), axis=0)
        high = tl.where(reached < k, middle, tl.where(reached == k, middle + 1, high))
        low = tl.where(reached < k, low, middle)
    kth = from_ordered(low.to(tl.int32))
    above = 0
    mass = tl.sum(tl.zeros([1], tl.float64), axis=0)
    for first in range(0, count, TILE_GROUPS):
        _, _, scaled = read_tile(logits, mask, selected, count, first, divisor, VOCAB, GROUP, TILE_GROUPS, MASKED)
        larger = scaled > kth
        above += tl.sum(tl.sum(larger.to(tl.int32), axis=1), axis=0)
        mass += tl.sum(tl.sum(tl.where(larger, weight(scaled, top), 0.0), axis=1), axis=0)
    return mass + (k - above).to(tl.float64) * weight(kth, top)
