"""Distillation: a draft learns the target's distributions over the target's own text.

The loss is KL(target || draft) over the whole vocabulary (Hinton et al. 2015, https://arxiv.org/abs/1503.02531; on a
target's own samples for speculation: DistillSpec, https://arxiv.org/abs/2310.08461). The target's logits are computed
again at every step: they would take a hundred kilobytes a token to keep.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.spec.train_draft.decoder import Draft, Target
from draftline.spec.train_draft.packing import batches, pack
from draftline.spec.train_draft.samples import Sample

_CHUNK = 2048
"""Tokens whose logits are in memory at once: a few times 400 MB at a vocabulary of 50,000."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
        epochs: how often each sample is seen.
        batch_tokens: tokens of one optimizer step, prompts included.
        learning_rate: the highest, of AdamW; it rises over the first ``warmup``, then falls as a cosine.
        warmup: a share of the whole.
        seconds: when to stop at the latest; None is after all epochs. The learning rate falls with what comes first.
        pauses: how often in all, evenly spread, training pauses for its caller to evaluate the draft.
        seed: of the samples' order.
    """

    epochs: int = 3
    batch_tokens: int = 8192
    learning_rate: float = 3e-4
    warmup: float = 0.02
    seconds: float | None = None
    pauses: int = 10
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands: ``loss`` is the mean since the last time, in nats a token.

    ``steps`` is how many there are if time does not run out.
    """

    step: int
    steps: int
    loss: float


def train(target: Target, draft: Draft, samples: Sequence[Sample], schedule: Schedule) -> Iterator[Progress]:
    """Train ``draft`` in place, pausing for its caller at each of the schedule's pauses and at the end.

    The draft runs in the target's dtype (under autocast where that is not float32), its weights stay float32.
    """
    device, dtype = target.head.device, target.head.dtype
    rng = random.Random(schedule.seed)
    plan = [batch for _ in range(schedule.epochs) for batch in batches(samples, schedule.batch_tokens, rng)]
    weights = list(draft.parameters())
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.01, fused=device.type == "cuda")
    total, since, pauses = torch.zeros((), device=device), 0, 0
    started = time.monotonic()
    for step, batch in enumerate(plan, 1):
        share = step / len(plan)
        if schedule.seconds is not None:
            share = min(1.0, max(share, (time.monotonic() - started) / schedule.seconds))
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * rate_at(share, schedule.warmup)
        packed = pack(batch, device)
        wanted = target.hidden(packed)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            hidden = draft.hidden(packed)
        loss = kl_to_target(hidden, wanted, target.head)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        since += 1
        if share * schedule.pauses >= pauses + 1 or share == 1:
            yield Progress(step, len(plan), float(total) / since)
            total, since, pauses = torch.zeros((), device=device), 0, int(share * schedule.pauses)
        if share == 1:
            break


def rate_at(share: float, warmup: float) -> float:
    """The part of the highest learning rate that is due at a share of the training: a line up, then half a cosine."""
    if share < warmup:
        return share / warmup
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def kl_to_target(hidden: Tensor, target_hidden: Tensor, head: Tensor) -> Tensor:
    """The mean of KL(target || draft), in nats, over tokens.

    Args:
        hidden: [P, hidden], the draft's inputs of the output projection.
        target_hidden: [P, hidden], the target's.
        head: [vocab, hidden], the output projection of both; it gets no gradient.

    Returns:
        A scalar, differentiable in ``hidden``.
    """
    loss: Tensor = _KlToTarget.apply(hidden, target_hidden, head)  # type: ignore[no-untyped-call]
    return loss


class _KlToTarget(torch.autograd.Function):
    """The gradient in the draft's logits is softmax(draft) - softmax(target), so it is made on the way, in chunks.

    Autograd would keep several float32 tensors of [tokens, vocabulary] until the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, target_hidden: Tensor, head: Tensor) -> Tensor:
        total = torch.zeros((), device=hidden.device)
        gradients = []
        for own, wanted in zip(hidden.split(_CHUNK), target_hidden.split(_CHUNK), strict=True):
            target = F.log_softmax(F.linear(wanted.to(head.dtype), head), dim=-1, dtype=torch.float32)
            draft = F.log_softmax(F.linear(own.to(head.dtype), head), dim=-1, dtype=torch.float32)
            p = target.exp()
            total += torch.dot(p.flatten(), target.sub_(draft).flatten())
            gradients.append((draft.exp_().sub_(p).to(head.dtype) @ head).to(hidden.dtype))
        ctx.save_for_backward(torch.cat(gradients))
        ctx.count = len(hidden)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (saved,) = ctx.saved_tensors
        return saved * (gradients[0] / ctx.count), None, None
