"""Float16 weights with float32 activations on a CPU, through FBGEMM.

Half the memory traffic of float32, which is what a decode step waits for, at 11 significant bits: a bfloat16 weight keeps
all its bits (below 2^-14 it is rounded to a multiple of 2^-24), a dequantized one is off by at most 2^-11 of itself.
Activations and sums stay float32. On two cores with AVX2 it ran SmolLM2's projections faster than oneDNN's float32 and
than torch's packed int4 at every number of rows above 3, and as fast as the latter below.

FBGEMM computes rows in tiles whose heights depend on how many rows there are, and its lowest tiles add up in another
order than the rest. So rows are padded to a count that makes no such tile; which counts those are, `padded_rows` finds
out once, by trying. Then every row has the same bits whatever it is batched with.
"""

from __future__ import annotations

import bisect
import functools

import torch
import torch.nn.functional as F
from torch import Tensor

_LARGEST = 65504.0
_MOST_ROWS = 512


class HalfLinear(torch.nn.Module):
    """A weight rounded to float16, multiplied in float32; the result is cast to ``dtype``.

    Args:
        weight: [out_features, in_features] float32, within float16's range.
        bias: [out_features], or None.
        dtype: of the result.
        padded: what `padded_rows` returned.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, padded: tuple[int, ...]) -> None:
        super().__init__()
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self._dtype = dtype
        self._padded = list(padded)
        self.out_features, self.in_features = weight.shape
        self.format = "float16"
        self.nbytes = weight.nbytes // 2

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        x = x.to(torch.float32)
        most = len(self._padded) - 1
        if x.shape[0] <= most:
            return self._product(x).to(self._dtype)
        return torch.cat([self._product(part) for part in x.split(most)]).to(self._dtype)

    def _product(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        missing = self._padded[count] - count
        if missing > 0:
            x = F.pad(x, [0, 0, 0, missing])
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._weight)
        return y[:count] if missing > 0 else y


def fits(weight: Tensor) -> bool:
    """Whether every weight is within float16's range."""
    return bool(weight.abs().max() <= _LARGEST)


def rows_to_run(count: int) -> int:
    """How many rows a batch of ``count`` can be padded to so that no product pads its own input."""
    padded = padded_rows()
    if padded is None:
        return count
    whole, rest = divmod(count, len(padded) - 1)
    return whole * (len(padded) - 1) + padded[rest]


@functools.cache
def padded_rows() -> tuple[int, ...] | None:
    """How many rows FBGEMM should be given for each count from 0 on; the last is a good count itself.

    None where torch has no FBGEMM (CPUs other than x86), or where its results follow no such rule.
    """
    generator = torch.Generator().manual_seed(0)
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(torch.randn(48, 64, generator=generator), None)
    except RuntimeError:
        return None
    with torch.inference_mode():
        same = torch.randn(1, 64, generator=generator).expand(_MOST_ROWS, -1).contiguous()
        run = functools.partial(torch.ops.quantized.linear_dynamic_fp16, W_prepack=packed)
        expected = run(same)[0]
        good = [bool((run(same[:count]) == expected).all()) for count in range(1, _MOST_ROWS + 1)]
    counts = [count for count, is_good in enumerate(good, start=1) if is_good]
    if not counts or counts[0] > 16:
        return None
    return (0, *(counts[bisect.bisect_left(counts, count)] for count in range(1, counts[-1] + 1)))
