"""``ScriptedStack``: a decoder's layers as one TorchScript program, for CPUs.

A decode step of a small model is a thousand operations of a microsecond or two each. Called one by one from Python they
take longer than the projections between them, and let the other threads fall asleep before each of those: SmolLM2's 30
layers took 18 ms a step on two cores, and 12.6 ms as one program (10.1 of them the projections).

The operations are `kernels.functional`'s, which are also `ReferenceOps`'s. A program cannot hold Python objects, so what
a step shares goes in as a `Step`.
"""

# No ``from __future__ import annotations`` here: TorchScript reads the annotations.

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftline.kernels import functional
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.functional import Step
from draftline.kernels.reference import norm_factors, places, rotation
from draftline.kernels.reference_attention import AttentionPlan
from draftline.models.config import ModelConfig
from draftline.models.layers import DecoderLayer


class ScriptedStack:
    """The layers of a decoder on a CPU.

    Args:
        layers: the layers; their linears are modules.
        rope: [max_positions, 2, D / 2] float32.
        config: the model's shape.
        dtype: of the activations.
    """

    def __init__(self, layers: Sequence[DecoderLayer], rope: Tensor, config: ModelConfig, dtype: torch.dtype) -> None:
        self._rope, self._dtype = rope, dtype
        self._num_heads, self._heads_per_token = config.num_heads, config.num_heads + config.num_kv_heads
        self._windows = sorted(set(config.sliding_windows), key=lambda window: window or 0)
        modules = [
            _Layer(layer, config, self._windows.index(window))
            for layer, window in zip(layers, config.sliding_windows, strict=True)
        ]
        self._run = _compiled(_Layers(modules))
        self._places: tuple[KVCache, list[Tensor], list[Tensor]] | None = None
        self._warm_up(config)

    def __call__(self, residual: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """See ``Stack``."""
        rows = residual.shape[0]
        plan = AttentionPlan(batch, rows, self._num_heads, self._heads_per_token, cache.keys[0])
        masks = [plan.masks(window, self._dtype) for window in self._windows]
        step = Step(batch.cache_index, *rotation(batch, self._rope, rows), plan.groups, masks, plan.results)
        if self._places is None or self._places[0] is not cache:
            keys, values = ([places(layer) for layer in tensors] for tensors in (cache.keys, cache.values))
            self._places = (cache, keys, values)
        return self._run(residual, step, self._places[1], self._places[2])

    def _warm_up(self, config: ModelConfig) -> None:
        """Run twice, as TorchScript optimises a program in its second run: not while the first request waits."""
        cpu = torch.device("cpu")
        one = torch.zeros(1, dtype=torch.int64)
        batch = Batch(one, one, one, one, one + 1, one[None].int(), one, (1,), (1,))
        shape = (config.num_layers, 1, 64, config.num_kv_heads, config.head_dim)
        cache = KVCache.allocate(*shape, dtype=self._dtype, device=cpu)
        residual = torch.zeros(1, config.hidden_size, dtype=self._dtype)
        with torch.inference_mode():
            for _ in range(2):
                self(residual, batch, cache)
        self._places = None


class _Layer(torch.nn.Module):
    """One pre-norm layer. ``window`` says which of the step's masks are its."""

    def __init__(self, layer: DecoderLayer, config: ModelConfig, window: int) -> None:
        super().__init__()
        self.attention_norm, self.floor = norm_factors(layer.attention_norm, config.norm_eps)
        self.qkv = layer.attention.qkv
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        norms = layer.attention.norms
        self.qk_norm = torch.empty(0)
        self.qk_floor = torch.empty(0)
        if norms is not None:
            weights = torch.cat((norms[0].expand(self.num_heads, -1), norms[1].expand(self.num_kv_heads, -1)))
            self.qk_norm, self.qk_floor = norm_factors(weights, config.norm_eps)
        self.window = window
        self.scale = layer.attention.scale
        self.output = layer.attention.output
        self.mlp_norm = norm_factors(layer.mlp_norm, config.norm_eps)[0]
        self.gate_up = layer.mlp.gate_up
        self.down = layer.mlp.down

    def forward(self, residual: Tensor, step: Step, keys: Tensor, values: Tensor) -> Tensor:
        qkv = self.qkv(functional.rms_norm(residual, self.attention_norm, self.floor))
        rows = residual.shape[0]
        qk, v = qkv.view(rows, -1, self.head_dim).split([self.num_heads + self.num_kv_heads, self.num_kv_heads], 1)
        if self.qk_norm.numel() > 0:
            qk = functional.rms_norm(qk, self.qk_norm, self.qk_floor)
        rotated = functional.rotate(qk, step.cos, step.signed_sin)
        functional.write_cache(keys, step.cache_index, rotated.narrow(1, self.num_heads, self.num_kv_heads))
        functional.write_cache(values, step.cache_index, v)
        q_heads = rotated.view(-1, self.head_dim)
        attended = functional.attend(
            q_heads, keys, values, step.groups, step.masks[self.window], step.results, self.scale
        )
        residual = residual + self.output(attended.view(rows, -1))
        gate_up = self.gate_up(functional.rms_norm(residual, self.mlp_norm, self.floor))
        return residual + self.down(functional.silu_mul(gate_up))


class _Layers(torch.nn.Module):
    def __init__(self, layers: list[_Layer]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, residual: Tensor, step: Step, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        for index, layer in enumerate(self.layers):
            residual = layer(residual, step, keys[index], values[index])
        return residual


def _compiled(layers: _Layers) -> Callable[[Tensor, Step, list[Tensor], list[Tensor]], Tensor]:
    with warnings.catch_warnings():
        # TorchScript is no longer developed, but nothing that took its place runs without a C++ compiler.
        warnings.simplefilter("ignore", DeprecationWarning)
        program: Callable[[Tensor, Step, list[Tensor], list[Tensor]], Tensor] = torch.jit.script(layers.eval()).forward
    return program
