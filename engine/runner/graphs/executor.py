"""``GraphExecutor``: steps of one shape (`shapes.py`) as CUDA graphs.

A step is some hundred kernels of a few microseconds each. Launched one by one, they take the host longer than the
device; a graph is one launch. A graph's size is fixed, and a step runs in the smallest shape that holds it. The rest is
padding: rows without a query token, for which no kernel writes to the cache or the slot table. Their samples are
discarded.

A shape has a graph of the whole step: the round of drafts, gather and forward, sampling and acceptance. Some steps run
in parts, a graph each: where the host has work between them, such as a mask's upload, where the rows with drafts fit
another shape than the step with its prompts, and where requests have rarer sampling features, for which a graph of the
whole step would take more memory and a longer capture. Catching up is another graph.

Each graph is captured at its first use, or before, while the engine has nothing to do. The logits of all shapes share
one piece of memory. A graph takes its inputs from pinned memory, and copies a step's tokens there (`capture.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import InputGraph, Late, Recorder, ResultStages, WritingInputGraph, unowned
from draftline.engine.runner.executor import Executor, ExecutorParts, ForwardResult, SampleResult
from draftline.engine.runner.graphs.captured_step import CapturedStep, of_samples, take_result
from draftline.engine.runner.graphs.inputs import (
    draft_words,
    fill_chunks,
    fill_drafts,
    fill_forward,
    forward_words,
    slots_and_drafts,
    slots_and_plan,
)
from draftline.engine.runner.shapes import StepShape
from draftline.engine.runner.slot_writer import STEP_WRITES, write_words
from draftline.engine.runner.timing import DRAFTS, FORWARD, SAMPLING
from draftline.kernels.batch import Batch
from draftline.kernels.slots import SampleRows, SamplingFeatures
from draftline.kernels.triton.inputs.gather import GatherBounds, gather_planned
from draftline.kernels.triton.sampling.sample import IN_EVERY_KERNEL
from draftline.spec.drafter import DraftChunk, DraftRows


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

_WHOLE = (SamplingFeatures.NONE, SamplingFeatures.MASK)
"""The sets of sampling features with which steps are captured whole, but for those that every kernel has."""


class GraphExecutor(Executor):
    """The graphs of one shape, each captured at its first use or before.

    It runs the rows of any step that the shape holds.

    Attributes:
        step_graph: the step whole, with the most common sampling features.
        masked_step_graph: likewise, with constraints.
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
        self.step_graph, self.masked_step_graph = (
            Late(f"steps of {shape} with {features}", partial(self._capture_step, features)) for features in _WHOLE
        )
        self._steps = dict(zip(_WHOLE, (self.step_graph, self.masked_step_graph), strict=True))
        self.forward_graph = Late(f"the forward pass of {shape}", self._capture_forward)
        self.drafts_graph = Late(f"drafts of {shape}", self._capture_drafts)
        self.catch_up_graph = Late(f"catching up in {shape}", self._capture_catch_up)
        self._sampling: dict[SamplingFeatures, Late[_Sampling]] = {}

    def sampling_graph(self, features: SamplingFeatures) -> Late[_Sampling]:
        """Sampling and acceptance with these features."""
        features &= ~IN_EVERY_KERNEL
        graph = self._sampling.get(features)
        if graph is None:
            what = f"sampling with {features} in {self._shape}"
            graph = self._sampling[features] = Late(what, partial(self._capture_sampling, features))
        return graph

    def _capture_step(self, features: SamplingFeatures) -> CapturedStep:
        shape, table = self._shape, self._parts.table
        # In steps with prompts, fewer rows draft than the shape has.
        drafts = shape.drafts > 0 and not shape.has_prompts
        words = forward_words(shape.rows)
        more = draft_words(shape.rows) if drafts else 0
        graph = WritingInputGraph(words + more, write_words(STEP_WRITES), table.words)

        def step() -> tuple[ForwardResult, Tensor]:
            if drafts:
                self._propose(graph.tensor[words:])
            result, starts = self._gather_and_forward(graph.tensor[:words])
            return result, self._sample(result, starts, features)

        result, tokens = graph.record(self._forward_recorder, step)
        return CapturedStep(shape, drafts, graph, _without_logits(result), tokens, self._results)

    def _capture_forward(self) -> _Forward:
        graph = InputGraph(forward_words(self._shape.rows), self._parts.table.tokens.device)
        result, starts = graph.record(self._forward_recorder, lambda: self._gather_and_forward(graph.tensor))
        return _Forward(graph, _without_logits(result), starts)

    def _capture_drafts(self) -> InputGraph:
        graph = InputGraph(draft_words(self._shape.rows), self._parts.table.tokens.device)
        graph.record(self._forward_recorder, lambda: self._propose(graph.tensor))
        return graph

    def _capture_sampling(self, features: SamplingFeatures) -> _Sampling:
        _, result, starts = self.forward_graph.require()
        return self._sampling_recorder.record(lambda: self._sample(result, starts, features))

    def _capture_catch_up(self) -> InputGraph:
        """Its inputs are those of a forward pass that wants no logits."""
        parts, rows = self._parts, self._shape.rows
        graph = InputGraph(forward_words(rows), parts.table.tokens.device)
        slots, plan = slots_and_plan(graph.tensor, rows)

        def gather(shift: int) -> Batch:
            moved = torch.cat((plan[:-rows], plan[-rows:] + shift)) if shift else plan
            return gather_planned(parts.table, slots, moved, self._bounds(0), parts.block_size).batch

        graph.record(self._forward_recorder, lambda: parts.drafter.catch_up(gather))
        return graph

    # What graphs do with their inputs on the device.

    def _propose(self, inputs: Tensor) -> None:
        """Draft, as `fill_drafts` has written the inputs."""
        shape, parts = self._shape, self._parts
        slots, drafts = slots_and_drafts(inputs, shape.rows)
        parts.clock.note(DRAFTS)
        parts.drafter.propose(DraftRows(slots, drafts, shape.drafts, shape.uneven), parts.table)
        parts.clock.note(FORWARD)

    def _gather_and_forward(self, inputs: Tensor) -> tuple[ForwardResult, Tensor]:
        """The result of a forward pass of the rows that `fill_forward` has written, and each row's first sample."""
        shape, parts = self._shape, self._parts
        slots, plan = slots_and_plan(inputs, shape.rows)
        gathered = gather_planned(parts.table, slots, plan, self._bounds(shape.samples), parts.block_size)
        batch = gathered.batch
        if shape.uneven:
            batch = parts.ops.divide_histories(batch, parts.cache.layers[0])
        result = ForwardResult(parts.forward(batch), gathered.slots, gathered.positions)
        return result, plan[shape.rows + 1 : 2 * shape.rows + 2]

    def _sample(self, result: ForwardResult, starts: Tensor, features: SamplingFeatures) -> Tensor:
        """The samples, which the host will find in `ResultStages`."""
        parts = self._parts
        if self._shape.drafts:
            parts.clock.note(SAMPLING)
        rows = SampleRows(result.slots, result.positions, features, masks=None)
        tokens, accepted = parts.sample_and_accept(result.logits, rows, starts, self._shape.drafts + 1)
        self._results.deliver(tokens, accepted, parts.clock.moments)
        return tokens

    def launch_logprobs(self, top: int) -> None:
        """Launch the log-probabilities of all samples, without a graph, as steps do."""
        logits, _, positions = self.step_graph.require().result
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
    def whole_step(self, features: SamplingFeatures) -> CapturedStep | None:
        graph = self._steps.get(features & ~IN_EVERY_KERNEL)
        return None if graph is None else graph.find()

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
        return of_samples(captured.result, sum([row.samples for row in rows]))

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
        return take_result(self._results, self._shape, tokens, samples, len(rows))

    def _bounds(self, logits: int) -> GatherBounds:
        shape, max_len = self._shape, self._parts.table.tokens.shape[1]
        return GatherBounds(
            num_tokens=shape.tokens,
            num_logits=logits,
            query_lens=shape.query_lens,
            context_lens=(max_len,) * shape.rows,
            logits_lens=(shape.drafts + 1,) * shape.rows,
        )


def _without_logits(result: ForwardResult) -> ForwardResult:
    """The same, with logits that nothing owns."""
    return ForwardResult(unowned(result.logits), result.slots, result.positions)
