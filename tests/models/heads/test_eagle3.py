"""The head's forward pass against the published network in plain torch, on a whole sequence at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_checkpoint import llama
from tiny_head import head_fields, made_head, random_weights
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.models.heads.config import HeadConfig, head_config

TARGET = llama(vocab_size=61, hidden_size=24, num_layers=4)
TOKENS, STEPS = 13, 3
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm before residual": {"norm_before_residual": True},
    "norm before fusion": {"norm_before_fc": True},
    "norms of each state": {"fc_norm": True},
    "normalised output": {"norm_output": True},
    "all norms": {"norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "other widths": {"head_dim": 12, "hidden_size": 40, "intermediate_size": 20},
    "qwen3": {"model_type": "qwen3", "head_dim": 8},
    "two layers of the target": {"eagle_aux_hidden_state_layer_ids": [1, 4]},
}


def norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


class Reference:
    """The network over a whole sequence, without a cache."""

    def __init__(self, weights: dict[str, Tensor], config: HeadConfig) -> None:
        self.weights, self.config = weights, config

    def projected(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def fused(self, states: Tensor) -> Tensor:
        config = self.config
        if config.fc_norm:
            parts = [norm(states[:, i], self.weights[f"fc_norm.{i}.weight"]) for i in range(states.shape[1])]
            states = torch.stack(parts, dim=1)
        joined = torch.cat(list(states.unbind(1)), dim=-1)
        if config.norm_before_fc:
            joined = norm(joined, self.weights["input_norm.weight"])
        return joined @ self.weights["fc.weight"].T

    def rotated(self, x: Tensor) -> Tensor:
        """[heads, T, D], the halves of each head rotated against each other."""
        half = x.shape[-1] // 2
        frequencies = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        first, second = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def __call__(self, token_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, draft_vocab] and next hidden states [T, hidden] of entries (hidden state, next token)."""
        config, layer, weights = self.config, self.config.layer, self.weights
        prefix, attention = "model.layers.0.", "model.layers.0.self_attn."
        embedded = norm(weights["model.embed_tokens.weight"][token_ids], weights[f"{prefix}input_layernorm.weight"])
        normed = norm(hidden, weights[f"{prefix}hidden_norm.weight"])
        residual = normed if config.norm_before_residual else hidden
        x = torch.cat((embedded, normed), dim=-1)
        count = len(token_ids)
        q, k, v = (
            self.projected(f"{attention}{name}", x).view(count, -1, layer.head_dim).transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        if layer.qk_norm:
            q, k = norm(q, weights[f"{attention}q_norm.weight"]), norm(k, weights[f"{attention}k_norm.weight"])
        group = layer.num_heads // layer.num_kv_heads
        q, k, v = self.rotated(q), self.rotated(k).repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) * layer.head_dim**-0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf"))
        attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        residual = residual + self.projected(f"{attention}o_proj", attended)
        mlp, inner = f"{prefix}mlp.", norm(residual, weights[f"{prefix}post_attention_layernorm.weight"])
        gated = F.silu(self.projected(f"{mlp}gate_proj", inner)) * self.projected(f"{mlp}up_proj", inner)
        residual = residual + self.projected(f"{mlp}down_proj", gated)
        output = norm(residual, weights["model.norm.weight"])
        return output @ weights["lm_head.weight"].T, output if config.norm_output else residual


def entries(token_ids: Tensor, start: int) -> Batch:
    """One row of entries from a position on, in blocks in reverse order; the last one predicts."""
    count = len(token_ids)
    positions = torch.arange(start, start + count)
    blocks = torch.tensor([[3, 2, 1, 0]], dtype=torch.int32)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        cache_index=blocks[0, positions // 8].long() * 8 + positions % 8,
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([start + count], dtype=torch.int32),
        block_tables=blocks,
        logits_index=torch.tensor([count - 1]),
        query_lens_host=(count,),
        context_lens_host=(start + count,),
    )


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_drafts_are_those_of_the_network(kind: str) -> None:
    """A prompt's entries, of which the cache holds some, then drafts that continue from the head's own output."""
    config = head_config(head_fields(TARGET, draft_vocab_size=37, **KINDS[kind]), "head", TARGET)
    weights = random_weights(config)
    head, reference = made_head(config, weights), Reference(weights, config)
    layer = config.layer
    cache = KVCache.allocate(
        1, 4, 8, layer.num_kv_heads, layer.head_dim, dtype=torch.float32, device=torch.device("cpu")
    )
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, TARGET.vocab_size, (TOKENS + STEPS,), generator=draw)
    states = torch.randn((TOKENS, len(config.target_layers), TARGET.hidden_size), generator=draw)

    expected_hidden = reference.fused(states)
    fused = head.fuse(states.clone())
    torch.testing.assert_close(fused, expected_hidden, atol=1e-5, rtol=1e-5)
    split = 6
    head.fill_cache(entries(tokens[:split], 0), tokens[:split], fused[:split], cache)
    batch, hidden = entries(tokens[split:TOKENS], split), fused[split:]
    for step in range(STEPS):
        logits, hidden = head.forward(batch, batch.token_ids, hidden, cache)
        every, output = reference(tokens[: TOKENS + step], expected_hidden)
        torch.testing.assert_close(logits[0], every[-1], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(hidden[0], output[-1], atol=1e-4, rtol=1e-4)
        # The next entry has the network's own output in the place of the target's hidden state.
        expected_hidden = torch.cat((expected_hidden, output[-1:]))
        batch = entries(tokens[TOKENS + step : TOKENS + step + 1], TOKENS + step)


@pytest.mark.parametrize(
    "fields",
    [
        *KINDS.values(),
        {"parallel_drafts": 3, "num_hidden_layers": 3},
        KINDS["qwen3"] | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ],
    ids=[*KINDS, "three layers", "window"],
)
@torch.inference_mode()
def test_a_program_has_the_bits_of_the_operations(fields: dict[str, Any]) -> None:
    config = head_config(head_fields(TARGET, draft_vocab_size=37, **fields), "head", TARGET)
    layer, weights = config.layer, random_weights(config)
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, TARGET.vocab_size, (TOKENS,), generator=draw)
    hidden = torch.randn((TOKENS, layer.hidden_size), generator=draw)
    results = []
    for kernels in ("auto", "reference"):
        cache = KVCache.allocate(
            layer.num_layers, 4, 8, layer.num_kv_heads, layer.head_dim, dtype=torch.float32, device=torch.device("cpu")
        )
        head, batch, one = (
            made_head(config, weights, kernels),
            entries(tokens[:-1], 0),
            entries(tokens[-1:], TOKENS - 1),
        )
        first = head.forward(batch, tokens[:-1], hidden[:-1].clone(), cache)
        second = head.forward(one, tokens[-1:], first[1].clone(), cache)
        results.append(
            [*first, *second, *(keys_or_values for own in cache.layers for keys_or_values in (own.keys, own.values))]
        )
    for program, operations in zip(*results, strict=True):
        assert torch.equal(program, operations)
