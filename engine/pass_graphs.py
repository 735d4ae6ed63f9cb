"""``GraphPasses``: decode steps as CUDA graphs, captured once for each bucket of rows.

A decode step is some hundred kernels of a few microseconds each: launched one by one, the host takes longer than the
device. A graph is one launch. Its shapes are fixed, so there is one for each of a few row counts (buckets), and a step
runs in the smallest that holds its rows. The rest of the bucket is padding: rows without a query token, which no kernel
writes to the cache or the slot table. What is sampled from them is nobody's.

Steps with drafts have buckets by draft length as well, with one graph more, the drafter's.

The graphs of a bucket are: drafting, where it drafts; gather and forward; sampling and acceptance, of which there is one
for each combination of sampling features that comes up. Between them other work can be launched, such as a mask's
upload, or a mark of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from draftline.engine.buckets import Buckets
from draftline.engine.constraining import Constraining
from draftline.engine.decide import Decider
from draftline.engine.graph_inputs import fill_inputs, input_words, is_decode
from draftline.engine.runner import Sampled
from draftline.engine.sequence import Row
from draftline.engine.stopwatch import Stopwatch
from draftline.kernels.batch import Inputs, KVCache
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.gather import GatherBounds, gather_planned
from draftline.models.model import Model
from draftline.spec.drafter import Drafter, DraftRows

_Left = TypeVar("_Left")

COMMON_FEATURES = (SamplingFeatures.NONE, SamplingFeatures.TEMPERATURE)
"""The combinations that are captured in advance; others are when they first come up."""

_STAGES = 4
"""Host copies of a bucket's inputs. A copy is written again after as many steps, when the last one's upload has long
run: at most two steps are ever under way."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The graphs of one row count and draft length, and the tensors that they read and write.

    Attributes:
        rows: how many rows it holds.
        drafts: how many drafts each row may have.
        stages: pinned arrays on the host, used in turn, as `fill_inputs` writes them.
        inputs: the same on the device.
        draft: all drafts, or None where there are none.
        forward: gather and forward.
        decides: what the logits decide, as ``forward`` leaves it.
        logits: what ``forward`` leaves.
        sampling: sampling and acceptance, by features, with what each leaves: tokens, and how many each row keeps.
    """

    rows: int
    drafts: int
    stages: tuple[Tensor, ...]
    inputs: Tensor
    draft: torch.cuda.CUDAGraph | None
    forward: torch.cuda.CUDAGraph
    decides: Inputs
    logits: Tensor
    sampling: dict[SamplingFeatures, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = field(default_factory=dict)

    @property
    def plan(self) -> Tensor:
        """[3 * rows + 2] int32, see `gather_planned`."""
        return self.inputs[self.rows :].view(torch.int32)[: 3 * self.rows + 2]


class GraphPasses:
    """Decode steps, with drafts or without, of up to the largest bucket's rows."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        table: SlotTable,
        ops: Ops,
        drafter: Drafter,
        accept: Accept,
        constraining: Constraining,
        buckets: Buckets,
    ) -> None:
        """Capture the graphs of all ``buckets``. Everything is on one CUDA device. ``accept`` verifies drafts."""
        self._model = model
        self._cache = cache
        self._table = table
        self._ops = ops
        self._drafter = drafter
        self._constraining = constraining
        self._decider = Decider(ops, accept, table, constraining.table)
        self._block_size = cache.keys[0].shape[1]
        self._device = table.tokens.device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self._device)
        self._step = 0
        self._choose = buckets
        # The largest first: the others' tensors fit into the memory that it leaves behind.
        largest_first = sorted(buckets.all(), key=lambda bucket: -bucket[0] * (bucket[1] + 1))
        self._buckets = {(rows, drafts): self._capture_bucket(rows, drafts) for rows, drafts in largest_first}
        for bucket in self._buckets.values():
            for features in COMMON_FEATURES:
                self._sampling(bucket, features)
        # Constraints come up late or never. Their kernels are compiled now, so that the first one holds nobody up.
        for features in COMMON_FEATURES:
            self._sampling(next(iter(self._buckets.values())), features | SamplingFeatures.MASK)

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Whether the rows only decode, and a bucket holds them."""
        return is_decode(rows) and self._choose(rows) is not None

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures) -> Sampled:
        """See `Pass.run`."""
        chosen = self._choose(rows)
        assert chosen is not None, "asked for rows that no bucket holds"
        bucket = self._buckets[chosen]
        self._step += 1
        stage = bucket.stages[self._step % _STAGES]
        fill_inputs(stage.numpy(), bucket.rows, rows)
        bucket.inputs.copy_(stage, non_blocking=True)
        watch = None
        if bucket.draft is not None:
            watch = Stopwatch(self._device)
            watch.mark()
            bucket.draft.replay()
            self._constraining.write_drafts(rows)
            watch.mark()
        bucket.forward.replay()
        self._constraining.write_masks(rows)
        graph, tokens, accepted = self._sampling(bucket, features)
        if watch is not None:
            watch.mark()
        graph.replay()
        if watch is not None:
            watch.mark()
        samples = sum([row.samples for row in rows]) if bucket.drafts else len(rows)
        return Sampled(bucket.logits[:samples], tokens[:samples], accepted[: len(rows)], watch)

    def _capture_bucket(self, rows: int, drafts: int) -> _Bucket:
        stages = tuple(torch.zeros(input_words(rows), dtype=torch.int64, pin_memory=True) for _ in range(_STAGES))
        fill_inputs(stages[0].numpy(), rows, ())
        inputs = stages[0].to(self._device)
        slots, words = inputs[:rows], inputs[rows:].view(torch.int32)
        plan, wanted = words[: 3 * rows + 2], words[3 * rows + 2 : 4 * rows + 2]
        longest, tokens = self._table.tokens.shape[1], rows * (drafts + 1)
        bounds = GatherBounds(tokens, tokens, query_lens=(drafts + 1,) * rows, context_lens=(longest,) * rows)

        def propose() -> None:
            self._drafter.propose(DraftRows(slots, wanted, drafts), self._table)

        def forward() -> tuple[Inputs, Tensor]:
            gathered = gather_planned(self._table, slots, plan, bounds, self._block_size)
            return gathered, self._model.forward(gathered.batch, self._cache)

        draft = self._capture(propose, warm_up=propose)[0] if drafts else None
        graph, (decides, logits) = self._capture(forward, warm_up=forward)
        return _Bucket(rows, drafts, stages, inputs, draft, graph, decides, logits)

    def _sampling(self, bucket: _Bucket, features: SamplingFeatures) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """The graph that samples and accepts with these features, and what it leaves."""
        known = bucket.sampling.get(features)
        if known is None:
            which = SampleRows(bucket.decides.slots, bucket.decides.positions, features, masks=None)
            starts = bucket.plan[bucket.rows + 1 : 2 * bucket.rows + 2]

            def sample(starts: Tensor) -> tuple[Tensor, Tensor]:
                return self._decider.decide(bucket.logits, which, starts, bucket.drafts + 1)

            # A step may be waiting for this graph. Accepting its drafts twice would accept too many: warm up with none.
            none = torch.zeros_like(starts)
            graph, left = self._capture(lambda: sample(starts), warm_up=lambda: sample(none))
            known = bucket.sampling[features] = (graph, *left)
        return known

    def _capture(self, work: Callable[[], _Left], warm_up: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, _Left]:
        """Record ``work``. ``warm_up`` runs before: what is compiled or set up then must not be recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), torch.inference_mode():
            warm_up()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            result = work()
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph, result
