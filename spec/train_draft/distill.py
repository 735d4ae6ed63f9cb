"""Distillation: a draft model learns the distributions of the target on the target's own text.

The loss is KL(target || draft) over the whole vocabulary (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
DistillSpec (https://arxiv.org/abs/2310.08461) applies it to a target's own samples for speculation. The target's logits
are computed again in every step: to store them would take a hundred kilobytes a token.
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
"""Tokens whose logits are in memory at once: a few times 400 MB for a vocabulary of 50,000."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The duration and the learning rates of a training.

    Attributes:
        epochs: passes over the samples.
        batch_tokens: tokens of one optimizer step, prompts included.
        learning_rate: the peak learning rate of AdamW. It rises linearly during ``warmup``, then falls as a cosine.
        warmup: the share of the training with a rising learning rate.
        seconds: a limit on the duration; None is no limit. Training ends after all epochs, or at the limit, and the
            learning rate follows the earlier of the two.
        pauses: the number of evenly spread pauses in which the caller can evaluate the draft model.
        seed: the seed of the order of samples.
    """

    epochs: int = 3
    batch_tokens: int = 8192
    learning_rate: float = 3e-4
    warmup: float = 0.02
    seconds: float | None = None
    pauses: int = 10
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The state of a training at a pause.

    Attributes:
        step: optimizer steps so far.
        steps: optimizer steps in all, if the time limit does not come first.
        loss: the mean loss since the last pause, in nats a token.
    """

    step: int
    steps: int
    loss: float


def train(target: Target, draft: Draft, samples: Sequence[Sample], schedule: Schedule) -> Iterator[TrainingProgress]:
    """Train ``draft`` in place; yield at each pause of the schedule, and at the end.

    The draft model runs in the target's dtype, under autocast if that is not float32. Its weights stay float32.
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
            yield TrainingProgress(step, len(plan), float(total) / since)
            total, since, pauses = torch.zeros((), device=device), 0, int(share * schedule.pauses)
        if share == 1:
            break


def rate_at(share: float, warmup: float) -> float:
    """The learning rate at a share of the training, as a fraction of the peak: a linear rise, then half a cosine."""
    if share < warmup:
        return share / warmup
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def kl_to_target(hidden: Tensor, target_hidden: Tensor, head: Tensor) -> Tensor:
    """The mean of KL(target || draft), in nats, over tokens.

    Args:
        hidden: [P, hidden], inputs of the output projection, from the draft model.
        target_hidden: [P, hidden], the same from the target.
        head: [vocab, hidden], the output projection of both. It gets no gradient.

    Returns:
        A scalar, differentiable in ``hidden``.
    """
    loss: Tensor = _KlToTarget.apply(hidden, target_hidden, head)  # type: ignore[no-untyped-call]
    return loss


class _KlToTarget(torch.autograd.Function):
    """KL(target || draft), with the gradient computed in the forward pass, in chunks.

    The gradient with respect to the draft's logits is softmax(draft) - softmax(target). Autograd would keep several
    float32 tensors of [tokens, vocab] until the backward pass.
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
