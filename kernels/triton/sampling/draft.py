"""Sampling drafts straight into the slot table: a drafter's passes are short, and each launch counts.

Two launches, as in `sample.py`, but with the temperature alone: the first keeps the best score of each block of a row, the
second stores the row's best token, or the one that a constraint forces, where its draft belongs, and where the next pass reads
it. A head with a small vocabulary has a logit for each of its own tokens. The noise is always that of the target's token, so that
the two agree as often as they can.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Inputs
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.sampling.constraints import forced_draft
from draftline.kernels.triton.sampling.gumbel import MIN_TEMPERATURE, gumbel_noise, noise_of_tokens
from draftline.kernels.triton.sampling.scaled_logits import read_scaled
from draftline.kernels.triton.sampling.top_groups import GROUP, best_of_tile

_BLOCK_GROUPS = 16


@triton.jit
def _best_kernel(
    logits: tl.tensor,
    token_ids: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    block_score: tl.tensor,
    block_best: tl.tensor,
    logits_stride: int,
    COUNT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    MAPPED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    group = block * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    index = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    # No pass of a round writes these, and the noise depends on nothing else.
    position = tl.load(row_positions + row)
    slot = tl.load(row_slots + row)
    temperature, seed = tl.load(temperatures + slot), tl.load(seeds + slot)
    noisy = temperature >= MIN_TEMPERATURE
    divisor = tl.where(noisy, temperature, 1.0)
    noise = tl.zeros([BLOCK_GROUPS, GROUP], tl.float32)
    if noisy:
        if MAPPED:
            token = tl.load(token_ids + index, mask=index < COUNT, other=0)
            noise = noise_of_tokens(token, position, seed)
        else:
            counter = group[:, None] * (GROUP // 4) + tl.arange(0, GROUP // 4)[None, :]
            noise = gumbel_noise(counter, position, seed)
    wait_for_previous(OVERLAP)
    score = read_scaled(logits + row * logits_stride, logits, index, index < COUNT, divisor, False)
    if noisy:
        score += noise
    best, best_index = best_of_tile(score, index, COUNT)
    offset = row * tl.num_programs(1) + block
    tl.store(block_score + offset, best)
    tl.store(block_best + offset, best_index)


@triton.jit
def _store_best_kernel(
    block_score: tl.tensor,
    block_best: tl.tensor,
    token_ids: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    slot_tokens: tl.tensor,
    lengths: tl.tensor,
    words: tl.tensor,
    slot_states: tl.tensor,
    following: tl.tensor,
    tokens_stride: int,
    FOLLOWED: tl.constexpr,
    COUNT: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    MAPPED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, PADDED_BLOCKS)
    # No pass of a round writes these.
    position = tl.load(row_positions + row)
    slot = tl.load(row_slots + row)
    is_forced, forced = forced_draft(position - tl.load(lengths + slot), slot, words, slot_states)
    wait_for_previous(OVERLAP)
    score = tl.load(block_score + row * NUM_BLOCKS + block, mask=block < NUM_BLOCKS, other=float("-inf"))
    best = tl.load(block_best + row * NUM_BLOCKS + block, mask=block < NUM_BLOCKS, other=COUNT)
    index = tl.min(tl.where(score == tl.max(score, axis=0), best, COUNT), axis=0)
    index = tl.minimum(index, COUNT - 1)
    token = tl.load(token_ids + index).to(tl.int32) if MAPPED else index
    token = tl.where(is_forced, forced, token)
    tl.store(slot_tokens + slot * tokens_stride + position, token, mask=position >= 0)
    if FOLLOWED:
        tl.store(following + row, token.to(tl.int64))


def draft_sampled(
    logits: Tensor,
    token_ids: Tensor | None,
    slots: Tensor,
    positions: Tensor,
    table: SlotTable,
    constraints: ConstraintTable,
    following: Inputs | None = None,
    *,
    overlap: bool = False,
) -> None:
    """``Ops.draft_sampled`` by Triton kernels; with ``overlap`` they start before the previous kernel has ended."""
    count, vocab = logits.shape
    if not count:
        return
    num_blocks = triton.cdiv(vocab, GROUP * _BLOCK_GROUPS)
    block_score = torch.empty((count, num_blocks), dtype=torch.float32, device=logits.device)
    block_best = torch.empty((count, num_blocks), dtype=torch.int32, device=logits.device)
    # An unused argument must still be a tensor.
    mapped = slots if token_ids is None else token_ids
    _best_kernel[(count, num_blocks)](
        logits,
        mapped,
        slots,
        positions,
        table.temperature,
        table.seed,
        block_score,
        block_best,
        logits.stride(0),
        COUNT=vocab,
        GROUP=GROUP,
        BLOCK_GROUPS=_BLOCK_GROUPS,
        MAPPED=token_ids is not None,
        OVERLAP=overlap,
        num_warps=4,
        **launch_options(overlap),
    )
    _store_best_kernel[(count,)](
        block_score,
        block_best,
        mapped,
        slots,
        positions,
        table.tokens,
        table.lengths,
        constraints.words,
        constraints.states,
        positions if following is None else following.batch.token_ids,
        table.tokens.stride(0),
        FOLLOWED=following is not None,
        COUNT=vocab,
        NUM_BLOCKS=num_blocks,
        PADDED_BLOCKS=triton.next_power_of_2(num_blocks),
        MAPPED=token_ids is not None,
        OVERLAP=overlap,
        num_warps=1,
        **launch_options(overlap),
    )
