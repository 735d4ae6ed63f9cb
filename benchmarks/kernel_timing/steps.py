"""A whole decode step in one CUDA graph, with random weights: the sum of all kernels, launches included.

The step is greedy, from token ids to sampled tokens, with the engine's own forward pass but without the engine.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from draftline.engine.bench.ablation.vendor_ops import VendorOps as VendorOps
from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache, LayerCache
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.models.decoder import EagerForward
from draftline.models.layers import Attention, DecoderLayer, DecoderWeights, GatedMlp
from draftline.models.parallel.linear import Embedding
from draftline.quant.dense import DenseLinear
from kernel_timing.models import BLOCK_SIZE, DEVICE, DTYPE, EPS, ModelSizes, make_batch, make_mixed_batch, randn

MAX_LENGTH = 4096
"""The bound on the length of a row."""


def make_weights(model: ModelSizes) -> DecoderWeights:
    """The weights of a decoder whose activations stay near 1 in every layer."""
    rope = torch.randn(MAX_LENGTH, 2, model.head_dim // 2, device=DEVICE)

    def projection(n: int, k: int) -> DenseLinear:
        return DenseLinear(randn(n, k, scale=k**-0.5), None)

    def norm(size: int) -> Tensor:
        return 1 + randn(size, scale=0.1)

    def layer() -> DecoderLayer:
        projections = {name: projection(*shape) for name, shape in model.linears.items()}
        norms = (norm(model.head_dim), norm(model.head_dim)) if model.qk_norm else None
        spec = AttentionSpec(rope, model.head_dim**-0.5, norms=norms, eps=EPS)
        attention = Attention(projections["qkv"], projections["o"], spec)
        mlp = GatedMlp(projections["gate_up"], projections["down"])
        return DecoderLayer(norm(model.hidden), attention, norm(model.hidden), mlp)

    return DecoderWeights(
        embedding=Embedding(randn(model.vocab, model.hidden)),
        layers=tuple(layer() for _ in range(model.layers)),
        norm=norm(model.hidden),
        head=projection(model.vocab, model.hidden),
    )


class Step:
    """A model's step for a fixed batch.

    Attributes:
        tokens: the rows of its products.
        batch: its rows.
        cache: their keys and values.
        num_bytes: the bytes that it must read: the weights, and the keys and values of the rows.
    """

    def __init__(self, model: ModelSizes, weights: DecoderWeights, batch: Batch, blocks: int, context: int) -> None:
        """Of a batch in so many blocks of the cache; its rows have so much context together."""
        self.tokens = len(batch.positions)
        self.batch = batch
        self._weights = weights
        shape = (blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
        self.cache = KVCache(tuple(LayerCache(randn(*shape), randn(*shape)) for _ in range(model.layers)))
        index = torch.arange(len(batch.logits_index), device=DEVICE)
        self._slots = SlotTable.allocate(len(index), 8, 1, DEVICE)
        self._rows = SampleRows(index, index, SamplingFeatures.NONE, None)
        parameters = sum(n * k for n, k in model.linears.values()) * model.layers + model.vocab * model.hidden
        self.num_bytes = 2.0 * (parameters + 2 * model.layers * context * model.kv_heads * model.head_dim)

    def run(self, ops: Ops) -> Tensor:
        """Run one step with these operations; return the logits."""
        return self.run_batch(ops, self.batch)

    def run_batch(self, ops: Ops, batch: Batch) -> Tensor:
        """Run one step of another form of the batch."""
        logits = EagerForward(self._weights, EPS, DTYPE, ops)(batch, self.cache)
        ops.sample(logits, self._rows, self._slots)
        return logits


class DecodeStep(Step):
    """A step of rows of equal lengths."""

    def __init__(self, model: ModelSizes, weights: DecoderWeights, rows: int, query_len: int, context: int) -> None:
        batch = make_batch(rows, query_len, context)
        index = torch.arange(rows * query_len, device=DEVICE)
        bounded = dataclasses.replace(batch, logits_index=index, context_lens_host=(MAX_LENGTH,) * rows)
        super().__init__(model, weights, bounded, batch.block_tables.numel(), rows * context)


class MixedStep(Step):
    """A step of decodes or verifies beside prompts, with the bounds of one of the engine's graphs."""

    def __init__(
        self,
        model: ModelSizes,
        weights: DecoderWeights,
        decodes: tuple[int, int, int],
        prompts: tuple[int, ...],
        graph: tuple[int, int],
    ) -> None:
        """Decodes are given by their number, query tokens and context, prompts by their tokens, the graph by its rows and tokens."""
        count, query_len, context = decodes
        rows = [(query_len, context)] * count + [(length, length) for length in prompts]
        batch = make_mixed_batch(rows, query_len, *graph, bound=MAX_LENGTH)
        blocks = int(batch.block_tables.max()) + 1
        super().__init__(model, weights, batch, blocks, sum(context for _, context in rows))
