"""Histories that are divided into parts have the bits of those that one program has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scattered_batch import scattered_batch
from torch.nn.functional import pad

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, HistoryParts, LayerCache
from draftline.kernels.triton.attention.decode import decode_attention
from draftline.kernels.triton.attention.parts_plan import plan_uneven
from draftline.kernels.triton.attention.plan import AttentionShape
from draftline.kernels.triton.attention.ragged import attention
from draftline.kernels.triton.device import DeviceLimits

BLOCK_SIZE, BOUND, MAX_PARTS = 16, 800, 12
LIMITS = DeviceLimits.known(80, 16)


def history_parts(batch: Batch, kv_heads: int, length: int, divided: tuple[int, ...]) -> HistoryParts:
    """Parts of ``length`` tokens of the histories of the rows ``divided``."""
    contexts = batch.context_lens.tolist()
    parts = [-(-context // length) if row in divided else 0 for row, context in enumerate(contexts)]
    rows = [row for row, count in enumerate(parts) for _ in range(count)]
    return HistoryParts(
        starts=torch.tensor([sum(parts[:row]) for row in range(len(parts) + 1)], dtype=torch.int32),
        rows=torch.tensor(rows + [12345] * (MAX_PARTS - len(rows)), dtype=torch.int32),
        length=torch.tensor([length], dtype=torch.int32),
        arrived=torch.zeros(MAX_PARTS * kv_heads, dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "divided"),
    [
        ((1, 1, 1, 1), (20, 300, 70, 513), (1, 3)),
        pytest.param((3, 1, 0, 2), (300, 65, 700, 128), (0, 1, 3), marks=pytest.mark.slow),
        ((1, 1), (33, 40), ()),
    ],
    ids=["decodes", "verifies", "none"],
)
@pytest.mark.parametrize("heads", [(6, 2, 32), pytest.param((3, 1, 80), marks=pytest.mark.slow)])
def test_shared_histories_have_the_same_bits(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    divided: tuple[int, ...],
    heads: tuple[int, int, int],
    rng: torch.Generator,
) -> None:
    num_heads, kv_heads, head_dim = heads
    batch, pool = scattered_batch(query_lens, context_lens, rng, block_size=BLOCK_SIZE)
    rows = len(query_lens)
    batch = replace(
        batch,
        block_tables=pad(batch.block_tables, (0, BOUND // BLOCK_SIZE)),
        query_lens_host=(max(query_lens),) * rows,
        context_lens_host=(BOUND,) * rows,
        longest_first=torch.argsort(batch.context_lens, descending=True).int(),
    )
    keys, values = torch.randn(2, pool, BLOCK_SIZE, kv_heads, head_dim, generator=rng)
    qkv = torch.randn(sum(query_lens), (num_heads + 2 * kv_heads) * head_dim, generator=rng)
    spec = AttentionSpec(torch.randn(BOUND, 2, head_dim // 2, generator=rng), head_dim**-0.5)
    cache = LayerCache(keys, values)
    shape = AttentionShape.of(num_heads // kv_heads, qkv, cache, LIMITS)
    plan = plan_uneven(shape, batch.query_lens_host, batch.context_lens_host)
    assert plan is not None
    expected_cache = LayerCache(keys.clone(), values.clone())
    expected = decode_attention(qkv, batch, expected_cache, spec, plan=plan, overlap=False)

    shared = history_parts(batch, kv_heads, 128, divided)
    # A round's last pass has longer histories than its first one, which has the same parts: some have no tile there.
    longer = history_parts(replace(batch, context_lens=batch.context_lens + 90), kv_heads, 128, divided)
    # With fewer tiles, the last history has no parts.
    for parts, tiles in ((shared, plan.max_part_tiles), (shared, 16), (longer, plan.max_part_tiles)):
        got_cache = LayerCache(keys.clone(), values.clone())
        for last_joins in (False, max(query_lens) == 1):
            variant = replace(plan, max_part_tiles=tiles, last_joins=last_joins)
            got = decode_attention(qkv, replace(batch, parts=parts), got_cache, spec, plan=variant, overlap=False)
            assert torch.equal(got, expected)
        assert not parts.arrived.any(), "each layer begins with what the one before it leaves"
        assert torch.equal(got_cache.keys, expected_cache.keys)
        assert torch.equal(got_cache.values, expected_cache.values)


@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["own-queries", "rotated"])
@pytest.mark.parametrize("queries", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_shared_histories_beside_prompts_have_the_same_bits(queries: int, own: bool, rng: torch.Generator) -> None:
    num_heads, kv_heads, head_dim = 6, 2, 32
    query_lens, context_lens = (queries, 40, queries, 0, 1), (300, 400, 66, 700, 200)
    batch, pool = scattered_batch(query_lens, context_lens, rng, block_size=BLOCK_SIZE)
    batch = replace(
        batch,
        block_tables=pad(batch.block_tables, (0, BOUND // BLOCK_SIZE)),
        query_lens_host=(sum(query_lens), *[queries] * 4),
        context_lens_host=(BOUND,) * 5,
    )
    cache = LayerCache(*torch.randn(2, pool, BLOCK_SIZE, kv_heads, head_dim, generator=rng))
    qkv = torch.randn(sum(query_lens), (num_heads + 2 * kv_heads) * head_dim, generator=rng)
    spec = AttentionSpec(torch.randn(BOUND, 2, head_dim // 2, generator=rng), head_dim**-0.5)
    q = qkv[:, : num_heads * head_dim].contiguous().view(-1, num_heads, head_dim)
    shared = history_parts(batch, kv_heads, 128, (0, 4))

    def attend(which: Batch) -> torch.Tensor:
        return attention(q, which, cache, spec, limits=LIMITS, own=qkv if own else None)

    expected = attend(batch)
    for _ in range(2):  # each layer begins with what the one before it leaves
        assert torch.equal(attend(replace(batch, parts=shared)), expected)
        assert not shared.arrived.any()
    assert shared.starts.tolist() == [0, 3, 3, 3, 3, 5]
