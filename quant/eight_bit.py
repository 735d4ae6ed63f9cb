"""Eight-bit weights with scales: the tensors F8_E4M3 and I8 of a safetensors file, and dense ones converted to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from draftline.kernels.scaled import scaled_up
from draftline.quant.errors import UnsupportedFormatError
from draftline.quant.tensor import RawTensor, Scales

NAMES = {torch.float8_e4m3fn: "fp8", torch.int8: "int8"}
"""The names of eight-bit types in options and reports."""

_ROWS_AT_ONCE = 4096


def by_rows(convert: Callable[[Tensor], tuple[Tensor, Tensor]], weight: Tensor) -> tuple[Tensor, Tensor]:
    """The values [N, K] and scales [N, 1] of a weight, some rows at a time, since a start has no larger tensor."""
    parts = [convert(rows) for rows in weight.split(_ROWS_AT_ONCE)]
    values, scale = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return values, scale


def dequantize_scaled(raw: RawTensor) -> Tensor:
    """An F8_E4M3 or I8 tensor as float32, of ``raw.shape``.

    Raises:
        UnsupportedFormatError: it has no scales.
    """
    if raw.scales is None:
        raise UnsupportedFormatError(
            f"{raw.name}: is {raw.format} without scales; the checkpoint's quantization_config does not say where they are"
        )
    return scaled_up(raw.data, raw.scales.values, raw.scales.rows, raw.scales.columns)


def with_scales(raw: RawTensor, scale: RawTensor, rows: int, columns: int) -> RawTensor:
    """Combine and check a checkpoint's eight-bit weight and the tensor of its scales.

    Args:
        raw: the weight, [N, K].
        scale: its scales, [ceil(N / rows), ceil(K / columns)] in any floating type; one for all may have any shape.
        rows: weight rows that share a scale; 0 for all.
        columns: weight columns that share a scale; 0 for all.

    Raises:
        UnsupportedFormatError: shape, type or values do not fit; the message names both tensors.
    """
    n, k = raw.shape
    rows, columns = rows or n, columns or k
    wanted = (-(-n // rows), -(-k // columns))
    if not scale.data.is_floating_point():
        raise UnsupportedFormatError(
            f"{scale.name}: is {scale.format}; the scales of {raw.name} must be floating point"
        )
    if scale.data.numel() != wanted[0] * wanted[1] or (
        wanted != (1, 1) and _squeezed(scale.shape) != _squeezed(wanted)
    ):
        raise UnsupportedFormatError(
            f"{scale.name}: has shape {list(scale.shape)}, but {raw.name} of shape {list(raw.shape)} needs scales "
            f"{list(wanted)}, one for {rows} rows and {columns} columns"
        )
    values = scale.data.to(torch.float32).reshape(wanted).contiguous()
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise UnsupportedFormatError(f"{scale.name}: a scale of {raw.name} is negative, infinite or no number")
    return replace(raw, scales=Scales(values, rows, columns))


def _squeezed(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]
