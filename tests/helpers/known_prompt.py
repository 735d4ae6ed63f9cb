"""A prompt with every token's attention, for tests that its tokens get the same bits however else they are computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache, LayerCache

BLOCK_SIZE = 16

Spans = list[tuple[int, int]]
"""Rows: the position of each one's first query token, and the number of query tokens."""

Run = Callable[[Tensor, Batch, LayerCache, AttentionSpec], Tensor]
"""A way to compute: rotates queries and keys, writes the cache, attends. It may write over its first argument."""


@dataclass(frozen=True)
class Layer:
    """A layer's attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qk_norm: bool = False
    soft_cap: float = 0.0
    dtype: torch.dtype = torch.float32
    cache: torch.dtype = torch.float32


@dataclass(frozen=True)
class Prompt:
    """A prompt whose tokens have been attended to, in one chunk.

    Attributes:
        qkv: of every token.
        spec: the layer's attention.
        table: the blocks of the cache.
        layer: the cache, which has every token.
        expected: every token's result.
    """

    qkv: Tensor
    spec: AttentionSpec
    table: Tensor
    layer: LayerCache
    expected: Tensor

    def batch(self, spans: Spans, bound: int = 0) -> Batch:
        """Rows that share the cache; with a ``bound``, the host knows only that of the contexts, as in a graph."""
        device = self.qkv.device
        positions = torch.cat([torch.arange(start, start + count, device=device) for start, count in spans])
        lens, contexts = tuple(count for _, count in spans), tuple(sum(span) for span in spans)
        context_lens = torch.tensor(contexts, dtype=torch.int32, device=device)
        return Batch(
            token_ids=positions,
            positions=positions,
            cache_index=self.table[positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_starts=torch.tensor([0, *lens], device=device).cumsum(0).int(),
            context_lens=context_lens,
            block_tables=self.table.repeat(len(spans), 1),
            logits_index=positions,
            query_lens_host=lens,
            context_lens_host=(bound,) * len(spans) if bound else contexts,
            longest_first=torch.argsort(context_lens, descending=True).int(),
        )

    def check(self, run: Run, spans: Spans, bound: int = 0) -> None:
        """The rows' results, and the cache, have the expected bits."""
        batch = self.batch(spans, bound)
        layer = copy_of(self.layer)
        out = run(self.qkv[batch.positions], batch, layer, self.spec)
        wrong = (out.view(torch.uint8) != self.expected[batch.positions].view(torch.uint8)).any(1)
        assert not wrong.any(), f"other bits at the positions {batch.positions[wrong].tolist()} of rows {spans}"
        for kept, before in zip(parts_of(layer), parts_of(self.layer), strict=True):
            assert torch.equal(kept.view(torch.uint8), before.view(torch.uint8)), f"another cache after rows {spans}"


def parts_of(layer: LayerCache) -> tuple[Tensor, ...]:
    """The tensors of a cache."""
    return (layer.keys, layer.values, *(layer.scales or ()))


def copy_of(layer: LayerCache) -> LayerCache:
    """The same content in other memory."""
    scales = layer.scales and (layer.scales[0].clone(), layer.scales[1].clone())
    return LayerCache(layer.keys.clone(), layer.values.clone(), scales)


def make_prompt(layer: Layer, length: int, run: Run, rng: torch.Generator) -> Prompt:
    """Random tokens, attended to by ``run``."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    blocks = -(-length // BLOCK_SIZE)
    head_dim = layer.head_dim
    norms = (draw(head_dim).to(layer.dtype), draw(head_dim).to(layer.dtype)) if layer.qk_norm else None
    spec = AttentionSpec(draw(length, 2, head_dim // 2), head_dim**-0.5, layer.window, layer.soft_cap, norms, 1e-5)
    caches = KVCache.allocate(1, blocks, BLOCK_SIZE, layer.kv_heads, head_dim, dtype=layer.cache, device=rng.device)
    qkv = draw(length, (layer.heads + 2 * layer.kv_heads) * head_dim).to(layer.dtype)
    table = torch.randperm(blocks, generator=rng, device=rng.device).int()
    prompt = Prompt(qkv, spec, table, caches.layers[0], qkv)
    expected = run(qkv.clone(), prompt.batch([(0, length)]), prompt.layer, spec)
    return dataclasses.replace(prompt, expected=expected)
