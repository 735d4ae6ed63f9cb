"""Batches with prompt chunks, rotated, written and attended to, against the operations one by one in plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.batch import Batch
from draftline.kernels.reference import ReferenceOps
from draftline.kernels.triton import TritonOps

BLOCK_SIZE = 16
EPS = 1e-5


def make_batch(query_lens: tuple[int, ...], context_lens: tuple[int, ...], rng: torch.Generator) -> tuple[Batch, int]:
    """A batch over scattered blocks, and the size of the pool. Unused table entries point outside it."""
    device = rng.device
    needed = [-(-context // BLOCK_SIZE) for context in context_lens]
    order = torch.randperm(sum(needed), generator=rng, device=device).int()
    tables = torch.full((len(needed), max(needed) + 1), 2**30, dtype=torch.int32, device=device)
    for row, blocks in enumerate(order.split(needed)):
        tables[row, : len(blocks)] = blocks
    spans = list(zip(query_lens, context_lens, strict=True))
    positions = torch.cat([torch.arange(context - query, context, device=device) for query, context in spans])
    row = torch.arange(len(spans), device=device).repeat_interleave(torch.tensor(query_lens, device=device))
    batch = Batch(
        token_ids=positions,
        positions=positions,
        cache_index=tables[row, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=torch.tensor([0, *query_lens], device=device).cumsum(0).int(),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        block_tables=tables,
        logits_index=positions,
        query_lens_host=query_lens,
        context_lens_host=context_lens,
    )
    return batch, sum(needed)


@pytest.mark.parametrize("window", [None, 37], ids=["full", "window"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 1, 32), (2, 2, 80)])
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [((40,), (40,)), ((50, 35), (50, 70)), ((1, 37, 0, 5, 33), (60, 90, 4, 40, 40))],
    ids=["prompt", "prompt-and-chunk", "mixed"],
)
def test_as_the_operations_one_by_one(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None,
    rng: torch.Generator,
) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    batch, pool = make_batch(query_lens, context_lens, rng)
    keys, values = draw(2, pool, BLOCK_SIZE, num_kv_heads, head_dim)
    expected_keys, expected_values = keys.clone(), values.clone()
    rope = draw(max(context_lens), 2, head_dim // 2)
    norms = (draw(head_dim), draw(head_dim))
    qkv = draw(sum(query_lens), (num_heads + 2 * num_kv_heads) * head_dim)
    ops = TritonOps.sized(132, hopper=False, device=rng.device)
    scale = head_dim**-0.5
    expected = ReferenceOps().rope_attention(
        qkv.clone(), batch, rope, expected_keys, expected_values, norms, EPS, scale=scale, window=window
    )
    out = ops.rope_attention(qkv, batch, rope, keys, values, norms, EPS, scale=scale, window=window)
    assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert_close(keys, expected_keys)
    assert_close(values, expected_values)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # NumPy's, which the interpreter computes with
def test_a_row_s_nan_stays_its_own(rng: torch.Generator) -> None:
    """Rows lie side by side in the activations: what one has computed must not reach the others."""
    batch, pool = make_batch((40, 45), (40, 45), rng)
    keys, values = torch.zeros(2, pool, BLOCK_SIZE, 1, 16, device=rng.device)
    rope = torch.randn(45, 2, 8, generator=rng, device=rng.device)
    qkv = torch.randn(85, 4 * 16, generator=rng, device=rng.device)
    qkv[40:] = math.nan
    ops = TritonOps.sized(132, hopper=False, device=rng.device)
    out = ops.rope_attention(qkv, batch, rope, keys, values, None, EPS, scale=0.25, window=None)
    assert not out[:40].isnan().any()
    assert out[40:].isnan().all()
