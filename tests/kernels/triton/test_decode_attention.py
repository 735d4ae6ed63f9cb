"""Rotation, cache write and attention in one launch, against the operations one by one in plain torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.batch import Batch
from draftline.kernels.reference import ReferenceOps
from draftline.kernels.triton import TritonOps

BLOCK_SIZE = 16
EPS = 1e-5


def make_batch(context_lens: tuple[int, ...], rng: torch.Generator) -> tuple[Batch, int]:
    """One query token a row over scattered blocks, and the size of the pool. Unused table entries point outside it."""
    device = rng.device
    needed = [-(-context // BLOCK_SIZE) for context in context_lens]
    order = torch.randperm(sum(needed), generator=rng, device=device).int()
    tables = torch.full((len(needed), max(needed)), 2**30, dtype=torch.int32, device=device)
    for row, (blocks, count) in enumerate(zip(order.split(needed), needed, strict=True)):
        tables[row, :count] = blocks
    rows = torch.arange(len(needed), device=device)
    positions = torch.tensor(context_lens, device=device) - 1
    batch = Batch(
        token_ids=positions,
        positions=positions,
        cache_index=tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=torch.arange(len(needed) + 1, dtype=torch.int32, device=device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        block_tables=tables,
        logits_index=rows,
        query_lens_host=(1,) * len(needed),
        context_lens_host=context_lens,
        longest_first=torch.argsort(positions, descending=True).int(),
    )
    return batch, sum(needed)


def padded(batch: Batch, bound: int) -> Batch:
    """The batch as in a graph's bucket: a row of padding, with a token of padding, and a bound for the lengths."""

    def with_one(x: Tensor, value: int) -> Tensor:
        return torch.cat((x, torch.full_like(x[:1], value)))

    rows = len(batch.query_lens_host)
    assert batch.longest_first is not None
    return dataclasses.replace(
        batch,
        positions=with_one(batch.positions, 0),
        cache_index=with_one(batch.cache_index, -1),
        query_starts=with_one(batch.query_starts, rows),
        context_lens=with_one(batch.context_lens, 12345),
        block_tables=with_one(batch.block_tables, 2**30),
        longest_first=with_one(batch.longest_first, rows),
        query_lens_host=(1,) * (rows + 1),
        context_lens_host=(bound,) * (rows + 1),
    )


@pytest.mark.parametrize("window", [None, 40], ids=["full", "window"])
@pytest.mark.parametrize("qk_norm", [False, True], ids=["plain", "qk-norm"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(6, 2, 32), (2, 2, 80)])
@pytest.mark.parametrize(
    ("context_lens", "num_sms"),
    [((1, 70), 132), ((300, 5, 128), 132), ((150,), 1), ((20, 150, 70), 1), (tuple(range(1, 70, 9)), 1)],
    ids=["short", "split", "whole", "longest-first", "many"],
)
def test_as_the_operations_one_by_one(
    context_lens: tuple[int, ...],
    num_sms: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    qk_norm: bool,
    window: int | None,
    rng: torch.Generator,
) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    batch, pool = make_batch(context_lens, rng)
    keys, values = draw(2, pool, BLOCK_SIZE, num_kv_heads, head_dim)
    expected_keys, expected_values = keys.clone(), values.clone()
    rope = draw(max(context_lens), 2, head_dim // 2)
    norms = (draw(head_dim), draw(head_dim)) if qk_norm else None
    rows = len(context_lens)
    qkv = draw(rows + 1, (num_heads + 2 * num_kv_heads) * head_dim)
    ops = TritonOps.sized(num_sms, hopper=False, device=rng.device)
    options = {"scale": head_dim**-0.5, "window": window}
    for _ in range(2):  # the second time, what the first one left behind
        # A copy: the operation may rotate it in place.
        out = ops.rope_attention(qkv.clone(), padded(batch, 512), rope, keys, values, norms, EPS, **options)
        expected = ReferenceOps().rope_attention(
            qkv[:rows], batch, rope, expected_keys, expected_values, norms, EPS, **options
        )
        assert_close(out[:rows], expected, rtol=1e-4, atol=1e-5)
        assert_close(keys, expected_keys)
        assert_close(values, expected_values)
        assert not ops.arrivals.any()


def test_longer_queries_take_the_other_kernels(rng: torch.Generator) -> None:
    batch, pool = make_batch((20, 9), rng)
    two = dataclasses.replace(
        batch,
        positions=torch.tensor([18, 19, 8], device=rng.device),
        cache_index=torch.tensor([0, 1, 2], device=rng.device),
        query_starts=torch.tensor([0, 2, 3], dtype=torch.int32, device=rng.device),
        query_lens_host=(2, 1),
    )
    keys, values = torch.randn(2, pool, BLOCK_SIZE, 1, 16, generator=rng, device=rng.device)
    rope = torch.randn(20, 2, 8, generator=rng, device=rng.device)
    qkv = torch.randn(3, 4 * 16, generator=rng, device=rng.device)
    ops = TritonOps.sized(132, hopper=False, device=rng.device)
    out = ops.rope_attention(qkv.clone(), two, rope, keys.clone(), values.clone(), None, EPS, scale=0.25, window=None)
    expected = ReferenceOps().rope_attention(qkv, two, rope, keys, values, None, EPS, scale=0.25, window=None)
    assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_capped_scores_take_the_other_kernels(rng: torch.Generator) -> None:
    batch, pool = make_batch((20, 150), rng)
    keys, values = torch.randn(2, pool, BLOCK_SIZE, 1, 16, generator=rng, device=rng.device)
    rope = torch.randn(150, 2, 8, generator=rng, device=rng.device)
    qkv = 3 * torch.randn(2, 4 * 16, generator=rng, device=rng.device)
    ops = TritonOps.sized(132, hopper=False, device=rng.device)
    results = [
        run.rope_attention(
            qkv.clone(), batch, rope, keys.clone(), values.clone(), None, EPS, scale=0.25, window=40, soft_cap=5.0
        )
        for run in (ops, ReferenceOps())
    ]
    assert_close(*results, rtol=1e-4, atol=1e-5)
