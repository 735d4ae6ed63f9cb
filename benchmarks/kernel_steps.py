"""A whole decode step in one CUDA graph, with random weights: what the kernels add up to, launches included.

Greedy, without an engine around it. It compares how linears are run, and what is fused into them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from kernel_models import BLOCK_SIZE, DEVICE, EPS, Model, make_batch, randn
from torch import Tensor

from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton import TritonOps
from draftline.kernels.triton.skinny_gemm import (
    InputNorm,
    SkinnyConfig,
    default_config,
    norm_linear,
    norm_swiglu,
    skinny_linear,
)

Multiply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's weights and cache."""

    norm1: Tensor
    norm2: Tensor
    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor


class DecodeStep:
    """One model's step for a fixed batch."""

    def __init__(self, ops: TritonOps, model: Model, rows: int, query_len: int, context: int) -> None:
        self.ops = ops
        self.batch = make_batch(rows, query_len, context)
        self.tokens = rows * query_len
        blocks = self.batch.block_tables.numel()
        self.layers = []
        for _ in range(model.layers):
            keys, values = randn(2, blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
            weights = {name: randn(n, k, scale=k**-0.5) for name, (n, k) in model.linears.items()}
            self.layers.append(
                Layer(norm1=randn(model.hidden), norm2=randn(model.hidden), keys=keys, values=values, **weights)
            )
        self.last_norm = randn(model.hidden)
        self.head = randn(model.vocab, model.hidden, scale=model.hidden**-0.5)
        self.embedded = randn(self.tokens, model.hidden)
        self.rope = torch.randn(context + 1, 2, model.head_dim // 2, device=DEVICE)
        self.norms = (randn(model.head_dim), randn(model.head_dim)) if model.qk_norm else None
        self.slots = SlotTable.allocate(self.tokens, 8, 1, DEVICE)
        index = torch.arange(self.tokens, device=DEVICE)
        self.sampled = SampleRows(index, index, SamplingFeatures.NONE, None)
        self.scale = model.head_dim**-0.5
        self.num_bytes = 2.0 * (sum(n * k for n, k in model.linears.values()) * model.layers + self.head.numel())

    def _mix(self, qkv: Tensor, layer: Layer) -> Tensor:
        q = self.ops.rope_write_kv(qkv, self.batch, self.rope, layer.keys, layer.values, self.norms, EPS)
        return self.ops.attention(q, layer.keys, layer.values, self.batch, scale=self.scale, window=None)

    def _finish(self, logits: Tensor) -> Tensor:
        self.ops.sample(logits.float(), self.sampled, self.slots)
        return logits

    def unfused(self, multiply: Multiply) -> Tensor:
        """Every operation on its own; returns the logits."""
        ops = self.ops
        x, residual = self.embedded, torch.zeros_like(self.embedded)
        for layer in self.layers:
            normed, residual = ops.add_rms_norm(x, residual, layer.norm1, EPS)
            x = multiply(self._mix(multiply(normed, layer.qkv), layer), layer.o)
            normed, residual = ops.add_rms_norm(x, residual, layer.norm2, EPS)
            x = multiply(ops.silu_mul(multiply(normed, layer.gate_up)), layer.down)
        normed, _ = ops.add_rms_norm(x, residual, self.last_norm, EPS)
        return self._finish(multiply(normed, self.head))

    def fused(self, overlap: bool) -> Tensor:
        """Norms and activations inside the linears; returns the logits."""

        def config(weight: Tensor, streams: int) -> SkinnyConfig:
            n, k = weight.shape
            return dataclasses.replace(default_config(self.tokens, n, k, streams=streams), overlap=overlap)

        def multiply(x: Tensor, weight: Tensor) -> Tensor:
            return skinny_linear(x, weight, config=config(weight, 2))

        x, residual = self.embedded, torch.zeros_like(self.embedded)
        for layer in self.layers:
            norm = InputNorm(residual, layer.norm1, EPS)
            qkv, residual = norm_linear(x, norm, layer.qkv, config=config(layer.qkv, 3))
            x = multiply(self._mix(qkv, layer), layer.o)
            norm = InputNorm(residual, layer.norm2, EPS)
            active, residual = norm_swiglu(x, norm, layer.gate_up, config=config(layer.gate_up, 4))
            x = multiply(active, layer.down)
        norm = InputNorm(residual, self.last_norm, EPS)
        logits, _ = norm_linear(x, norm, self.head, config=config(self.head, 3))
        return self._finish(logits)
