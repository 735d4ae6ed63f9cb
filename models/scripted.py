"""``ScriptedForward``: a decoder's forward pass as one TorchScript program, for CPUs.

A decode step of a small model has a thousand operations of one or two microseconds. Called one by one from Python they
take longer than the projections between them, and the other threads fall asleep before each projection. SmolLM2's 30
layers took 18 ms a step on two cores, and 13 ms as one program (10 of them in the projections).

The operations are those of `kernels.reference.functional`, as in `ReferenceOps`. TorchScript's optimisations are off: they
found nothing to make faster here, and took 3 s of SmolLM2's start.
"""

# No ``from __future__ import annotations`` here: TorchScript reads the annotations.

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.reference import functional, functional_step
from draftline.kernels.reference.attention import group_rows
from draftline.kernels.reference.attention_sizes import attention_sizes
from draftline.kernels.reference.functional import Group
from draftline.kernels.reference.functional_step import HeadShape, RowGroup, Step
from draftline.kernels.reference.ops import flat_cache, flat_scales, norm_factors
from draftline.models.config import ModelConfig
from draftline.models.hidden_states import HiddenStateSink, write_states
from draftline.models.layers import DecoderLayer, DecoderWeights

_Scales = list[Tensor | None]
_Program = Callable[
    [
        Tensor, Tensor, Tensor, Tensor, Tensor, int, list[RowGroup], int, list[int],
        list[Tensor], list[Tensor], _Scales, _Scales,
    ],
    tuple[Tensor, list[Tensor]],
]  # fmt: skip


class ScriptedForward:
    """The forward pass on a CPU.

    Where projections need more rows than there are tokens, the padding passes through all layers, which costs nothing. So
    no projection adds and removes it.

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
        self._run: _Program = _compiled(_ScriptedDecoder(weights, config, dtype, self._sizes.dtype))
        self._cache: KVCache | None = None
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._key_scales: _Scales = []
        self._value_scales: _Scales = []

    def __call__(self, batch: Batch, cache: KVCache, sink: HiddenStateSink) -> Tensor:
        """[S, vocab] float32 logits; see ``Model.forward``."""
        if self._cache is not cache:
            self._cache = cache
            self._keys = [flat_cache(layer.keys) for layer in cache.layers]
            self._values = [flat_cache(layer.values) for layer in cache.layers]
            scales = [flat_scales(layer.scales) for layer in cache.layers]
            self._key_scales, self._value_scales = [keys for keys, _ in scales], [values for _, values in scales]
        num_blocks, block_size = cache.layers[0].keys.shape[:2]
        groups = group_rows(batch, self._heads_per_key, self._sizes, num_blocks, block_size)
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # in this thread alone
            logits, states = self._run(
                batch.token_ids,
                batch.positions,
                batch.cache_index,
                batch.block_tables,
                batch.logits_index,
                self._rows_to_run(batch.token_ids.shape[0]),
                groups,
                block_size,
                list(sink.layers),
                self._keys,
                self._values,
                self._key_scales,
                self._value_scales,
            )
        write_states(sink, states, batch)
        return logits


class _ScriptedLayer(torch.nn.Module):
    """One pre-norm layer. ``window`` is the index of its masks in the step's."""

    def __init__(self, layer: DecoderLayer, config: ModelConfig, window: int) -> None:
        super().__init__()
        self.attention_norm, self.floor = norm_factors(layer.attention_norm, config.norm_eps)
        self.qkv = layer.attention.qkv
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        norms = layer.attention.spec.norms
        self.qk_norm = torch.empty(0)
        self.qk_floor = torch.empty(0)
        if norms is not None:
            weights = torch.cat((norms[0].expand(self.num_heads, -1), norms[1].expand(self.num_kv_heads, -1)))
            self.qk_norm, self.qk_floor = norm_factors(weights, config.norm_eps)
        self.window = window
        self.scale = layer.attention.spec.scale
        self.output = layer.attention.output
        self.mlp_norm = norm_factors(layer.mlp_norm, config.norm_eps)[0]
        self.gate_up = layer.mlp.gate_up
        self.down = layer.mlp.down

    def forward(
        self,
        residual: Tensor,
        step: Step,
        keys: Tensor,
        values: Tensor,
        key_scales: Tensor | None,
        value_scales: Tensor | None,
    ) -> Tensor:
        qkv = self.qkv(functional.rms_norm(residual, self.attention_norm, self.floor))
        rows = residual.shape[0]
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
        residual = residual + self.output(attended.view(rows, -1))
        gate_up = self.gate_up(functional.rms_norm(residual, self.mlp_norm, self.floor))
        return residual + self.down(functional.silu_mul(gate_up))


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
        self.layers = torch.nn.ModuleList(
            _ScriptedLayer(layer, config, windows.index(window or 0))
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
        groups: list[Group] = []
        for row_group in row_groups:
            groups.append(functional_step.make_group(row_group, block_tables, block_size, heads, keys[0]))
        masks: list[list[Tensor]] = []
        for window in self.windows:
            masks.append([functional_step.mask(group, window, self.attention_dtype) for group in groups])
        cos, signed_sin = functional_step.rotation(self.rope, positions)
        results = functional_step.result_index(groups, rows, heads)
        step = Step(cache_index, cos, signed_sin, groups, masks, results)
        residual = F.embedding(token_ids, self.embedding).to(self.dtype)
        states: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            if index in wanted_states:
                states.append(residual)
            residual = layer(residual, step, keys[index], values[index], key_scales[index], value_scales[index])
        if len(self.layers) in wanted_states:
            states.append(residual)
        hidden = functional.rms_norm(residual.index_select(0, logits_index), self.norm, self.floor)
        logits: Tensor = self.head(hidden)
        return logits.to(torch.float32), states


def _compiled(decoder: _ScriptedDecoder) -> _Program:
    with warnings.catch_warnings():
        # TorchScript is no longer developed, but its successors need a C++ compiler.
        warnings.simplefilter("ignore", DeprecationWarning)
        program: _Program = torch.jit.script(decoder.eval()).forward
    return program
