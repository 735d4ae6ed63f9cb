"""Batches with prompt chunks, rotated, written and attended to, against the operations one by one in plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from covering import covering
from scattered_batch import scattered_batch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

BLOCK_SIZE = 16
EPS = 1e-5
FEW_SMS = 16
"""Multiprocessors for which histories are split into a few parts. Each part is a program, which the interpreter runs."""


BATCHES = {
    "prompt": ((40,), (40,)),
    "prompt-and-chunk": ((50, 35), (50, 70)),
    "mixed": ((1, 37, 0, 5, 33), (60, 90, 4, 40, 40)),
}
HEADS = {"3-1-32": (3, 1, 32), "2-2-80": (2, 2, 80)}
WINDOWS = {"full": None, "window": 37}


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "num_heads", "num_kv_heads", "head_dim", "window"), covering(BATCHES, HEADS, WINDOWS)
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

    batch, pool = scattered_batch(query_lens, context_lens, rng, block_size=BLOCK_SIZE)
    keys, values = draw(2, pool, BLOCK_SIZE, num_kv_heads, head_dim)
    expected_keys, expected_values = keys.clone(), values.clone()
    rope = draw(max(context_lens), 2, head_dim // 2)
    norms = (draw(head_dim), draw(head_dim))
    qkv = draw(sum(query_lens), (num_heads + 2 * num_kv_heads) * head_dim)
    ops = TritonOps.sized(DeviceLimits.known(80, FEW_SMS))
    spec = AttentionSpec(rope, head_dim**-0.5, window, norms=norms, eps=EPS)
    expected = ReferenceOps().rope_attention(qkv.clone(), batch, LayerCache(expected_keys, expected_values), spec)
    out = ops.rope_attention(qkv, batch, LayerCache(keys, values), spec)
    assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert_close(keys, expected_keys)
    assert_close(values, expected_values)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # NumPy's, which the interpreter computes with
def test_a_row_s_nan_stays_its_own(rng: torch.Generator) -> None:
    """Rows lie side by side in the activations: what one has computed must not reach the others."""
    batch, pool = scattered_batch((40, 45), (40, 45), rng, block_size=BLOCK_SIZE)
    keys, values = torch.zeros(2, pool, BLOCK_SIZE, 1, 16, device=rng.device)
    rope = torch.randn(45, 2, 8, generator=rng, device=rng.device)
    qkv = torch.randn(85, 4 * 16, generator=rng, device=rng.device)
    qkv[40:] = math.nan
    ops = TritonOps.sized(DeviceLimits.known(80, 132))
    out = ops.rope_attention(qkv, batch, LayerCache(keys, values), AttentionSpec(rope, 0.25))
    assert not out[:40].isnan().any()
    assert out[40:].isnan().all()
