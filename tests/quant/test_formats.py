"""Weight formats: what a file's bytes mean, and which kernel runs them."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from torch import Tensor

from draftline import quant
from draftline.quant.tensor import RawTensor

CPU = torch.device("cpu")


def random_weight(rows: int, columns: int, seed: int = 0) -> Tensor:
    return 0.05 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def raw(weight: Tensor, weight_format: str, name: str = "w") -> RawTensor:
    dense = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    if weight_format in dense:
        return RawTensor(name, weight_format, tuple(weight.shape), weight.to(dense[weight_format]))
    blocks = gguf_quantize(weight.numpy(), GGMLQuantizationType[weight_format])
    return RawTensor(name, weight_format, tuple(weight.shape), torch.from_numpy(blocks))


@pytest.mark.parametrize("weight_format", ["F32", "F16", "BF16"])
def test_dense_tensors_keep_their_values(weight_format: str) -> None:
    tensor = raw(random_weight(6, 64), weight_format)
    assert torch.equal(quant.dequantize(tensor), tensor.data.float())


@pytest.mark.parametrize("weight_format", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1"])
def test_ggml_blocks_mean_what_gguf_says(weight_format: str) -> None:
    tensor = raw(random_weight(7, 96), weight_format)
    expected = gguf_dequantize(tensor.data.numpy(), GGMLQuantizationType[weight_format])
    torch.testing.assert_close(quant.dequantize(tensor), torch.from_numpy(expected), rtol=1e-6, atol=1e-8)


def test_q6_k_blocks() -> None:
    generator = torch.Generator().manual_seed(1)
    block = torch.randint(0, 256, (1, 210), dtype=torch.uint8, generator=generator)
    block[0, 208:210] = torch.tensor([0.5], dtype=torch.float16).view(torch.uint8)
    weights = quant.dequantize(RawTensor("w", "Q6_K", (1, 256), block))
    low, high, scales = block[0, :128], block[0, 128:192], block[0, 192:208].view(torch.int8)
    # Weight 37 is in the second quarter of the first half: low nibble of byte 37, bits 2 and 3 of high byte 5, scale 2.
    q = (int(low[37]) & 15) | ((int(high[5]) >> 2 & 3) << 4)
    assert weights[0, 37].item() == pytest.approx(0.5 * int(scales[2]) * (q - 32))


def test_an_unknown_format_is_named() -> None:
    tensor = RawTensor("model.layers.3.mlp.up_proj.weight", "Q1_X", (4, 32), torch.zeros(4, 9, dtype=torch.uint8))
    with pytest.raises(quant.UnsupportedFormatError, match=r"model\.layers\.3\.mlp\.up_proj\.weight: format Q1_X"):
        quant.make_linear([tensor], None, dtype=torch.float32, device=CPU)


# Of a result's scale: the root of the sum of its products' squares, as their errors are independent, and its size. Each
# weight is rounded by at most 2^-11 (float16) or, through its block's scale and zero, 2^-9 and 2^-9 (int4) of itself.
ERRORS = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "formats",
    [["F32"], ["F16"], ["BF16"], ["Q4_1"], ["Q4_0", "Q4_1"], ["Q8_0"], ["Q4_1", "Q8_0", "F16"], ["Q5_1"]],
    ids="+".join,
)
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_linears_compute_the_dequantized_product(dtype: torch.dtype, formats: list[str], has_bias: bool) -> None:
    parts = [raw(random_weight(32 * (i + 1), 160, i), name) for i, name in enumerate(formats)]
    weight = torch.cat([quant.dequantize(part) for part in parts])
    bias = torch.randn(weight.shape[0], generator=torch.Generator().manual_seed(9)) if has_bias else None
    linear = quant.make_linear(parts, bias, dtype=dtype, device=CPU)
    x = torch.randn(5, 160, generator=torch.Generator().manual_seed(8)).to(quant.compute_dtype(dtype, CPU))
    y = linear(x)
    assert y.dtype == x.dtype
    assert (linear.in_features, linear.out_features) == (160, weight.shape[0])
    product = x.double() @ weight.double().T
    added = torch.zeros(weight.shape[0]).double() if bias is None else bias.double()
    scale = (x.double().square() @ weight.double().square().T).sqrt() + product.abs() + added.abs()
    assert ((y.double() - product - added).abs() / scale).max() < ERRORS[dtype]


@pytest.mark.parametrize(
    ("weight_format", "dtype", "kept"),
    [
        ("Q4_1", torch.bfloat16, "int4"),
        ("Q4_1", torch.float32, "float32"),
        ("Q8_0", torch.float32, "float32"),
    ],
    ids=str,
)
def test_what_weights_are_kept_in(weight_format: str, dtype: torch.dtype, kept: str) -> None:
    linear = quant.make_linear([raw(random_weight(64, 64), weight_format)], None, dtype=dtype, device=CPU)
    assert linear.format == kept
    bits = {"int4": 5, "float32": 32}[kept]  # four bits a weight, and 32 bits a block of 32
    assert linear.nbytes == 64 * 64 * bits // 8


def test_the_head_gives_float32_logits_in_every_dtype() -> None:
    tensor = raw(random_weight(96, 64), "Q8_0")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        head = quant.make_head(tensor, dtype=dtype, device=CPU)
        logits = head(torch.ones(2, 64, dtype=quant.compute_dtype(dtype, CPU)))
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits[0], quant.dequantize(tensor).sum(1), atol=1e-3, rtol=1e-3)
        assert head(torch.ones(0, 64)).shape == (0, 96)


@pytest.mark.parametrize("weight_format", ["F32", "BF16", "Q4_1", "Q8_0"])
def test_the_preferred_dtype_loses_nothing_of_dense_weights(weight_format: str) -> None:
    dtype = quant.preferred_cpu_dtype(weight_format)
    assert (dtype == torch.float32) == (weight_format == "F32")
