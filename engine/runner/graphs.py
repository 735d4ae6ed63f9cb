"""``GraphPasses``: steps as CUDA graphs, captured once for each of a few shapes (`buckets.py`).

A step is some hundred kernels of a few microseconds each: launched one by one, the host takes longer than the device. A
graph is one launch. Its shapes are fixed, and a step runs in the smallest that holds it. The rest is padding: rows without
a query token, which no kernel writes to the cache or the slot table. What is sampled from them is nobody's.

The graphs of a shape are: gather and forward; sampling and acceptance, of which there is one for each combination of
sampling features that comes up. Between them other work can be launched, such as a mask's upload, or a mark of the time.
All shapes' logits lie in the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import GraphInput, Recorder, unowned
from draftline.engine.runner.decide import Decider
from draftline.engine.runner.executor import Sampled
from draftline.engine.runner.graph_inputs import fill_plan, plan_words
from draftline.engine.runner.masks import Constraining
from draftline.engine.runner.shapes import Buckets, StepShape
from draftline.engine.runner.timing import Stopwatch
from draftline.kernels.batch import KVCache
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.inputs.gather import GatherBounds, gather_planned
from draftline.models.model import Model

COMMON_FEATURES = (SamplingFeatures.NONE, SamplingFeatures.TEMPERATURE)
"""The combinations that are captured in advance; others are when they first come up."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The graphs of one shape, and the tensors that they read and write.

    Attributes:
        shape: what they have room for.
        inputs: as `fill_plan` writes them.
        forward: gather and forward.
        slots: [samples] int64, whose token each of the logits decides, as ``forward`` leaves it.
        positions: [samples] int64, and where.
        starts: [rows + 1] int32, each row's first sample.
        logits: [samples, vocab], what ``forward`` leaves until another shape's runs.
        sampling: sampling and acceptance, by features, with what each leaves: tokens, and how many each row keeps.
    """

    shape: StepShape
    inputs: GraphInput
    forward: torch.cuda.CUDAGraph
    slots: Tensor
    positions: Tensor
    starts: Tensor
    logits: Tensor
    sampling: dict[SamplingFeatures, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = field(default_factory=dict)


class GraphPasses:
    """Steps of the shapes that have graphs."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        table: SlotTable,
        ops: Ops,
        accept: Accept,
        constraining: Constraining,
        buckets: Buckets,
        recorder: Recorder,
    ) -> None:
        """Capture the graphs of all ``buckets``. Everything is on one CUDA device. ``accept`` verifies drafts."""
        self._model = model
        self._cache = cache
        self._table = table
        self._ops = ops
        self._constraining = constraining
        self._decider = Decider(ops, accept, table, constraining.table)
        self._block_size = cache.block_size
        self._choose = buckets
        # What samples may not take the memory of the logits, which nobody owns.
        self._samplers = recorder.beside()
        # The largest first: the others' tensors fit into the memory that it leaves behind.
        shapes = sorted([*buckets.decodes, *buckets.prompts], key=lambda shape: (-shape.samples, -shape.tokens))
        self._buckets = {shape: self._record(shape, recorder) for shape in shapes}
        for bucket in self._buckets.values():
            for features in COMMON_FEATURES:
                self._sampling(bucket, features)
        # Constraints come up late or never. Their kernels are compiled now, so that the first one holds nobody up.
        for features in COMMON_FEATURES:
            self._sampling(next(iter(self._buckets.values())), features | SamplingFeatures.MASK)

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Whether a graph holds the rows."""
        return self._choose(rows) is not None

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures, watch: Stopwatch | None = None) -> Sampled:
        """See `Pass.run`."""
        shape = self._choose(rows)
        assert shape is not None, "asked for rows that no graph holds"
        bucket = self._buckets[shape]
        bucket.inputs.upload(lambda stage: fill_plan(stage.numpy(), shape.rows, rows))
        bucket.forward.replay()
        self._constraining.write_masks(rows)
        graph, tokens, accepted = self._sampling(bucket, features)
        if watch is not None:
            watch.mark()
        graph.replay()
        samples = sum([row.samples for row in rows])
        return Sampled(bucket.logits[:samples], tokens[:samples], accepted[: len(rows)])

    def _record(self, shape: StepShape, recorder: Recorder) -> _Bucket:
        inputs = GraphInput(plan_words(shape.rows), self._table.tokens.device)
        longest = self._table.tokens.shape[1]
        bounds = GatherBounds(shape.tokens, shape.samples, shape.query_lens, context_lens=(longest,) * shape.rows)
        slots = inputs.tensor[: shape.rows]
        plan = inputs.tensor[shape.rows :].view(torch.int32)[: 3 * shape.rows + 2]

        def forward() -> tuple[Tensor, Tensor, Tensor]:
            gathered = gather_planned(self._table, slots, plan, bounds, self._block_size)
            return gathered.slots, gathered.positions, self._model.forward(gathered.batch, self._cache)

        graph, (sample_slots, positions, logits) = recorder.record(forward)
        starts = plan[shape.rows + 1 : 2 * shape.rows + 2]
        return _Bucket(shape, inputs, graph, sample_slots, positions, starts, unowned(logits))

    def _sampling(self, bucket: _Bucket, features: SamplingFeatures) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """The graph that samples and accepts with these features, and what it leaves."""
        known = bucket.sampling.get(features)
        if known is None:
            which = SampleRows(bucket.slots, bucket.positions, features, masks=None)
            most = bucket.shape.drafts + 1

            def sample(starts: Tensor) -> tuple[Tensor, Tensor]:
                return self._decider.decide(bucket.logits, which, starts, most)

            # A step may be waiting for this graph. Accepting its drafts twice would accept too many: warm up with none.
            none = torch.zeros_like(bucket.starts)
            graph, left = self._samplers.record(lambda: sample(bucket.starts), warm_up=lambda: sample(none))
            known = bucket.sampling[features] = (graph, *left)
        return known
