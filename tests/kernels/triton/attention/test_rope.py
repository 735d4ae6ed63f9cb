from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.rope import rope_write_kv

EPS = 1e-6
BLOCK_SIZE = 4
NUM_BLOCKS = 6
UNTOUCHED = 7.0


def batch_at(positions: list[int], cache_index: list[int], device: torch.device) -> Batch:
    none = torch.empty(0, device=device)
    return Batch(
        token_ids=none,
        positions=torch.tensor(positions, device=device),
        cache_index=torch.tensor(cache_index, device=device),
        query_starts=none,
        context_lens=none,
        block_tables=none,
        logits_index=none,
        query_lens_host=(),
        context_lens_host=(),
    )


def rope_table(max_positions: int, head_dim: int, device: torch.device) -> Tensor:
    frequency = 10000.0 ** -(torch.arange(0, head_dim, 2, device=device) / head_dim)
    angle = torch.arange(max_positions, device=device)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def rotated(x: Tensor, rope: Tensor, positions: Tensor) -> Tensor:
    """[T, heads, D]: each pair (i, i + D / 2) as a complex number times the position's unit vector."""
    half = x.shape[-1] // 2
    turn = torch.complex(rope[positions, 0], rope[positions, 1])[:, None]
    product = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([product.real, product.imag], dim=-1)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize("qk_norm", [False, True], ids=["plain", "qk-norm"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "tokens"), [(4, 2, 64, 3), (9, 3, 64, 2), (2, 1, 80, 1), (3, 3, 32, 70)]
)
def test_rope_write_kv(
    heads: int, kv_heads: int, head_dim: int, tokens: int, qk_norm: bool, device: torch.device, rng: torch.Generator
) -> None:
    num_blocks = max(NUM_BLOCKS, tokens)
    positions = torch.randint(0, 50, (tokens,), generator=rng, device=device)
    index = torch.randperm(num_blocks * BLOCK_SIZE, generator=rng, device=device)[:tokens]
    batch = batch_at(positions.tolist(), index.tolist(), device)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, generator=rng, device=device)
    rope = rope_table(64, head_dim, device)
    keys, values = torch.full((2, num_blocks, BLOCK_SIZE, kv_heads, head_dim), UNTOUCHED, device=device)
    weights = torch.randn(2, head_dim, generator=rng, device=device)
    norms = (weights[0], weights[1]) if qk_norm else None

    spec = AttentionSpec(rope, 1.0, norms=norms, eps=EPS)
    queries = rope_write_kv(qkv.clone(), batch, LayerCache(keys, values), spec)

    query, key, value = qkv.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], dim=1)
    if qk_norm:
        query, key = normed(query, weights[0]), normed(key, weights[1])
    assert_close(queries, rotated(query, rope, positions))
    expected_keys, expected_values = torch.full_like(keys, UNTOUCHED), torch.full_like(values, UNTOUCHED)
    expected_keys.view(-1, kv_heads, head_dim)[index] = rotated(key, rope, positions)
    expected_values.view(-1, kv_heads, head_dim)[index] = value
    assert_close(keys, expected_keys)
    assert torch.equal(values, expected_values)


def test_padding_tokens_write_nothing(device: torch.device, rng: torch.Generator) -> None:
    batch = batch_at([3, 0], [5, -1], device)
    qkv = torch.randn(2, 3 * 32, generator=rng, device=device)
    keys, values = torch.full((2, NUM_BLOCKS, BLOCK_SIZE, 1, 32), UNTOUCHED, device=device)
    rope_write_kv(qkv, batch, LayerCache(keys, values), AttentionSpec(rope_table(8, 32, device), 1.0))
    for cache in (keys, values):
        flat = cache.view(-1, 32)
        written = (flat != UNTOUCHED).any(dim=1).nonzero().flatten().tolist()
        assert written == [5]
