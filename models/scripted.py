"""``ScriptedForward``: a decoder's forward pass as one TorchScript program, for CPUs.

A decode step of a small model has a thousand operations of one or two microseconds. Called one by one from Python they
take longer than the projections between them, and the other threads fall asleep before each projection. SmolLM2's 30
layers took 18 ms a step on two cores, and 13 ms as one program (10 of them in the projections).

The operations are those of `kernels.reference.functional`, as in `ReferenceOps`. TorchScript's optimisations are off:
they found nothing to make faster here, and took 3 s of SmolLM2's start.
"""

# No ``from __future__ import annotations`` here: TorchScript reads the annotations.

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.reference import functional, functional_step
from draftline.kernels.reference.attention import group_rows
from draftline.kernels.reference.attention_sizes import attention_sizes
from draftline.kernels.reference.functional_step import HeadShape, RowGroup, Step
from draftline.kernels.reference.ops import flat_cache, flat_scales, norm_factors
from draftline.models.config import ModelConfig
from draftline.models.hidden_states import HiddenStateSink, write_states
from draftline.models.layers import DecoderLayer, DecoderWeights, GatedMlp

_T = TypeVar("_T")

Scales = list[Tensor | None]
"""Those of each layer's keys or values; None where the cache has none."""

_Program = Callable[
    [
        Tensor, Tensor, Tensor, Tensor, Tensor, int, list[RowGroup], int, list[int],
        list[Tensor], list[Tensor], Scales, Scales,
    ],
    tuple[Tensor, list[Tensor]],
]  # fmt: skip


class ScriptedForward:
    """The forward pass on a CPU.

    Where projections need more rows than there are tokens, the padding passes through all layers, which costs nothing.
    So no projection adds and removes it.

    Args:
        weights: the decoder; its linears are modules.
        config: its shape.
        dtype: of the activations.
        rows_to_run: the number of rows to compute, by the number of tokens.
    """

    def __init__(
        self, weights: DecoderWeights, config: ModelConfig, dtype: torch.dtype, rows_to_run: Callable[[int], int]
    ) -> None:
        self._heads_per_key = config.num_heads // config.num_kv_heads
        self._sizes = attention_sizes(config.head_dim, dtype, torch.device("cpu"))
        self._rows_to_run = rows_to_run
        self._run: _Program = script(_ScriptedDecoder(weights, config, dtype, self._sizes.dtype))
        self._flat = FlatCaches()

    def __call__(self, batch: Batch, cache: KVCache, sink: HiddenStateSink) -> Tensor:
        """[S, vocab] float32 logits; see ``Model.forward``."""
        num_blocks, block_size = cache.layers[0].keys.shape[:2]
        groups = group_rows(batch, self._heads_per_key, self._sizes, num_blocks, block_size)
        logits, states = run_script(
            self._run,
            batch.token_ids,
            batch.positions,
            batch.cache_index,
            batch.block_tables,
            batch.logits_index,
            self._rows_to_run(batch.token_ids.shape[0]),
            groups,
            block_size,
            list(sink.layers),
            *self._flat.of(cache),
        )
        write_states(sink, states, batch)
        return logits


class FlatCaches:
    """The layers of the cache that was used last, as the programs take them."""

    def __init__(self) -> None:
        self._cache: KVCache | None = None
        self._flat: tuple[list[Tensor], list[Tensor], Scales, Scales] = ([], [], [], [])

    def of(self, cache: KVCache) -> tuple[list[Tensor], list[Tensor], Scales, Scales]:
        """Each layer's keys and values [entries, G, D], and their scales [entries, G] or None."""
        if self._cache is not cache:
            self._cache = cache
            scales = [flat_scales(layer.scales) for layer in cache.layers]
            self._flat = (
                [flat_cache(layer.keys) for layer in cache.layers],
                [flat_cache(layer.values) for layer in cache.layers],
                [keys for keys, _ in scales],
                [values for _, values in scales],
            )
        return self._flat


class ScriptedAttention(torch.nn.Module):
    """What lies between a layer's two projections. ``window`` is the index of its masks in the step's."""

    def __init__(self, spec: AttentionSpec, config: ModelConfig, window: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qk_norm = torch.empty(0)
        self.qk_floor = torch.empty(0)
        if spec.norms is not None:
            queries, keys = spec.norms
            weights = torch.cat((queries.expand(self.num_heads, -1), keys.expand(self.num_kv_heads, -1)))
            self.qk_norm, self.qk_floor = norm_factors(weights, config.norm_eps)
        self.window = window
        self.scale = spec.scale

    def forward(
        self,
        qkv: Tensor,
        step: Step,
        keys: Tensor,
        values: Tensor,
        key_scales: Tensor | None,
        value_scales: Tensor | None,
    ) -> Tensor:
        """[T, (H + 2 G) * D] -> [T, H * D]. Writes keys and values to the cache."""
        rows = qkv.shape[0]
        qk, v = qkv.view(rows, -1, self.head_dim).split([self.num_heads + self.num_kv_heads, self.num_kv_heads], 1)
        if self.qk_norm.numel() > 0:
            qk = functional.rms_norm(qk, self.qk_norm, self.qk_floor)
        rotated = functional.rotate(qk, step.cos, step.signed_sin)
        functional.write_cache(keys, key_scales, step.cache_index, rotated.narrow(1, self.num_heads, self.num_kv_heads))
        functional.write_cache(values, value_scales, step.cache_index, v)
        q_heads = rotated.view(-1, self.head_dim)
        attended = functional.attend(
            q_heads, keys, values, key_scales, value_scales,
            step.groups, step.masks[self.window], step.results, self.scale,
        )  # fmt: skip
        return attended.view(rows, -1)


class ScriptedMlp(torch.nn.Module):
    """A gated MLP behind its norm."""

    def __init__(self, mlp: GatedMlp, norm: Tensor, eps: float) -> None:
        super().__init__()
        self.norm, self.floor = norm_factors(norm, eps)
        self.gate_up = mlp.gate_up
        self.down = mlp.down

    def forward(self, residual: Tensor) -> Tensor:
        """The residual stream [T, hidden] behind it."""
        gate_up = self.gate_up(functional.rms_norm(residual, self.norm, self.floor))
        return residual + self.down(functional.silu_mul(gate_up))


class ScriptedLayer(torch.nn.Module):
    """One pre-norm layer behind its first norm, which is ``functional.rms_norm`` with ``norm`` and ``floor``."""

    def __init__(self, layer: DecoderLayer, config: ModelConfig, window: int) -> None:
        super().__init__()
        self.norm, self.floor = norm_factors(layer.attention_norm, config.norm_eps)
        self.qkv = layer.attention.qkv
        self.attention = ScriptedAttention(layer.attention.spec, config, window)
        self.output = layer.attention.output
        self.mlp = ScriptedMlp(layer.mlp, layer.mlp_norm, config.norm_eps)

    def forward(
        self,
        inputs: Tensor,
        residual: Tensor,
        step: Step,
        keys: Tensor,
        values: Tensor,
        key_scales: Tensor | None,
        value_scales: Tensor | None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The residual stream behind it, of the ``wanted`` rows or of all; its attention reads ``inputs``."""
        attended = self.attention(self.qkv(inputs), step, keys, values, key_scales, value_scales)
        if wanted is not None:
            attended, residual = attended.index_select(0, wanted), residual.index_select(0, wanted)
        residual = self.mlp(residual + self.output(attended))
        return residual


class _ScriptedDecoder(torch.nn.Module):
    def __init__(
        self, weights: DecoderWeights, config: ModelConfig, dtype: torch.dtype, attention_dtype: torch.dtype
    ) -> None:
        super().__init__()
        windows = sorted({window or 0 for window in config.sliding_windows})
        self.windows = windows
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.dtype = dtype
        self.attention_dtype = attention_dtype
        self.embedding = weights.embedding.table
        self.rope = weights.layers[0].attention.spec.rope
        self.layers: Any = torch.nn.ModuleList(
            ScriptedLayer(layer, config, windows.index(window or 0))
            for layer, window in zip(weights.layers, config.sliding_windows, strict=True)
        )
        self.norm, self.floor = norm_factors(weights.norm, config.norm_eps)
        self.head = weights.head

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache_index: Tensor,
        block_tables: Tensor,
        logits_index: Tensor,
        rows: int,
        row_groups: list[RowGroup],
        block_size: int,
        wanted_states: list[int],
        keys: list[Tensor],
        values: list[Tensor],
        key_scales: list[Tensor | None],
        value_scales: list[Tensor | None],
    ) -> tuple[Tensor, list[Tensor]]:
        missing = rows - token_ids.shape[0]
        if missing > 0:
            token_ids, positions = F.pad(token_ids, [0, missing]), F.pad(positions, [0, missing])
        heads = HeadShape(self.num_heads, self.num_heads + self.num_kv_heads, self.num_kv_heads, self.head_dim)
        step = functional_step.make_step(
            self.rope, positions, cache_index, block_tables,
            row_groups, block_size, heads, self.windows, self.attention_dtype, keys[0],
        )  # fmt: skip
        residual = F.embedding(token_ids, self.embedding).to(self.dtype)
        states: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            if index in wanted_states:
                states.append(residual)
            inputs = functional.rms_norm(residual, layer.norm, layer.floor)
            residual = layer(inputs, residual, step, keys[index], values[index], key_scales[index], value_scales[index])
        if len(self.layers) in wanted_states:
            states.append(residual)
        hidden = functional.rms_norm(residual.index_select(0, logits_index), self.norm, self.floor)
        logits: Tensor = self.head(hidden)
        return logits.to(torch.float32), states


def script(module: torch.nn.Module) -> Any:
    """A module's ``forward`` as a program."""
    with warnings.catch_warnings():
        # TorchScript is no longer developed, but its successors need a C++ compiler.
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module.eval()).forward


def run_script(program: Callable[..., _T], *arguments: object) -> _T:
    """Run a program as it is written, without TorchScript's optimisations, which are off in this thread alone."""
    with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        return program(*arguments)
