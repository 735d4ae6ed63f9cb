"""Distillation: a draft model learns the distributions of the target on the target's own text.

The loss is KL(target || draft) over the whole vocabulary (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
DistillSpec (https://arxiv.org/abs/2310.08461) applies it to a target's own samples for speculation. The target's logits
are computed again in every step: to store them would take a hundred kilobytes a token.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftline.spec.train_draft.decoder import Draft, FrozenTarget, autocast_to
from draftline.spec.train_draft.packing import Packed, batches, pack
from draftline.spec.train_draft.samples import Sample

_CHUNK = 2048
"""Tokens whose logits are in memory at once: a few times 400 MB for a vocabulary of 50,000."""


OnStep = Callable[[int, int], None]
"""Is called after each optimizer step with its number and that of all."""


def ignore_step(step: int, steps: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The duration and the learning rates of a training.

    Attributes:
        epochs: passes over the samples.
        batch_tokens: tokens of one optimizer step, prompts included.
        pauses: the number of evenly spread pauses in which the caller can evaluate the draft model.
        learning_rate: the peak learning rate of AdamW. It rises linearly during ``warmup``, then falls as a cosine.
        warmup: the share of the training with a rising learning rate.
        seconds: a limit on the duration of all runs together; None is no limit. Training ends after all epochs, or at
            the limit, and the learning rate follows the earlier of the two.
        stop_after: seconds after which a run stops, to be continued by another; None is never.
        seed: the seed of the order of samples.
    """

    epochs: int
    batch_tokens: int
    pauses: int
    learning_rate: float = 3e-4
    warmup: float = 0.02
    seconds: float | None = None
    stop_after: float | None = None
    seed: int = 0

    def share(self, step: int, steps: int, seconds: float) -> float:
        """The part of the training that is done after ``step`` of all ``steps`` in ``seconds``: from 0 to 1."""
        timed = 0.0 if self.seconds is None else min(1.0, seconds / self.seconds)
        return max(step / steps, timed)


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The state of a training at a pause.

    Attributes:
        step: optimizer steps so far.
        steps: optimizer steps in all, if the time limit does not come first.
        loss: the mean loss since the last pause, in nats a token.
        ended: whether the training has reached its end.
    """

    step: int
    steps: int
    loss: float
    ended: bool


def train(
    target: FrozenTarget,
    draft: Draft,
    samples: Sequence[Sample],
    schedule: Schedule,
    on_step: OnStep = ignore_step,
) -> Iterator[TrainingProgress]:
    """Train ``draft`` in place; yield at each pause of the schedule, and at the end.

    The draft model runs in the target's dtype, under autocast if that is not float32. Its weights stay float32.
    """

    def loss_of(packed: Packed) -> Tensor:
        wanted = target.hidden(packed)
        with autocast_to(target.head):
            hidden = draft.hidden(packed)
        return kl_to_target(hidden, wanted, target.head)

    device = target.head.device
    return optimise(Optimiser(draft, device), loss_of, samples, schedule, device, on_step)


class Optimiser:
    """AdamW over a network's weights, and how far it has come.

    Attributes:
        step: optimizer steps so far.
        seconds: how long they took, with the pauses between them.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        """Before the first step of ``network``, which is on ``device``."""
        self.step, self.seconds = 0, 0.0
        self._network = network
        weights = list(network.parameters())
        self._adam = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.01, fused=device.type == "cuda")

    def state(self) -> dict[str, Any]:
        """All that a later run needs to go on; see `restore`."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "weights": self._network.state_dict(),
            "adam": self._adam.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of an earlier run."""
        self.step, self.seconds = state["step"], state["seconds"]
        self._network.load_state_dict(state["weights"])
        self._adam.load_state_dict(state["adam"])

    def descend(self, loss: Tensor, rate: float) -> None:
        """One step down the gradient of ``loss``, at a learning rate."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._adam.step()
        self._adam.zero_grad()
        self.step += 1


def optimise(
    optimiser: Optimiser,
    loss_of: Callable[[Packed], Tensor],
    samples: Sequence[Sample],
    schedule: Schedule,
    device: torch.device,
    on_step: OnStep = ignore_step,
) -> Iterator[TrainingProgress]:
    """Train from the optimiser's step on; yield at each pause of the schedule, and at the end.

    Args:
        optimiser: of the network.
        loss_of: the loss of a batch, a scalar.
        samples: the training samples.
        schedule: the same in every run of one training.
        device: where the batches go.
        on_step: shows progress.
    """
    rng = random.Random(schedule.seed)
    plan = [batch for _ in range(schedule.epochs) for batch in batches(samples, schedule.batch_tokens, rng)]
    started, before = time.monotonic(), optimiser.seconds
    done = schedule.share(optimiser.step, len(plan), before)
    total, since, pauses = torch.zeros((), device=device), 0, int(done * schedule.pauses)
    for step, batch in enumerate(plan[optimiser.step :], optimiser.step + 1):
        elapsed = time.monotonic() - started
        optimiser.seconds = before + elapsed
        share = schedule.share(step, len(plan), optimiser.seconds)
        loss = loss_of(pack(batch, device))
        optimiser.descend(loss, schedule.learning_rate * rate_at(share, schedule.warmup))
        total += loss.detach()
        since += 1
        on_step(step, len(plan))
        interrupted = schedule.stop_after is not None and elapsed > schedule.stop_after
        if share * schedule.pauses >= pauses + 1 or share == 1 or interrupted:
            yield TrainingProgress(step, len(plan), float(total) / since, share == 1)
            total, since, pauses = torch.zeros((), device=device), 0, int(share * schedule.pauses)
        if share == 1 or interrupted:
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
