from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.chunks import attend_chunks
from draftline.kernels.triton.attention.decode import attend_short
from draftline.kernels.triton.attention.decode_plan import DecodePlan
from draftline.kernels.triton.attention.plan import ChunkPlan, Tile
from draftline.kernels.triton.attention.ragged import attention
from draftline.kernels.triton.device import DeviceLimits

pytestmark = pytest.mark.usefixtures("short_joins")


def make_batch(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_size: int,
    rng: torch.Generator,
    *,
    bounds: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> tuple[Batch, int]:
    """A batch whose blocks are scattered over a pool, and the pool's size. Unused table entries point outside it."""
    device = rng.device
    needed = [-(-context // block_size) for context in context_lens]
    pool = sum(needed) + 2
    order = torch.randperm(pool, generator=rng, device=device).int()
    tables = torch.full((len(needed), max(needed) + 1), 2**30, dtype=torch.int32, device=device)
    taken = 0
    for row, count in enumerate(needed):
        tables[row, :count] = order[taken : taken + count]
        taken += count
    starts = torch.tensor([0, *query_lens], device=device).cumsum(0).int()
    none = torch.empty(0, device=device)
    query_bounds, context_bounds = bounds or (query_lens, context_lens)
    contexts = torch.tensor(context_lens, dtype=torch.int32, device=device)
    return Batch(none, none, none, starts, contexts, tables, none, query_bounds, context_bounds), pool


def make_cache(batch: Batch, pool: int, block_size: int, kv_heads: int, head_dim: int, rng: torch.Generator) -> Tensor:
    """Keys and values, NaN wherever no row has a token."""
    shape = (2, pool, block_size, kv_heads, head_dim)
    cache = torch.full(shape, math.nan, device=rng.device)
    for context, table in zip(batch.context_lens.tolist(), batch.block_tables, strict=True):
        position = torch.arange(context, device=rng.device)
        block, offset = table[position // block_size].long(), position % block_size
        cache[:, block, offset] = torch.randn(2, context, kv_heads, head_dim, generator=rng, device=rng.device)
    return cache


def expected(q: Tensor, cache: Tensor, batch: Batch, scale: float, window: int | None, soft_cap: float = 0.0) -> Tensor:
    """Row by row, with the whole score matrix, in float64."""
    block_size = cache.shape[2]
    group = q.shape[1] // cache.shape[3]
    out = torch.zeros_like(q, dtype=torch.float64)
    starts = batch.query_starts.tolist()
    for row, context in enumerate(batch.context_lens.tolist()):
        begin, end = starts[row], starts[row + 1]
        position = torch.arange(context, device=q.device)
        block, offset = batch.block_tables[row, position // block_size].long(), position % block_size
        keys, values = cache[:, block, offset].double().repeat_interleave(group, dim=2)
        score = torch.einsum("qhd,khd->hqk", q[begin:end].double(), keys) * scale
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        query_position = torch.arange(context - (end - begin), context, device=q.device)[:, None]
        hidden = position > query_position
        if window is not None:
            hidden |= position <= query_position - window
        out[begin:end] = torch.einsum("hqk,khd->qhd", score.masked_fill(hidden, -math.inf).softmax(-1), values)
    return out.float().flatten(1)


def spec_of(scale: float, window: int | None = None, soft_cap: float = 0.0) -> AttentionSpec:
    """Of attention alone, which does not rotate."""
    return AttentionSpec(torch.empty(0), scale, window, soft_cap)


HEADS = {"gqa-4": (4, 1, 64), "gqa-3": (9, 3, 32), "mha-80": (2, 2, 80), "mqa-8": (8, 1, 16)}


@pytest.mark.parametrize(
    "heads",
    [pytest.param(heads, id=name, marks=[pytest.mark.slow] * (name == "mqa-8")) for name, heads in HEADS.items()],
)
@pytest.mark.parametrize(
    ("query_lens", "context_lens", "window", "num_sms"),
    [
        ((1, 1, 1), (1, 70, 33), None, 1),
        ((1, 1), (300, 5), None, 132),
        ((1, 1), (150, 90), 40, 132),
        ((5, 1, 0, 3), (64, 65, 9, 3), None, 132),
        ((34, 1), (60, 20), None, 16),
        ((34, 40), (34, 75), 37, 16),
    ],
    ids=["decode", "decode-split", "window-split", "verify-ragged", "chunk-and-decode", "window-chunks"],
)
def test_attention(
    heads: tuple[int, int, int],
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    window: int | None,
    num_sms: int,
    device: torch.device,
    rng: torch.Generator,
) -> None:
    num_heads, kv_heads, head_dim = heads
    batch, pool = make_batch(query_lens, context_lens, 16, rng)
    cache = make_cache(batch, pool, 16, kv_heads, head_dim, rng)
    q = torch.randn(sum(query_lens), num_heads, head_dim, generator=rng, device=device)
    out = attention(
        q, batch, LayerCache(*cache), spec_of(head_dim**-0.5, window), limits=DeviceLimits.known(80, num_sms)
    )
    assert_close(out, expected(q, cache, batch, head_dim**-0.5, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block_size", [32, 128])
def test_larger_blocks(block_size: int, device: torch.device, rng: torch.Generator) -> None:
    batch, pool = make_batch((2, 45), (140, 100), block_size, rng)
    cache = make_cache(batch, pool, block_size, 2, 32, rng)
    q = torch.randn(47, 4, 32, generator=rng, device=device)
    out = attention(q, batch, LayerCache(*cache), spec_of(0.2), limits=DeviceLimits.known(80, 132))
    assert_close(out, expected(q, cache, batch, 0.2, None), rtol=1e-4, atol=1e-5)


def test_upper_bounds_on_the_host_are_enough(device: torch.device, rng: torch.Generator) -> None:
    """As in a CUDA graph: four rows of up to three tokens and 512 of context, filled by two rows, and padding."""
    batch, pool = make_batch((3, 0, 2, 0), (40, 1, 200, 1), 16, rng, bounds=((3,) * 4, (512,) * 4))
    cache = make_cache(batch, pool, 16, 1, 32, rng)
    q = torch.randn(12, 2, 32, generator=rng, device=device)
    out = attention(q, batch, LayerCache(*cache), spec_of(0.2), limits=DeviceLimits.known(80, 132))
    assert_close(out[:5], expected(q[:5], cache, batch, 0.2, None), rtol=1e-4, atol=1e-5)


def test_any_row_may_be_the_long_one(device: torch.device, rng: torch.Generator) -> None:
    """As in a CUDA graph of steps with prompts: only the longest is known, not whose it is, and all may be short."""
    for query_lens, context_lens in [((2, 50, 1, 9), (40, 70, 1, 200)), ((1, 3, 0, 12), (40, 70, 1, 12))]:
        batch, pool = make_batch(query_lens, context_lens, 16, rng, bounds=((96, 2, 2, 2), (512,) * 4))
        cache = make_cache(batch, pool, 16, 1, 32, rng)
        q = torch.randn(96, 2, 32, generator=rng, device=device)
        tokens = sum(query_lens)
        out = attention(q, batch, LayerCache(*cache), spec_of(0.2), limits=DeviceLimits.known(80, 132))
        assert_close(out[:tokens], expected(q[:tokens], cache, batch, 0.2, None), rtol=1e-4, atol=1e-5)


def test_a_short_piece_of_a_prompt_may_have_the_longest_history(device: torch.device, rng: torch.Generator) -> None:
    """As in a step by operation: the contexts are known, but a piece of a prompt counts as a long one."""
    query_lens, context_lens = (2, 4, 1), (300, 40, 9)
    batch, pool = make_batch(query_lens, context_lens, 16, rng, bounds=((33, 4, 1), context_lens))
    cache = make_cache(batch, pool, 16, 1, 32, rng)
    q = torch.randn(7, 2, 32, generator=rng, device=device)
    out = attention(q, batch, LayerCache(*cache), spec_of(0.2), limits=DeviceLimits.known(80, 132))
    assert_close(out, expected(q, cache, batch, 0.2, None), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at_once", [pytest.param(None, marks=pytest.mark.slow), 3])
def test_more_rows_than_are_looked_at_together(at_once: int | None, device: torch.device, rng: torch.Generator) -> None:
    """Chunks in the first, the second and the third look at the rows, among decodes and rows of padding."""
    query_lens = [(1, 0)[row % 2] for row in range(600)]
    for row, length in ((3, 40), (255, 33), (256, 50), (599, 36)):
        query_lens[row] = length
    context_lens = tuple(length + 5 for length in query_lens)
    batch, pool = make_batch(tuple(query_lens), context_lens, 16, rng)
    cache = make_cache(batch, pool, 16, 1, 32, rng)
    q = torch.randn(sum(query_lens), 2, 32, generator=rng, device=device)
    out = torch.full((len(q), 64), math.nan, device=device)
    chunks = ChunkPlan(Tile(32, 16, 4, 2), 2, len(q) // 16 + 600, at_once)
    attend_chunks(q, batch, LayerCache(*cache), spec_of(0.2), out, plan=chunks)
    decodes = DecodePlan(Tile(16, 16, 4, 2), 1, 1, 1, 1)
    attend_short(q, batch, LayerCache(*cache), spec_of(0.2), out, plan=decodes, rotate=False)
    assert_close(out, expected(q, cache, batch, 0.2, None), rtol=1e-4, atol=1e-5)


def test_soft_cap(device: torch.device, rng: torch.Generator) -> None:
    batch, pool = make_batch((3,), (50,), 16, rng)
    cache = make_cache(batch, pool, 16, 1, 32, rng)
    q = 10 * torch.randn(3, 2, 32, generator=rng, device=device)
    out = attention(q, batch, LayerCache(*cache), spec_of(1.0, soft_cap=20.0), limits=DeviceLimits.known(80, 1))
    assert_close(out, expected(q, cache, batch, 1.0, None, soft_cap=20.0), rtol=1e-4, atol=1e-4)


_CHUNKS = ChunkPlan(Tile(32, 16, 4, 2), 1, 28 // 8 + 3)


@pytest.mark.parametrize(
    ("chunks", "short"),
    [
        (_CHUNKS, None),
        (replace(_CHUNKS, at_once=2), None),
        (None, DecodePlan(Tile(16, 32, 4, 2), 4, 20, 1, 3, 5)),
        (None, DecodePlan(Tile(64, 16, 4, 2), 16, 20, 4, 5, 2)),
        (replace(_CHUNKS, min_query=8), DecodePlan(Tile(16, 16, 4, 2), 4, 7, 1, 5, 2)),
        (replace(_CHUNKS, min_query=2), DecodePlan(Tile(16, 16, 4, 2), 1, 1, 3, 5)),
    ],
    ids=["search", "in-turn", "by-row", "by-row-split", "both", "both-split"],
)
def test_every_mapping_of_programs_to_rows(
    chunks: ChunkPlan | None, short: DecodePlan | None, device: torch.device, rng: torch.Generator
) -> None:
    batch, pool = make_batch((1, 20, 7), (33, 75, 7), 16, rng)
    cache = make_cache(batch, pool, 16, 1, 32, rng)
    q = torch.randn(28, 4, 32, generator=rng, device=device)
    out = torch.full((28, 128), math.nan, device=device)
    if chunks is not None:
        attend_chunks(q, batch, LayerCache(*cache), spec_of(0.2), out, plan=chunks)
    if short is not None:
        attend_short(q, batch, LayerCache(*cache), spec_of(0.2), out, plan=short, rotate=False)
    assert_close(out, expected(q, cache, batch, 0.2, None), rtol=1e-4, atol=1e-5)
