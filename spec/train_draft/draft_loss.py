"""The loss of a head's drafts: cross entropy far from the target, then the probability that they are rejected.

A head is too small for the target's distribution. Of the distributions that it can have, the one with the least cross
entropy is not the one whose drafts are accepted most often. The acceptance alone teaches little where it is low. So
both count, and the acceptance counts more, the higher it is (LK losses, 2026, https://arxiv.org/abs/2602.23881).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

_DECLINE = 3.0
"""How fast the share of the cross entropy falls with the acceptance: from 1 where none is accepted to 1/20 where all
are."""

_CHUNK = 4096
"""Drafts whose probabilities are in memory at once: 270 MB a tensor, for a draft vocabulary of 16,384."""


def draft_losses(wanted: Tensor, logits: Tensor) -> Tensor:
    """The loss of each draft.

    Args:
        wanted: [P, V] float32, the target's probabilities of the tokens that can be drafted. It gets no gradient.
        logits: [P, V], the head's.

    Returns:
        [P] float32, differentiable in ``logits``.
    """
    losses: Tensor = _DraftLosses.apply(wanted, logits)  # type: ignore[no-untyped-call]
    return losses


class _DraftLosses(torch.autograd.Function):
    """`draft_losses`, with the gradient in the forward pass: autograd would keep several float32 tensors [P, V].

    With the probabilities w of the target and q of the head, and s the share of the cross entropy, which gets no
    gradient:

        loss        = s * -sum(w log q) + (1 - s) * (1 - sum(min(w, q)))
        d loss / dz = s * (sum(w) q - w) - (1 - s) * q * ([q < w] - sum of q where q < w)
    """

    @staticmethod
    @override
    def forward(ctx: Any, wanted: Tensor, logits: Tensor) -> Tensor:
        losses, gradients = [], []
        for w, z in zip(wanted.split(_CHUNK), logits.split(_CHUNK), strict=True):
            predicted = z.log_softmax(-1, dtype=torch.float32)
            entropy = -(w * predicted).sum(-1)  # autocast would round the operands of a dot product
            q = predicted.exp_()
            rejected = 1 - torch.minimum(w, q).sum(-1)
            share = torch.exp(-_DECLINE * (1 - rejected))
            losses.append(share * entropy + (1 - share) * rejected)
            of_entropy, of_acceptance = share[:, None], (1 - share)[:, None]
            more = torch.where(q < w, q, 0.0)  # of what the target wants more of
            gradient = q.mul_(of_entropy * w.sum(-1, keepdim=True) + of_acceptance * more.sum(-1, keepdim=True))
            gradient.sub_(more.mul_(of_acceptance)).sub_(of_entropy * w)
            gradients.append(gradient.to(logits.dtype))
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (saved,) = ctx.saved_tensors
        return None, saved * gradients[0][:, None].to(saved.dtype)
