"""Sampling without a sort, a scan of the vocabulary in order, or a wait for the device.

Two launches. The first scores each block of each row, ``processed / T + gumbel``, and keeps its winner; where rows
truncate, also the largest logit of every 64 tokens. The second picks the row's winner; a row without truncation is done.

Top-k, top-p and min-p each keep a prefix of the same order: most likely first, and lower ids first among equals. So if
they exclude a winner, they exclude everything after it, and the best score before it is the next candidate. One pass over
the tokens before a candidate tells whether it survives, and which token is next. The first candidate nearly always
survives, and a pass reads only the groups of 64 whose largest logit reaches the candidate's. The result is exact, with
the reference's ties. (Sampling by rejection against such pivots is from FlashInfer. Here the noise is fixed, so the first
survivor in the order of scores is the argmax over the survivors.)

Padding, at position -1, takes its likeliest token: only rows that count pay for noise and truncation.

Not here: penalties, bias and min_tokens (`penalties.py`), banned tokens (`bans.py`), reading logits (`scaled_logits.py`), log-probabilities.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.sampling.bans import BANS, ban
from draftline.kernels.triton.sampling.gumbel import MIN_TEMPERATURE, gumbel_noise
from draftline.kernels.triton.sampling.penalties import EDITS, edit
from draftline.kernels.triton.sampling.scaled_logits import mask_of, read_one, read_scaled
from draftline.kernels.triton.sampling.top_groups import GROUP, best_of_tile, select_groups
from draftline.kernels.triton.sampling.truncation import read_tile, top_k_mass, truncates, weight
from draftline.kernels.triton.sums import tree_sum

IN_EVERY_KERNEL = (
    SamplingFeatures.TEMPERATURE | SamplingFeatures.TOP_K | SamplingFeatures.TOP_P | SamplingFeatures.MIN_P
)
"""Features that kernels have whether or not a row uses them: one that does not costs next to nothing."""

_BLOCK_GROUPS = 16
_TILE_GROUPS = 32

_MANY_ROWS = 64
"""Rows from which on programs fill the device, and smaller ones score sooner."""


@triton.jit
def _score_kernel(
    logits: tl.tensor,
    masks: tl.tensor,
    mask_rows: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    block_score: tl.tensor,
    block_id: tl.tensor,
    block_max: tl.tensor,
    block_sum: tl.tensor,
    group_max: tl.tensor,
    logits_stride: int,
    mask_stride: int,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    MASKED: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    group = block * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    slot = tl.load(row_slots + row)
    position = tl.load(row_positions + row)
    temperature = tl.load(temperatures + slot)
    noisy = (temperature >= MIN_TEMPERATURE) & (position >= 0)  # padding has any slot's parameters
    divisor = tl.where(noisy, temperature, 1.0)
    mask = mask_of(masks, mask_rows + row, mask_stride, MASKED)
    scaled = read_scaled(logits + row * logits_stride, mask, ids, ids < VOCAB, divisor, MASKED)
    offset = row * tl.num_programs(1) + block
    if noisy & truncates(slot, top_ks, top_ps, min_ps, VOCAB):
        largest = tl.max(scaled, axis=1)
        num_groups: tl.constexpr = (VOCAB + GROUP - 1) // GROUP
        tl.store(group_max + row * num_groups + group, largest, mask=group < num_groups)
        top = tl.max(largest, axis=0)
        # If nothing is above -inf, any finite number serves as anchor: the sum is 0.
        anchor = tl.where(top > float("-inf"), top, 0.0)
        tl.store(block_max + offset, top)
        of_groups = tree_sum(tl.exp(scaled - anchor))  # whose bits are those of any number of warps
        tl.store(block_sum + offset, tl.sum(tree_sum(of_groups[None, :]), axis=0))
    score = scaled
    if noisy:
        counter = group[:, None] * (GROUP // 4) + tl.arange(0, GROUP // 4)[None, :]
        score = scaled + gumbel_noise(counter, position, tl.load(seeds + slot))
    best, best_id = best_of_tile(score, ids, VOCAB)
    tl.store(block_score + offset, best)
    tl.store(block_id + offset, best_id)


@triton.jit
def _fallback(
    mask: tl.tensor,
    stop_ids: tl.tensor,
    early: tl.tensor,
    allowed_ids: tl.tensor,
    restricted: tl.tensor,
    VOCAB: tl.constexpr,
    STOPS: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
    ALLOWED_IDS: tl.constexpr,
) -> tl.tensor:
    """The token of a row without a finite logit: the lowest that the mask, if possible the ids and min_tokens, allow."""
    token = VOCAB
    second = VOCAB
    third = VOCAB
    base = 0
    while (token == VOCAB) & (base < VOCAB):
        ids = base + tl.arange(0, BLOCK)
        allowed = ids < VOCAB
        if MASKED:
            word = tl.load(mask + ids // 32, mask=allowed, other=0)
            allowed = allowed & (((word >> (ids % 32)) & 1) != 0)
        third = tl.minimum(third, tl.min(tl.where(allowed, ids, VOCAB), axis=0))
        if ALLOWED_IDS:
            if restricted:
                word = tl.load(allowed_ids + ids // 32, mask=allowed, other=0)
                allowed = allowed & (((word >> (ids % 32)) & 1) != 0)
        second = tl.minimum(second, tl.min(tl.where(allowed, ids, VOCAB), axis=0))
        if MIN_TOKENS:
            if early:
                for index in range(STOPS):
                    allowed = allowed & (ids != tl.load(stop_ids + index))
        token = tl.minimum(token, tl.min(tl.where(allowed, ids, VOCAB), axis=0))
        base += BLOCK
    token = tl.where(token == VOCAB, second, token)
    token = tl.where(token == VOCAB, third, token)
    return tl.where(token == VOCAB, 0, token)


@triton.jit
def _choose_kernel(
    logits: tl.tensor,
    masks: tl.tensor,
    mask_rows: tl.tensor,
    out: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    min_length: tl.tensor,
    stop_ids: tl.tensor,
    only_allowed: tl.tensor,
    allowed_ids: tl.tensor,
    block_score: tl.tensor,
    block_id: tl.tensor,
    block_max: tl.tensor,
    block_sum: tl.tensor,
    group_max: tl.tensor,
    selected: tl.tensor,
    logits_stride: int,
    mask_stride: int,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    STOPS: tl.constexpr,
    ALLOWED_WORDS: tl.constexpr,
    MASKED: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
    ALLOWED_IDS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    logits += row * logits_stride
    mask = mask_of(masks, mask_rows + row, mask_stride, MASKED)
    index = tl.arange(0, PADDED_BLOCKS)
    score = tl.load(block_score + row * NUM_BLOCKS + index, mask=index < NUM_BLOCKS, other=float("-inf"))
    winner = tl.load(block_id + row * NUM_BLOCKS + index, mask=index < NUM_BLOCKS, other=VOCAB)
    best = tl.max(score, axis=0)
    token = tl.min(tl.where(score == best, winner, VOCAB), axis=0)
    if best == float("-inf"):
        early = False
        if MIN_TOKENS:
            early = tl.load(row_positions + row) < tl.load(min_length + slot)
        restricted = False
        if ALLOWED_IDS:
            restricted = tl.load(only_allowed + slot) != 0
        token = _fallback(
            mask, stop_ids + slot * STOPS, early, allowed_ids + slot * ALLOWED_WORDS, restricted,
            VOCAB, STOPS, 1024, MASKED, MIN_TOKENS, ALLOWED_IDS,
        )  # fmt: skip
    else:
        position = tl.load(row_positions + row)
        temperature = tl.load(temperatures + slot)
        noisy = (temperature >= MIN_TEMPERATURE) & (position >= 0)
        if noisy & truncates(slot, top_ks, top_ps, min_ps, VOCAB) & (best < float("inf")):
            group_max += row * NUM_GROUPS
            selected += row * NUM_GROUPS
            seed = tl.load(seeds + slot)
            k = tl.load(top_ks + slot)
            k = tl.where((k > 0) & (k < VOCAB), k, VOCAB)
            p = tl.load(top_ps + slot)
            least_weight = tl.load(min_ps + slot)
            tops = tl.load(block_max + row * NUM_BLOCKS + index, mask=index < NUM_BLOCKS, other=float("-inf"))
            top = tl.max(tops, axis=0)
            # A survivor has less weight than this before it.
            bound = tl.sum(tl.zeros([1], tl.float64), axis=0) + float("inf")
            if p < 1.0:
                sums = tl.load(block_sum + row * NUM_BLOCKS + index, mask=index < NUM_BLOCKS, other=0.0)
                bound = tl.sum(sums.to(tl.float64) * weight(tops, top), axis=0)
                if k < VOCAB:
                    bound = top_k_mass(
                        logits, mask, group_max, selected, k, top, temperature,
                        VOCAB, GROUP, TILE_GROUPS, NUM_GROUPS, PADDED_GROUPS, MASKED,
                    )  # fmt: skip
                bound = bound * p
            survives = False
            while not survives:
                pivot = read_one(logits, mask, token, temperature, MASKED)
                count = select_groups(group_max, selected, pivot, NUM_GROUPS, PADDED_GROUPS)
                before = 0
                mass = tl.sum(tl.zeros([1], tl.float64), axis=0)
                next_score = float("-inf")
                next_token = VOCAB
                for first in range(0, count, TILE_GROUPS):
                    group, ids, scaled = read_tile(
                        logits, mask, selected, count, first, temperature, VOCAB, GROUP, TILE_GROUPS, MASKED
                    )
                    earlier = (scaled > pivot) | ((scaled == pivot) & (ids < token))
                    before += tl.sum(tl.sum(earlier.to(tl.int32), axis=1), axis=0)
                    mass += tl.sum(tl.sum(tl.where(earlier, weight(scaled, top), 0.0), axis=1), axis=0)
                    counter = group[:, None] * (GROUP // 4) + tl.arange(0, GROUP // 4)[None, :]
                    noise = gumbel_noise(counter, position, seed)
                    tile_score, tile_token = best_of_tile(tl.where(earlier, scaled + noise, float("-inf")), ids, VOCAB)
                    # The list is in the order of ids, so a later equal has a higher id.
                    next_token = tl.where(tile_score > next_score, tile_token, next_token)
                    next_score = tl.maximum(tile_score, next_score)
                within = (before < k) & (mass < bound) & (tl.exp(pivot - top) >= least_weight)
                survives = (before == 0) | within
                token = tl.where(survives, token, next_token)
    tl.store(out + row, token.to(tl.int64))


def _edited(logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
    """Logits [S, V] with sparse edits, as a copy in float32; without any, the argument itself."""
    if not rows.features & (EDITS | BANS):
        return logits
    edited = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    edit(edited, logits, rows, table)
    ban(edited, rows, table)
    return edited


def sample(logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
    """``Ops.sample`` by Triton kernels."""
    count, vocab = logits.shape
    device = logits.device
    features = rows.features
    values = _edited(logits, rows, table)
    # An unused argument must still be a tensor.
    masks = rows.masks or Masks(rows.slots, rows.slots)
    num_groups = triton.cdiv(vocab, GROUP)
    num_blocks = triton.cdiv(num_groups, _BLOCK_GROUPS)
    block_score = torch.empty((count, num_blocks), dtype=torch.float32, device=device)
    block_id = torch.empty((count, num_blocks), dtype=torch.int32, device=device)
    # Separate allocations: an alignment that only some sizes have would double the kernels.
    block_max, block_sum = torch.empty_like(block_score), torch.empty_like(block_score)
    group_max = torch.empty((count, num_groups), dtype=torch.float32, device=device)
    selected = torch.empty((count, num_groups), dtype=torch.int32, device=device)
    out = torch.empty(count, dtype=torch.int64, device=device)
    _score_kernel[(count, num_blocks)](
        values,
        masks.words,
        masks.rows,
        rows.slots,
        rows.positions,
        table.temperature,
        table.seed,
        table.top_k,
        table.top_p,
        table.min_p,
        block_score,
        block_id,
        block_max,
        block_sum,
        group_max,
        values.stride(0),
        masks.words.stride(0),
        VOCAB=vocab,
        GROUP=GROUP,
        BLOCK_GROUPS=_BLOCK_GROUPS,
        MASKED=rows.masks is not None,
        num_warps=2 if count >= _MANY_ROWS else 4,
        enable_fp_fusion=False,
    )
    _choose_kernel[(count,)](
        values,
        masks.words,
        masks.rows,
        out,
        rows.slots,
        rows.positions,
        table.temperature,
        table.seed,
        table.top_k,
        table.top_p,
        table.min_p,
        table.min_length,
        table.stop_ids,
        table.only_allowed,
        table.allowed,
        block_score,
        block_id,
        block_max,
        block_sum,
        group_max,
        selected,
        values.stride(0),
        masks.words.stride(0),
        VOCAB=vocab,
        GROUP=GROUP,
        TILE_GROUPS=_TILE_GROUPS,
        NUM_BLOCKS=num_blocks,
        PADDED_BLOCKS=triton.next_power_of_2(num_blocks),
        NUM_GROUPS=num_groups,
        PADDED_GROUPS=triton.next_power_of_2(num_groups),
        STOPS=table.stop_ids.shape[1],
        ALLOWED_WORDS=table.allowed.shape[1],
        MASKED=rows.masks is not None,
        MIN_TOKENS=bool(features & SamplingFeatures.MIN_TOKENS),
        ALLOWED_IDS=bool(features & SamplingFeatures.ALLOWED_IDS),
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
