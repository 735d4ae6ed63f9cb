"""Weight formats: how a checkpoint's tensors become the model's projections, tables and vectors.

A format is a file here and a line in ``DEQUANTIZE``; one that can run without being dequantized has a line in
``make_linear`` too. What runs a weight depends on its format, the device and the dtype, never on the number of rows:
batching must not change an output.

On a GPU a weight is dequantized to the dtype, and activations have it too. On a CPU the dtype says how much is kept:

- float32: everything, to the last bit of the format. Activations are float32.
- float16: weights are rounded to float16; activations, sums and the cache are float32, since CPUs compute in nothing
  narrower. The fastest.
- bfloat16: four-bit weights stay packed, others are rounded to float16; activations and the cache are bfloat16. The
  smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftline.quant import half
from draftline.quant.dense import DenseLinear, dequantize_dense
from draftline.quant.ggml import FORMATS as GGML_FORMATS
from draftline.quant.ggml import dequantize_ggml
from draftline.quant.ggml_q4_1 import Int4Linear, dequantize_q4
from draftline.quant.ggml_q8_0 import dequantize_q8_0
from draftline.quant.half import HalfLinear, fits, padding_rows
from draftline.quant.linear import Linear
from draftline.quant.prepacked import PrepackedLinear
from draftline.quant.tensor import RawTensor

DEQUANTIZE: dict[str, Callable[[RawTensor], Tensor]] = {
    "F32": dequantize_dense,
    "F16": dequantize_dense,
    "BF16": dequantize_dense,
    "Q4_0": dequantize_q4,
    "Q4_1": dequantize_q4,
    "Q8_0": dequantize_q8_0,
    **dict.fromkeys(GGML_FORMATS, dequantize_ggml),
}


class UnsupportedFormatError(ValueError):
    """A weight in a format that nothing here reads. The message names the tensor and the format."""


def dequantize(raw: RawTensor) -> Tensor:
    """A tensor of any format as float32, of ``raw.shape``.

    Raises:
        UnsupportedFormatError: the format is not known.
    """
    read = DEQUANTIZE.get(raw.format)
    if read is None:
        raise UnsupportedFormatError(f"{raw.name}: format {raw.format} is not supported; {', '.join(DEQUANTIZE)} are")
    return read(raw)


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of activations and cache where weights are kept in ``dtype``."""
    return torch.float32 if device.type == "cpu" and dtype == torch.float16 else dtype


def preferred_cpu_dtype(weight_format: str) -> torch.dtype:
    """The dtype that a CPU is fastest in with weights of this format, at no loss worth naming."""
    if weight_format == "F32":
        return torch.float32
    return torch.float16 if padding_rows() is not None else torch.bfloat16


def rows_to_run(count: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many rows a batch of ``count`` should be padded to, once, so that no projection has to pad its own input."""
    return half.rows_to_run(count) if device.type == "cpu" and dtype == torch.float16 else count


def make_linear(parts: Sequence[RawTensor], bias: Tensor | None, *, dtype: torch.dtype, device: torch.device) -> Linear:
    """One projection from ``parts``, merged along the output dimension. Inputs and outputs are ``compute_dtype``.

    Args:
        parts: weights [out_features, in_features] with the same in_features (queries, keys and values; gate and up).
        bias: [sum of out_features], or None.
        dtype: what weights are kept in.
        device: where it runs.

    Raises:
        UnsupportedFormatError: a part's format is not known.
    """
    if device.type == "cpu" and dtype == torch.bfloat16 and all(part.format in ("Q4_0", "Q4_1") for part in parts):
        return Int4Linear(parts, bias)
    weight = torch.cat([dequantize(part.on(device)) for part in parts])
    return _dense(weight, bias, dtype, compute_dtype(dtype, device), device)


def make_head(raw: RawTensor, *, dtype: torch.dtype, device: torch.device) -> Linear:
    """The output projection. On a CPU its logits are float32 whatever ``dtype`` is; elsewhere they are ``dtype``."""
    return _dense(dequantize(raw.on(device)), None, dtype, torch.float32, device)


def make_table(raw: RawTensor, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An embedding table, or a norm's weights, as a plain tensor."""
    return dequantize(raw.on(device)).to(dtype)


def _dense(
    weight: Tensor, bias: Tensor | None, dtype: torch.dtype, cpu_output: torch.dtype, device: torch.device
) -> Linear:
    if device.type != "cpu":
        bias = None if bias is None else bias.to(device=device, dtype=dtype)
        return DenseLinear(weight.to(device=device, dtype=dtype), bias)
    padding = None if dtype == torch.float32 else padding_rows()
    if padding is not None and fits(weight):
        return HalfLinear(weight, bias, cpu_output, padding)
    if torch.backends.mkldnn.is_available():
        return PrepackedLinear(weight, bias, cpu_output)
    dtype = compute_dtype(dtype, device)
    return DenseLinear(weight.to(dtype), None if bias is None else bias.to(dtype))
