"""The reference operations against their definitions, written out in loops and double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from closeness import assert_within, roundoff
from torch import Tensor
from torch_threads import torch_threads

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable

EPS = 1e-5
BLOCK = 16
DTYPES = [torch.float32, torch.bfloat16]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def token_batch(positions: list[int], cache_index: list[int]) -> Batch:
    """A batch of which only positions and cache indices matter."""
    count = len(positions)
    return Batch(
        token_ids=torch.zeros(count, dtype=torch.int64),
        positions=torch.tensor(positions),
        cache_index=torch.tensor(cache_index),
        query_starts=torch.arange(count + 1, dtype=torch.int32),
        context_lens=torch.tensor(positions, dtype=torch.int32) + 1,
        block_tables=torch.zeros(count, 1, dtype=torch.int32),
        logits_index=torch.arange(count),
        query_lens_host=(1,) * count,
        context_lens_host=tuple(position + 1 for position in positions),
    )


def naive_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-7}[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 48), (7, 576), (5, 3, 64)], ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], seed=1, dtype=dtype)
    normed = ReferenceOps().rms_norm(x, weight, EPS)
    assert normed.dtype == dtype
    close(normed, naive_rms_norm(x, weight))


def test_rms_norm_of_tiny_values_is_ruled_by_epsilon() -> None:
    x = randn(2, 64) * 1e-4
    close(ReferenceOps().rms_norm(x, torch.ones(64), EPS), naive_rms_norm(x, torch.ones(64)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    x, residual, weight = (randn(5, 96, seed=i, dtype=dtype) for i in range(3))
    normed, total = ReferenceOps().add_rms_norm(x, residual, weight[0], EPS)
    assert torch.equal(total, residual + x)
    close(normed, naive_rms_norm(total, weight[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = randn(3, 2 * 40, dtype=dtype)
    gate, up = gate_up.double().split(40, dim=1)
    close(ReferenceOps().silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_add(dtype: torch.dtype) -> None:
    x, residual, weight = (randn(5, 96, seed=i, dtype=dtype) for i in range(3))
    before = residual.clone()
    total = ReferenceOps().rms_norm_add(x, weight[0].float(), EPS, residual)
    assert total.dtype == dtype
    close(total, before.double() + naive_rms_norm(x, weight[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm(dtype: torch.dtype) -> None:
    x, weight, bias = randn(7, 576, dtype=dtype) + 3, *randn(2, 576, seed=1, dtype=dtype)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double() + bias.double()
    normed = ReferenceOps().layer_norm(x, weight, bias, EPS)
    assert normed.dtype == dtype
    close(normed, expected)


def naive_gelu(x: Tensor) -> Tensor:
    x = x.double()
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gelu_and_gelu_mul(dtype: torch.dtype) -> None:
    gate_up = 3 * randn(3, 2 * 40, dtype=dtype)
    gate, up = gate_up.split(40, dim=1)
    close(ReferenceOps().gelu(gate_up), naive_gelu(gate_up))
    close(ReferenceOps().gelu_mul(gate_up), naive_gelu(gate) * up.double())


ACTIVATIONS = ["silu_mul", "gelu_mul", "gelu"]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("size", [288, 1000])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_has_the_same_bits_among_any_number_of_rows(activation: str, size: int, threads: int) -> None:
    """Wherever torch divides the rows between threads, and also far below zero, where GELU's terms cancel."""
    x = 4 * randn(1029, 2 * size)
    apply: Callable[[Tensor], Tensor] = getattr(ReferenceOps(), activation)
    with torch_threads(threads):
        few = torch.cat([apply(part) for part in x.split(7)])
        for count in (1, 2, 37, 141, 401, 1029):
            assert torch.equal(apply(x[:count]), few[:count]), count


@pytest.mark.parametrize("size", [1000, 2048, 40_011])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_has_the_same_bits_with_any_number_of_threads(activation: str, size: int) -> None:
    x = 4 * randn(37, 2 * size)
    apply: Callable[[Tensor], Tensor] = getattr(ReferenceOps(), activation)
    with torch_threads(1):
        alone = apply(x)
    for threads in (2, 3, 7):
        with torch_threads(threads):
            assert torch.equal(apply(x), alone), threads
            assert torch.equal(apply(x[:1]), alone[:1]), threads


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_cap(dtype: torch.dtype) -> None:
    x = 30 * randn(3, 101, dtype=dtype)
    close(ReferenceOps().soft_cap(x, 20.0), 20 * torch.tanh(x.double() / 20))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "qk-norm"])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (4, 4, 12), (8, 1, 32)])
def test_rope_write_kv(heads: int, kv_heads: int, size: int, has_norms: bool, dtype: torch.dtype) -> None:
    positions, cache_index = [5, 0, 77, 31], [3, 40, 17, 16]
    qkv = randn(len(positions), (heads + 2 * kv_heads) * size, dtype=dtype)
    angles = torch.outer(torch.arange(100), 10.0 ** -torch.linspace(0, 3, size // 2))
    rope = torch.stack((angles.cos(), angles.sin()), dim=1)
    norms = (randn(size, seed=1, dtype=dtype), randn(size, seed=2, dtype=dtype)) if has_norms else None
    keys, values = (torch.full((4, BLOCK, kv_heads, size), -7.0, dtype=dtype) for _ in range(2))
    batch = token_batch(positions, cache_index)
    spec = AttentionSpec(rope, 1.0, norms=norms, eps=EPS)
    q = ReferenceOps().rope_write_kv(qkv, batch, LayerCache(keys, values), spec)

    split = qkv.view(len(positions), -1, size)
    for token, position in enumerate(positions):
        expected = split[token].double()
        if norms is not None:
            expected[:heads] = naive_rms_norm(expected[:heads], norms[0])
            expected[heads : heads + kv_heads] = naive_rms_norm(expected[heads : heads + kv_heads], norms[1])
        first, second = expected[: heads + kv_heads].chunk(2, dim=-1)
        cos, sin = rope[position].double()
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        # The two products of a sum may cancel, but their roundings do not: of the norm, of each product and of the sum.
        products = torch.cat([(a * cos).abs() + (b * sin).abs() for a, b in ((first, second), (second, first))], dim=-1)
        bound = 4 * roundoff(dtype) * products + (size * roundoff(torch.float32) * products if has_norms else 0)
        assert_within(q[token], rotated[:heads], bound[:heads])
        block, offset = divmod(cache_index[token], BLOCK)
        assert_within(keys[block, offset], rotated[heads:], bound[heads:])
        assert torch.equal(values[block, offset], split[token, heads + kv_heads :])
    untouched = torch.ones(4 * BLOCK, dtype=torch.bool)
    untouched[cache_index] = False
    for cache in (keys, values):
        assert (cache.view(4 * BLOCK, -1)[untouched] == -7).all()


def test_padding_rows_are_written_nowhere() -> None:
    batch = token_batch([3, 4], [0, 1])
    qkv = randn(5, 4 * 8)
    spec = AttentionSpec(torch.ones(16, 2, 4), 1.0)
    first, second = (LayerCache(torch.zeros(2, BLOCK, 1, 8), torch.zeros(2, BLOCK, 1, 8)) for _ in range(2))
    ops = ReferenceOps()
    padded = ops.rope_write_kv(qkv, batch, first, spec)
    plain = ReferenceOps().rope_write_kv(qkv[:2], batch, second, spec)
    assert torch.equal(padded[:2], plain)
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(first.values, second.values)
    result = ops.attention(padded, batch, first, spec)
    assert result.shape == (5, 16)
    assert torch.equal(result[:2], ReferenceOps().attention(plain, batch, second, spec))


def test_a_new_batch_or_table_is_noticed() -> None:
    ops = ReferenceOps()
    qkv, cache = randn(1, 3 * 8), torch.zeros(1, BLOCK, 1, 8)
    angles = torch.outer(torch.arange(8), torch.ones(4))
    rope = torch.stack((angles.cos(), angles.sin()), dim=1)

    def run(ops: ReferenceOps, position: int, table: Tensor) -> Tensor:
        batch = token_batch([position], [0])
        return ops.rope_write_kv(qkv, batch, LayerCache(cache, cache), AttentionSpec(table, 1.0))

    for position, table in ((1, rope), (2, rope), (2, rope.flip(0)), (1, rope)):
        assert torch.equal(run(ops, position, table), run(ReferenceOps(), position, table))


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_gather(block_size: int) -> None:
    slots = SlotTable.allocate(5, 100, -(-100 // block_size), torch.device("cpu"))
    slots.tokens.copy_(torch.arange(500).view(5, 100))
    blocks = torch.randperm(slots.block_tables.numel(), generator=torch.Generator().manual_seed(0))
    slots.block_tables.copy_(blocks.view_as(slots.block_tables))
    rows, query_lens, starts, counts = [3, 0, 4], (1, 40, 5), (99, 17, 0), (1, 0, 3)
    batch = ReferenceOps().gather(slots, torch.tensor(rows), query_lens, starts, counts, block_size).batch

    tokens: list[int] = []
    positions: list[int] = []
    cache_index: list[int] = []
    wanted: list[int] = []
    for row, length, start, count in zip(rows, query_lens, starts, counts, strict=True):
        for position in range(start, start + length):
            tokens.append(100 * row + position)
            positions.append(position)
            block = int(slots.block_tables[row, position // block_size])
            cache_index.append(block * block_size + position % block_size)
        wanted += range(len(tokens) - count, len(tokens))
    for actual, expected in (
        (batch.token_ids, tokens),
        (batch.positions, positions),
        (batch.cache_index, cache_index),
        (batch.logits_index, wanted),
    ):
        assert actual.dtype == torch.int64
        assert actual.tolist() == expected
    assert batch.query_starts.tolist() == [0, 1, 41, 46]
    assert batch.context_lens.tolist() == [100, 57, 5]
    assert (batch.query_starts.dtype, batch.context_lens.dtype) == (torch.int32, torch.int32)
    assert torch.equal(batch.block_tables, slots.block_tables[rows])
    assert (batch.query_lens_host, batch.context_lens_host) == (query_lens, (100, 57, 5))


@pytest.mark.parametrize("norm", [2.598539113998413, 0.21399791538715363])
def test_rms_norm_has_the_same_bits_in_vectors_and_alone(norm: float) -> None:
    """Also where torch's ``hypot`` of the norm and the root of epsilon has not: of these rows' norms, on AVX-512."""
    x = torch.zeros(64, 64)
    x[:, 0] = norm
    weight = torch.ones(64)
    together = ReferenceOps().rms_norm(x, weight, 1e-5)
    for count in (1, 31, 33):
        assert torch.equal(ReferenceOps().rms_norm(x[:count], weight, 1e-5), together[:count])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [48, 101 * 2, 576, 1000])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(width: int, dtype: torch.dtype) -> None:
    ops = ReferenceOps()
    x, residual = randn(70, width, dtype=dtype), randn(70, width, seed=1, dtype=dtype)
    weight = randn(width, seed=2, dtype=dtype)
    functions: list[Callable[[slice], Tensor]] = [
        lambda s: ops.rms_norm(x[s], weight, EPS),
        lambda s: ops.add_rms_norm(x[s], residual[s], weight, EPS)[0],
        lambda s: ops.silu_mul(x[s]),
        lambda s: ops.rms_norm_add(x[s], weight, EPS, residual[s]),
        lambda s: ops.layer_norm(x[s], weight, residual[0], EPS),
        lambda s: ops.gelu(x[s]),
        lambda s: ops.gelu_mul(x[s]),
        lambda s: ops.soft_cap(x[s], 2.0),
    ]
    for function in functions:
        together = function(slice(None))
        for start, end in ((0, 1), (5, 6), (69, 70), (3, 11), (2, 66)):
            assert torch.equal(function(slice(start, end)), together[start:end])
