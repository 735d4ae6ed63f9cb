"""``GraphExecutor``: the parts of a step as CUDA graphs, captured once for each of a few shapes (`shapes.py`).

A step is some hundred kernels of a few microseconds each. Launched one by one, they take the host longer than the device;
a graph is one launch. A graph's size is fixed, and a step runs in the smallest shape that holds it. The rest is padding:
rows without a query token, for which no kernel writes to the cache or the slot table. Their samples are discarded.

A shape has up to four kinds of graph: the drafter's catching up; the round of drafts; gather and forward; sampling and
acceptance, one for each set of sampling features that comes up. The runner launches other work between them, such as a mask's upload. The logits of
all shapes share one piece of memory. A graph takes its inputs from pinned memory, and copies a step's tokens there (`capture.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import InputGraph, Recorder, ResultStages, unowned
from draftline.engine.runner.executor import Executor, ExecutorParts, ForwardResult, SampleResult
from draftline.engine.runner.shapes import StepShape
from draftline.kernels.batch import Batch
from draftline.kernels.slots import SampleRows, SamplingFeatures
from draftline.kernels.triton.inputs.gather import FROM_NEWEST, GatherBounds, gather_planned
from draftline.spec.drafter import DraftChunk, DraftRows

COMMON_FEATURES = (SamplingFeatures.NONE, SamplingFeatures.TEMPERATURE)
"""The sets of sampling features that are captured in advance; others are when they first come up."""


class GraphExecutor(Executor):
    """The graphs of one shape. It runs the rows of any step that the shape holds."""

    def __init__(
        self, shape: StepShape, parts: ExecutorParts, forward: Recorder, sampling: Recorder, results: ResultStages
    ) -> None:
        """Capture gather and forward; `add_sampling` and `add_drafts` capture the rest.

        Args:
            shape: the size of all its graphs.
            parts: what they run on, a CUDA device.
            forward: captures drafts and forward passes.
            sampling: captures sampling. Its graphs must not take the memory of the logits, which nothing owns.
            results: where they copy a step's tokens.
        """
        self._shape = shape
        self._parts = parts
        self._forward_recorder = forward
        self._sampling_recorder = sampling
        self._results = results
        self._forward = InputGraph(forward_words(shape.rows), parts.table.tokens.device)
        slots, plan = _slots_and_plan(self._forward.tensor, shape.rows)
        self._starts = plan[shape.rows + 1 : 2 * shape.rows + 2]

        def gather_and_forward() -> ForwardResult:
            inputs = gather_planned(parts.table, slots, plan, self._bounds(shape.samples), parts.block_size)
            batch = inputs.batch
            if shape.uneven:
                batch = parts.ops.share_long_histories(batch, parts.cache.layers[0])
            logits = parts.forward(batch)
            return ForwardResult(logits, inputs.slots, inputs.positions)

        result = self._forward.record(forward, gather_and_forward)
        self._result = ForwardResult(unowned(result.logits), result.slots, result.positions)
        self._sampling: dict[SamplingFeatures, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._draft: InputGraph | None = None
        self._catch_up: InputGraph | None = None

    def add_catch_up(self) -> None:
        """Capture the drafter's catching up, whose inputs are those of a forward pass that wants no logits."""
        parts, rows = self._parts, self._shape.rows
        graph = InputGraph(forward_words(rows), parts.table.tokens.device)
        slots, plan = _slots_and_plan(graph.tensor, rows)

        def gather(shift: int) -> Batch:
            moved = torch.cat((plan[:-rows], plan[-rows:] + shift)) if shift else plan
            return gather_planned(parts.table, slots, moved, self._bounds(0), parts.block_size).batch

        graph.record(self._forward_recorder, lambda: parts.drafter.catch_up(gather))
        self._catch_up = graph

    def add_drafts(self) -> None:
        """Capture the round of drafts."""
        size, table = self._shape.rows, self._parts.table
        graph = InputGraph(draft_words(size), table.tokens.device)
        slots, drafts = graph.tensor[:size], graph.tensor[size:].view(torch.int32)[:size]
        rows = DraftRows(slots, drafts, self._shape.drafts, self._shape.uneven)
        graph.record(self._forward_recorder, lambda: self._parts.drafter.propose(rows, table))
        self._draft = graph

    def add_sampling(self, features: SamplingFeatures) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture sampling and acceptance with these features."""
        rows = SampleRows(self._result.slots, self._result.positions, features, masks=None)

        def sample() -> Tensor:
            max_samples = self._shape.drafts + 1
            tokens, accepted = self._parts.sample_and_accept(self._result.logits, rows, self._starts, max_samples)
            self._results.deliver(tokens, accepted)
            return tokens

        captured = self._sampling_recorder.record(sample)
        self._sampling[features] = captured
        return captured

    def launch_logprobs(self, top: int) -> None:
        """Launch the log-probabilities of all samples, without a graph, as steps do."""
        logits, positions = self._result.logits, self._result.positions
        # As rows are selected, which makes the tensors contiguous.
        every = torch.arange(len(positions), device=positions.device)
        self._parts.ops.logprobs(logits[every], positions[every], top)

    @override
    def catch_up(self, chunks: Seq[DraftChunk]) -> None:
        assert self._catch_up is not None, "catching up is not captured"
        self._catch_up.launch(lambda inputs: fill_chunks(inputs, self._shape.rows, chunks))

    @override
    def draft(self, rows: tuple[Row, ...]) -> None:
        assert self._draft is not None, "the round of drafts is not captured"
        self._draft.launch(lambda inputs: fill_drafts(inputs, self._shape.rows, rows))

    @override
    def forward(self, rows: tuple[Row, ...]) -> ForwardResult:
        self._forward.launch(lambda inputs: fill_forward(inputs, self._shape.rows, rows))
        samples = sum([row.samples for row in rows])
        result = self._result
        return ForwardResult(result.logits[:samples], result.slots, result.positions)

    @override
    def sample(self, rows: tuple[Row, ...], result: ForwardResult, features: SamplingFeatures) -> SampleResult:
        graph, tokens = self._sampling.get(features) or self.add_sampling(features)
        graph.replay()
        samples = len(result.logits)
        return SampleResult(tokens[:samples], *self._results.take(samples, len(rows)))

    def _bounds(self, logits: int) -> GatherBounds:
        shape, max_len = self._shape, self._parts.table.tokens.shape[1]
        return GatherBounds(
            num_tokens=shape.tokens,
            num_logits=logits,
            query_lens=shape.query_lens,
            context_lens=(max_len,) * shape.rows,
            logits_lens=(shape.drafts + 1,) * shape.rows,
        )


def capture_executors(parts: ExecutorParts, recorder: Recorder) -> dict[StepShape, Executor]:
    """The executors of all shapes, with everything captured that ordinary requests need."""
    sampling = recorder.separate()
    # The largest first: the others' tensors fit into the memory that it leaves behind.
    shapes = sorted(parts.shapes.all, key=lambda shape: (-shape.samples, -shape.tokens))
    results = result_stages(parts)
    executors = {shape: GraphExecutor(shape, parts, recorder, sampling, results) for shape in shapes}
    for executor in executors.values():
        for features in COMMON_FEATURES:
            executor.add_sampling(features)
    # Constraints come up late or never. Their kernels are compiled now, so that the first one need not wait for that.
    for features in COMMON_FEATURES:
        executors[shapes[0]].add_sampling(features | SamplingFeatures.MASK)
    for shape in parts.shapes.catch_ups if parts.drafter.keeps_cache else ():
        executors[shape].add_catch_up()
    for shape in sorted(parts.shapes.drafting, key=lambda shape: -shape.tokens):
        executors[shape].add_drafts()
    return dict(executors)


def result_stages(parts: ExecutorParts) -> ResultStages:
    """Room for the tokens of any step that has a graph."""
    rows = max(shape.rows for shape in parts.shapes.all)
    return ResultStages(parts.shapes.max_samples, rows, parts.table.tokens.device)


def _slots_and_plan(inputs: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The slots and the plan in a graph's inputs, where `fill_forward` writes them."""
    return inputs[:rows], inputs[rows:].view(torch.int32)[: 3 * rows + 2]


# The host writes the inputs of graphs as arithmetic on arrays: no tensor, no object a row.


def forward_words(size: int) -> int:
    """How many int64 the inputs of a forward pass of ``size`` rows take."""
    return size + (3 * size + 3) // 2


def fill_forward(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write a step's rows, padded to ``size``.

    Args:
        inputs: [forward_words(size)] int64: ``size`` slots (0 for padding), then as pairs of int32 the plan of
            `gather_planned`. Where a decode starts, the device knows better than the host.
        size: the graph's rows.
        rows: the step's, at most ``size``. They want logits of their sampled positions only.
    """
    _fill_plan(
        inputs,
        size,
        slots=[row.slot for row in rows],
        queries=[row.count + row.drafts for row in rows],
        samples=[row.samples for row in rows],
        starts=[FROM_NEWEST if row.count == 1 and row.samples else row.start for row in rows],
    )


def fill_chunks(inputs: np.ndarray, size: int, chunks: Seq[DraftChunk]) -> None:
    """Write the chunks that a drafter catches up with, as `fill_forward` does rows."""
    _fill_plan(
        inputs,
        size,
        slots=[chunk.slot for chunk in chunks],
        queries=[chunk.count for chunk in chunks],
        samples=[0] * len(chunks),
        starts=[chunk.start for chunk in chunks],
    )


def _fill_plan(
    inputs: np.ndarray, size: int, *, slots: list[int], queries: list[int], samples: list[int], starts: list[int]
) -> None:
    padding = [0] * (size - len(slots))
    inputs[:size] = slots + padding
    query_starts, sample_starts = list(accumulate(queries, initial=0)), list(accumulate(samples, initial=0))
    # One list, and one assignment: calling numpy takes longer than copying a few rows.
    inputs[size:].view(np.int32)[: 3 * size + 2] = (
        query_starts
        + query_starts[-1:] * len(padding)
        + sample_starts
        + sample_starts[-1:] * len(padding)
        + starts
        + padding
    )


def draft_words(size: int) -> int:
    """How many int64 the drafter's inputs for ``size`` rows take."""
    return size + (size + 1) // 2


def fill_drafts(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write how many drafts each row wants.

    Args:
        inputs: [draft_words(size)] int64: ``size`` slots, then as pairs of int32 the drafts; both 0 for padding.
        size: the graph's rows.
        rows: the step's, at most ``size``.
    """
    padding = [0] * (size - len(rows))
    inputs[:size] = [row.slot for row in rows] + padding
    inputs[size:].view(np.int32)[:size] = [row.drafts for row in rows] + padding
