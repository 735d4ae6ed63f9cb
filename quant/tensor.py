"""``RawTensor``: a weight as its file stores it, before a format decides how to run it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of eight-bit values: ``data[n, k] * values[n // rows, k // columns]``.

    Attributes:
        values: [ceil(N / rows), ceil(K / columns)] float32.
        rows: weight rows that share a scale.
        columns: weight columns that share a scale.
    """

    values: Tensor
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor of a checkpoint.

    Attributes:
        name: its HF name (``model.layers.0.mlp.gate_proj.weight``), for error messages.
        format: ``F32``, ``F16``, ``BF16``; ``F8_E4M3`` or ``I8``; or a GGUF block format: ``Q4_0``, ``Q8_0``, ``Q6_K``,
            …
        shape: the logical shape, as HF has it: [out_features, in_features] for a linear.
        data: a dense tensor of that shape, or a GGUF format's raw blocks as uint8 [rows, bytes a row].
        scales: of F8_E4M3 and I8, else None.
        convert_to: the format to convert a projection to before it runs (``quant.CONVERT``); None: its own.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: Tensor
    scales: Scales | None = None
    convert_to: str | None = None

    def with_rows(self, rows: int) -> RawTensor:
        """The first ``rows`` rows of a matrix. Those that it lacks are zeros."""
        missing = rows - self.shape[0]
        if missing == 0:
            return self
        scales = self.scales
        if scales is not None:
            scales = replace(scales, values=_with_rows(scales.values, -(-rows // scales.rows)))
        return replace(self, shape=(rows, *self.shape[1:]), data=_with_rows(self.data, rows), scales=scales)

    def on(self, device: torch.device) -> RawTensor:
        """The same tensor on another device, still as its file stores it."""
        if self.data.device == device:
            return self
        scales = self.scales
        if scales is not None:
            scales = replace(scales, values=scales.values.to(device))
        return replace(self, data=self.data.to(device), scales=scales)


def _with_rows(data: Tensor, rows: int) -> Tensor:
    missing = max(rows - data.shape[0], 0)
    return data[:rows] if missing == 0 else torch.cat((data, data.new_zeros((missing, *data.shape[1:]))))
