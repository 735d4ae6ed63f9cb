"""Paged attention against dense attention with a mask, and against itself in other batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from exact_cpu import EXACT
from torch import Tensor
from torch_threads import torch_threads

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.reference.ops import ReferenceOps

"""Where the bits are known to be equal. Elsewhere BLAS has other kernels, and results are only close."""


def naive_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, scale: float, window: int | None, soft_cap: float
) -> Tensor:
    """Attention in double precision: queries [T, H, D] at these positions, keys and values [S, G, D] -> [T, H * D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), k).mul(scale)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    behind = positions[:, None] - torch.arange(len(k))
    seen = (behind >= 0) & (behind < (len(k) if window is None else window))
    return torch.einsum("hts,shd->thd", scores.where(seen, -torch.inf).softmax(dim=2), v).flatten(1)


@dataclass
class Sequences:
    """Histories of several sequences in a shuffled paged cache, whose unused entries hold large numbers."""

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    keys: Tensor
    values: Tensor
    tables: Tensor

    @staticmethod
    def make(
        lengths: Sequence[int],
        heads: int,
        kv_heads: int,
        size: int,
        block: int,
        dtype: torch.dtype,
        *,
        shuffle: bool = True,
    ) -> Sequences:
        generator = torch.Generator().manual_seed(0)

        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        per_row = -(-max(lengths) // block)
        order = list(range(len(lengths) * per_row + 2))
        if shuffle:
            random.Random(0).shuffle(order)
        keys = torch.full((len(order), block, kv_heads, size), 1e4, dtype=dtype)
        values = torch.full((len(order), block, kv_heads, size), 1e4, dtype=dtype)
        tables = torch.full((len(lengths), per_row), 2**31 - 1, dtype=torch.int32)  # as undefined as can be
        result = Sequences([], [], [], keys, values, tables)
        for row, length in enumerate(lengths):
            q, k, v = randn(length, heads, size), randn(length, kv_heads, size), randn(length, kv_heads, size)
            for tensors, tensor in ((result.q, q), (result.k, k), (result.v, v)):
                tensors.append(tensor)
            for index in range(-(-length // block)):
                tables[row, index] = order[row * per_row + index]
                part = slice(index * block, min(length, (index + 1) * block))
                keys[tables[row, index], : part.stop - part.start] = k[part]
                values[tables[row, index], : part.stop - part.start] = v[part]
        return result

    def attend(
        self, rows: Sequence[tuple[int, int, int]], window: int | None = None, soft_cap: float = 0.0
    ) -> list[Tensor]:
        """Attention of (sequence, start, end) rows in one batch."""
        lengths = tuple(end - start for _, start, end in rows)
        total = sum(lengths)
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        batch = Batch(
            token_ids=torch.zeros(total, dtype=torch.int64),
            positions=torch.cat([torch.arange(start, end) for _, start, end in rows]),
            cache_index=torch.zeros(total, dtype=torch.int64),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor([end for _, _, end in rows], dtype=torch.int32),
            block_tables=self.tables[[sequence for sequence, _, _ in rows]],
            logits_index=torch.zeros(0, dtype=torch.int64),
            query_lens_host=lengths,
            context_lens_host=tuple(end for _, _, end in rows),
        )
        q = torch.cat([self.q[sequence][start:end] for sequence, start, end in rows])
        spec = AttentionSpec(torch.empty(0), 0.2, window, soft_cap)
        result = ReferenceOps().attention(q, batch, LayerCache(self.keys, self.values), spec)
        return list(result.split(lengths))

    def expected(self, sequence: int, start: int, end: int, window: int | None = None, soft_cap: float = 0.0) -> Tensor:
        q, k, v = self.q[sequence][start:end], self.k[sequence], self.v[sequence]
        return naive_attention(q, k, v, torch.arange(start, end), 0.2, window, soft_cap)


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-6}[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)


ROWS = [(0, 0, 33), (1, 70, 71), (2, 12, 17), (3, 63, 64), (1, 40, 45), (4, 0, 1), (3, 64, 65), (2, 0, 130)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (4, 4, 16), (8, 1, 32), (4, 2, 128)])
def test_rows_of_every_kind(heads: int, kv_heads: int, size: int, window: int | None, dtype: torch.dtype) -> None:
    sequences = Sequences.make((33, 90, 130, 66, 1), heads, kv_heads, size, 16, dtype)
    for row, result in zip(ROWS, sequences.attend(ROWS, window), strict=True):
        assert result.dtype == dtype
        close(result, sequences.expected(*row, window))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 20])
def test_soft_caps(window: int | None, dtype: torch.dtype) -> None:
    sequences = Sequences.make((33, 90, 130, 66, 1), 8, 2, 32, 16, dtype)
    for row, result in zip(ROWS, sequences.attend(ROWS, window, 0.7), strict=True):
        assert result.dtype == dtype
        close(result, sequences.expected(*row, window, 0.7))


@pytest.mark.parametrize("block", [8, 24, 32, 256])
@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in-order"])
def test_block_sizes_and_orders(block: int, shuffle: bool) -> None:
    sequences = Sequences.make((33, 90, 130, 66, 1), 6, 2, 32, block, torch.float32, shuffle=shuffle)
    for row, result in zip(ROWS, sequences.attend(ROWS), strict=True):
        close(result, sequences.expected(*row))


def test_blocks_in_order_at_the_end_of_the_cache() -> None:
    sequences = Sequences.make((90, 90), 4, 2, 16, 16, torch.float32, shuffle=False)
    sequences.keys, sequences.values = sequences.keys[:12].clone(), sequences.values[:12].clone()
    for row in ((0, 80, 81), (1, 80, 90), (1, 89, 90)):  # of 12 blocks, 6 are each one's, and 8 would be read
        close(sequences.attend([row])[0], sequences.expected(*row))


def test_a_float16_cache_under_float32_activations() -> None:
    sequences = Sequences.make((33, 90, 130, 66, 1), 6, 2, 32, 16, torch.float16)
    sequences.q = [q.float() for q in sequences.q]
    for row, result in zip(ROWS, sequences.attend(ROWS), strict=True):
        close(result, sequences.expected(*row))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "window", "soft_cap"),
    [
        (9, 3, 64, None, 0.0),
        (9, 3, 64, 50, 0.0),
        pytest.param(9, 3, 64, None, 1.5, marks=pytest.mark.slow),
        pytest.param(6, 6, 64, None, 0.0, marks=pytest.mark.slow),
        pytest.param(6, 6, 64, 50, 0.0, marks=pytest.mark.slow),
        pytest.param(6, 6, 64, None, 1.5, marks=pytest.mark.slow),
        pytest.param(2, 2, 80, None, 0.0, marks=pytest.mark.slow),
        pytest.param(8, 2, 128, None, 0.0, marks=pytest.mark.slow),
        pytest.param(8, 2, 128, 50, 0.0, marks=pytest.mark.slow),
        (8, 2, 128, None, 1.5),
        (2, 1, 256, None, 0.0),
    ],
)
def test_a_query_has_the_same_bits_in_every_batch(
    heads: int, kv_heads: int, size: int, window: int | None, soft_cap: float, dtype: torch.dtype
) -> None:
    sequences = Sequences.make((860, 70, 200, 131), heads, kv_heads, size, 16, dtype)

    def same(rows: list[tuple[int, int, int]], whole: Tensor) -> None:
        for (sequence, start, end), result in zip(rows, sequences.attend(rows, window, soft_cap), strict=True):
            if sequence == 0:
                assert torch.equal(result, whole[start:end]) or not EXACT
                torch.testing.assert_close(result, whole[start:end], atol=1e-5, rtol=2**-6)

    whole = sequences.attend([(0, 0, 860)], window, soft_cap)[0]
    for position in (0, 1, 63, 64, 65, 127, 200, 299, 511, 512, 640, 810):
        same([(0, position, position + 1)], whole)
        same([(1, 69, 70), (0, position, position + 1), (2, 150, 151), (3, 130, 131)], whole)
    for count in (2, 5, 8, 17, 64, 100):
        for start in (0, 60, 199, 290, 500, 750):
            same([(0, start, start + count)], whole)
            same([(3, 100, 100 + min(count, 31)), (0, start, start + count), (2, 7, 7 + count)], whole)


@pytest.mark.parametrize("size", [32, 64, 256])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_query_of_one_key_head_has_the_same_bits_with_any_number_of_threads(threads: int, size: int) -> None:
    """With a single key head, a row can be all that a step has to attend to."""
    sequences = Sequences.make((600, 131), 4, 1, size, 16, torch.float32)
    with torch_threads(1):
        whole = sequences.attend([(0, 0, 600)])[0]
    rows = [(0, start, start + count) for start in (0, 250, 470, 590) for count in (1, 3, 6, 8, 10)]
    with torch_threads(threads):
        for row in rows:
            alone, (batched, _) = sequences.attend([row])[0], sequences.attend([row, (1, 70, 74)])
            assert torch.equal(alone, whole[row[1] : row[2]]) or not EXACT
            assert torch.equal(batched, whole[row[1] : row[2]]) or not EXACT
