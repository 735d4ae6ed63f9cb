"""Log-probabilities of chosen and of most likely tokens, without a sort and without a wait for the device.

Two launches, as in `sample.py`: one pass over the vocabulary in parallel blocks, then one program a row that reads the
few groups of tokens that can hold the most likely ones, once for each reported token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.sampling.top_groups import GROUP, best_of_tile, kth_group, select_groups

_BLOCK_GROUPS = 16
_TILE_GROUPS = 32


@triton.jit
def _read(logits: tl.tensor, ids: tl.tensor, valid: tl.tensor) -> tl.tensor:
    """The logits of ``ids``; -inf where NaN or not valid."""
    value = tl.load(logits + ids, mask=valid, other=float("-inf")).to(tl.float32)
    return tl.where(value == value, value, float("-inf"))


@triton.jit
def _survey_kernel(
    logits: tl.tensor,
    token_ids: tl.tensor,
    block_max: tl.tensor,
    block_sum: tl.tensor,
    block_larger: tl.tensor,
    group_max: tl.tensor,
    logits_stride: int,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
) -> None:
    """Each block's largest logit, the sum of exponentials relative to it, and how many logits exceed the chosen one."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    logits += row * logits_stride
    group = block * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = _read(logits, ids, ids < VOCAB)
    chosen = tl.load(logits + tl.load(token_ids + row)).to(tl.float32)
    # Every number is larger than NaN, which counts as -inf.
    larger = (ids < VOCAB) & tl.where(chosen == chosen, value > chosen, value > float("-inf"))
    largest = tl.max(value, axis=1)
    num_groups: tl.constexpr = (VOCAB + GROUP - 1) // GROUP
    tl.store(group_max + row * num_groups + group, largest, mask=group < num_groups)
    top = tl.max(largest, axis=0)
    offset = row * tl.num_programs(1) + block
    tl.store(block_max + offset, top)
    # If the largest is infinite, its equals weigh the same, and the others nothing.
    finite = (top > float("-inf")) & (top < float("inf"))
    weight = tl.exp(value - tl.where(finite, top, 0.0))
    weight = tl.where(finite, weight, ((value == top) & (ids < VOCAB)).to(tl.float32))
    tl.store(block_sum + offset, tl.sum(tl.sum(weight, axis=1), axis=0))
    tl.store(block_larger + offset, tl.sum(tl.sum(larger.to(tl.int32), axis=1), axis=0))


@triton.jit
def _report_kernel(
    logits: tl.tensor,
    token_ids: tl.tensor,
    block_max: tl.tensor,
    block_sum: tl.tensor,
    block_larger: tl.tensor,
    group_max: tl.tensor,
    selected: tl.tensor,
    chosen_logprob: tl.tensor,
    chosen_rank: tl.tensor,
    top_ids: tl.tensor,
    top_logprobs: tl.tensor,
    logits_stride: int,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    TOP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    index = tl.arange(0, PADDED_BLOCKS)
    offset = row * NUM_BLOCKS + index
    valid = index < NUM_BLOCKS
    tops = tl.load(block_max + offset, mask=valid, other=float("-inf"))
    sums = tl.load(block_sum + offset, mask=valid, other=0.0)
    top = tl.max(tops, axis=0)
    finite = (top > float("-inf")) & (top < float("inf"))
    weight = tl.exp(tops - tl.where(finite, top, 0.0))
    weight = tl.where(finite, weight, (tops == top).to(tl.float32))
    total = tl.sum(sums * weight, axis=0)
    log_total = tl.log(total)

    chosen = tl.load(logits + tl.load(token_ids + row)).to(tl.float32)
    chosen = tl.where(chosen == chosen, chosen, float("-inf"))
    tl.store(chosen_logprob + row, tl.where(chosen == top, 0.0, chosen - top) - log_total)
    larger = tl.sum(tl.load(block_larger + offset, mask=valid, other=0), axis=0)
    # Next to an infinite logit, finite ones are equally impossible; the total counts the others.
    larger = tl.where(finite, larger, tl.where(chosen == top, 0, total.to(tl.int32)))
    tl.store(chosen_rank + row, 1 + larger.to(tl.int64))

    if TOP > 0:
        group_max += row * NUM_GROUPS
        selected += row * NUM_GROUPS
        least = tl.where(finite, kth_group(group_max, TOP, NUM_GROUPS, PADDED_GROUPS), float("-inf"))
        count = select_groups(group_max, selected, least, NUM_GROUPS, PADDED_GROUPS)
        last = float("inf")
        last_id = -1
        for rank in range(TOP):
            best = float("-inf")
            best_id = VOCAB
            for first in range(0, count, TILE_GROUPS):
                entry = first + tl.arange(0, TILE_GROUPS)
                group = tl.load(selected + entry, mask=entry < count, other=0)
                ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
                listed = (entry < count)[:, None] & (ids < VOCAB)
                value = _read(logits, ids, listed)
                value = tl.where(finite, value, tl.where(value == top, value, float("-inf")))
                after = listed & ((value < last) | ((value == last) & (ids > last_id)))
                # An id that is not a candidate must not win among equals at -inf.
                tile_best, tile_id = best_of_tile(
                    tl.where(after, value, float("-inf")), tl.where(after, ids, VOCAB), VOCAB
                )
                best_id = tl.where(
                    tile_best > best, tile_id, tl.where(tile_best == best, tl.minimum(best_id, tile_id), best_id)
                )
                best = tl.maximum(best, tile_best)
            tl.store(top_ids + row * TOP + rank, best_id.to(tl.int64))
            tl.store(top_logprobs + row * TOP + rank, tl.where(best == top, 0.0, best - top) - log_total)
            last = best
            last_id = best_id


def logprobs(logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``Ops.logprobs`` by Triton kernels.

    Raises:
        ValueError: ``top`` is negative or more than the vocabulary.
    """
    count, vocab = logits.shape
    if not 0 <= top <= vocab:
        raise ValueError(f"logprobs: top is {top}, but the vocabulary has {vocab} tokens")
    device = logits.device
    num_groups = triton.cdiv(vocab, GROUP)
    num_blocks = triton.cdiv(num_groups, _BLOCK_GROUPS)
    block_max, block_sum = torch.empty((2, count, num_blocks), dtype=torch.float32, device=device)
    block_larger = torch.empty((count, num_blocks), dtype=torch.int32, device=device)
    group_max = torch.empty((count, num_groups), dtype=torch.float32, device=device)
    selected = torch.empty((count, num_groups), dtype=torch.int32, device=device)
    chosen = torch.empty(count, dtype=torch.float32, device=device)
    ranks = torch.empty(count, dtype=torch.int64, device=device)
    top_ids = torch.empty((count, top), dtype=torch.int64, device=device)
    top_logprobs = torch.empty((count, top), dtype=torch.float32, device=device)
    if count == 0:
        return chosen, ranks, top_ids, top_logprobs
    _survey_kernel[(count, num_blocks)](
        logits,
        token_ids,
        block_max,
        block_sum,
        block_larger,
        group_max,
        logits.stride(0),
        VOCAB=vocab,
        GROUP=GROUP,
        BLOCK_GROUPS=_BLOCK_GROUPS,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _report_kernel[(count,)](
        logits,
        token_ids,
        block_max,
        block_sum,
        block_larger,
        group_max,
        selected,
        chosen,
        ranks,
        top_ids,
        top_logprobs,
        logits.stride(0),
        VOCAB=vocab,
        GROUP=GROUP,
        TILE_GROUPS=_TILE_GROUPS,
        NUM_BLOCKS=num_blocks,
        PADDED_BLOCKS=triton.next_power_of_2(num_blocks),
        NUM_GROUPS=num_groups,
        PADDED_GROUPS=triton.next_power_of_2(num_groups),
        TOP=top,
        num_warps=8 if top else 4,
        enable_fp_fusion=False,
    )
    return chosen, ranks, top_ids, top_logprobs
