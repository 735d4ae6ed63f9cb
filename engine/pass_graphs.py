"""``GraphPasses``: decode steps as CUDA graphs, captured once for each bucket of rows.

A decode step is some hundred kernels of a few microseconds each: launched one by one, the host takes longer than the
device. A graph is one launch. Its shapes are fixed, so there is one for each of a few row counts (buckets), and a step
runs in the smallest that holds its rows. The rest of the bucket is padding: rows without a query token, which no kernel
writes to the cache or the slot table. What is sampled from them is nobody's.

There are two graphs a bucket: gather and forward; sampling and commit, of which there is one for each combination of
sampling features that comes up. Between them other work can be launched, such as a mask's upload.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from draftline.engine.graph_inputs import fill_inputs, input_words, is_decode
from draftline.engine.runner import Sampled
from draftline.engine.sequence import Row
from draftline.kernels.batch import KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.gather import GatherBounds, gather_planned
from draftline.models.model import Model

COMMON_FEATURES = (SamplingFeatures.NONE, SamplingFeatures.TEMPERATURE)
"""The combinations that are captured in advance; others are when they first come up."""

_STAGES = 4
"""Host copies of a bucket's inputs. A copy is written again after as many steps, when the last one's upload has long
run: at most two steps are ever under way."""


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Row counts to capture graphs for: close to each other where steps are short, and never far apart."""
    sizes = chain((1, 2, 3, 4, 6, 8), range(12, 32, 4), range(32, 128, 8), range(128, 513, 32))
    smaller = [size for size in sizes if size < max_rows]
    return (*smaller, min(max_rows, 512))


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The graphs of one row count, and the tensors that they read and write.

    Attributes:
        rows: how many rows it holds.
        stages: pinned arrays on the host, used in turn, as `fill_inputs` writes them.
        inputs: the same on the device.
        forward: gather and forward.
        logits: what ``forward`` leaves.
        sampling: sampling and commit, by features, with the tokens that each leaves.
    """

    rows: int
    stages: tuple[Tensor, ...]
    inputs: Tensor
    forward: torch.cuda.CUDAGraph
    logits: Tensor
    sampling: dict[SamplingFeatures, tuple[torch.cuda.CUDAGraph, Tensor]] = field(default_factory=dict)

    @property
    def slots(self) -> Tensor:
        """[rows] int64, each row's slot; 0 for padding."""
        return self.inputs[: self.rows]

    @property
    def positions(self) -> Tensor:
        """[rows] int64, the position that each row samples; -1 for padding."""
        return self.inputs[self.rows : 2 * self.rows]


class GraphPasses:
    """Decode steps of up to the largest bucket's rows."""

    def __init__(self, model: Model, cache: KVCache, table: SlotTable, ops: Ops, sizes: tuple[int, ...]) -> None:
        """Capture the graphs of all ``sizes``, which ascend. Everything is on one CUDA device."""
        self._model = model
        self._cache = cache
        self._table = table
        self._ops = ops
        self._sizes = sizes
        self._block_size = cache.keys[0].shape[1]
        self._device = table.tokens.device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self._device)
        self._step = 0
        # The largest first: the others' tensors fit into the memory that it leaves behind.
        buckets = {size: self._capture_bucket(size) for size in reversed(sizes)}
        self._buckets = tuple(buckets[size] for size in sizes)
        for bucket in reversed(self._buckets):
            for features in COMMON_FEATURES:
                self._sampling(bucket, features)

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Whether every row computes exactly its last known token, and a bucket holds them."""
        return len(rows) <= self._sizes[-1] and is_decode(rows)

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures) -> Sampled:
        """See `Pass.run`."""
        bucket = self._buckets[bisect_left(self._sizes, len(rows))]
        self._step += 1
        stage = bucket.stages[self._step % _STAGES]
        fill_inputs(stage.numpy(), bucket.rows, rows)
        bucket.inputs.copy_(stage, non_blocking=True)
        bucket.forward.replay()
        graph, tokens = self._sampling(bucket, features)
        graph.replay()
        count = len(rows)
        return Sampled(bucket.logits[:count], tokens[:count], None)

    def _capture_bucket(self, rows: int) -> _Bucket:
        stages = tuple(torch.zeros(input_words(rows), dtype=torch.int64, pin_memory=True) for _ in range(_STAGES))
        fill_inputs(stages[0].numpy(), rows, ())
        inputs = stages[0].to(self._device)
        slots, plan = inputs[:rows], inputs[2 * rows :].view(torch.int32)[: 3 * rows + 2]
        longest = self._table.tokens.shape[1]
        bounds = GatherBounds(rows, rows, query_lens=(1,) * rows, context_lens=(longest,) * rows)

        def forward() -> Tensor:
            inputs = gather_planned(self._table, slots, plan, bounds, self._block_size)
            return self._model.forward(inputs.batch, self._cache)

        graph, logits = self._capture(forward)
        return _Bucket(rows, stages, inputs, graph, logits)

    def _sampling(self, bucket: _Bucket, features: SamplingFeatures) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The graph that samples and commits with these features, and the tokens that it leaves."""
        known = bucket.sampling.get(features)
        if known is None:
            which = SampleRows(bucket.slots, bucket.positions, features, mask=None)

            def sample() -> Tensor:
                tokens = self._ops.sample(bucket.logits, which, self._table)
                self._ops.commit(tokens, which, self._table)
                return tokens

            known = bucket.sampling[features] = self._capture(sample)
        return known

    def _capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Record ``work``; it runs once before, since what is compiled or set up then must not be recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), torch.inference_mode():
            work()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            result = work()
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph, result
