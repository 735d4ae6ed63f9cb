"""Quantized HF folders, written as real ones are: they give the model of their dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftline import LLM, SamplingParams, quant
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.scaled import scaled_up
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model, weight_shapes
from draftline.models.loader import open_checkpoint
from draftline.models.weights import Weights

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 144,
    "intermediate_size": 208,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "max_position_embeddings": 64,
}


def _compressed(kind: str, strategy: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


# The configuration, the type, the scale's name, and rows and columns with one scale (0: all).
KINDS: dict[str, tuple[dict[str, Any], torch.dtype, str, int, int]] = {
    "fp8-block": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
        torch.float8_e4m3fn,
        "weight_scale_inv",
        128,
        128,
    ),
    "fp8-whole": ({"quant_method": "fp8"}, torch.float8_e4m3fn, "weight_scale_inv", 0, 0),
    "fp8-tensor": (_compressed("float", "tensor"), torch.float8_e4m3fn, "weight_scale", 0, 0),
    "fp8-channel": (_compressed("float", "channel"), torch.float8_e4m3fn, "weight_scale", 1, 0),
    "int8-channel": (_compressed("int", "channel"), torch.int8, "weight_scale", 1, 0),
}


def write(folder: Path, kind: str, change: Callable[[dict[str, Tensor]], None] | None = None) -> dict[str, Tensor]:
    """A quantized folder; returns the weights that it stands for."""
    quantization, dtype, scale_suffix, rows, columns = KINDS[kind]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes = weight_shapes(open_checkpoint(str(folder), load_format="dummy").config)
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        weight = 0.1 * torch.randn(shape, generator=generator)
        if not name.endswith("_proj.weight"):
            tensors[name] = (1 + weight if len(shape) == 1 else weight).to(torch.bfloat16)
            meant[name] = tensors[name].float()
            continue
        n, k = shape
        grid = (-(-n // (rows or n)), -(-k // (columns or k)))
        scale = 0.001 * (0.5 + torch.rand(grid, generator=generator))
        tensors[name] = (weight * 500).clamp(-127, 127).to(dtype)
        shown = scale.reshape(()) if not rows else scale
        tensors[name.removesuffix("weight") + scale_suffix] = shown.contiguous()
        meant[name] = scaled_up(tensors[name], scale, rows or n, columns or k)
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    return meant


def write_dense(folder: Path, weights: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_model_of_its_dequantized_weights(kind: str, tmp_path: Path) -> None:
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    quantized.mkdir()
    plain.mkdir()
    write_dense(plain, write(quantized, kind))
    outputs = []
    for folder in (quantized, plain):
        checkpoint = open_checkpoint(str(folder))
        model = build_model(checkpoint, checkpoint.config, ReferenceOps(), torch.float32, CPU)
        outputs.append(logits(model))
    assert outputs[0].std() > 0.01
    assert torch.equal(*outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_operations_that_run_eight_bits_run_it_as_it_is(kind: str, tmp_path: Path) -> None:
    """A GPU's do; here their reference. What they lose is what rounding activations loses: of INT8's nothing."""
    write(tmp_path, kind)
    outputs = []
    for scaled in (True, False):
        ops = ReferenceOps()
        ops.scripted, ops.runs_scaled = False, scaled
        checkpoint = open_checkpoint(str(tmp_path))
        model = build_model(checkpoint, checkpoint.config, ops, torch.float32, CPU)
        assert (model.quantization == kind.partition("-")[0]) == scaled
        outputs.append(logits(model))
    error = float((outputs[0] - outputs[1]).norm() / outputs[1].norm())
    assert 0 < error < (1e-3 if kind.startswith("int8") else 0.1)


def logits(model: Any) -> Tensor:
    from draftline.kernels.batch import Batch, KVCache

    config = model.config
    cache = KVCache.allocate(
        config.num_layers, 1, 16, config.num_kv_heads, config.head_dim, dtype=model.cache_dtype, device=CPU
    )
    steps = torch.arange(9)
    starts, contexts = torch.tensor([0, 9], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    batch = Batch(steps, steps, steps, starts, contexts, table, steps, (9,), (9,))
    with torch.inference_mode():
        result: Tensor = model.forward(batch, cache)
    return result


NAME = "model.layers.1.self_attn.k_proj"


def _load(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    build_model(checkpoint, checkpoint.config, ReferenceOps(), torch.float32, CPU)


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    def drop(tensors: dict[str, Tensor]) -> None:
        del tensors[f"{NAME}.weight_scale_inv"]

    write(tmp_path, "fp8-block", drop)
    with pytest.raises(ModelLoadError, match=rf"{NAME}\.weight: is F8_E4M3, but .* no {NAME}\.weight_scale_inv"):
        _load(tmp_path)


def test_a_wrong_scale_is_named(tmp_path: Path) -> None:
    def shorten(tensors: dict[str, Tensor]) -> None:
        tensors[f"{NAME}.weight_scale"] = tensors[f"{NAME}.weight_scale"][1:].clone()

    write(tmp_path, "int8-channel", shorten)
    with pytest.raises(ModelLoadError, match=rf"{NAME}\.weight_scale: has shape \[95, 1\].*{NAME}\.weight of shape"):
        _load(tmp_path)


def test_what_a_scheme_left_dense_stays_dense(tmp_path: Path) -> None:
    def restore(tensors: dict[str, Tensor]) -> None:
        tensors.pop(f"{NAME}.weight_scale")
        tensors[f"{NAME}.weight"] = tensors[f"{NAME}.weight"].to(torch.bfloat16)

    write(tmp_path, "fp8-channel", restore)
    _load(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.tensor(f"{NAME}.weight").format == "BF16"
    assert checkpoint.tensor(f"{NAME.replace('k_proj', 'q_proj')}.weight").format == "F8_E4M3"


def test_eight_bit_weights_without_a_configuration_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "int8-channel")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ModelLoadError, match=r"model\.layers\.0\.self_attn\.q_proj\.weight: is I8 without scales"):
        _load(tmp_path)


@pytest.mark.parametrize("field", [{"quant_method": "awq"}, 8], ids=["method", "no object"])
def test_an_unknown_configuration_is_refused(field: object, tmp_path: Path) -> None:
    write(tmp_path, "int8-channel")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": field}))
    with pytest.raises(ModelLoadError, match=r"config\.json: quantization_config"):
        open_checkpoint(str(tmp_path))


def test_a_method_is_refused_before_its_tensors(tmp_path: Path) -> None:
    """GPTQ gives every projection a bias, which a Llama has not."""
    write(
        tmp_path, "int8-channel", lambda tensors: tensors.update({"model.layers.0.mlp.down_proj.bias": torch.zeros(64)})
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ModelLoadError, match=r"quantization_config\.quant_method: 'gptq' is not supported"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_conversion_marks_weights_and_keeps_them(quantization: str, tmp_path: Path) -> None:
    write(tmp_path, "fp8-channel")
    marked = open_checkpoint(str(tmp_path), quantization=quantization)
    plain = open_checkpoint(str(tmp_path))
    name = f"{NAME}.weight"
    assert name in marked
    assert marked.config == plain.config
    raw = marked.tensor(name)
    assert raw.convert_to == quantization
    kept = replace(raw, convert_to=None)
    assert torch.equal(kept.data.float(), plain.tensor(name).data.float())
    # A GPU without FP8 runs an FP8 checkpoint in INT8.
    made = quant.make_linear([raw], None, dtype=torch.float32, device=torch.device("cpu"), scaled=True)
    assert made.format == quantization


def test_an_unknown_conversion_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="quantization: 'int3' is not supported"):
        open_checkpoint("smollm2", quantization="int3")


@pytest.mark.slow  # small models that are converted have tests above
@pytest.mark.usefixtures("few_layers")
def test_the_engine_converts_the_embedded_model() -> None:
    """INT8's error is far below what would change a greedy token here."""
    prompts = ["The capital of France is"]
    params = SamplingParams(temperature=0, max_tokens=12)
    texts = []
    for quantization in ("auto", "int8"):
        llm = LLM(
            "smollm2", dtype="bfloat16", quantization=quantization, max_model_len=64, kv_cache_memory_gib=0.01,
            drafter="none",
        )  # fmt: skip
        texts.append(llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].text)
        formats = llm.info.quantization
    assert formats == "int8"
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize(("kv_cache_dtype", "head"), [("bfloat16", 128), ("fp8", 64), ("int8", 68)])
def test_a_narrower_cache_has_more_blocks(kv_cache_dtype: str, head: int) -> None:
    """Of four layers with 3 heads of 64; ``head`` is the bytes of one's keys for a token."""
    with LLM(
        "smollm2", kv_cache_dtype=kv_cache_dtype, kv_cache_memory_gib=0.01, drafter="none", max_model_len=64
    ) as llm:
        assert llm.info.cache_blocks == int(0.01 * 2**30) // (2 * 4 * 3 * 16 * head)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_weights")
@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "fp8", "int8"])
def test_the_embedded_model_answers_with_a_narrower_cache(kv_cache_dtype: str) -> None:
    with LLM(
        "smollm2", kv_cache_dtype=kv_cache_dtype, kv_cache_memory_gib=0.01, drafter="none", max_model_len=64
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=8)
        (output,) = llm.generate(["The capital of France is"], params, use_tqdm=False)
    assert "Paris" in output.outputs[0].text


def test_the_embedded_model_says_what_its_file_has() -> None:
    """Whatever it runs in: on a CPU, its 4-bit weights become float16."""
    checkpoint = open_checkpoint("smollm2")
    weights = Weights(checkpoint, torch.float16, torch.device("cpu"), scaled=True)
    size = checkpoint.config.hidden_size
    weights.linear("model.layers.0.self_attn.", {"q_proj": size}, size, bias=False)
    assert weights.formats == "Q4_1"
