"""Sizes that the reference attention pads to on a CPU, so that a query has the same bits in every batch.

torch's attention kernel takes keys 512 at a time and passes tiles of queries to BLAS. BLAS's order of additions depends
on the tile's height, on the number of keys, and on the addresses of its buffers, which depend on the height too. With
tile heights that are multiples of some number, and with certain numbers of keys, the order is always the same.

Which sizes these are depends on the CPU, the dtype and the head size. An AMD CPU with AVX-512 adds 384 keys as it adds
512, and an Intel CPU does not. The latter needs multiples of 16 queries where a head has 192 dimensions, and of 8 where
it has
128. In bfloat16, its matrix units have no such multiple for heads of 80. So each size is tried before it is used, once
a process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

KEY_BLOCK = 512
"""Keys that torch's kernel takes at a time."""

_LEAST_MULTIPLE = 8 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 4
_MULTIPLES = tuple(multiple for multiple in (4, 8, 16, 32) if multiple >= _LEAST_MULTIPLE)
_KEYS = (64, 128, 192, 384)
_TILES = {0: 32, 192: 64, 768: 256}
"""Heights of torch's tiles, from so many queries on. The last tile of a row may be lower."""
_MAX_QUERIES = 1024
_HIDDEN = 5
"""Keys of a trial that the mask hides."""


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes to pad to.

    Attributes:
        dtype: what to compute in.
        query_multiple: the folded queries of a row are padded to a multiple of it.
        keys: the sizes to which keys beyond the last whole ``KEY_BLOCK`` are padded, in ascending order; the last is
            ``KEY_BLOCK``.
    """

    dtype: torch.dtype
    query_multiple: int
    keys: tuple[int, ...]

    def padded_queries(self, count: int) -> int:
        """The padded number of a row's folded queries."""
        return -(-count // self.query_multiple) * self.query_multiple

    def padded_keys(self, context_len: int) -> int:
        """The padded number of keys for a row with this context."""
        whole, rest = divmod(context_len - 1, KEY_BLOCK)
        return whole * KEY_BLOCK + next(size for size in self.keys if size > rest)


@functools.cache
def attention_sizes(head_dim: int, dtype: torch.dtype, device: torch.device) -> AttentionSizes:
    """The sizes for heads of ``head_dim`` dimensions in ``dtype``, found by experiment: some 50 ms for 64 dimensions.

    Where no multiple gives equal bits in bfloat16, the attention computes in float32. Where none does in float32,
    results are only close, and the sizes are the largest. Nothing is tried on a GPU.
    """
    if device.type != "cpu":
        return AttentionSizes(dtype, _MULTIPLES[0], (*_KEYS, KEY_BLOCK))
    trial = _Trial(head_dim, dtype)
    for multiple in _MULTIPLES:
        if trial.equal(multiple, KEY_BLOCK):
            keys = tuple(keys for keys in _KEYS if trial.equal(multiple, keys))
            return AttentionSizes(dtype, multiple, (*keys, KEY_BLOCK))
    if dtype != torch.float32:
        return attention_sizes(head_dim, torch.float32, device)
    return AttentionSizes(dtype, _MULTIPLES[-1], (KEY_BLOCK,))


class _Trial:
    """Attention over random keys, some of them hidden: with as many keys as those need, and with all."""

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self._q, self._k, self._v = (
            torch.randn(1, 2, count, head_dim, generator=generator).to(dtype)
            for count in (_MAX_QUERIES, KEY_BLOCK, KEY_BLOCK)
        )

    def equal(self, multiple: int, keys: int) -> bool:
        """Whether tiles of all heights that are multiples of ``multiple``, and so many keys, change no bit."""
        visible = keys - _HIDDEN
        want = self._attend(_MAX_QUERIES, KEY_BLOCK, visible)
        return all(torch.equal(self._attend(count, keys, visible), want[:, :, :count]) for count in _counts(multiple))

    def _attend(self, queries: int, keys: int, visible: int) -> Tensor:
        mask = torch.zeros(1, 1, queries, keys, dtype=self._q.dtype)
        mask[..., visible:] = float("-inf")
        q, k, v = self._q[:, :, :queries], self._k[:, :, :keys], self._v[:, :, :keys]
        with torch.inference_mode():
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _counts(multiple: int) -> Iterator[int]:
    """Numbers of queries whose last tile has each height that the padding allows; of high tiles, some heights."""
    for queries, height in _TILES.items():
        for last in range(multiple, height + 1, max(multiple, height // 8)):
            yield queries + last
