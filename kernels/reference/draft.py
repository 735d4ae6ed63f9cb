"""Drafts of a model: the tokens that its logits, or the constraints, decide."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftline.kernels.batch import Inputs
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.reference import sampling
from draftline.kernels.reference.constraints import forced_drafts
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable


def draft_sampled(
    logits: Tensor,
    token_ids: Tensor | None,
    slots: Tensor,
    positions: Tensor,
    table: SlotTable,
    constraints: ConstraintTable,
    following: Inputs | None = None,
) -> None:
    """``Ops.draft_sampled`` in plain torch."""
    stored = positions >= 0
    if not stored.all():
        logits, slots, positions = logits[stored], slots[stored], positions[stored]
    drafts = _sampled_drafts(logits, token_ids, slots, positions, table)
    forced, tokens = forced_drafts(slots, positions - table.lengths[slots], constraints)
    if forced.any():
        drafts = torch.where(torch.from_numpy(forced), torch.from_numpy(tokens.astype(np.int64)), drafts)
    table.tokens[slots, positions] = drafts.to(torch.int32)
    if following is not None:
        following.batch.token_ids.copy_(table.tokens[following.slots, following.positions - 1])


def _sampled_drafts(
    logits: Tensor, token_ids: Tensor | None, slots: Tensor, positions: Tensor, table: SlotTable
) -> Tensor:
    """[S] int64: the tokens of `draft_sampled`, of drafts that are all stored."""
    best = sampling.greedy(logits, slots, table)
    if best is not None:
        return best if token_ids is None else token_ids[best]
    if token_ids is not None:  # the noise is that of the whole vocabulary's tokens
        every = logits.new_full((logits.shape[0], int(token_ids[-1]) + 1), float("-inf"))
        logits = every.index_copy_(1, token_ids, logits)
    return sampling.sample(
        logits.to(torch.float32), SampleRows(slots, positions, SamplingFeatures.TEMPERATURE, masks=None), table
    )
