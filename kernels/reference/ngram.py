"""N-gram lookup in plain Python: the CPU path of the n-gram drafters' operations, and the oracle of their kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftline.kernels.slots import SlotTable


def continuation(tokens: Sequence[int], count: int, max_ngram: int, least: int = 0) -> list[int]:
    """The continuation of the last earlier occurrence of the sequence's end.

    The end is its last ``max_ngram`` tokens, or as many of them as occur earlier, but at least one. Of several such
    occurrences the latest counts. A continuation may read on into the drafts themselves, so that a repetition goes on.

    Args:
        tokens: the sequence.
        count: how many tokens to draft.
        max_ngram: at most how many tokens of the end are compared.
        least: how many tokens of the end must occur earlier.

    Returns:
        ``count`` tokens; where the last token has not occurred before, its repetitions. Nothing where too few tokens of
        the end occur earlier.
    """
    length = len(tokens)
    at, matched = latest_match(tokens, max_ngram)
    if matched < least:
        return []
    period = length - at
    return [tokens[at + i % period] for i in range(count)]


def latest_match(tokens: Sequence[int], max_ngram: int) -> tuple[int, int]:
    """The position behind the last earlier occurrence of the sequence's end, and the number of matching tokens."""
    length = len(tokens)
    best, at = 0, length - 1
    for position in range(length - 1, 0, -1):
        size = 0
        while size < min(max_ngram, position) and tokens[position - 1 - size] == tokens[length - 1 - size]:
            size += 1
        if size > best:
            best, at = size, position
            if size == max_ngram:
                break
    return at, best


def draft_ngram(slots: Tensor, count: int, max_ngram: int, table: SlotTable, least: int) -> None:
    """``Ops.draft_ngram`` in plain torch."""
    for slot in slots.tolist():
        length = int(table.lengths[slot])
        drafts = continuation(table.tokens[slot, :length].tolist(), count, max_ngram, least)
        table.tokens[slot, length : length + len(drafts)] = torch.tensor(drafts, dtype=torch.int32)


CONTEXT = 3
"""Tokens that are hashed to a table's entry."""

_MIX = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)


def ngram_key(context: Sequence[int], entries: int) -> tuple[int, int]:
    """The entry of CONTEXT tokens in a table of ``entries``, and the check that it must have (int32)."""
    mixed = sum(token * factor for token, factor in zip(context, _MIX, strict=True)) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    return mixed & (entries - 1), mixed - ((mixed >> 31) << 32)


def learn_ngrams(slots: Tensor, count: int, ngrams: Tensor, table: SlotTable) -> None:
    """``Ops.learn_ngrams`` in plain torch."""
    for slot in slots.tolist():
        length = int(table.lengths[slot])
        first = max(CONTEXT, length - count)
        tokens = table.tokens[slot, first - CONTEXT : length].tolist()
        for position in range(CONTEXT, len(tokens)):
            entry, check = ngram_key(tokens[position - CONTEXT : position], len(ngrams))
            ngrams[entry, 0], ngrams[entry, 1] = check, tokens[position]


def draft_ngram_table(slots: Tensor, count: int, max_ngram: int, ngrams: Tensor, table: SlotTable) -> None:
    """``Ops.draft_ngram_table`` in plain torch."""
    for slot in slots.tolist():
        length = int(table.lengths[slot])
        tokens = table.tokens[slot, :length].tolist()
        at, matched = latest_match(tokens, max_ngram)
        own = [tokens[at + i % (length - at)] for i in range(count)]
        follows_own = True
        for guess in own:
            token = guess if follows_own else tokens[-1]
            if (matched < max_ngram or not follows_own) and len(tokens) >= CONTEXT:
                entry, check = ngram_key(tokens[-CONTEXT:], len(ngrams))
                if int(ngrams[entry, 0]) == check:
                    token = int(ngrams[entry, 1])
            follows_own = follows_own and token == guess
            tokens.append(token)
        table.tokens[slot, length : length + count] = torch.tensor(tokens[length:], dtype=torch.int32)
