"""Penalties, logit bias and min_tokens: sparse edits of a copy of the logits, in time linear in the history.

The order is the reference's: repetition penalty, frequency and presence penalties, bias, stop ids. Not here: bad words
and allowed ids (`bans.py`), and the mask and the temperature, which touch every token and are applied where `sample.py`
reads them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable

EDITS = SamplingFeatures.PENALTIES | SamplingFeatures.LOGIT_BIAS | SamplingFeatures.MIN_TOKENS
"""The features that this file applies."""

_IN_PROMPT = tl.constexpr(1 << 30)
_PARTS = 16
_BLOCK = 256


@triton.jit
def _count_kernel(
    counts: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    tokens: tl.tensor,
    prompt_lens: tl.tensor,
    repetition: tl.tensor,
    presence: tl.tensor,
    frequency: tl.tensor,
    tokens_stride: int,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Count each token of a row's output; mark tokens of its prompt with a separate bit."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    length = tl.load(row_positions + row)
    neutral = (tl.load(presence + slot) == 0.0) & (tl.load(frequency + slot) == 0.0)
    if neutral & (tl.load(repetition + slot) == 1.0):
        return
    prompt_len = tl.load(prompt_lens + slot)
    for base in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
        index = base + tl.arange(0, BLOCK)
        token = tl.load(tokens + slot * tokens_stride + index, mask=index < length, other=-1)
        known = (token >= 0) & (token < VOCAB)
        target = counts + row * VOCAB + token
        tl.atomic_add(target, 1, mask=known & (index >= prompt_len), sem="relaxed")
        tl.atomic_or(target, _IN_PROMPT, mask=known & (index < prompt_len), sem="relaxed")


@triton.jit
def _penalise_kernel(
    logits: tl.tensor,
    edited: tl.tensor,
    counts: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    tokens: tl.tensor,
    repetition: tl.tensor,
    presence: tl.tensor,
    frequency: tl.tensor,
    tokens_stride: int,
    logits_stride: int,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Edit the logit of each token of a row's history; repeated tokens write the same value again."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    length = tl.load(row_positions + row)
    repeat = tl.load(repetition + slot)
    present = tl.load(presence + slot)
    frequent = tl.load(frequency + slot)
    if (present == 0.0) & (frequent == 0.0) & (repeat == 1.0):
        return
    for base in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
        index = base + tl.arange(0, BLOCK)
        token = tl.load(tokens + slot * tokens_stride + index, mask=index < length, other=-1)
        known = (token >= 0) & (token < VOCAB)
        value = tl.load(logits + row * logits_stride + token, mask=known, other=0.0).to(tl.float32)
        count = tl.load(counts + row * VOCAB + token, mask=known, other=0) & (_IN_PROMPT - 1)
        if repeat != 1.0:
            value = tl.where(value > 0, tl.div_rn(value, tl.zeros_like(value) + repeat), value * repeat)
        if (present != 0.0) | (frequent != 0.0):
            value = tl.where(count > 0, value - frequent * count.to(tl.float32) - present, value)
        tl.store(edited + row * VOCAB + token, value, mask=known)


@triton.jit
def _bias_kernel(
    edited: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    bias_ids: tl.tensor,
    bias_values: tl.tensor,
    min_length: tl.tensor,
    stop_ids: tl.tensor,
    VOCAB: tl.constexpr,
    BIAS: tl.constexpr,
    STOPS: tl.constexpr,
    LOGIT_BIAS: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
) -> None:
    """Add a row's logit bias, then forbid its stop ids where it is too early for them."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    if LOGIT_BIAS:
        entry = slot * BIAS + tl.arange(0, BIAS)
        token = tl.load(bias_ids + entry)
        known = (token >= 0) & (token < VOCAB)
        tl.atomic_add(edited + row * VOCAB + token, tl.load(bias_values + entry), mask=known, sem="relaxed")
    if MIN_TOKENS:
        # A stop id may have a bias too: its write by another thread must come first.
        tl.debug_barrier()
        if tl.load(row_positions + row) < tl.load(min_length + slot):
            stop = tl.load(stop_ids + slot * STOPS + tl.arange(0, STOPS))
            tl.store(edited + row * VOCAB + stop, float("-inf"), mask=(stop >= 0) & (stop < VOCAB))


def edit(edited: Tensor, logits: Tensor, rows: SampleRows, table: SlotTable) -> None:
    """Apply the rows' penalties, bias and min_tokens.

    Args:
        edited: [S, V] float32, contiguous: a copy of ``logits``, which this changes.
        logits: [S, V].
        rows: which sequence and position each row belongs to.
        table: the slot table.
    """
    count, vocab = logits.shape
    if rows.features & SamplingFeatures.PENALTIES:
        counts = torch.zeros((count, vocab), dtype=torch.int32, device=logits.device)
        history = (rows.slots, rows.positions, table.tokens)
        penalties = (table.repetition_penalty, table.presence_penalty, table.frequency_penalty)
        _count_kernel[(count, _PARTS)](
            counts,
            *history,
            table.prompt_lens,
            *penalties,
            table.tokens.stride(0),
            VOCAB=vocab,
            BLOCK=_BLOCK,
        )
        _penalise_kernel[(count, _PARTS)](
            logits,
            edited,
            counts,
            *history,
            *penalties,
            table.tokens.stride(0),
            logits.stride(0),
            VOCAB=vocab,
            BLOCK=_BLOCK,
            # A product fused with the subtraction after it would round differently from the reference.
            enable_fp_fusion=False,
        )
    if rows.features & (SamplingFeatures.LOGIT_BIAS | SamplingFeatures.MIN_TOKENS):
        _bias_kernel[(count,)](
            edited,
            rows.slots,
            rows.positions,
            table.bias_ids,
            table.bias_values,
            table.min_length,
            table.stop_ids,
            VOCAB=vocab,
            BIAS=table.bias_ids.shape[1],
            STOPS=table.stop_ids.shape[1],
            LOGIT_BIAS=bool(rows.features & SamplingFeatures.LOGIT_BIAS),
            MIN_TOKENS=bool(rows.features & SamplingFeatures.MIN_TOKENS),
        )
