"""Drafts by n-gram lookup in each sequence's own tokens: one program a row, one pass over its tokens.

The continuation of the latest earlier occurrence of the sequence's end (prompt lookup decoding, Saxena 2023,
https://github.com/apoorvumang/prompt-lookup-decoding). Lengths are read on the device.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import SlotTable

_BLOCK = 1024
MAX_NGRAM = 8
"""The largest number of tokens of the end that are compared."""


@triton.jit
def latest_match(
    tokens: tl.tensor, length: tl.tensor, LONGEST: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The last earlier occurrence of a sequence's end: the position behind it, and the number of matching tokens."""
    # A position's score is the number of matching tokens before it, then the position: both in one number.
    best = tl.sum(tl.zeros([1], tl.int64), axis=0)
    for base in range(1, length, BLOCK):
        position = base + tl.arange(0, BLOCK)
        valid = position < length
        matched = tl.zeros([BLOCK], tl.int32)
        going = valid
        for back in tl.static_range(1, LONGEST + 1):
            end = tl.load(tokens + tl.maximum(length - back, 0))
            token = tl.load(tokens + position - back, mask=going & (position >= back), other=-2)
            going = going & (token == end)
            matched += going.to(tl.int32)
        score = tl.where(matched > 0, matched.to(tl.int64) * 2147483648 + position, 0)
        best = tl.maximum(best, tl.max(score, axis=0))
    at = tl.where(best > 0, best % 2147483648, tl.maximum(length - 1, 0))
    return at, best // 2147483648


@triton.jit
def _ngram_kernel(
    slot_tokens: tl.tensor,
    lengths: tl.tensor,
    rows: tl.tensor,
    tokens_stride: int,
    COUNT: tl.constexpr,
    PADDED: tl.constexpr,
    LONGEST: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    slot = tl.load(rows + tl.program_id(0))
    length = tl.load(lengths + slot)
    tokens = slot_tokens + slot * tokens_stride
    at, matched = latest_match(tokens, length, LONGEST, BLOCK)
    period = tl.maximum(length - at, 1)
    draft = tl.arange(0, PADDED)
    wanted = draft < tl.where(matched >= LEAST, COUNT, 0)
    token = tl.load(tokens + at + draft % period, mask=wanted, other=0)
    tl.store(tokens + length + draft, token, mask=wanted)


def draft_ngram(slots: Tensor, count: int, max_ngram: int, table: SlotTable, least: int) -> None:
    """``Ops.draft_ngram`` by Triton kernels."""
    if not slots.shape[0] or not count:
        return
    _ngram_kernel[(slots.shape[0],)](
        table.tokens,
        table.lengths,
        slots,
        table.tokens.stride(0),
        COUNT=count,
        PADDED=triton.next_power_of_2(count),
        LONGEST=max_ngram,
        LEAST=least,
        BLOCK=_BLOCK,
        num_warps=4,
    )
