"""``StepGraphs``: the graphs of all shapes, and the order in which they are captured."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from draftline.engine.runner.capture import Late, Recorder, ResultStages
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import ExecutorParts
from draftline.engine.runner.graphs.executor import GraphExecutor
from draftline.engine.runner.shapes import StepShape
from draftline.kernels.slots import SamplingFeatures


def whole_steps(executor: GraphExecutor) -> list[Late[Any]]:
    """The graphs of ordinary steps of an engine without other ranks."""
    return [executor.step_graph]


def steps_in_parts(executor: GraphExecutor) -> list[Late[Any]]:
    """The same in parts, as where ranks exchange drafts and tokens between these."""
    return [executor.forward_graph, executor.sampling_graph(SamplingFeatures.NONE)]


class StepGraphs:
    """The graphs of all shapes. Those of one recorder share their memory, so the largest have to be captured first.

    Attributes:
        executors: by shape.
    """

    def __init__(
        self,
        parts: ExecutorParts,
        recorder: Recorder,
        steps: Callable[[GraphExecutor], list[Late[Any]]] = whole_steps,
    ) -> None:
        """Nothing is captured yet. ``steps`` chooses the graphs of ordinary steps."""
        sampling, results, eager = recorder.separate(), result_stages(parts), EagerExecutor(parts)
        self.executors = {
            shape: GraphExecutor(shape, parts, recorder, sampling, results, eager) for shape in parts.shapes.all
        }
        shapes, keeps_cache = parts.shapes, parts.drafter.keeps_cache
        self._kinds: list[tuple[list[StepShape], Callable[[GraphExecutor], list[Late[Any]]]]] = [
            (shapes.all, steps),
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

    def families(self) -> list[list[Late[Any]]]:
        """The graphs of steps with constraints, and those of forward passes alone, the smallest shapes' first."""
        smallest_first = [self.executors[shape] for shape in sorted(self.executors, key=lambda shape: shape.tokens)]
        return [
            [executor.masked_step_graph for executor in smallest_first],
            [executor.forward_graph for executor in smallest_first],
        ]

    def others(self) -> list[Late[Any]]:
        """A step with constraints and one in parts, in one shape: all have the same kernels."""
        (shape, *_) = largest_shapes(list(self.executors))
        return [self.executors[shape].masked_step_graph, *steps_in_parts(self.executors[shape])]


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
    return ResultStages(parts.shapes.max_samples, rows, len(parts.clock.moments), parts.table.tokens.device)
