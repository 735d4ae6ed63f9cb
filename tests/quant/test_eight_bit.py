"""Eight-bit weights: scales, merged parts, and rejected tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from closeness import assert_sums_close
from torch import Tensor
from torch.nn.functional import linear, silu

from draftline import quant
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.scaled import GROUP
from draftline.quant.eight_bit import with_scales
from draftline.quant.scaled import ScaledLinear, mergeable, merged
from draftline.quant.scheme import Scheme
from draftline.quant.tensor import RawTensor, Scales

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stored(name: str, weight_format: str, n: int, k: int, seed: int = 0) -> RawTensor:
    """Eight-bit values as a file has them, without scales."""
    spread, dtype = (20.0, FP8) if weight_format == "F8_E4M3" else (40.0, torch.int8)
    values = (spread * random(n, k, seed=seed)).clamp(-127, 127)
    return RawTensor(name, weight_format, (n, k), values.to(dtype))


def scale_tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> RawTensor:
    scale = (0.5 + random(*shape, seed=seed).abs()) / 100
    return RawTensor(name, {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype], shape, scale.to(dtype))


def dense(name: str, n: int, k: int, seed: int = 0) -> RawTensor:
    return RawTensor(name, "F32", (n, k), 0.05 * random(n, k, seed=seed))


@pytest.mark.parametrize("weight_format", ["F8_E4M3", "I8"])
@pytest.mark.parametrize(
    ("rows", "columns", "shape"),
    [(128, 128, (3, 2)), (1, 0, (300, 1)), (0, 0, ()), (0, 0, (1,)), (1, 0, (300,))],
    ids=["blocks", "rows", "scalar", "one", "vector"],
)
def test_scales_and_ragged_last_blocks(rows: int, columns: int, shape: tuple[int, ...], weight_format: str) -> None:
    raw, scale = stored("w", weight_format, 300, 200), scale_tensor("s", *shape, dtype=torch.bfloat16)
    weight = quant.dequantize(with_scales(raw, scale, rows, columns))
    grid = scale.data.float().reshape(-(-300 // (rows or 300)), -1)
    for n, k in ((0, 0), (127, 127), (128, 128), (299, 199), (255, 130)):
        expected = raw.data[n, k].float() * grid[n // (rows or 300), k // (columns or 200)]
        assert weight[n, k] == expected


def test_types_survive_moves() -> None:
    raw = with_scales(stored("w", "F8_E4M3", 8, 32), scale_tensor("s", 8, 1), 1, 0)
    moved = raw.on(torch.device("meta"))
    assert moved.data.dtype == FP8
    assert moved.scales is not None
    assert (moved.scales.values.device.type, moved.scales.values.dtype) == ("meta", torch.float32)
    assert raw.on(CPU) is raw
    linear_ = ScaledLinear(merged([raw]), None)
    assert (linear_.format, linear_.nbytes) == ("fp8", 8 * 32 + 8 * 4)


@pytest.mark.parametrize(
    ("scale", "problem"),
    [
        (
            scale_tensor("w_scale", 2, 2),
            r"w_scale: has shape \[2, 2\], but w of shape \[300, 200\] needs scales \[3, 2\]",
        ),
        (scale_tensor("w_scale", 2, 3), r"w_scale: has shape \[2, 3\]"),
        (
            RawTensor("w_scale", "I8", (3, 2), torch.ones(3, 2, dtype=torch.int8)),
            "w_scale: is I8; the scales of w must be",
        ),
        (RawTensor("w_scale", "F32", (3, 2), torch.full((3, 2), -1.0)), "w_scale: a scale of w is negative"),
        (RawTensor("w_scale", "F32", (3, 2), torch.full((3, 2), torch.nan)), "w_scale: a scale of w is negative"),
    ],
    ids=["few", "transposed", "integers", "negative", "nan"],
)
def test_wrong_scales_are_refused_by_name(scale: RawTensor, problem: str) -> None:
    with pytest.raises(quant.UnsupportedFormatError, match=problem):
        with_scales(stored("w", "F8_E4M3", 300, 200), scale, 128, 128)


def test_missing_scales_are_refused_by_name() -> None:
    with pytest.raises(quant.UnsupportedFormatError, match=r"layers\.2\.up_proj\.weight: is I8 without scales"):
        quant.make_linear([stored("layers.2.up_proj.weight", "I8", 8, 32)], None, dtype=torch.float32, device=CPU)


LAYOUTS: dict[str, list[tuple[int, int, int]]] = {
    # Rows of the part, and rows and columns with one scale.
    "rows": [(48, 1, 256), (16, 1, 256)],
    "whole parts": [(48, 48, 256), (16, 16, 256), (16, 16, 256)],
    "row and whole": [(48, 1, 256), (16, 16, 256)],
    "blocks": [(256, 128, 128), (128, 128, 128)],
    "blocks that end early": [(192, 128, 128), (64, 128, 128), (72, 128, 128)],
}


@pytest.mark.parametrize("weight_format", ["F8_E4M3", "I8"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_merged_parts_keep_their_scales(layout: list[tuple[int, int, int]], weight_format: str) -> None:
    parts = []
    for seed, (n, rows, columns) in enumerate(layout):
        scale = scale_tensor("s", -(-n // rows), 256 // columns, seed=seed + 10)
        parts.append(with_scales(stored("w", weight_format, n, 256, seed), scale, rows, columns))
    assert mergeable(parts)
    assert torch.equal(merged(parts).dequantized(), torch.cat([quant.dequantize(part) for part in parts]))


def test_what_cannot_be_merged_runs_dequantized() -> None:
    blocks = with_scales(stored("a", "F8_E4M3", 128, 256), scale_tensor("s", 1, 2), 128, 128)
    rows = with_scales(stored("b", "F8_E4M3", 16, 256), scale_tensor("s", 16, 1), 1, 0)
    narrow = with_scales(stored("c", "F8_E4M3", 16, 40), scale_tensor("s", 16, 1), 1, 0)
    assert not mergeable([blocks, rows])
    assert not mergeable([blocks, dense("d", 16, 256)])
    assert not mergeable([narrow]), "its rows are no multiple of 16 bytes"
    made = quant.make_linear([blocks, rows], None, dtype=torch.float32, device=CPU)
    weight = torch.cat([quant.dequantize(blocks), quant.dequantize(rows)])
    x = random(3, 256, seed=5)
    assert_sums_close(made(x), linear(x.double(), weight.double()), x.square() @ weight.square().T, terms=256)


# Weights are rounded by at most 2^-4 (FP8's three bits) or half of 1/127 of their row's largest, independently: the errors
# of a product's terms add up like its terms' sizes do, in the root of squares. The mean is a good half of the most; some
# four times the terms' deviation is the largest of a row.
WEIGHT_ERRORS = {"fp8": 2**-5, "int8": 0.011}
# FP8 activations have as much again, from a scale for the whole token. Beside INT8 they have sixteen bits: next to nothing.
ERRORS = {"fp8": 2**-4.5, "int8": 0.011}


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("convert_to", quant.CONVERT)
def test_dense_weights_are_converted_within_the_format_s_error(convert_to: str) -> None:
    raw = dense("w", 96, 320)
    raw.data[5] = 0
    converted = quant.CONVERT[convert_to](raw, quant.dequantize(raw))
    weight = quant.dequantize(converted)
    assert converted.data.element_size() == 1
    assert converted.scales is not None
    assert not weight[5].any()
    assert relative(weight, raw.data) < WEIGHT_ERRORS[convert_to]


def test_the_best_of_several_fp8_scales_is_taken() -> None:
    weight = random(64, 256)
    naive = weight.abs().amax(1, keepdim=True) / 448
    rounded = (weight / naive).to(FP8).float() * naive
    converted = quant.dequantize(quant.CONVERT["fp8"](dense("w", 64, 256), weight))
    by_row = (converted - weight).norm(dim=1) / (rounded - weight).norm(dim=1)
    assert by_row.max() < 1 + 1e-5
    assert by_row.mean() < 0.97


@pytest.mark.parametrize("convert_to", quant.CONVERT)
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_scaled_linears_compute_the_dense_product(convert_to: str, has_bias: bool) -> None:
    """As a GPU runs them, by the reference operations."""
    raws = [dense("gate", 64, 320, 1), dense("up", 64, 320, 2)]
    parts = [quant.CONVERT[convert_to](raw, raw.data) for raw in raws]
    bias = random(128, seed=3) / 4 if has_bias else None
    made, ops = ScaledLinear(merged(parts), bias), ReferenceOps()
    x, norm, residual = random(5, 320, seed=4), random(320, seed=6), random(5, 128, seed=7)
    normed = ops.rms_norm(x, norm, 1e-5)
    weight = torch.cat([raw.data for raw in raws])
    expected = linear(x, weight, bias)
    of_norm = linear(normed, weight, bias)
    bound = ERRORS[convert_to]
    assert relative(made(x), expected) < bound
    assert relative(made.norm_linear(x, norm, 1e-5, ops), of_norm) < bound
    assert relative(made.linear_add(x, residual.clone(), ops) - residual, expected) < bound
    gate, up = of_norm.chunk(2, -1)
    assert relative(made.norm_swiglu(x, norm, 1e-5, ops), silu(gate) * up) < 2 * bound


def test_a_large_channel_costs_int8_s_others_nothing() -> None:
    """As a trained model's tokens have some: in eight bits the others would be rounded to zero."""
    x = random(5, 320, seed=4)
    x[:, 7] = 300
    raw = dense("w", 64, 320)
    raw.data[:, 7] = 0
    converted = quant.CONVERT["int8"](raw, raw.data)
    made = quant.make_linear([converted], None, dtype=torch.float32, device=CPU, scaled=True)
    assert relative(made.linear(x, ReferenceOps()), linear(x, quant.dequantize(converted))) < 5e-3


@pytest.mark.parametrize("convert_to", quant.CONVERT)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 2**-10), (torch.bfloat16, 2**-8)], ids=str
)
def test_a_cpu_loses_nothing_more(dtype: torch.dtype, bound: float, convert_to: str) -> None:
    """Than rounding weights, and in bfloat16 activations, to the dtype does."""
    raw = replace(dense("w", 96, 320), convert_to=convert_to)
    weight = quant.dequantize(quant.CONVERT[convert_to](raw, raw.data))
    made = quant.make_linear([raw], None, dtype=dtype, device=CPU)
    x = random(5, 320, seed=4).to(quant.compute_dtype(dtype, CPU))
    assert relative(made(x).float(), linear(x.float(), weight)) < bound


def test_int8_stays_packed_on_a_cpu_in_bfloat16() -> None:
    raw = replace(dense("w", 96, 320), convert_to="int8")
    made = quant.make_linear([raw], random(96), dtype=torch.bfloat16, device=CPU)
    assert (made.format, made.nbytes) == ("int8", 96 * 320 + 96 * 2)


@pytest.mark.parametrize("convert_to", quant.CONVERT)
def test_operations_that_run_them_get_eight_bit_weights_as_they_are(convert_to: str) -> None:
    parts = [replace(dense(name, 96, 320), convert_to=convert_to) for name in ("gate", "up")]
    for dtype in (torch.float32, torch.bfloat16):
        made = quant.make_linear(parts, random(192), dtype=dtype, device=CPU, scaled=True)
        assert (made.format, made.nbytes) == (convert_to, 2 * 96 * 320 + 2 * 96 * 4)
    converted = quant.CONVERT[convert_to](parts[0], parts[0].data)
    assert quant.make_head(converted, dtype=torch.float32, device=CPU, scaled=True).format == convert_to
    assert quant.make_head(converted, dtype=torch.float32, device=CPU).format != convert_to


@pytest.mark.parametrize("layout", ["rows", "whole parts", "row and whole"])
def test_int8_checkpoints_stay_packed_on_a_cpu_whatever_shares_a_scale(layout: str) -> None:
    parts = []
    for seed, (n, rows, columns) in enumerate(LAYOUTS[layout]):
        scale = scale_tensor("s", -(-n // rows), 256 // columns, seed=seed + 10)
        parts.append(with_scales(stored("w", "I8", n, 256, seed), scale, rows, columns))
    made = quant.make_linear(parts, None, dtype=torch.bfloat16, device=CPU)
    weight, x = torch.cat([quant.dequantize(part) for part in parts]), random(5, 256, seed=4).bfloat16()
    assert made.format == "int8"
    assert relative(made(x).float(), linear(x.float(), weight)) < 2**-8


@pytest.mark.parametrize("convert_to", quant.CONVERT)
def test_the_output_projection_is_converted_to_int8(convert_to: str) -> None:
    dense_head = dense("lm_head.weight", 96, 320)
    raw = replace(dense_head, convert_to=convert_to)
    int8 = quant.CONVERT["int8"](dense_head, dense_head.data)
    assert quant.make_head(raw, dtype=torch.float32, device=CPU, scaled=True).format == "int8"
    head = quant.make_head(raw, dtype=torch.float32, device=CPU)
    weight, x = quant.dequantize(int8).double(), random(2, 320, seed=4)
    assert_sums_close(head(x), linear(x.double(), weight), x.square() @ weight.float().square().T, terms=320)


QWEN3_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


def compressed(weights: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    group = {
        "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "int"},
        "output_activations": None,
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "symmetric": True, "dynamic": False, "group_size": None, "observer": "minmax"}
        | weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    } | fields


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        (QWEN3_FP8, Scheme("fp8-block", "F8_E4M3", ("weight_scale_inv",), 128, 128)),
        (
            {"quant_method": "fp8", "activation_scheme": "static"},
            Scheme("fp8", "F8_E4M3", ("weight_scale_inv", "weight_scale"), 0, 0),
        ),
        (
            compressed({"type": "int", "strategy": "channel"}, transform_config={}),
            Scheme("int8-channel", "I8", ("weight_scale",), 1, 0),
        ),
        (
            compressed({"type": "float", "strategy": "channel"}, format="float-quantized"),
            Scheme("fp8-channel", "F8_E4M3", ("weight_scale",), 1, 0),
        ),
        (
            compressed({"type": "float", "strategy": "tensor"}, format="naive-quantized"),
            Scheme("fp8-tensor", "F8_E4M3", ("weight_scale",), 0, 0),
        ),
        (
            compressed({"type": "float", "strategy": "block", "block_structure": [128, 128]}, format="float-quantized"),
            Scheme("fp8-block", "F8_E4M3", ("weight_scale",), 128, 128),
        ),
    ],
    ids=["fp8-block", "fp8", "int8-channel", "fp8-channel", "fp8-tensor", "ct-fp8-block"],
)
def test_schemes_are_recognised(config: dict[str, Any], scheme: Scheme) -> None:
    assert quant.scheme_of(config) == scheme
    names = tuple(f"model.layers.0.mlp.up_proj.{scale}" for scale in scheme.scales)
    assert scheme.scale_names("model.layers.0.mlp.up_proj.weight") == names


INT8 = {"type": "int", "strategy": "channel"}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"quant_method": "gptq"},
            r"quantization_config\.quant_method: 'gptq' is not supported; compressed-tensors, fp8 are",
        ),
        (QWEN3_FP8 | {"weight_block_size": [128, 64]}, r"weight_block_size: \[128, 64\] is not supported"),
        (QWEN3_FP8 | {"fmt": "e5m2"}, r"quantization_config\.fmt: 'e5m2' is not supported; 'e4m3' is"),
        (compressed(INT8 | {"num_bits": 4}), r"config_groups\.group_0\.weights\.num_bits: 4 is not supported; 8 is"),
        (compressed(INT8 | {"symmetric": False}), r"weights\.symmetric: False is not supported; True is"),
        (compressed(INT8 | {"strategy": "group"}), r"weights\.strategy: 'group' is not supported; 'tensor' and"),
        (compressed(INT8, format="pack-quantized"), r"quantization_config\.format: 'pack-quantized'"),
        (compressed(INT8, sparsity_config={"format": "sparse-bitmask"}), r"sparsity_config\.format: 'sparse-bitmask'"),
        (
            compressed(INT8, transform_config={"config_groups": {"R3": {}}}),
            r"quantization_config\.transform_config: \{",
        ),
        (compressed(INT8, config_groups={}), r"config_groups: missing"),
        (compressed(INT8, config_groups={"group_0": {"weights": None}}), r"config_groups\.group_0\.weights: missing"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:24],
)
def test_what_is_not_done_is_refused_by_field(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(quant.UnsupportedFormatError, match=problem):
        quant.scheme_of(config)


def test_groups_that_differ_are_refused() -> None:
    groups = compressed(INT8)["config_groups"] | {
        "group_1": compressed({"type": "float", "strategy": "channel"})["config_groups"]["group_0"]
    }
    with pytest.raises(quant.UnsupportedFormatError, match=r"config_groups\.group_1: differs from group_0"):
        quant.scheme_of(compressed(INT8, config_groups=groups))


def test_scales_of_a_group_have_the_activations_size() -> None:
    assert GROUP == 128
    assert Scales(torch.ones(1, 2), 128, GROUP).columns == 128
