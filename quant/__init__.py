"""Weight formats: how a checkpoint's tensors become the model's projections, tables and vectors.

A format is a file here and a line in ``DEQUANTIZE``; one that can run without being dequantized has a line in
``make_linear`` too. A checkpoint's quantization scheme is a line in ``SCHEMES``, and a format that dense weights can be
converted to on loading is one in ``CONVERT``. A weight's format, the device and the dtype select its implementation,
never the number of rows: batching must not change an output.

On a GPU eight-bit weights with scales (FP8, INT8) run as stored. Activations are quantized to FP8, or for INT8 weights
to sixteen bits. Any other weight is dequantized to the dtype, and activations have it too. On a CPU the dtype decides
the precision:

- float32: everything, to the last bit of the format. Activations are float32.
- float16: weights are rounded to float16; activations, sums and the cache are float32, since CPUs compute in nothing
  narrower. The fastest.
- bfloat16: four-bit weights, and INT8 with a scale a row, stay packed; others are rounded to float16; activations and
  the cache are bfloat16. The smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftline.quant import half
from draftline.quant.compressed_tensors import compressed_tensors_scheme
from draftline.quant.dense import DenseLinear, dequantize_dense
from draftline.quant.eight_bit import NAMES, dequantize_scaled
from draftline.quant.errors import UnsupportedFormatError as UnsupportedFormatError
from draftline.quant.fp8 import to_fp8
from draftline.quant.fp8_block import fp8_scheme
from draftline.quant.ggml import FORMATS as GGML_FORMATS
from draftline.quant.ggml import dequantize_ggml
from draftline.quant.ggml_q4_1 import Int4Linear, dequantize_q4
from draftline.quant.ggml_q8_0 import dequantize_q8_0
from draftline.quant.half import HalfLinear, fits, padding_rows
from draftline.quant.int8 import Int8Linear, packable, to_int8
from draftline.quant.linear import Linear
from draftline.quant.prepacked import PrepackedLinear
from draftline.quant.scaled import ScaledLinear, mergeable, merged
from draftline.quant.scheme import Scheme, refused
from draftline.quant.tensor import RawTensor

DEQUANTIZE: dict[str, Callable[[RawTensor], Tensor]] = {
    "F32": dequantize_dense,
    "F16": dequantize_dense,
    "BF16": dequantize_dense,
    "F8_E4M3": dequantize_scaled,
    "I8": dequantize_scaled,
    "Q4_0": dequantize_q4,
    "Q4_1": dequantize_q4,
    "Q8_0": dequantize_q8_0,
    **dict.fromkeys(GGML_FORMATS, dequantize_ggml),
}
"""By the format of a stored tensor."""

SCHEMES: dict[str, Callable[[Mapping[str, object]], Scheme]] = {
    "compressed-tensors": compressed_tensors_scheme,
    "fp8": fp8_scheme,
}
"""By ``quant_method`` of a checkpoint's ``quantization_config``."""

CONVERT: dict[str, Callable[[RawTensor, Tensor], RawTensor]] = {"fp8": to_fp8, "int8": to_int8}
"""Conversions of weights, by the name that the format has in `NAMES`: from the tensor and its values."""

_HEAD_FORMAT = "int8"
"""What an output projection is converted to, whatever the others are: the smallest differences between logits decide
tokens, and INT8 has much smaller errors, with activations of sixteen bits."""

_FP8_CAPABILITY = (8, 9)


def scheme_of(config: Mapping[str, object]) -> Scheme:
    """The scheme of a checkpoint's ``quantization_config``.

    Raises:
        UnsupportedFormatError: the scheme is not supported; the message names the field.
    """
    method = config.get("quant_method")
    make = SCHEMES.get(str(method))
    if make is None:
        raise refused("quant_method", f"{method!r} is not supported; {', '.join(SCHEMES)} are")
    return make(config)


def dequantize(raw: RawTensor) -> Tensor:
    """A tensor of any format as float32, of ``raw.shape``.

    Raises:
        UnsupportedFormatError: the format is not known.
    """
    read = DEQUANTIZE.get(raw.format)
    if read is None:
        raise UnsupportedFormatError(f"{raw.name}: format {raw.format} is not supported; {', '.join(DEQUANTIZE)} are")
    return read(raw)


def unpacked(raw: RawTensor) -> RawTensor:
    """A tensor in a GGUF block format as a float32 one; any other as it is.

    Raises:
        UnsupportedFormatError: the format is not known.
    """
    return replace(raw, format="F32", data=dequantize(raw)) if raw.data.dtype == torch.uint8 else raw


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of activations and cache for weights in ``dtype``."""
    return torch.float32 if device.type == "cpu" and dtype == torch.float16 else dtype


def preferred_cpu_dtype(weight_format: str) -> torch.dtype:
    """The fastest dtype on a CPU for weights of this format, without a significant loss."""
    if weight_format == "F32":
        return torch.float32
    return torch.float16 if padding_rows() is not None else torch.bfloat16


def rows_to_run(count: int, dtype: torch.dtype, device: torch.device) -> int:
    """The number of rows to pad a batch of ``count`` to, once, so that no projection pads its own input."""
    return half.rows_to_run(count) if device.type == "cpu" and dtype == torch.float16 else count


def make_linear(
    parts: Sequence[RawTensor],
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    scaled: bool = False,
) -> Linear:
    """One projection from ``parts``, merged along the output dimension. Inputs and outputs are ``compute_dtype``.

    Args:
        parts: weights [out_features, in_features] with the same in_features (queries, keys and values; gate and up).
        bias: [sum of out_features], or None.
        dtype: of the weights.
        device: of the projection.
        scaled: where possible, run eight-bit weights as stored, with quantized activations; see `Ops.runs_scaled`.

    Raises:
        UnsupportedFormatError: a part's format is not known, or the device is too old for it.
    """
    packed = device.type == "cpu" and dtype == torch.bfloat16
    if packed and all(part.format in ("Q4_0", "Q4_1") and part.convert_to is None for part in parts):
        return Int4Linear(parts, bias)
    parts = [_converted(part.on(device)) for part in parts]
    if scaled and mergeable(parts):
        return _scaled(parts, None if bias is None else bias.to(device=device, dtype=dtype), device)
    if packed and packable(parts):
        return Int8Linear(merged(parts), bias)
    return _dense(_dequantized(parts), bias, dtype, compute_dtype(dtype, device), device)


def make_head(raw: RawTensor, *, dtype: torch.dtype, device: torch.device, scaled: bool = False) -> Linear:
    """The output projection. On a CPU its logits are float32 whatever ``dtype`` is; elsewhere they are ``dtype``.

    Where weights are converted, it is converted to INT8, unless it is stored in their format. See `make_linear` for
    arguments.
    """
    raw = raw.on(device)
    if raw.convert_to not in (None, NAMES.get(raw.data.dtype)):
        raw = _converted(replace(raw, convert_to=_HEAD_FORMAT))
    if scaled and mergeable([raw]):
        return _scaled([raw], None, device)
    return _dense(dequantize(raw), None, dtype, torch.float32, device)


def make_table(raw: RawTensor, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An embedding table, or a norm's weights, as a plain tensor."""
    return dequantize(raw.on(device)).to(dtype)


def _converted(raw: RawTensor) -> RawTensor:
    if raw.convert_to is None or raw.convert_to == NAMES.get(raw.data.dtype):
        return raw
    return CONVERT[raw.convert_to](raw, dequantize(raw))


def _dequantized(parts: Sequence[RawTensor]) -> Tensor:
    """The parts as one float32 weight.

    Where they have one format, they are merged before: stored weights are smaller.
    """
    first = parts[0]
    if len(parts) > 1 and all(part.format == first.format and part.scales is None for part in parts):
        rows = sum(part.shape[0] for part in parts)
        parts = [replace(first, shape=(rows, first.shape[1]), data=torch.cat([part.data for part in parts]))]
    weights = [dequantize(part) for part in parts]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _scaled(parts: Sequence[RawTensor], bias: Tensor | None, device: torch.device) -> ScaledLinear:
    fp8 = parts[0].format == "F8_E4M3"
    if fp8 and device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise UnsupportedFormatError(
            f"{parts[0].name}: FP8 needs a GPU of compute capability 8.9, and {device} is older; quantization 'int8' runs there"
        )
    return ScaledLinear(merged(parts), bias)


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
