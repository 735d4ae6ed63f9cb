"""``DecoderLayers``: the Llama-like decoder of the model families, in differentiable torch operations.

The engine's own forward pass reads a paged cache through kernels without gradients. This one is for training and
evaluation only: it runs whole sequences without a cache. Embedding and output projection are left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftline import quant
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.rope import rope_table
from draftline.models.weight_shapes import EMBEDDING, HEAD
from draftline.spec.train_draft.packing import Packed, attention


class DecoderLayers(nn.Module):
    """The layers and the final norm of a decoder. ``state_dict`` has HF's names, without their prefix ``model.``.

    Args:
        config: the shape of the model.
        rope: the rotary table of `models.rope`.
    """

    rope: Tensor

    def __init__(self, config: ModelConfig, rope: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_DecoderLayer(config, window) for window in config.sliding_windows)
        self.norm = Norm(config.hidden_size, config.norm_eps)
        self.register_buffer("rope", rope, persistent=False)

    def forward(self, embedded: Tensor, packed: Packed) -> Tensor:
        """From [T, hidden] embeddings to [T, hidden] inputs of the output projection."""
        return self.with_states(embedded, packed, ())[0]

    def with_states(self, embedded: Tensor, packed: Packed, wanted: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, and [T, hidden] for each i of ``wanted``: the residual stream before layer i."""
        x = embedded
        rope = self.rope[packed.positions]
        states = []
        for index, layer in enumerate(self.layers):
            if index in wanted:
                states.append(x)
            x = layer(x, rope, packed)
        if len(self.layers) in wanted:
            states.append(x)
        normed: Tensor = self.norm(x)
        return normed, states


class FrozenTarget(nn.Module):
    """The frozen target model, for its logits.

    Args:
        checkpoint: the weights.
        dtype: the dtype of weights and activations.
        device: the device.

    Attributes:
        config: the shape of the model.
        embedding: [vocab, hidden].
        head: [vocab, hidden], the output projection; the same tensor as ``embedding`` if they are tied.
        layers: the layers and the final norm.
    """

    embedding: Tensor
    head: Tensor

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = checkpoint.config

        def read(name: str) -> Tensor:
            return quant.dequantize(checkpoint.tensor(name).on(device)).to(dtype)

        embedding = read(EMBEDDING)
        self.register_buffer("embedding", embedding)
        self.register_buffer("head", embedding if self.config.tied_embeddings else read(HEAD))
        rope = rope_table(self.config, device)
        with torch.device("meta"):
            layers = DecoderLayers(self.config, rope)
        weights = {name: read(f"model.{name}") for name in layers.state_dict()}
        layers.load_state_dict(weights, assign=True)
        self.layers = layers.requires_grad_(False)

    @torch.no_grad()
    def hidden(self, packed: Packed) -> Tensor:
        """[P, hidden], the inputs of the output projection at ``packed.predicting``."""
        return self.hidden_and_states(packed, ())[0]

    @torch.no_grad()
    def hidden_and_states(self, packed: Packed, wanted: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """As `hidden`, and [T, hidden] for each i of ``wanted``, ascending: the residual stream before layer i."""
        hidden, states = self.layers.with_states(F.embedding(packed.tokens, self.embedding), packed, wanted)
        return hidden.index_select(0, packed.predicting), states


class Draft(nn.Module):
    """A draft model in training: its own float32 layers, with the embedding and output projection of the target.

    Args:
        target: the target model.
        config: the shape of the draft model: that of the target, with other layers.
    """

    embedding: Tensor

    def __init__(self, target: FrozenTarget, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("embedding", target.embedding, persistent=False)
        self.layers = DecoderLayers(config, target.layers.rope).to(target.embedding.device)

    @classmethod
    def from_layers(cls, target: FrozenTarget, indices: Sequence[int]) -> Draft:
        """A draft model whose layers start as copies of these layers of the target."""
        draft = cls(target, draft_config(target.config, indices))
        weights = target.layers.state_dict()
        start = {name: value for name, value in weights.items() if not name.startswith("layers.")}
        for layer, index in enumerate(indices):
            prefix = f"layers.{index}."
            start |= {
                f"layers.{layer}.{name.removeprefix(prefix)}": value
                for name, value in weights.items()
                if name.startswith(prefix)
            }
        draft.layers.load_state_dict(start)
        return draft

    @classmethod
    def from_checkpoint(cls, target: FrozenTarget, checkpoint: Checkpoint) -> Draft:
        """A trained draft model. Weights that it shares with the target are not read from the checkpoint."""
        draft = cls(target, checkpoint.config)
        names = draft.layers.state_dict()
        draft.layers.load_state_dict({name: quant.dequantize(checkpoint.tensor(f"model.{name}")) for name in names})
        return draft

    def hidden(self, packed: Packed) -> Tensor:
        """[P, hidden], the inputs of the output projection at ``packed.predicting``."""
        hidden: Tensor = self.layers(F.embedding(packed.tokens, self.embedding).float(), packed)
        return hidden.index_select(0, packed.predicting)

    def weights(self) -> dict[str, Tensor]:
        """Its own weights by their HF names, without those of the target."""
        return {f"model.{name}": value.detach() for name, value in self.layers.state_dict().items()}


def draft_config(target: ModelConfig, indices: Sequence[int]) -> ModelConfig:
    """The shape of a draft model with these layers of the target."""
    windows = tuple(target.sliding_windows[index] for index in indices)
    return replace(target, num_layers=len(indices), sliding_windows=windows)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] -> [..., N]."""
        # Weights of another type than x would keep torch from its fused kernel.
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class _SelfAttention(nn.Module):
    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, config.output_bias)
        self.q_norm = Norm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = Norm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.head_dim, self.window = config.head_dim, window

    def forward(self, x: Tensor, rope: Tensor, packed: Packed) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (rotated(norm(y), rope).to(value.dtype) for norm, y in ((self.q_norm, query), (self.k_norm, key)))
        attended: Tensor = self.o_proj(attention(query, key, value, packed, self.window).flatten(1))
        return attended


class GatedMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class _DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.norm_eps)
        self.self_attn = _SelfAttention(config, window)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, rope: Tensor, packed: Packed) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, packed)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


def autocast_to(weight: Tensor) -> torch.autocast:
    """The context in which float32 layers run in the type, and on the device, of a frozen weight."""
    return torch.autocast(weight.device.type, weight.dtype, enabled=weight.dtype != torch.float32)


def rotated(x: Tensor, rope: Tensor) -> Tensor:
    """[T, heads, D] rotated by [T, 2, D / 2] cosines and sines, in the half-split layout."""
    cos, sin = rope[:, None, 0], rope[:, None, 1]
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
