"""All CUDA graphs of a start: their kernels are compiled, then they are captured."""

from __future__ import annotations

import logging
import time

import torch

from draftline.engine.runner.capture import GraphRecorder, Recorder, Rehearsal
from draftline.engine.runner.draft_graphs import DraftGraphs
from draftline.engine.runner.graphs import GraphPasses
from draftline.engine.runner.step_parts import StepParts
from draftline.kernels.batch import Batch
from draftline.kernels.triton.compile.ahead import CompileAhead

logger = logging.getLogger(__name__)


def compile_kernels(parts: StepParts, ahead: CompileAhead, largest: Batch) -> None:
    """Compile what the largest step launches, and if any of that was missing on this machine, what all graphs launch.

    Nothing is computed: the cache may be smaller than the step.
    """
    started = time.monotonic()
    with ahead.rehearsal():
        parts.model.forward(largest, parts.cache)
        if ahead.missing:
            _record(parts, Rehearsal())
    if ahead.missing:
        logger.info("kernels compiled in %.1f s", time.monotonic() - started)


def capture_graphs(parts: StepParts) -> tuple[DraftGraphs, GraphPasses]:
    """The graphs of all buckets."""
    device = parts.table.tokens.device
    started = time.monotonic()
    graphs = _record(parts, GraphRecorder(device))
    torch.cuda.synchronize(device)
    count = len(parts.buckets.decodes) + len(parts.buckets.prompts)
    logger.info("CUDA graphs for %d step shapes captured in %.1f s", count, time.monotonic() - started)
    return graphs


def _record(parts: StepParts, recorder: Recorder) -> tuple[DraftGraphs, GraphPasses]:
    passes = GraphPasses(
        parts.model, parts.cache, parts.table, parts.ops, parts.accept, parts.constraining, parts.buckets, recorder
    )
    return DraftGraphs(parts.drafter, parts.table, parts.buckets, recorder), passes
