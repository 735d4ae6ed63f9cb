"""Rotation, cache write and attention in one launch, against the operations one by one in plain torch."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest
import torch
from covering import covering
from scattered_batch import scattered_batch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.attention.decode import decode_attention
from draftline.kernels.triton.attention.decode_plan import plan_decode
from draftline.kernels.triton.attention.plan import AttentionShape
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.usefixtures("short_joins")

BLOCK_SIZE = 16
EPS = 1e-5


def make_batch(query_lens: tuple[int, ...], context_lens: tuple[int, ...], rng: torch.Generator) -> tuple[Batch, int]:
    """Rows that know their order, and the size of the pool."""
    batch, pool = scattered_batch(query_lens, context_lens, rng, block_size=BLOCK_SIZE)
    longest_first = torch.argsort(batch.context_lens, descending=True).int()
    return dataclasses.replace(batch, longest_first=longest_first), pool


def padded(batch: Batch, bound: int) -> Batch:
    """The batch as in a graph's bucket: a row of padding, with a token of padding, and bounds for the lengths."""

    def with_one(x: Tensor, value: int) -> Tensor:
        return torch.cat((x, torch.full_like(x[:1], value)))

    rows = len(batch.query_lens_host)
    assert batch.longest_first is not None
    return dataclasses.replace(
        batch,
        positions=with_one(batch.positions, 0),
        cache_index=with_one(batch.cache_index, -1),
        query_starts=with_one(batch.query_starts, len(batch.positions)),
        context_lens=with_one(batch.context_lens, 12345),
        block_tables=with_one(batch.block_tables, 2**30),
        longest_first=with_one(batch.longest_first, rows),
        query_lens_host=(max(batch.query_lens_host),) * (rows + 1),
        context_lens_host=(bound,) * (rows + 1),
    )


def assert_as_one_by_one(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    heads: tuple[int, int, int],
    rng: torch.Generator,
    *,
    qk_norm: bool,
    window: int | None,
    num_sms: int,
) -> None:
    """Results and cache as the reference's, for a batch as in a graph's bucket, twice in a row."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    num_heads, num_kv_heads, head_dim = heads
    batch, pool = make_batch(query_lens, context_lens, rng)
    keys, values = draw(2, pool, BLOCK_SIZE, num_kv_heads, head_dim)
    expected_keys, expected_values = keys.clone(), values.clone()
    rope = draw(max(context_lens), 2, head_dim // 2)
    norms = (draw(head_dim), draw(head_dim)) if qk_norm else None
    tokens = sum(query_lens)
    qkv = draw(tokens + 1, (num_heads + 2 * num_kv_heads) * head_dim)
    ops = TritonOps.sized(DeviceLimits.known(80, num_sms))
    spec = AttentionSpec(rope, head_dim**-0.5, window, norms=norms, eps=EPS)
    # The second time on the first one's leftovers.
    for _ in range(2):
        # A copy: the operation may rotate it in place.
        out = ops.rope_attention(qkv.clone(), padded(batch, 512), LayerCache(keys, values), spec)
        expected = ReferenceOps().rope_attention(qkv[:tokens], batch, LayerCache(expected_keys, expected_values), spec)
        assert_close(out[:tokens], expected, rtol=1e-4, atol=1e-5)
        assert_close(keys, expected_keys)
        assert_close(values, expected_values)


@pytest.mark.parametrize(
    ("window", "qk_norm"),
    [
        (None, True),
        (40, False),
        pytest.param(None, False, marks=pytest.mark.slow),
        pytest.param(40, True, marks=pytest.mark.slow),
    ],
    ids=["full-qk-norm", "window-plain", "full-plain", "window-qk-norm"],
)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(3, 1, 32), pytest.param(2, 2, 80, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("context_lens", "num_sms"),
    [((1, 33), 16), ((130, 5, 64), 16), ((75,), 1), ((20, 75, 40), 1), (tuple(range(1, 70, 17)), 1)],
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
    heads = (num_heads, num_kv_heads, head_dim)
    ones = (1,) * len(context_lens)
    assert_as_one_by_one(ones, context_lens, heads, rng, qk_norm=qk_norm, window=window, num_sms=num_sms)


def filled_by(rows: int, num_kv_heads: int) -> int:
    """A number of multiprocessors that such a verify fills, so that no programs share a history."""
    return max(rows * num_kv_heads // 3, 1)


VERIFIES = {
    "first-tokens": ((3, 2), (3, 2)),
    "draft-model": ((2, 2), (40, 33)),
    "ragged": ((5, 1, 0, 4), (60, 9, 4, 48)),
    "across-tiles": ((7, 2), (67, 34)),
    "most": ((16,), (50,)),
}
"""Query lengths and context lengths."""


HEADS = {"3x1x32": (3, 1, 32), "2x2x80": (2, 2, 80), "4x1x16": (4, 1, 16)}
OPTIONS = {"full-qk-norm": (None, True), "window-plain": (40, False), "short-window-qk-norm": (3, True)}


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "num_heads", "num_kv_heads", "head_dim", "window", "qk_norm"),
    covering(VERIFIES, HEADS, OPTIONS),
)
def test_verifies_as_the_operations_one_by_one(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None,
    qk_norm: bool,
    rng: torch.Generator,
) -> None:
    heads = (num_heads, num_kv_heads, head_dim)
    num_sms = filled_by(len(query_lens) + 1, num_kv_heads)
    assert_as_one_by_one(query_lens, context_lens, heads, rng, qk_norm=qk_norm, window=window, num_sms=num_sms)


@pytest.mark.parametrize(
    ("window", "qk_norm"),
    [pytest.param(None, False, marks=pytest.mark.slow), (3, True), pytest.param(40, True, marks=pytest.mark.slow)],
    ids=["full-plain", "short-window-qk-norm", "window-qk-norm"],
)
@pytest.mark.parametrize(
    "heads", [(3, 1, 32), pytest.param((2, 2, 80), marks=pytest.mark.slow)], ids=["3x1x32", "2x2x80"]
)
@pytest.mark.parametrize(("query_lens", "context_lens"), VERIFIES.values(), ids=VERIFIES.keys())
def test_verifies_with_split_histories(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    heads: tuple[int, int, int],
    window: int | None,
    qk_norm: bool,
    rng: torch.Generator,
) -> None:
    num_sms = 10  # a few parts a history: each is a program, which the interpreter runs
    assert_as_one_by_one(query_lens, context_lens, heads, rng, qk_norm=qk_norm, window=window, num_sms=num_sms)


@pytest.mark.parametrize("window", [None, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("context", [1, 16, 33, 150])
def test_a_single_row_has_the_same_bits_however_it_is_planned(
    context: int, window: int | None, rng: torch.Generator
) -> None:
    """With its first tile loaded early or late, and its history shared or not."""
    batch, pool = make_batch((1,), (context,), rng)
    history = torch.randn(2, pool, BLOCK_SIZE, 2, 24, generator=rng, device=rng.device)
    rope = torch.randn(context, 2, 12, generator=rng, device=rng.device)
    norms = (torch.randn(24, generator=rng, device=rng.device), torch.randn(24, generator=rng, device=rng.device))
    qkv = torch.randn(1, 8 * 24, generator=rng, device=rng.device)
    spec = AttentionSpec(rope, 24**-0.5, window, norms=norms, eps=EPS)
    results = []
    ops = TritonOps.sized(DeviceLimits.known(80, 20))
    for early, settled, num_splits in product((True, False), (True, False), (1, 5)):
        cache = LayerCache(*history.clone())
        plan = plan_decode(AttentionShape.of(2, qkv, cache, ops.limits), (1,), (512,))
        assert plan is not None
        plan = dataclasses.replace(plan, num_splits=num_splits, early=early)
        asked = dataclasses.replace(batch, settled=settled)
        out = decode_attention(qkv, asked, cache, spec, plan=plan, overlap=False)
        results.append((out, cache.keys, cache.values))
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


@pytest.mark.parametrize("num_sms", [filled_by(3, 1), 10], ids=["whole", "split"])
def test_a_verify_writes_only_where_it_may(num_sms: int, rng: torch.Generator) -> None:
    batch, pool = make_batch((4, 3, 1), (30, 20, 9), rng)
    hidden = torch.tensor([1, 5], device=rng.device)
    entries = batch.cache_index.clone()
    batch = dataclasses.replace(batch, cache_index=batch.cache_index.index_fill(0, hidden, -1))
    keys, values = torch.zeros(2, pool, BLOCK_SIZE, 1, 16, device=rng.device)
    rope = torch.randn(30, 2, 8, generator=rng, device=rng.device)
    qkv = torch.randn(8, 4 * 16, generator=rng, device=rng.device)
    ops = TritonOps.sized(DeviceLimits.known(80, num_sms))
    ops.rope_attention(qkv, batch, LayerCache(keys, values), AttentionSpec(rope, 0.25))
    for cache in (keys, values):
        written = set(cache.flatten(0, 1).any(dim=(1, 2)).nonzero().flatten().tolist())
        assert written == set(entries.tolist()) - set(entries[hidden].tolist())
