"""``CapturedStep``: a whole step as one CUDA graph."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from typing_extensions import override

from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import ResultStages, WritingInputGraph
from draftline.engine.runner.executor import ForwardResult, SampleResult, WholeStep
from draftline.engine.runner.graphs.inputs import draft_words, fill_drafts, fill_forward, forward_words
from draftline.engine.runner.shapes import StepShape
from draftline.engine.runner.slot_writer import STEP_WRITES, TableWrites
from draftline.engine.runner.timing import END


class CapturedStep(WholeStep):
    """The graph of a shape's whole steps.

    Attributes:
        result: what the forward pass leaves. Nothing owns the logits' memory.
    """

    def __init__(
        self,
        shape: StepShape,
        drafts: bool,
        graph: WritingInputGraph,
        result: ForwardResult,
        tokens: Tensor,
        results: ResultStages,
    ) -> None:
        """Of a captured graph.

        Args:
            shape: its size.
            drafts: whether it drafts, too.
            graph: all of it. Its inputs are those of the forward pass, and then those of the drafts.
            result: what the forward pass leaves.
            tokens: [samples] int64, what sampling leaves.
            results: where it copies the step's tokens.
        """
        self.drafts, self.result = drafts, result
        self._shape, self._graph, self._tokens, self._results = shape, graph, tokens, results

    @override
    def launch(self, rows: tuple[Row, ...], writes: TableWrites) -> tuple[ForwardResult, SampleResult]:
        self._graph.launch(lambda message: self._fill(message, rows, writes))
        samples = sum([row.samples for row in rows])
        sampled = take_result(self._results, self._shape, self._tokens, samples, len(rows))
        return of_samples(self.result, samples), sampled

    def _fill(self, message: np.ndarray, rows: tuple[Row, ...], writes: TableWrites) -> None:
        size = self._shape.rows
        end = forward_words(size)
        fill_forward(message[:end], size, rows)
        if self.drafts:
            begin, end = end, end + draft_words(size)
            fill_drafts(message[begin:end], size, rows)
        writes.fill(message[end:], STEP_WRITES)


def of_samples(result: ForwardResult, samples: int) -> ForwardResult:
    """The result of a forward pass without the logits of padding."""
    return ForwardResult(result.logits[:samples], result.slots, result.positions)


def take_result(results: ResultStages, shape: StepShape, tokens: Tensor, samples: int, rows: int) -> SampleResult:
    """The result of the graph that was launched last, which sampled ``tokens`` with padding."""
    arriving, counts, moments = results.take(samples, rows)
    return SampleResult(tokens[:samples], arriving, counts, moments if shape.drafts else moments[END:])
