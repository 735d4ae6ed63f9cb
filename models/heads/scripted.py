"""``ScriptedPass``: a pass of a head as one TorchScript program, for CPUs; see `draftline.models.scripted`.

A pass has few projections, so that operations called one by one from Python took as long as these: with SmolLM2's head,
of one layer, 1.3 ms a draft on two cores, and as one program 0.9.
"""

# No ``from __future__ import annotations`` here: TorchScript reads the annotations.

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.reference import functional, functional_step
from draftline.kernels.reference.attention import group_rows
from draftline.kernels.reference.attention_sizes import attention_sizes
from draftline.kernels.reference.functional_step import HeadShape, RowGroup
from draftline.kernels.reference.ops import norm_factors
from draftline.models.heads.config import HeadConfig
from draftline.models.heads.layers import HeadWeights
from draftline.models.scripted import FlatCaches, Scales, ScriptedLayer, run_script, script

_Program = Callable[
    [
        Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, list[RowGroup], int,
        list[Tensor], list[Tensor], Scales, Scales,
    ],
    tuple[Tensor, Tensor],
]  # fmt: skip


class ScriptedPass:
    """A pass of the head on a CPU."""

    def __init__(self, weights: HeadWeights, config: HeadConfig, dtype: torch.dtype) -> None:
        """Compile it, for activations in ``dtype``; the linears of ``weights`` are modules."""
        layer = config.layer
        self._heads_per_key = layer.num_heads // layer.num_kv_heads
        self._sizes = attention_sizes(layer.head_dim, dtype, torch.device("cpu"))
        self._run: _Program = script(_ScriptedHead(weights, config, self._sizes.dtype))
        self._flat = FlatCaches()

    def __call__(self, batch: Batch, token_ids: Tensor, hidden: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """[S, draft_vocab] logits and [S, hidden]; the arguments are those of `Eagle3Head.forward`."""
        num_blocks, block_size = cache.layers[0].keys.shape[:2]
        return run_script(
            self._run,
            token_ids,
            hidden,
            batch.positions,
            batch.cache_index,
            batch.block_tables,
            batch.logits_index,
            group_rows(batch, self._heads_per_key, self._sizes, num_blocks, block_size),
            block_size,
            *self._flat.of(cache),
        )


class _ScriptedHead(torch.nn.Module):
    def __init__(self, weights: HeadWeights, config: HeadConfig, attention_dtype: torch.dtype) -> None:
        super().__init__()
        layer, eps = config.layer, config.layer.norm_eps
        windows = sorted({window or 0 for window in layer.sliding_windows})
        self.windows = windows
        self.num_heads, self.num_kv_heads, self.head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
        self.attention_dtype = attention_dtype
        self.vectors = weights.vectors
        self.rope = weights.layers[0].attention.spec.rope
        self.hidden_norm, self.hidden_floor = norm_factors(weights.hidden_norm, eps)
        self.norm_before_residual, self.norm_output = config.norm_before_residual, config.norm_output
        self.layers: Any = torch.nn.ModuleList(
            ScriptedLayer(own, layer, windows.index(window or 0))
            for own, window in zip(weights.layers, layer.sliding_windows, strict=True)
        )
        self.norm, self.floor = norm_factors(weights.norm, eps)
        self.output = weights.output

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        positions: Tensor,
        cache_index: Tensor,
        block_tables: Tensor,
        logits_index: Tensor,
        row_groups: list[RowGroup],
        block_size: int,
        keys: list[Tensor],
        values: list[Tensor],
        key_scales: list[Tensor | None],
        value_scales: list[Tensor | None],
    ) -> tuple[Tensor, Tensor]:
        heads = HeadShape(self.num_heads, self.num_heads + self.num_kv_heads, self.num_kv_heads, self.head_dim)
        step = functional_step.make_step(
            self.rope, positions, cache_index, block_tables,
            row_groups, block_size, heads, self.windows, self.attention_dtype, keys[0],
        )  # fmt: skip
        normed = functional.rms_norm(hidden, self.hidden_norm, self.hidden_floor)
        residual = normed if self.norm_before_residual else hidden
        read = F.embedding(token_ids, self.vectors).to(hidden.dtype)
        wanted: Tensor | None = None
        for index, layer in enumerate(self.layers):
            inputs = functional.rms_norm(read, layer.norm, layer.floor)
            if index == 0:
                inputs = torch.cat((inputs, normed), dim=1)
            # Only the entries that predict need the rest of the last layer. Where each of them does, they are in order.
            if index == len(self.layers) - 1 and logits_index.shape[0] < token_ids.shape[0]:
                wanted = logits_index
            residual = layer(
                inputs, residual, step, keys[index], values[index], key_scales[index], value_scales[index], wanted
            )
            read = residual
        normed = functional.rms_norm(residual, self.norm, self.floor)
        logits: Tensor = self.output(normed)
        return logits, normed if self.norm_output else residual
