"""One rank's exchanges in Triton's interpreter, for a process of its own.

The ranks' inboxes are memory that the processes share, as GPUs share that of their peers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from draftline.kernels.triton.collectives import Exchange
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inbox import PROGRAMS, inbox_bytes


@dataclass
class Job:
    """What a rank computes: sums of its partials with bias and residual, then a join of its part, and rank 0's values spread."""

    rank: int
    size: int
    inboxes: list[Path]
    partials: list[Tensor]
    bias: Tensor | None
    residuals: list[Tensor | None]
    part: Tensor
    widths: list[int]
    values: Tensor


def run(job: Job) -> tuple[list[Tensor], Tensor, Tensor]:
    inboxes = [
        torch.from_file(str(path), shared=True, size=inbox_bytes(job.size), dtype=torch.uint8) for path in job.inboxes
    ]
    exchange = Exchange(
        torch.tensor([inbox.data_ptr() for inbox in inboxes]),
        torch.zeros(PROGRAMS, dtype=torch.int32),
        job.rank,
        job.size,
        DeviceLimits(80, 100, 1 << 20),
    )
    sums = [exchange.sum_add(x, job.bias, y) for x, y in zip(job.partials, job.residuals, strict=True)]
    starts = torch.tensor([sum(job.widths[:index]) for index in range(job.size + 1)], dtype=torch.int32)
    return sums, exchange.join(job.part, starts, job.widths), exchange.spread(job.values)
