"""``RawTensor``: a weight as its file stores it, before a format decides how to run it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor of a checkpoint.

    Attributes:
        name: its HF name (``model.layers.0.mlp.gate_proj.weight``), for error messages.
        format: ``F32``, ``F16``, ``BF16``, or a GGUF block format: ``Q4_0``, ``Q4_1``, ``Q8_0``, ``Q6_K``, …
        shape: the logical shape, as HF has it: [out_features, in_features] for a linear.
        data: a dense tensor of that shape for F32/F16/BF16; else the raw blocks as uint8 [rows, bytes a row].
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: Tensor

    def on(self, device: torch.device) -> RawTensor:
        """The same tensor on another device, still as its file stores it."""
        return self if self.data.device == device else replace(self, data=self.data.to(device))
