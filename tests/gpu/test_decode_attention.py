"""Attention of decodes and verifies on a real GPU, in the types that models run in, against float32."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from covering import MAX_PAIRS, covering
from gpu_cases import HEADS, TYPES, assert_near, draw
from scattered_batch import OUTSIDE, scattered_batch
from torch.nn.functional import pad

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

BLOCK_SIZE = 16
EPS = 1e-6
MAX_CONTEXT = 4096
CONTEXTS = {
    "1-short": ((7,),),
    "1-long": ((3999,),),
    "8": ((1, 16, 17, 64, 65, 400, 1000, 2049),),
    "64": (tuple(17 * row + 1 for row in range(64)),),
    "300": (tuple(3 * row + 1 for row in range(300)),),
}
WINDOWS = {"full": None, "window": 100}


def make_batch(query_lens: tuple[int, ...], context_lens: tuple[int, ...], rng: torch.Generator) -> tuple[Batch, int]:
    """A batch over scattered blocks, with a graph's bounds, and the size of the pool."""
    batch, pool = scattered_batch(query_lens, context_lens, rng, block_size=BLOCK_SIZE)
    rows, columns = batch.block_tables.shape
    with_bounds = dataclasses.replace(
        batch,
        block_tables=pad(batch.block_tables, (0, MAX_CONTEXT // BLOCK_SIZE - columns), value=OUTSIDE),
        query_lens_host=(max(query_lens),) * rows,
        context_lens_host=(MAX_CONTEXT,) * rows,
        longest_first=torch.argsort(batch.context_lens, descending=True).int(),
    )
    return with_bounds, pool


def assert_as_reference(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    heads: tuple[int, int, int],
    window: int | None,
    dtype: torch.dtype,
    ops: TritonOps,
    rng: torch.Generator,
) -> None:
    """Results and cache as the reference's in float32."""
    num_heads, kv_heads, head_dim = heads
    batch, pool = make_batch(query_lens, context_lens, rng)
    keys, values = draw(rng, 2, pool, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
    wide_keys, wide_values = keys.float(), values.float()
    angle = torch.arange(MAX_CONTEXT, device=rng.device)[:, None] / 10.0 ** torch.arange(
        head_dim // 2, device=rng.device
    )
    rope = torch.stack([angle.cos(), angle.sin()], dim=1)
    qkv = draw(rng, sum(query_lens), (num_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    norms = draw(rng, 2, head_dim, dtype=dtype)
    spec = AttentionSpec(rope, head_dim**-0.5, window, norms=(norms[0], norms[1]), eps=EPS)
    wide_spec = dataclasses.replace(spec, norms=(norms[0].float(), norms[1].float()))
    wide_qkv = qkv.float()  # the operation may rotate it in place
    out = ops.rope_attention(qkv, batch, LayerCache(keys, values), spec)
    exact = dataclasses.replace(batch, query_lens_host=query_lens, context_lens_host=context_lens)
    expected = ReferenceOps().rope_attention(wide_qkv, exact, LayerCache(wide_keys, wide_values), wide_spec)
    assert_near(out, expected)
    assert_near(keys, wide_keys)
    assert torch.equal(values.float(), wide_values)


@pytest.mark.parametrize(
    ("heads", "context_lens", "window", "dtype"),
    covering(HEADS, CONTEXTS, WINDOWS, TYPES, group="decode", max_pairs=MAX_PAIRS),
)
def test_decode_attention(
    heads: tuple[int, int, int],
    context_lens: tuple[int, ...],
    window: int | None,
    dtype: torch.dtype,
    ops: TritonOps,
    rng: torch.Generator,
) -> None:
    assert_as_reference((1,) * len(context_lens), context_lens, heads, window, dtype, ops, rng)


VERIFIES = {
    "1x5": ((5,), (400,)),
    "2x2": ((2, 2), (2, 3000)),
    "ragged": ((5, 1, 0, 3, 2), (1000, 17, 9, 64, 2050)),
    "1x16": ((16,), (77,)),
    "32x4": (tuple(1 + row % 4 for row in range(32)), tuple(30 * row + 5 for row in range(32))),
    "64x5": (tuple(row % 6 for row in range(64)), tuple(17 * row + 5 for row in range(64))),
    "200x5": ((5,) * 200, tuple(3 * row + 5 for row in range(200))),
}
"""Query lengths and context lengths."""


@pytest.mark.parametrize(
    ("heads", "query_lens", "context_lens", "window", "dtype"),
    covering(HEADS, VERIFIES, WINDOWS, TYPES, group="verify", max_pairs=MAX_PAIRS),
)
def test_verify_attention(
    heads: tuple[int, int, int],
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    window: int | None,
    dtype: torch.dtype,
    ops: TritonOps,
    rng: torch.Generator,
) -> None:
    assert_as_reference(query_lens, context_lens, heads, window, dtype, ops, rng)
