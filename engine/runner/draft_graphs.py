"""``DraftGraphs``: rounds of drafts as CUDA graphs, one for each number of rows and draft length."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import GraphInput, Recorder
from draftline.engine.runner.graph_inputs import draft_words, fill_drafts
from draftline.engine.runner.shapes import Buckets, StepShape
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows


@dataclass(frozen=True, slots=True)
class _Round:
    inputs: GraphInput
    graph: torch.cuda.CUDAGraph


class DraftGraphs:
    """Drafts of decoding rows, whatever else is in their step."""

    def __init__(self, drafter: Drafter, table: SlotTable, buckets: Buckets, recorder: Recorder) -> None:
        """Capture a graph for each of the ``buckets`` that drafts. ``table`` is on a CUDA device."""
        self._choose = buckets
        self._drafter = drafter
        self._table = table
        shapes = [shape for shape in buckets.decodes if shape.drafts]
        self._rounds = {shape: self._record(shape, recorder) for shape in sorted(shapes, key=lambda s: -s.tokens)}

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """See `DraftPass.fits`."""
        return self._shape(rows) is not None

    def propose(self, rows: tuple[Row, ...]) -> None:
        """See `DraftPass.propose`."""
        shape = self._shape(rows)
        assert shape is not None, "asked for rows that no graph holds"
        chosen = self._rounds[shape]
        chosen.inputs.upload(lambda stage: fill_drafts(stage.numpy(), shape.rows, rows))
        chosen.graph.replay()

    def _shape(self, rows: tuple[Row, ...]) -> StepShape | None:
        return self._choose.of_decode(len(rows), max([row.drafts for row in rows]))

    def _record(self, shape: StepShape, recorder: Recorder) -> _Round:
        size = shape.rows
        inputs = GraphInput(draft_words(size), self._table.tokens.device)
        slots, wanted = inputs.tensor[:size], inputs.tensor[size:].view(torch.int32)[:size]
        rows = DraftRows(slots, wanted, shape.drafts)
        graph, _ = recorder.record(lambda: self._drafter.propose(rows, self._table))
        return _Round(inputs, graph)
