"""One rank's exchanges in Triton's interpreter, for a process of its own.

The ranks' inboxes are memory that the processes share, as GPUs share that of their peers.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from interpreter import hasten
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from draftline.kernels.triton.collectives import Exchange
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inbox import inbox_bytes


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
    programs: int


def _pause_while_waiting() -> None:
    """Let ranks that wait, for words by volatile loads and for flags by atomics, leave the processors to the others."""
    load, atomic = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_atomic_rmw

    def paused_load(*arguments: Any) -> Any:
        *_, volatile = arguments
        if volatile:
            time.sleep(1e-4)
        return load(*arguments)

    def paused_atomic(*arguments: Any) -> Any:
        time.sleep(1e-4)
        return atomic(*arguments)

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_atomic_rmw = paused_load, paused_atomic


def run(job: Job) -> tuple[list[Tensor], Tensor, Tensor]:
    hasten()
    _pause_while_waiting()
    inboxes = [
        torch.from_file(str(path), shared=True, size=inbox_bytes(job.size), dtype=torch.uint8) for path in job.inboxes
    ]
    exchange = Exchange(
        torch.tensor([inbox.data_ptr() for inbox in inboxes]),
        torch.zeros(job.programs, dtype=torch.int32),
        job.rank,
        job.size,
        DeviceLimits(80, 100, 1 << 20),
    )
    sums = [exchange.sum_add(x, job.bias, y) for x, y in zip(job.partials, job.residuals, strict=True)]
    starts = torch.tensor([sum(job.widths[:index]) for index in range(job.size + 1)], dtype=torch.int32)
    return sums, exchange.join(job.part, starts, job.widths), exchange.spread(job.values)
