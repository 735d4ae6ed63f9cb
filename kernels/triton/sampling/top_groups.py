"""Finding the few large logits of a row without sorting it, by the largest logit of every group of tokens.

A pass over the vocabulary stores the maximum of each group of `GROUP` tokens. To find the tokens above some number, only
the groups whose maximum reaches it are read: about as many groups as there are such tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP = 64
"""Tokens a group: 256 bytes of logits."""


@triton.jit
def best_of_tile(score: tl.tensor, ids: tl.tensor, VOCAB: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The largest score of a two-dimensional tile and the lowest id that has it."""
    largest = tl.max(tl.max(score, axis=1), axis=0)
    return largest, tl.min(tl.min(tl.where(score == largest, ids, VOCAB), axis=1), axis=0)


@triton.jit
def ordered(value: tl.tensor) -> tl.tensor:
    """Integers in the order of these float32 numbers; both zeros are the same one."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_ordered(key: tl.tensor) -> tl.tensor:
    """The float32 numbers of these integers: the inverse of `ordered`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def select_groups(
    group_max: tl.tensor, selected: tl.tensor, least: tl.tensor, NUM_GROUPS: tl.constexpr, PADDED: tl.constexpr
) -> tl.tensor:
    """List the groups whose largest logit is at least ``least``, in order; returns how many there are."""
    index = tl.arange(0, PADDED)
    largest = tl.load(group_max + index, mask=index < NUM_GROUPS, other=float("-inf"))
    chosen = ((largest >= least) & (index < NUM_GROUPS)).to(tl.int32)
    entry = tl.cumsum(chosen, axis=0) - 1
    # Threads read entries that other threads write: wait between two lists, and before the first is read.
    tl.debug_barrier()
    tl.store(selected + entry, index, mask=chosen != 0)
    tl.debug_barrier()
    return tl.sum(chosen, axis=0)


@triton.jit
def kth_group(group_max: tl.tensor, k: tl.tensor, NUM_GROUPS: tl.constexpr, PADDED: tl.constexpr) -> tl.tensor:
    """A number that at least k logits reach: the k-th largest of the groups' largest, or less; -inf for a large k."""
    index = tl.arange(0, PADDED)
    largest = tl.load(group_max + index, mask=index < NUM_GROUPS, other=float("-inf"))
    key = ordered(largest)
    low = ordered(tl.full([1], float("-inf"), tl.float32)).to(tl.int64)
    low = tl.min(low, axis=0)
    high = tl.max(key, axis=0).to(tl.int64) + 1
    if k > NUM_GROUPS:
        high = low + 1
    while high - low > 1:
        middle = (low + high) >> 1
        count = tl.sum((key >= middle).to(tl.int32), axis=0)
        # Exactly k is optimal: end the search by closing the interval.
        high = tl.where(count < k, middle, tl.where(count == k, middle + 1, high))
        low = tl.where(count < k, low, middle)
    return from_ordered(low.to(tl.int32))
