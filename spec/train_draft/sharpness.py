"""The factor of a trained head's logits with which the most of its drafts are right at temperatures above 0.

A head learns the target's distribution as far as it can know it: the mean of those that the target may have. A mean is
flatter than what it is the mean of. Drafts are accepted where the head and the target choose the same token with the
same noise (Gumbel coupling, Daliri et al. 2024, https://arxiv.org/abs/2408.07978), which they do more often with
somewhat sharper logits. The likeliest token stays the likeliest, so greedy drafts stay the same, but for the rounding
of saved weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.spec.train_draft.decoder import FrozenTarget
from draftline.spec.train_draft.head import TrainedHead, first_drafts
from draftline.spec.train_draft.packing import pack
from draftline.spec.train_draft.samples import Sample

_FACTORS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3)
_NORM = "model.norm.weight"
"""The last norm, whose output only the output projection reads."""

_SAMPLES, _POSITIONS = 16, 256
"""Samples, and positions of them, that are looked at together: the noise has the whole vocabulary for each position."""


@torch.no_grad()
def best_sharpness(head: TrainedHead, target: FrozenTarget, samples: Sequence[Sample]) -> float:
    """The factor with which most first drafts are the target's tokens at temperature 1.

    Args:
        head: the head.
        target: its target.
        samples: texts at whose positions both choose a token, with the same noise.
    """
    device = target.head.device
    draw = torch.Generator(device).manual_seed(0)
    right = [0] * len(_FACTORS)
    for first in range(0, len(samples), _SAMPLES):
        packed = pack(samples[first : first + _SAMPLES], device)
        hidden, states = target.hidden_and_states(packed, head.config.target_layers)
        drafted, valid = first_drafts(head, packed, states)
        for part in torch.arange(len(hidden), device=device)[valid].split(_POSITIONS):
            logits = F.linear(hidden[part], target.head).float()
            noise = torch.empty_like(logits).exponential_(generator=draw).log_().neg_()
            chosen = (logits + noise).argmax(-1)
            own_noise = noise[:, head.target_ids]
            for index, factor in enumerate(_FACTORS):
                guessed = head.target_ids[(factor * drafted[part] + own_noise).argmax(-1)]
                right[index] += int((guessed == chosen).sum())
    return _FACTORS[right.index(max(right))]


def sharpened(weights: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """The weights of a head whose logits are so many times as large, by the names of `head_shapes`."""
    return {**weights, _NORM: weights[_NORM] * factor}
