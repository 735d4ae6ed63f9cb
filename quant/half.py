"""Float16 weights with float32 activations on a CPU, through FBGEMM.

Half the memory traffic of float32, which is what a decode step waits for, at 11 significant bits: a bfloat16 weight keeps
all its bits (below 2^-14 it is rounded to a multiple of 2^-24), a dequantized one is off by at most 2^-12 of itself.
Activations and sums stay float32.

FBGEMM runs the rows of a batch in tiles whose height depends on how many rows there are, and the lowest tiles add up in
another order than the rest. So the rows are padded to a multiple that only ever uses full tiles, which `row_multiple`
finds out once by trying: then every row has the same bits at every row count.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

_LARGEST = 65504.0
_MULTIPLES = (4, 6, 7, 8, 12, 14, 16)
_MOST_ROWS = 256


class HalfLinear:
    """A weight rounded to float16, computed in float32; the result is cast to ``dtype``.

    Args:
        weight: [out_features, in_features] float32, within float16's range.
        bias: [out_features], or None.
        dtype: of the result.
        rows: the multiple that rows are padded to: ``row_multiple()``.
    """

    format = "float16"

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: int) -> None:
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self._dtype = dtype
        self._rows = rows
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes // 2

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        count = x.shape[0]
        missing = -count % self._rows
        x = x.to(torch.float32)
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._weight)
        return y[:count].to(self._dtype)


def fits(weight: Tensor) -> bool:
    """Whether every weight is within float16's range."""
    return bool(weight.abs().max() <= _LARGEST)


@functools.cache
def row_multiple() -> int | None:
    """The number of rows whose multiples give every row the same bits on this CPU, or None if there is none.

    None too where torch has no FBGEMM (CPUs other than x86).
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(80, 600, generator=generator)
    x = torch.randn(_MOST_ROWS, 600, generator=generator)
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
        alone = {rows: torch.ops.quantized.linear_dynamic_fp16(x[:rows], packed) for rows in range(1, _MOST_ROWS + 1)}
    except RuntimeError:
        return None
    for multiple in _MULTIPLES:
        counts = range(multiple, _MOST_ROWS + 1, multiple)
        if all(torch.equal(alone[rows], alone[counts[-1]][:rows]) for rows in counts):
            return multiple
    return None
