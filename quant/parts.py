"""Parts of a stored weight: some of its rows, or some of its columns, in the same format where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from draftline.quant import unpacked
from draftline.quant.tensor import RawTensor, Scales


def rows_of(raw: RawTensor, ranges: Sequence[tuple[int, int]]) -> RawTensor:
    """The rows (or, of a vector, the entries) of some ranges, one above the other.

    A range may begin inside of a block of scales. Then scales are repeated, one for each run of rows that divides all
    ranges and blocks.
    """
    data = torch.cat([raw.data[first:end] for first, end in ranges])
    scales = raw.scales
    if scales is not None:
        # The last range may end anywhere.
        borders = [border for one in ranges for border in one][:-1]
        rows = gcd(scales.rows, *borders)
        finer = _finer(scales.values, scales.rows, rows, dim=0)
        values = torch.cat([finer[first // rows : -(-end // rows)] for first, end in ranges])
        scales = Scales(values, rows, scales.columns)
    return replace(raw, shape=(data.shape[0], *raw.shape[1:]), data=data, scales=scales)


def columns_of(raw: RawTensor, first: int, end: int) -> RawTensor:
    """The columns from ``first`` to ``end`` of a matrix.

    If a block of a GGUF format lies across a border, they are F32.
    """
    rows = raw.shape[0]
    if raw.data.dtype == torch.uint8:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[raw.format]]
        if first % block == 0 and end % block == 0:
            data = raw.data[:, first // block * block_bytes : end // block * block_bytes].contiguous()
            return replace(raw, shape=(rows, end - first), data=data)
        raw = unpacked(raw)
    scales = raw.scales
    if scales is not None and scales.values.shape[1] > 1:
        width = gcd(scales.columns, first)
        values = _finer(scales.values, scales.columns, width, dim=1)[:, first // width : -(-end // width)]
        scales = Scales(values.contiguous(), scales.rows, width)
    elif scales is not None:
        scales = replace(scales, columns=end - first)
    return replace(raw, shape=(rows, end - first), data=raw.data[:, first:end].contiguous(), scales=scales)


def _finer(values: Tensor, size: int, finer: int, dim: int) -> Tensor:
    """Scales of groups of ``size``, repeated for groups of ``finer``."""
    return values.repeat_interleave(size // finer, dim=dim)
