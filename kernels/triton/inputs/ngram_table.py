"""Drafts from a hash table of n-grams on the device, where n-gram lookup in the sequence itself finds less.

Two launches: one records the sequences' new tokens, the other reads drafts. Rows write the table concurrently, each entry
with one 64-bit store, so that a check always has its own token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.inputs.ngram import latest_match

_BLOCK = 1024


@triton.jit
def _key(first: tl.tensor, second: tl.tensor, third: tl.tensor) -> tl.tensor:
    """The check of three tokens, as 32 bits in an int64; its lowest bits are their index in the table."""
    mixed = first.to(tl.int64) * 0x9E3779B1 + second.to(tl.int64) * 0x85EBCA77 + third.to(tl.int64) * 0xC2B2AE3D
    mixed = mixed & 0xFFFFFFFF
    return mixed ^ (mixed >> 15)


@triton.jit
def _learn_kernel(
    slot_tokens: tl.tensor,
    lengths: tl.tensor,
    rows: tl.tensor,
    ngrams: tl.tensor,
    tokens_stride: int,
    COUNT: tl.constexpr,
    PADDED: tl.constexpr,
    ENTRIES: tl.constexpr,
) -> None:
    slot = tl.load(rows + tl.program_id(0))
    length = tl.load(lengths + slot)
    position = length - COUNT + tl.arange(0, PADDED)
    mask = (position >= 3) & (position < length)
    tokens = slot_tokens + slot * tokens_stride + position
    key = _key(
        tl.load(tokens - 3, mask=mask, other=0),
        tl.load(tokens - 2, mask=mask, other=0),
        tl.load(tokens - 1, mask=mask, other=0),
    )
    followed = tl.load(tokens, mask=mask, other=0).to(tl.int64)
    tl.store(ngrams + (key & (ENTRIES - 1)), key | (followed << 32), mask=mask)


@triton.jit
def _draft_kernel(
    slot_tokens: tl.tensor,
    lengths: tl.tensor,
    rows: tl.tensor,
    ngrams: tl.tensor,
    tokens_stride: int,
    COUNT: tl.constexpr,
    LONGEST: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    slot = tl.load(rows + tl.program_id(0))
    length = tl.load(lengths + slot)
    tokens = slot_tokens + slot * tokens_stride
    at, matched = latest_match(tokens, length, LONGEST, BLOCK)
    period = tl.maximum(length - at, 1)
    third = tl.load(tokens + tl.maximum(length - 1, 0))
    second = tl.load(tokens + tl.maximum(length - 2, 0))
    first = tl.load(tokens + tl.maximum(length - 3, 0))
    follows_own = length > 0
    for draft in tl.static_range(0, COUNT):
        guess = tl.load(tokens + at + draft % period)
        token = tl.where(follows_own, guess, third)
        key = _key(first, second, third)
        entry = tl.load(ngrams + (key & (ENTRIES - 1)))
        known = ((entry & 0xFFFFFFFF) == key) & (length + draft >= 3) & ((matched < LONGEST) | (follows_own == 0))
        token = tl.where(known, ((entry >> 32) & 0x7FFFFFFF).to(tl.int32), token)
        follows_own = follows_own & (token == guess)
        tl.store(tokens + length + draft, token)
        first, second, third = second, third, token


def learn_ngrams(slots: Tensor, count: int, ngrams: Tensor, table: SlotTable) -> None:
    """``Ops.learn_ngrams`` by Triton kernels."""
    if slots.shape[0] and count:
        _learn_kernel[(slots.shape[0],)](
            table.tokens,
            table.lengths,
            slots,
            _entries(ngrams),
            table.tokens.stride(0),
            COUNT=count,
            PADDED=triton.next_power_of_2(count),
            ENTRIES=ngrams.shape[0],
            num_warps=1,
        )


def draft_ngram_table(slots: Tensor, count: int, max_ngram: int, ngrams: Tensor, table: SlotTable) -> None:
    """``Ops.draft_ngram_table`` by Triton kernels."""
    if slots.shape[0] and count:
        _draft_kernel[(slots.shape[0],)](
            table.tokens,
            table.lengths,
            slots,
            _entries(ngrams),
            table.tokens.stride(0),
            COUNT=count,
            LONGEST=max_ngram,
            ENTRIES=ngrams.shape[0],
            BLOCK=_BLOCK,
            num_warps=4,
        )


def _entries(ngrams: Tensor) -> Tensor:
    """[E] int64: the check in the low half of each, the token in the high one."""
    return ngrams.view(torch.int64)[:, 0]
