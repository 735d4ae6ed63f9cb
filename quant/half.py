"""Float16 weights with float32 activations on a CPU, through FBGEMM.

It halves float32's memory traffic, which bounds a decode step, at 11 significant bits. A bfloat16 weight keeps all its
bits (below 2^-14 it is rounded to a multiple of 2^-24); a dequantized one has a relative error of at most 2^-11.
Activations and sums stay float32. On two cores with AVX2 it ran SmolLM2's projections faster than oneDNN's float32 and
torch's packed int4 at every number of rows above 3, and as fast as the latter below.

FBGEMM computes rows in tiles whose heights depend on the number of rows, and its lowest tiles add in another order than
the rest. So rows are padded to a count without such tiles. `padding_rows` finds these counts once, by experiment. Then
every row has the same bits whatever its batch.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.quant.linear import SeparateLinear

_LARGEST = 65504.0
_TRIED = 512


class HalfLinear(SeparateLinear):
    """A weight rounded to float16, multiplied in float32; the result is cast to ``dtype``.

    Args:
        weight: [out_features, in_features] float32, within float16's range.
        bias: [out_features], or None.
        dtype: of the result.
        padding: the result of `padding_rows`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, padding: tuple[int, ...]) -> None:
        super().__init__()
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self._dtype = dtype
        self._padding = list(padding)
        self.out_features, self.in_features = weight.shape
        self.format = "float16"
        self.nbytes = weight.nbytes // 2

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        x = x.to(torch.float32)
        count = x.shape[0]
        missing = self._padding[count % len(self._padding)]
        if missing > 0:
            x = F.pad(x, [0, 0, 0, missing])
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._weight)
        if missing > 0:
            y = y[:count]
        return y.to(self._dtype)


def fits(weight: Tensor) -> bool:
    """Whether every weight is within float16's range."""
    least, greatest = torch.aminmax(weight)
    return bool(least >= -_LARGEST) and bool(greatest <= _LARGEST)


def rows_to_run(count: int) -> int:
    """The number of rows to pad a batch of ``count`` to, so that no product pads its own input."""
    padding = padding_rows()
    return count if padding is None else count + padding[count % len(padding)]


@functools.cache
def padding_rows() -> tuple[int, ...] | None:
    """The number of rows to add to ``count`` rows, at index ``count % length``.

    None without FBGEMM (CPUs other than x86), or where its results follow no such rule.
    """
    generator = torch.Generator().manual_seed(0)
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(torch.randn(48, 64, generator=generator), None)
    except RuntimeError:
        return None
    with torch.inference_mode():
        same = torch.randn(1, 64, generator=generator).expand(_TRIED, -1).contiguous()
        products = [torch.ops.quantized.linear_dynamic_fp16(same[:count], packed) for count in range(1, _TRIED + 1)]
    expected = products[-1][0]
    return _period([True] + [bool((product == expected).all()) for product in products])


def _period(good: list[bool]) -> tuple[int, ...] | None:
    """The padding of each count below the period of good counts; None where there is no period."""
    for period in range(1, len(good) // 2):
        if good[period:] == good[:-period]:
            ahead = good[:period] * 2
            return tuple(ahead.index(True, count) - count for count in range(period))
    return None
