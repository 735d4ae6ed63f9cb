"""Allowed ids and bad words of a slot, as the engine's slot writer would write them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from draftline.kernels.slots import SlotTable


def write_bans(
    slots: SlotTable, slot: int, allowed_ids: Collection[int] | None, bad_words: Sequence[Sequence[int]]
) -> None:
    """Write them into one slot, token by token."""
    slots.only_allowed[slot] = allowed_ids is not None
    allowed = [0] * slots.allowed.shape[1]
    for token in allowed_ids or ():
        allowed[token // 32] |= 1 << token % 32
    slots.allowed[slot] = torch.tensor([word if word < 2**31 else word - 2**32 for word in allowed])
    entry = 0
    for word in bad_words:
        for index, token in enumerate(word):
            slots.word_tokens[slot, entry] = token
            slots.word_prefixes[slot, entry] = index if index == len(word) - 1 else -1
            entry += 1
    slots.bad_tokens[slot] = torch.tensor(entry)
