"""Synthetic acceptance: drafts are accepted by chance, to measure the speed at a given acceptance rate.

Models with random weights accept no drafts. With synthetic acceptance a step does the same work, and decides as many
tokens as with a draft model of the wanted quality. The outputs are meaningless: for benchmarks only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.kernels.ops import Accept
from draftline.kernels.slots import SampleRows, SlotTable

_BITS = 24


def synthetic_acceptance(accept: Accept, chance: float) -> Accept:
    """An `Ops.accept` that accepts each draft with this chance, by a hash of seed and position."""

    def accept_by_chance(
        tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, table: SlotTable
    ) -> Tensor:
        if not tokens.shape[0]:
            return accept(tokens, rows, starts, max_samples, table)
        drafts = table.tokens[rows.slots, rows.positions.clamp(min=0)].long()
        # The last sample of a row has no draft.
        last = torch.zeros_like(tokens, dtype=torch.bool)
        last.index_fill_(0, (starts[1:].long() - 1).clamp(min=0), True)
        right = _uniform(table.seed[rows.slots], rows.positions) < chance
        other = torch.where(tokens > 0, tokens - 1, 1)
        wrong = torch.where(tokens == drafts, other, tokens)
        tokens.copy_(torch.where(last, tokens, torch.where(right, drafts, wrong)))
        return accept(tokens, rows, starts, max_samples, table)

    return accept_by_chance


def chance_of_length(length: float, drafts: int) -> float:
    """The acceptance chance that gives a mean acceptance length: ``1 + a + … + a ** drafts = length``, solved for a.

    Raises:
        ValueError: no chance gives this length.
    """
    if not 1 <= length <= drafts + 1:
        raise ValueError(
            f"with {drafts} drafts, the mean acceptance length is between 1 and {drafts + 1}, not {length}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(drafts + 1)) < length else (low, middle)
    return low


def _uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """[S] float32 in [0, 1), by a multiply-and-shift hash (Steele et al. 2014, SplitMix64's finalizer)."""
    x = seeds + positions * -0x61C8864680B583EB
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return ((x >> 31) & ((1 << _BITS) - 1)).float() / (1 << _BITS)
