"""The sizes that all ranks of an engine have in common: cache blocks, and the shapes of graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from draftline.engine.parallel.group import RankGroup
from draftline.engine.parallel.target import Target
from draftline.engine.runner.memory import GIB, cache_blocks, gpu_cache_bytes
from draftline.engine.runner.shapes import StepShapes
from draftline.kernels.batch import Batch
from draftline.spec.drafter import Drafter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an engine that follow from its memory.

    Attributes:
        blocks: of the cache.
        max_model_len: the most tokens of a sequence.
        shapes: the step shapes that have graphs; of fewer rows where the graphs of all would take more than the cache.
        peak: the most bytes that the largest step took; 0 where it is not measured.
    """

    blocks: int
    max_model_len: int
    shapes: StepShapes
    peak: int

    def activation_bytes(self, weights: int) -> int:
        """What the largest step takes besides so many bytes of weights; 0 where it is not measured."""
        return max(0, self.peak - weights)


def agree_on_blocks(
    target: Target,
    group: RankGroup | None,
    largest: Batch,
    build_drafter: Callable[[int], Drafter],
    shapes: StepShapes,
    *,
    drafter_block_bytes: int,
) -> Sizes:
    """Size the cache by the memory that is left, on the rank that has least.

    Args:
        target: the target, or this rank's part of it.
        group: the ranks; None if there is only this one.
        largest: the largest step.
        build_drafter: makes the drafter, for a cache of so many blocks.
        shapes: the step shapes that have graphs.
        drafter_block_bytes: bytes of a block of the drafter's cache.
    """
    config = target.config
    if group is not None:
        group.barrier()  # the ranks may have compiled kernels for long, and no GPU waits for another for long
    budget, peak, option = target.fixed_cache_bytes, 0, "kv_cache_memory_gib"
    if budget is None:
        # The drafter's cache is allocated for this step alone.
        step_blocks = largest.block_tables.shape[1]
        peak = target.peak_bytes(largest, build_drafter(step_blocks).sink) - step_blocks * drafter_block_bytes
        left = gpu_cache_bytes(target.device, config.gpu_memory_utilization, peak)
        budget, option = left, "gpu_memory_utilization"
        if config.uses_graphs:
            samples = left // 2 // target.sample_bytes
            fitting = shapes.within(samples if group is None else group.least([samples])[0])
            if fitting is not shapes:
                logger.info(
                    "CUDA graphs for steps that decide up to %d tokens instead of %d: %.2f GiB are left for graphs and cache",
                    fitting.max_samples, shapes.max_samples, left / GIB,
                )  # fmt: skip
            shapes = fitting
            budget -= shapes.max_samples * target.sample_bytes
    block_bytes = target.block_bytes + drafter_block_bytes
    blocks = cache_blocks(budget, block_bytes, config.block_size, config.max_model_len, option=option)
    if group is not None:
        (blocks,) = group.least([blocks])
    return Sizes(blocks, min(target.max_len, blocks * config.block_size), shapes, peak)
