"""``GraphExecutor``: the parts of a step as CUDA graphs, for one shape (`shapes.py`). ``StepGraphs``: all shapes.

A step is some hundred kernels of a few microseconds each. Launched one by one, they take the host longer than the
device; a graph is one launch. A graph's size is fixed, and a step runs in the smallest shape that holds it. The rest is
padding: rows without a query token, for which no kernel writes to the cache or the slot table. Their samples are
discarded.

A shape has up to four kinds of graph: the drafter's catching up; the round of drafts; gather and forward; sampling and
acceptance, one for each set of sampling features that comes up. Each is captured at its first use, or before, while the
engine has nothing to do. The runner launches other work between them, such as a mask's upload. The logits of all shapes
share one piece of memory. A graph takes its inputs from pinned memory, and copies a step's tokens there (`capture.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import InputGraph, Late, Recorder, ResultStages, unowned
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import Executor, ExecutorParts, ForwardResult, SampleResult
from draftline.engine.runner.shapes import StepShape
from draftline.kernels.batch import Batch
from draftline.kernels.slots import SampleRows, SamplingFeatures
from draftline.kernels.triton.inputs.gather import FROM_NEWEST, GatherBounds, gather_planned
from draftline.spec.drafter import DraftChunk, DraftRows

COMMON_FEATURES = (SamplingFeatures.NONE, SamplingFeatures.TEMPERATURE)
"""The sets of sampling features that most requests have."""


class _Forward(NamedTuple):
    """A captured forward pass.

    Attributes:
        graph: gathers the inputs, and runs the model.
        result: what it leaves. Nothing owns the logits' memory.
        starts: [rows + 1] int32, each row's first sample, in the graph's inputs.
    """

    graph: InputGraph
    result: ForwardResult
    starts: Tensor


_Sampling = tuple[torch.cuda.CUDAGraph, Tensor]
"""A captured sampling, and the tokens that it leaves."""


class GraphExecutor(Executor):
    """The graphs of one shape, each captured at its first use or before.

    It runs the rows of any step that the shape holds.

    Attributes:
        forward_graph: gather and forward.
        drafts_graph: the round of drafts.
        catch_up_graph: the drafter's catching up.
    """

    def __init__(
        self,
        shape: StepShape,
        parts: ExecutorParts,
        forward: Recorder,
        sampling: Recorder,
        results: ResultStages,
        eager: Executor,
    ) -> None:
        """Nothing is captured yet.

        Args:
            shape: the size of all its graphs.
            parts: what they run on, a CUDA device.
            forward: captures drafts and forward passes.
            sampling: captures sampling. Its graphs must not take the memory of the logits, which nothing owns.
            results: where they copy a step's tokens.
            eager: does what no memory is left to capture.
        """
        self._shape = shape
        self._parts = parts
        self._forward_recorder = forward
        self._sampling_recorder = sampling
        self._results = results
        self._eager = eager
        self.forward_graph = Late(f"{shape}", self._capture_forward)
        self.drafts_graph = Late(f"drafts of {shape}", self._capture_drafts)
        self.catch_up_graph = Late(f"catching up in {shape}", self._capture_catch_up)
        self._sampling: dict[SamplingFeatures, Late[_Sampling]] = {}

    def sampling_graph(self, features: SamplingFeatures) -> Late[_Sampling]:
        """Sampling and acceptance with these features."""
        graph = self._sampling.get(features)
        if graph is None:
            what = f"sampling with {features} in {self._shape}"
            graph = self._sampling[features] = Late(what, lambda: self._capture_sampling(features))
        return graph

    def _capture_forward(self) -> _Forward:
        parts, shape = self._parts, self._shape
        graph = InputGraph(forward_words(shape.rows), parts.table.tokens.device)
        slots, plan = _slots_and_plan(graph.tensor, shape.rows)

        def gather_and_forward() -> ForwardResult:
            inputs = gather_planned(parts.table, slots, plan, self._bounds(shape.samples), parts.block_size)
            batch = inputs.batch
            if shape.uneven:
                batch = parts.ops.divide_histories(batch, parts.cache.layers[0])
            logits = parts.forward(batch)
            return ForwardResult(logits, inputs.slots, inputs.positions)

        result = graph.record(self._forward_recorder, gather_and_forward)
        result = ForwardResult(unowned(result.logits), result.slots, result.positions)
        return _Forward(graph, result, plan[shape.rows + 1 : 2 * shape.rows + 2])

    def _capture_catch_up(self) -> InputGraph:
        """Its inputs are those of a forward pass that wants no logits."""
        parts, rows = self._parts, self._shape.rows
        graph = InputGraph(forward_words(rows), parts.table.tokens.device)
        slots, plan = _slots_and_plan(graph.tensor, rows)

        def gather(shift: int) -> Batch:
            moved = torch.cat((plan[:-rows], plan[-rows:] + shift)) if shift else plan
            return gather_planned(parts.table, slots, moved, self._bounds(0), parts.block_size).batch

        graph.record(self._forward_recorder, lambda: parts.drafter.catch_up(gather))
        return graph

    def _capture_drafts(self) -> InputGraph:
        size, table = self._shape.rows, self._parts.table
        graph = InputGraph(draft_words(size), table.tokens.device)
        slots, drafts = graph.tensor[:size], graph.tensor[size:].view(torch.int32)[:size]
        rows = DraftRows(slots, drafts, self._shape.drafts, self._shape.uneven)
        graph.record(self._forward_recorder, lambda: self._parts.drafter.propose(rows, table))
        return graph

    def _capture_sampling(self, features: SamplingFeatures) -> _Sampling:
        _, result, starts = self.forward_graph.require()
        rows = SampleRows(result.slots, result.positions, features, masks=None)

        def sample() -> Tensor:
            tokens, accepted = self._parts.sample_and_accept(result.logits, rows, starts, self._shape.drafts + 1)
            self._results.deliver(tokens, accepted)
            return tokens

        return self._sampling_recorder.record(sample)

    def launch_logprobs(self, top: int) -> None:
        """Launch the log-probabilities of all samples, without a graph, as steps do."""
        logits, _, positions = self.forward_graph.require().result
        # As rows are selected, which makes the tensors contiguous.
        every = torch.arange(len(positions), device=positions.device)
        self._parts.ops.logprobs(logits[every], positions[every], top)

    @override
    def catch_up(self, chunks: Seq[DraftChunk]) -> None:
        graph = self.catch_up_graph.find()
        if graph is None:
            return self._eager.catch_up(chunks)
        graph.launch(lambda inputs: fill_chunks(inputs, self._shape.rows, chunks))

    @override
    def draft(self, rows: tuple[Row, ...]) -> None:
        graph = self.drafts_graph.find()
        if graph is None:
            return self._eager.draft(rows)
        graph.launch(lambda inputs: fill_drafts(inputs, self._shape.rows, rows))

    @override
    def forward(self, rows: tuple[Row, ...]) -> ForwardResult:
        captured = self.forward_graph.find()
        if captured is None:
            return self._eager.forward(rows)
        captured.graph.launch(lambda inputs: fill_forward(inputs, self._shape.rows, rows))
        samples = sum([row.samples for row in rows])
        return ForwardResult(captured.result.logits[:samples], captured.result.slots, captured.result.positions)

    @override
    def sample(self, rows: tuple[Row, ...], result: ForwardResult, features: SamplingFeatures) -> SampleResult:
        samples = len(result.logits)
        captured = None if self.forward_graph.find() is None else self.sampling_graph(features).find()
        if captured is None:
            # What a forward pass by graph leaves has padding.
            exact = ForwardResult(result.logits, result.slots[:samples], result.positions[:samples])
            return self._eager.sample(rows, exact, features)
        graph, tokens = captured
        graph.replay()
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


class StepGraphs:
    """The graphs of all shapes. Those of one recorder share their memory, so the largest have to be captured first.

    Attributes:
        executors: by shape.
    """

    def __init__(self, parts: ExecutorParts, recorder: Recorder) -> None:
        """Nothing is captured yet."""
        sampling, results, eager = recorder.separate(), result_stages(parts), EagerExecutor(parts)
        self.executors = {
            shape: GraphExecutor(shape, parts, recorder, sampling, results, eager) for shape in parts.shapes.all
        }
        shapes, keeps_cache = parts.shapes, parts.drafter.keeps_cache
        self._kinds: list[tuple[list[StepShape], Callable[[GraphExecutor], list[Late[Any]]]]] = [
            (shapes.all, lambda executor: [executor.forward_graph]),
            (shapes.all, lambda executor: [executor.sampling_graph(features) for features in COMMON_FEATURES]),
            (shapes.catch_ups if keeps_cache else [], lambda executor: [executor.catch_up_graph]),
            (shapes.drafting, lambda executor: [executor.drafts_graph]),
        ]

    def largest(self) -> list[Late[Any]]:
        """The graphs whose memory is enough for those of all shapes."""
        return [
            graph
            for shapes, graphs_of in self._kinds
            for shape in dict.fromkeys(largest_shapes(shapes))
            for graph in graphs_of(self.executors[shape])
        ]

    def common(self) -> list[Late[Any]]:
        """The graphs that ordinary requests need, the smallest shapes' first."""
        graphs = [
            (shape.tokens, kind, graph)
            for kind, (shapes, graphs_of) in enumerate(self._kinds)
            for shape in shapes
            for graph in graphs_of(self.executors[shape])
        ]
        return [graph for *_, graph in sorted(graphs, key=lambda each: each[:2])]

    def constrained(self) -> list[Late[Any]]:
        """Sampling with constraints, in one shape: all have the same kernels."""
        (shape, *_) = largest_shapes(list(self.executors))
        return [self.executors[shape].sampling_graph(features | SamplingFeatures.MASK) for features in COMMON_FEATURES]


def largest_shapes(shapes: Seq[StepShape]) -> list[StepShape]:
    """Those of most samples and of most tokens, of even and of uneven histories."""
    return [
        max(alike, key=measure)
        for uneven in (False, True)
        if (alike := [shape for shape in shapes if shape.uneven == uneven])
        for measure in (lambda shape: (shape.samples, shape.tokens), lambda shape: (shape.tokens, shape.samples))
    ]


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
