"""N-gram lookup in plain Python: the CPU path of `Ops.draft_ngram`, and the oracle of its kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftline.kernels.slots import SlotTable


def continuation(tokens: Sequence[int], count: int, longest: int) -> list[int]:
    """What followed the last time that the sequence's end occurred before.

    The end is its last ``longest`` tokens, or as many of them as occur earlier, but at least one; of several such places
    the latest counts. What follows it is read on into what is drafted itself, so that a repetition is continued.

    Args:
        tokens: the sequence.
        count: how many tokens to draft.
        longest: tokens of the longest end that is compared.

    Returns:
        ``count`` tokens; the last token repeated where it has not occurred before.
    """
    length = len(tokens)
    best, at = 0, length - 1
    for place in range(length - 1, 0, -1):
        size = 0
        while size < min(longest, place) and tokens[place - 1 - size] == tokens[length - 1 - size]:
            size += 1
        if size > best:
            best, at = size, place
            if size == longest:
                break
    period = length - at
    return [tokens[at + i % period] for i in range(count)]


def draft_ngram(rows: Tensor, count: int, longest: int, slots: SlotTable) -> None:
    """See ``Ops.draft_ngram``."""
    for slot in rows.tolist():
        length = int(slots.lengths[slot])
        drafts = continuation(slots.tokens[slot, :length].tolist(), count, longest)
        slots.tokens[slot, length : length + count] = torch.tensor(drafts, dtype=torch.int32)
