"""FP8 and INT8 caches: the kernels against the reference, and the reference against unrounded keys and values."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from scattered_batch import scattered_batch
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache, bytes_a_head
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.usefixtures("short_joins")

BLOCK_SIZE = 16
EPS = 1e-5
TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
# Keys and values are rounded by at most 2^-4 of themselves, or half of 1/127 of their head's largest. A result is a mean of
# values, whose errors are independent, with weights that change with the scores: here by as much again, since normed
# random queries and keys give scores of some units.
ERRORS = {"fp8": 2**-3, "int8": 2**-5}


def history_of(batch: Batch) -> Batch:
    """What fills the cache with everything before the batch's own tokens: the same rows, one prompt chunk each."""
    pairs = zip(batch.query_lens_host, batch.context_lens_host, strict=True)
    lengths = tuple(context - query for query, context in pairs)
    device = batch.positions.device
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    row = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(lengths, device=device))
    return dataclasses.replace(
        batch,
        token_ids=positions,
        positions=positions,
        cache_index=batch.block_tables[row, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=torch.tensor([0, *lengths], device=device).cumsum(0).int(),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        query_lens_host=lengths,
        context_lens_host=lengths,
    )


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


BATCHES = {
    "decode-split": ((1, 1), (5, 70)),
    "decode": ((1,) * 5, (1, 17, 40, 5, 33)),
    "verify": ((3, 5), (20, 45)),
    "chunk": ((33, 1), (35, 10)),
    "later-chunk": ((17, 3), (34, 9)),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("lengths", "head_dim"),
    [
        pytest.param(BATCHES["decode"], 32, marks=pytest.mark.slow),
        (BATCHES["verify"], 32),
        pytest.param(BATCHES["later-chunk"], 32, marks=pytest.mark.slow),
        (BATCHES["chunk"], 80),
        (BATCHES["decode-split"], 32),
        pytest.param(BATCHES["chunk"], 32, marks=pytest.mark.slow),
        pytest.param(BATCHES["decode-split"], 80, marks=pytest.mark.slow),
    ],
    ids=["decode", "verify", "later-chunk", "chunk-80", "decode-split", "chunk", "decode-split-80"],
)
def test_kernels_and_reference_agree(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], head_dim: int, kind: str, rng: torch.Generator
) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    num_heads, kv_heads = 4, 2
    batch, pool = scattered_batch(*lengths, rng, block_size=BLOCK_SIZE)
    before = history_of(batch)
    width = (num_heads + 2 * kv_heads) * head_dim
    rope = draw(max(lengths[1]), 2, head_dim // 2)
    spec = AttentionSpec(rope, head_dim**-0.5, norms=(draw(head_dim), draw(head_dim)), eps=EPS)
    history, qkv = draw(before.positions.shape[0], width), draw(batch.positions.shape[0], width)
    sms = 16 if lengths[1] != BATCHES["decode"][1] else 1
    results = []
    caches = []
    for ops, dtype in (
        (TritonOps.sized(DeviceLimits.known(80, sms)), TYPES[kind]),
        (ReferenceOps(), TYPES[kind]),
        (ReferenceOps(), torch.float32),
    ):
        cache = KVCache.allocate(1, pool, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype, device=rng.device)
        (layer,) = cache.layers
        if before.positions.numel():
            ops.rope_write_kv(history.clone(), before, layer, spec)
        results.append(ops.rope_attention(qkv.clone(), batch, layer, spec))
        caches.append(layer)
    # A number between two may be rounded to either.
    assert relative(results[0], results[1]) < (1e-2 if kind == "fp8" else 1e-3)
    assert relative(results[1], results[2]) < ERRORS[kind]
    kernels, reference = caches[:2]
    assert (kernels.keys.float() != reference.keys.float()).float().mean() < 2e-3
    assert (kernels.values.float() != reference.values.float()).float().mean() < 2e-3
    if kernels.scales is not None and reference.scales is not None:
        torch.testing.assert_close(kernels.scales[0], reference.scales[0], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(kernels.scales[1], reference.scales[1], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("kind", TYPES)
def test_a_token_is_the_same_in_a_chunk_and_alone(kind: str, rng: torch.Generator) -> None:
    """A chunk reads its own keys from the activations: they must equal the cache's."""
    kv_heads, head_dim, length = 1, 32, 48
    rope = torch.randn(length, 2, head_dim // 2, generator=rng, device=rng.device)
    qkv = torch.randn(length, 4 * head_dim, generator=rng, device=rng.device)
    ops = TritonOps.sized(DeviceLimits.known(80, 132))
    spec = AttentionSpec(rope, head_dim**-0.5)
    outputs = []
    for first in (0, length - 1):
        batch, pool = scattered_batch(
            (length - first,), (length,), torch.Generator(rng.device).manual_seed(3), block_size=BLOCK_SIZE
        )
        cache = KVCache.allocate(1, pool, BLOCK_SIZE, kv_heads, head_dim, dtype=TYPES[kind], device=rng.device)
        (layer,) = cache.layers
        if first:
            ops.rope_write_kv(qkv[:first].clone(), history_of(batch), layer, spec)
        outputs.append(ops.rope_attention(qkv[first:].clone(), batch, layer, spec)[-1])
    assert torch.equal(outputs[0], outputs[1])


def test_large_numbers_saturate(rng: torch.Generator) -> None:
    """FP8 has no infinity: larger numbers become its largest one."""
    batch, pool = scattered_batch((3,), (3,), rng, block_size=BLOCK_SIZE)
    qkv = torch.full((3, 3 * 32), 1000.0, device=rng.device)
    rope = torch.zeros(3, 2, 16, device=rng.device)
    rope[:, 0] = 1
    for ops in (TritonOps.sized(DeviceLimits.known(80, 132)), ReferenceOps()):
        cache = KVCache.allocate(1, pool, BLOCK_SIZE, 1, 32, dtype=torch.float8_e4m3fn, device=rng.device)
        (layer,) = cache.layers
        ops.rope_write_kv(qkv.clone(), batch, layer, AttentionSpec(rope, 1.0))
        assert layer.keys.float().max() == layer.values.float().max() == 448


def test_memory_of_a_head() -> None:
    sizes = {dtype: bytes_a_head(128, dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int8)}
    assert sizes == {torch.bfloat16: 256, torch.float8_e4m3fn: 128, torch.int8: 132}
