"""The warm-up of a GPU engine: find the kernels of all CUDA graphs, load them once they are compiled, then capture the graphs."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch

from draftline.engine.runner.capture import GraphRecorder, Rehearsal
from draftline.engine.runner.eager import launch_short_chunks
from draftline.engine.runner.executor import Executor, ExecutorParts
from draftline.engine.runner.graphs import capture_executors, launch_further_sampling
from draftline.engine.runner.shapes import StepShape
from draftline.engine.runner.slot_writer import SlotWriter
from draftline.kernels.batch import Batch
from draftline.kernels.ops import Ops
from draftline.kernels.triton.compile.ahead import CompileAhead
from draftline.kernels.triton.compile.later import CompileLater
from draftline.models.brief import BriefModel

logger = logging.getLogger(__name__)


def rehearse(parts: ExecutorParts, ahead: CompileAhead, largest: Batch) -> None:
    """Find out whether this machine lacks kernels of the largest step. If so, other processes compile those of all graphs from now on.

    Nothing is computed: the cache may be smaller than the step.
    """
    brief = replace(parts, model=BriefModel(parts.model))
    with ahead.rehearsal():
        parts.forward(largest)
        if ahead.missing:
            capture_executors(brief, Rehearsal())
            parts.ops.launch_alternatives()
            SlotWriter(parts.table, (), Rehearsal())  # whose graph the runner captures
            with ahead.postponing():
                launch_further_sampling(brief, Rehearsal())
                launch_short_chunks(brief)


def load_kernels(ops: Ops, ahead: CompileAhead, device: torch.device) -> CompileLater:
    """Wait for the kernels of a rehearsal, and load them.

    Returns:
        The kernels of what few requests ask for, to be compiled once the engine serves; none if the machine lacked none.
    """
    started = time.monotonic()
    ahead.load()
    ops.settle()
    if ahead.missing:
        logger.info("waited %.1f s for kernels to be compiled", time.monotonic() - started)
    return CompileLater(device, ahead.postponed)


def capture_graphs(parts: ExecutorParts) -> dict[StepShape, Executor]:
    """The graph executors of all shapes."""
    device = parts.table.tokens.device
    started = time.monotonic()
    executors = capture_executors(parts, GraphRecorder(device, parts.ops.settle))
    torch.cuda.synchronize(device)
    logger.info("CUDA graphs for %d step shapes captured in %.1f s", len(executors), time.monotonic() - started)
    return executors
