"""Whole steps of decodes and verifies of which a few have long histories: with programs for each row, and with parts of histories."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from draftline.kernels.ops import Ops
from draftline.kernels.triton.ops import TritonOps
from draftline.models.layers import DecoderWeights
from kernel_timing.models import LLAMA_8B, QWEN3, SMOLLM2, ModelSizes, make_mixed_batch
from kernel_timing.steps import MAX_LENGTH, Step, make_weights
from kernel_timing.timing import Bench


class UnevenStep(Step):
    """A step of rows with histories of these lengths, each row with programs of its own, or with parts of histories."""

    def __init__(
        self, model: ModelSizes, weights: DecoderWeights, queries: int, contexts: Sequence[int], prompt: int = 0
    ) -> None:
        """Rows have so many query tokens. They are beside a prompt of so many tokens, if any, in a graph of 1,024."""
        rows = [(queries, context) for context in contexts]
        if prompt:
            rows.append((prompt, prompt))
        tokens = 1024 if prompt else queries * len(rows)
        batch = make_mixed_batch(rows, queries, len(rows), tokens, bound=MAX_LENGTH)
        if not prompt:
            batch = dataclasses.replace(batch, query_lens_host=(queries,) * len(rows))
        super().__init__(model, weights, batch, int(batch.block_tables.max()) + 1, sum(context for _, context in rows))

    def run_divided(self, ops: Ops) -> Tensor:
        """Run one step whose histories are divided into parts; return the logits."""
        return self.run_batch(ops, ops.divide_histories(self.batch, self.cache.layers[0]))


def uneven(bench: Bench, ops: TritonOps) -> None:
    """Whole steps of decodes and verifies of which one has a long history, or some have, in each of the two ways."""
    cases = ((8, 1, 4000), (24, 1, 1000), (24, 1, 4000), (64, 1, 2000), (64, 8, 1500), (64, 1, 4000), (128, 1, 4000))
    for model in (SMOLLM2, QWEN3, LLAMA_8B):
        if time.monotonic() > bench.deadline:
            bench.left_out.append(f"uneven steps of {model.name}")
            continue
        weights = make_weights(model)
        for (rows, long, longest), queries, prompt in product(cases, (1, 4), (0, 300)):
            step = UnevenStep(model, weights, queries, [300] * (rows - long) + [longest] * long, prompt)
            expected = step.run(ops)
            for variant, run in (("a row", step.run), ("divided", step.run_divided)):
                bench.case(
                    "uneven",
                    f"{model.name} {rows - long}x{queries} ctx 300, {long} ctx {longest}"
                    + (f", prompt {prompt}" if prompt else ""),
                    variant,
                    [partial(run, ops)],
                    num_bytes=step.num_bytes,
                    check=partial(_differing, run, ops, expected),
                    bound=1e-9,
                )
            del step, expected
            torch.cuda.empty_cache()
        del weights
        torch.cuda.empty_cache()


def _differing(run: Callable[[TritonOps], Tensor], ops: TritonOps, expected: Tensor) -> float:
    """The share of the logits that differ."""
    return float((run(ops) != expected).float().mean())
