"""Allowed ids and bad words: logits that become -inf, in a copy of the logits.

A bad word bans its last token where its other tokens end the output. The tokens before a position are in the slot table,
the step's drafts among them, so a position behind drafts is decided as it would be without them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable

BANS = SamplingFeatures.ALLOWED_IDS | SamplingFeatures.BAD_WORDS
"""The features that this file applies."""

_BLOCK = 1024


@triton.jit
def _allow_kernel(
    edited: tl.tensor,
    row_slots: tl.tensor,
    only_allowed: tl.tensor,
    allowed: tl.tensor,
    VOCAB: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Ban the tokens of a block that a row does not allow."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    if tl.load(only_allowed + slot) == 0:
        return
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = ids < VOCAB
    word = tl.load(allowed + slot * WORDS + ids // 32, mask=known, other=0)
    tl.store(edited + row * VOCAB + ids, float("-inf"), mask=known & (((word >> (ids % 32)) & 1) == 0))


@triton.jit
def _bad_words_kernel(
    edited: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    tokens: tl.tensor,
    prompt_lens: tl.tensor,
    bad_tokens: tl.tensor,
    word_tokens: tl.tensor,
    word_prefixes: tl.tensor,
    tokens_stride: int,
    VOCAB: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One lane for each token of a row's bad words. Those of last tokens compare the output's end with their word."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    count = tl.load(bad_tokens + slot)
    position = tl.load(row_positions + row)
    output_len = position - tl.load(prompt_lens + slot)
    words = word_tokens + slot * ENTRIES
    for base in range(0, count, BLOCK):
        entry = base + tl.arange(0, BLOCK)
        prefix = tl.load(word_prefixes + slot * ENTRIES + entry, mask=entry < count, other=-1)
        completes = (prefix >= 0) & (prefix <= output_len)
        longest = tl.max(tl.where(completes, prefix, 0), axis=0)
        for back in range(1, longest + 1):
            before = tl.load(tokens + slot * tokens_stride + position - back)
            inside = completes & (back <= prefix)
            token = tl.load(words + entry - back, mask=inside, other=0)
            completes = completes & ((back > prefix) | (token == before))
        token = tl.load(words + entry, mask=completes, other=-1)
        tl.store(edited + row * VOCAB + token, float("-inf"), mask=completes & (token >= 0) & (token < VOCAB))


def ban(edited: Tensor, rows: SampleRows, table: SlotTable) -> None:
    """Write -inf for the tokens that the rows' allowed ids and bad words exclude.

    Args:
        edited: [S, V] float32, contiguous; changed.
        rows: which sequence and position each row belongs to.
        table: the slot table.
    """
    count, vocab = edited.shape
    if rows.features & SamplingFeatures.ALLOWED_IDS:
        _allow_kernel[(count, triton.cdiv(vocab, _BLOCK))](
            edited,
            rows.slots,
            table.only_allowed,
            table.allowed,
            VOCAB=vocab,
            WORDS=table.allowed.shape[1],
            BLOCK=_BLOCK,
        )
    if rows.features & SamplingFeatures.BAD_WORDS:
        _bad_words_kernel[(count,)](
            edited,
            rows.slots,
            rows.positions,
            table.tokens,
            table.prompt_lens,
            table.bad_tokens,
            table.word_tokens,
            table.word_prefixes,
            table.tokens.stride(0),
            VOCAB=vocab,
            ENTRIES=table.word_tokens.shape[1],
            BLOCK=_BLOCK,
        )
