"""GGML's Q4_1 and Q4_0: blocks of 32 four-bit weights, ``w = d q + m`` (Q4_0: ``m = -8 d``).

A Q4_1 block is 20 bytes: ``d`` and ``m`` as float16, then 16 bytes of which byte i holds weight i in its low and weight
i + 16 in its high nibble. Q4_0 is the same in 18 bytes, without ``m``.

torch's int4 kernel for CPUs computes ``w = (q - 8) scale + zero`` for groups of 32 with bfloat16 activations, scales
and zeros, and accumulates in float32. So a block runs as stored, with ``scale = d`` and ``zero = m + 8 d``. The only
loss is the rounding of the two from float16's 11 significant bits to bfloat16's 8: a relative error of at most 2^-9
each, as rounding the dequantized weights to bfloat16 would give. Float16 activations and scales would avoid it, but
took 1.8 ms where bfloat16 took 0.24. Every row has the same bits at every row count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftline.quant.linear import SeparateLinear
from draftline.quant.tensor import RawTensor

_BLOCK = 32
_Q4_0_BYTES, _Q4_1_BYTES = 18, 20


def _split_q4_1(raw: RawTensor) -> tuple[Tensor, Tensor, Tensor]:
    """Packed weights [N, K / 32, 16] uint8, and float32 ``d`` and ``m`` [N, K / 32, 1]."""
    blocks = raw.data.reshape(raw.shape[0], -1, _Q4_1_BYTES)
    d, m = blocks[..., :4].contiguous().view(torch.float16).float().split(1, dim=-1)
    return blocks[..., 4:], d, m


def _split_q4_0(raw: RawTensor) -> tuple[Tensor, Tensor, Tensor]:
    blocks = raw.data.reshape(raw.shape[0], -1, _Q4_0_BYTES)
    d = blocks[..., :2].contiguous().view(torch.float16).float()
    return blocks[..., 2:], d, -8 * d


def _nibbles(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights [N, K / 32, 32]."""
    weights = torch.empty((*packed.shape[:-1], _BLOCK), dtype=dtype, device=packed.device)
    weights[..., : _BLOCK // 2] = packed & 15
    weights[..., _BLOCK // 2 :] = packed >> 4
    return weights


_SPLIT = {"Q4_0": _split_q4_0, "Q4_1": _split_q4_1}


def dequantize_q4(raw: RawTensor) -> Tensor:
    """A Q4_0 or Q4_1 tensor as float32, of ``raw.shape``."""
    packed, d, m = _SPLIT[raw.format](raw)
    weights = _nibbles(packed, torch.float32)
    return torch.addcmul(m, weights, d, out=weights).reshape(raw.shape)


class Int4Linear(SeparateLinear):
    """Q4_0 and Q4_1 weights, still packed, on a CPU. Activations must be bfloat16."""

    def __init__(self, parts: Sequence[RawTensor], bias: Tensor | None) -> None:
        super().__init__()
        split = [_SPLIT[part.format](part) for part in parts]
        packed, d, m = (torch.cat(tensors) for tensors in zip(*split, strict=True))
        q = _nibbles(packed, torch.int32).flatten(1)
        self.out_features, self.in_features = q.shape
        self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        scales_and_zeros = torch.cat((d, m + 8 * d), dim=-1).transpose(0, 1)
        self._scales_and_zeros = scales_and_zeros.to(torch.bfloat16).contiguous()
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self.format = "int4"
        self.nbytes = self._weight.nbytes + self._scales_and_zeros.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features], both bfloat16."""
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._weight, 32, self._scales_and_zeros)
        bias = self._bias
        return y if bias is None else y.add_(bias)
