"""GGUF files: names, row order, block formats and configuration, and no damage that is not one clear error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from examples import examples
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftline.models.config import Llama3Scaling, YarnScaling
from draftline.models.errors import ModelLoadError
from draftline.models.families import weight_shapes
from draftline.models.gguf.checkpoint import GGUFCheckpoint
from draftline.models.gguf.file import GGUFFile, open_gguf
from draftline.models.loader import open_checkpoint
from draftline.quant import DEQUANTIZE, dequantize

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCAB, LAYERS = 4, 2, 64, 256, 512, 48, 2
Array = NDArray[Any]

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hf_name: str) -> str:
    name = hf_name.replace("model.layers.", "blk.")
    for hf, own in NAMES.items():
        name = name.replace(f"{hf}.", f"{own}.")
    return name


def permuted(weight: Array, heads: int) -> Array:
    """What llama.cpp's conversion does to a Llama model's query and key projections."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def metadata(arch: str) -> dict[str, object]:
    return {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCAB,
    }


def write_gguf(
    path: Path,
    arch: str,
    tensors: Mapping[str, tuple[Array, GGMLQuantizationType]],
    changes: Mapping[str, object] | None = None,
) -> Path:
    """A GGUF file; ``changes`` sets keys of the architecture, or removes them where the value is None."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**metadata(arch), **(changes or {})}.items():
        match value:
            case str():
                writer.add_string(f"{arch}.{key}", value)
            case float():
                writer.add_float32(f"{arch}.{key}", value)
            case bool():
                writer.add_bool(f"{arch}.{key}", value)
            case int():
                writer.add_uint32(f"{arch}.{key}", value)
            case list():
                writer.add_array(f"{arch}.{key}", value)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_of(arch: str, **options: object) -> transformers.PreTrainedModel:
    """A random model with the shape of ``metadata``."""
    configs: dict[str, type[transformers.PreTrainedConfig]] = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "initializer_range": 0.2,
        **options,
    }
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(configs[arch](**shape))


def weights_of(model: transformers.PreTrainedModel) -> dict[str, Array]:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def converted(arch: str, weights: Mapping[str, Array]) -> dict[str, tuple[Array, GGMLQuantizationType]]:
    """The tensors as llama.cpp's conversion writes them in F32."""
    tensors = {}
    for name, weight in weights.items():
        if arch == "llama" and ".q_proj." in name:
            weight = permuted(weight, HEADS)
        if arch == "llama" and ".k_proj." in name:
            weight = permuted(weight, KV_HEADS)
        tensors[gguf_name(name)] = (np.ascontiguousarray(weight), GGMLQuantizationType.F32)
    return tensors


MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    arch, options = MODELS[name]
    weights = weights_of(model_of(arch, **options))
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", arch, converted(arch, weights))))
    assert weight_shapes(checkpoint.config).keys() == weights.keys()
    for key, weight in weights.items():
        raw = checkpoint.tensor(key)
        assert (raw.name, raw.format, raw.shape) == (key, "F32", weight.shape)
        assert torch.equal(raw.data, torch.from_numpy(weight))
        assert key in checkpoint
    assert "model.layers.2.mlp.up_proj.weight" not in checkpoint
    with pytest.raises(ModelLoadError, match=r"m\.gguf: model\.layers\.2\.mlp\.up_proj\.weight: not in this file"):
        checkpoint.tensor("model.layers.2.mlp.up_proj.weight")


def test_transformers_reads_the_same_weights_from_the_file(tmp_path: Path) -> None:
    """The row order is transformers' too: it undoes the permutation by its own code."""
    weights = weights_of(model_of("llama"))
    path = write_gguf(tmp_path / "m.gguf", "llama", converted("llama", weights))
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, quantization_config=transformers.GgufConfig(dequantize=True), dtype=torch.float32
    )
    checkpoint = open_checkpoint(str(path))
    for key, tensor in reference.state_dict().items():
        assert torch.equal(checkpoint.tensor(key).data, tensor), key


def test_the_configuration_is_the_one_before_conversion(tmp_path: Path) -> None:
    tensors = converted("llama", weights_of(model_of("llama")))
    config = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", tensors))).config
    assert config.family == "LlamaForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (VOCAB, HIDDEN, INNER)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (LAYERS, HEADS, KV_HEADS)
    assert (config.head_dim, config.max_positions, config.rope_theta) == (HEAD_DIM, 128, 10000.0)
    assert config.norm_eps == 1e-5  # not the float32 next to it
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert not config.tied_embeddings


def test_keys_with_defaults_may_be_missing_and_per_layer_values_may_agree(tmp_path: Path) -> None:
    tensors = converted("llama", weights_of(model_of("llama", num_key_value_heads=HEADS)))
    for name in [n for n in tensors if ".attn_k." in n]:
        tensors[name] = (np.zeros((HIDDEN, HIDDEN), np.float32), GGMLQuantizationType.F32)
    changes = {
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.freq_base": None,
        "vocab_size": None,
        "feed_forward_length": [INNER] * LAYERS,
    }
    config = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", tensors, changes))).config
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (HEADS, HEAD_DIM, 10000.0)
    assert (config.intermediate_size, config.vocab_size) == (INNER, VOCAB)


DENSE = {
    "F16": (GGMLQuantizationType.F16, torch.float16),
    "BF16": (GGMLQuantizationType.BF16, torch.bfloat16),
}


@pytest.mark.parametrize("name", DENSE)
def test_half_precision_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    kind, dtype = DENSE[name]
    weights = weights_of(model_of("llama"))
    tensors = converted("llama", weights)
    for key in ("blk.1.attn_k.weight", "blk.1.ffn_up.weight"):
        tensors[key] = (gguf.quants.quantize(tensors[key][0], kind), kind)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", tensors)))
    for key in ("model.layers.1.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"):
        raw = checkpoint.tensor(key)
        assert (raw.format, raw.data.dtype) == (name, dtype)
        assert torch.equal(raw.data, torch.from_numpy(weights[key]).to(dtype))


BLOCK_FORMATS = [
    kind.name for kind in GGMLQuantizationType if kind.name in DEQUANTIZE and GGML_QUANT_SIZES[kind][0] > 1
]


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_stay_packed_and_rows_move_whole(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = HIDDEN // block * block_bytes
    draw = np.random.default_rng(1)
    rows = {
        "q_proj": draw.integers(0, 256, (HEADS * HEAD_DIM, row_bytes), np.uint8),
        "k_proj": draw.integers(0, 256, (KV_HEADS * HEAD_DIM, row_bytes), np.uint8),
        "v_proj": draw.integers(0, 256, (KV_HEADS * HEAD_DIM, row_bytes), np.uint8),
    }
    tensors = converted("llama", weights_of(model_of("llama")))
    tensors["blk.0.attn_q.weight"] = (permuted(rows["q_proj"], HEADS), kind)
    tensors["blk.0.attn_k.weight"] = (permuted(rows["k_proj"], KV_HEADS), kind)
    tensors["blk.0.attn_v.weight"] = (rows["v_proj"], kind)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", tensors)))
    for module, expected in rows.items():
        raw = checkpoint.tensor(f"model.layers.0.self_attn.{module}.weight")
        assert (raw.format, raw.shape) == (name, (len(expected), HIDDEN))
        assert raw.data.dtype == torch.uint8
        assert np.array_equal(raw.data.numpy(), expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantizing_and_permuting_commute(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    weights = weights_of(model_of("llama"))
    tensors = converted("llama", weights)
    tensors["blk.0.attn_q.weight"] = (gguf.quants.quantize(tensors["blk.0.attn_q.weight"][0], kind), kind)
    raw = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", tensors))).tensor(
        "model.layers.0.self_attn.q_proj.weight"
    )
    expected = gguf.quants.quantize(weights["model.layers.0.self_attn.q_proj.weight"], kind)
    assert np.array_equal(raw.data.numpy(), expected)


def test_a_format_is_read_if_it_has_a_line_in_dequantize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = GGMLQuantizationType.Q8_K  # the gguf package cannot dequantize it
    rows = np.zeros((INNER, HIDDEN // GGML_QUANT_SIZES[kind][0] * GGML_QUANT_SIZES[kind][1]), np.uint8)
    tensors = converted("qwen2", weights_of(model_of("qwen2")))
    tensors["blk.1.ffn_up.weight"] = (rows, kind)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "qwen2", tensors)))
    with pytest.raises(ModelLoadError, match=r"m\.gguf: blk\.1\.ffn_up\.weight: .*Q8_K is not supported"):
        checkpoint.tensor("model.layers.1.mlp.up_proj.weight")
    monkeypatch.setitem(DEQUANTIZE, "Q8_K", lambda raw: torch.zeros(raw.shape))
    assert dequantize(checkpoint.tensor("model.layers.1.mlp.up_proj.weight")).shape == (INNER, HIDDEN)


def llama3_factors() -> Array:
    """The factors of Llama 3.2's scaling for base 500,000 and heads of 64, by transformers."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(hidden_size=HEAD_DIM, num_attention_heads=1, rope_parameters=rope)
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500_000.0 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    return (plain / scaled).numpy()


def test_rope_factors_become_the_scaling(tmp_path: Path) -> None:
    tensors = converted("llama", weights_of(model_of("llama")))
    tensors["rope_freqs.weight"] = (llama3_factors(), GGMLQuantizationType.F32)
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors, {"rope.freq_base": 500_000.0})
    assert open_checkpoint(str(path)).config.rope_scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 2.0}, 2.0),  # of old files
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.factor": 0.0}, 1.0),
    ],
)
def test_linear_rope_is_as_in_llama_cpp(tmp_path: Path, changes: dict[str, object], factor: float) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", converted("llama", weights_of(model_of("llama"))), changes)
    config = open_checkpoint(str(path)).config
    assert (config.rope_factor, config.rope_scaling) == (factor, None)


@pytest.mark.parametrize(("more", "fast"), [({}, 32.0), ({"rope.scaling.yarn_beta_fast": 24.0}, 24.0)])
def test_yarn_is_read(tmp_path: Path, more: dict[str, object], fast: float) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 1024}
    changes = {f"rope.scaling.{name}": value for name, value in scaling.items()} | more
    path = write_gguf(tmp_path / "m.gguf", "llama", converted("llama", weights_of(model_of("llama"))), changes)
    config = open_checkpoint(str(path)).config
    assert config.rope_scaling == YarnScaling(4.0, 1024, fast, 1.0, pytest.approx(1 + 0.1 * math.log(4)))
    assert config.max_positions >= 4096


def test_two_rope_scalings_at_once_are_refused(tmp_path: Path) -> None:
    tensors = converted("llama", weights_of(model_of("llama")))
    tensors["rope_freqs.weight"] = (llama3_factors(), GGMLQuantizationType.F32)
    changes = {"rope.freq_base": 500_000.0, "rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors, changes)
    with pytest.raises(
        ModelLoadError, match=r"rope_freqs\.weight: Llama 3's scaling is not supported beside linear scaling"
    ):
        open_checkpoint(str(path))


WRONG_METADATA: dict[str, tuple[dict[str, object], str]] = {
    "no layers": ({"block_count": None}, r"llama\.block_count: missing"),
    "too many layers": ({"block_count": 3}, r"llama\.block_count: says 3"),
    "absurdly many layers": ({"block_count": 2**31}, r"llama\.block_count: says"),
    "heads as text": ({"attention.head_count": "four"}, r"llama\.attention\.head_count: expected one integer"),
    "no heads": ({"attention.head_count": 0}, r"llama\.attention\.head_count: 0 is not"),
    "heads by layer": ({"attention.head_count": [4, 2]}, r"llama\.attention\.head_count: expected one integer"),
    "no epsilon": ({"attention.layer_norm_rms_epsilon": None}, r"layer_norm_rms_epsilon: missing"),
    "epsilon as text": ({"attention.layer_norm_rms_epsilon": "small"}, r"layer_norm_rms_epsilon: expected a number"),
    "partial rotation": ({"rope.dimension_count": 32}, r"llama\.rope\.dimension_count: 32 differs"),
    "other value size": ({"attention.value_length": 32}, r"llama\.attention\.value_length: 32 differs"),
    "longrope": ({"rope.scaling.type": "longrope"}, r"llama\.rope\.scaling\.type: 'longrope' is not supported"),
    "yarn beside a magnitude": ({"rope.scaling.yarn_attn_factor": 1.5}, r"yarn_attn_factor: 1\.5 is not supported"),
    "both ways": ({"attention.causal": False}, r"llama\.attention\.causal: false is not supported"),
    "cap": ({"final_logit_softcapping": 30.0}, r"llama\.final_logit_softcapping: 30\.0 is not supported; only 0\.0 is"),
    "magnitude": ({"rope.scaling.attn_factor": 1.5}, r"llama\.rope\.scaling\.attn_factor: 1\.5 is not supported"),
    "experts": ({"expert_count": 8}, r"llama\.expert_count: mixtures"),
    "window": ({"attention.sliding_window": 64}, r"llama\.attention\.sliding_window: 64"),
    "window within YaRN's context": (
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "attention.sliding_window": 200},
        r"llama\.attention\.sliding_window: 200",
    ),
}


@pytest.mark.parametrize("name", WRONG_METADATA)
def test_metadata_that_cannot_be_served_are_named(tmp_path: Path, name: str) -> None:
    changes, message = WRONG_METADATA[name]
    path = write_gguf(tmp_path / "m.gguf", "llama", converted("llama", weights_of(model_of("llama"))), changes)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_checkpoint(str(path))
    assert str(caught.value).startswith(str(path))


Tensors = dict[str, tuple[Array, GGMLQuantizationType]]
F32 = GGMLQuantizationType.F32
WRONG_TENSORS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no embedding": (lambda t: t.pop("token_embd.weight"), r"token_embd\.weight: the tensor is missing"),
    "no norm": (lambda t: t.pop("output_norm.weight"), r"model\.norm\.weight: the tensor is missing"),
    "an expert": (lambda t: t.update({"blk.0.ffn_gate_exps.weight": t["output_norm.weight"]}), "ffn_gate_exps"),
    "a third layer": (lambda t: t.update({"blk.2.ffn_norm.weight": t["output_norm.weight"]}), r"blk\.2\.ffn_norm"),
    "a lone bias": (
        lambda t: t.update({"blk.0.attn_v.bias": (np.zeros(128, np.float32), F32)}),
        r"blk\.0\.attn_v\.bias",
    ),
    "rope factors": (
        lambda t: t.update({"rope_freqs.weight": (np.full(32, 2, np.float32), F32)}),
        "rope_freqs.*Llama 3",
    ),
    "rope matrix": (
        lambda t: t.update({"rope_freqs.weight": (np.ones((2, 16), np.float32), F32)}),
        "rope_freqs.*vector",
    ),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_tensors_that_do_not_fit_the_metadata_are_named(tmp_path: Path, name: str) -> None:
    change, message = WRONG_TENSORS[name]
    tensors = converted("llama", weights_of(model_of("llama")))
    change(tensors)
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_checkpoint(str(path))
    assert str(caught.value).startswith(str(path))


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    tensors = converted("llama", weights_of(model_of("llama")))
    tensors["blk.0.ffn_up.weight"] = (np.zeros((INNER, HIDDEN // 2), np.float32), F32)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", tensors)))
    with pytest.raises(ModelLoadError, match=r"blk\.0\.ffn_up\.weight: .*up_proj\.weight: has shape \[512, 128\]"):
        checkpoint.tensor("model.layers.0.mlp.up_proj.weight")


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "mamba", converted("llama", weights_of(model_of("llama"))))
    with pytest.raises(
        ModelLoadError, match=r"general\.architecture: 'mamba' is not supported; llama, qwen2, qwen3 are"
    ):
        open_checkpoint(str(path))


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole file of a few thousand bytes."""
    folder = tmp_path_factory.mktemp("gguf")
    writer = gguf.GGUFWriter(folder / "whole.gguf", "llama")
    sizes = {**metadata("llama"), "embedding_length": 8, "feed_forward_length": 8, "block_count": 1}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 1}
    sizes |= {"attention.key_length": 4, "attention.value_length": 4}
    for key, value in sizes.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"llama.{key}", value)  # type: ignore[arg-type]
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.0])
    shapes = {
        "token_embd": (4, 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,),
        "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8),
        "blk.0.ffn_gate": (8, 8), "blk.0.ffn_up": (8, 8), "blk.0.ffn_down": (8, 8),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "whole.gguf"


def read_all(path: Path) -> None:
    checkpoint = GGUFCheckpoint(GGUFFile(path))
    for name in weight_shapes(checkpoint.config):
        checkpoint.tensor(name)


def load_error(path: Path) -> str | None:
    try:
        read_all(path)
    except ModelLoadError as error:
        return str(error)
    return None


@pytest.mark.parametrize("first", [0, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2))])
def test_every_truncation_is_found_on_opening(small_file: Path, first: int) -> None:
    read_all(small_file)
    whole = small_file.read_bytes()
    cut = small_file.with_name("cut.gguf")
    for size in range(first, len(whole), 3):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf: .*(truncated|cannot be read)"):
            GGUFFile(cut)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_is_a_load_error_or_harmless(small_file: Path, data: st.DataObject) -> None:
    content = bytearray(small_file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(content) - 1))
        content[index] = data.draw(st.integers(0, 255))
    spoiled = small_file.with_name("spoiled.gguf")
    spoiled.write_bytes(content)
    complaint = load_error(spoiled)
    assert complaint is None or complaint.startswith(str(spoiled))


HEADER: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "another format": (b"PK\x03\x04" + b"\0" * 40, "is no GGUF file: it begins with b'PK"),
    "not downloaded": (
        b"version https://git-lfs.github.com/spec/v1\noid",
        "m.gguf: is a pointer of Git LFS in place of",
    ),
    "version 1": (b"GGUF\x01\0\0\0" + b"\0" * 40, "version 1 is not supported; 2 and 3 are"),
    "big-endian": (b"GGUF\0\0\0\x03" + b"\0" * 40, r"\(a big-endian file\) is not supported"),
}


@pytest.mark.parametrize("name", HEADER)
def test_what_is_no_gguf_file_is_named(tmp_path: Path, name: str) -> None:
    content, message = HEADER[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf: cannot be read"):
        GGUFFile(tmp_path / "none.gguf")


def test_a_file_is_read_once_for_all_that_hold_it_and_anew_when_it_changes(small_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.gguf"
    path.write_bytes(small_file.read_bytes())
    held = open_gguf(path)
    assert open_gguf(path) is held
    name = next(iter(held.tensors))
    before = held.rows(held.tensors[name]).copy()
    content = bytearray(small_file.read_bytes())
    content[-1] ^= 255
    replaced = tmp_path / "new.gguf"
    replaced.write_bytes(content)
    replaced.replace(path)
    assert open_gguf(path) is not held
    assert (held.rows(held.tensors[name]) == before).all()
    with pytest.raises(ModelLoadError, match=r"none\.gguf: cannot be read"):
        open_gguf(tmp_path / "none.gguf")


def test_metadata_are_what_the_gguf_package_reads(small_file: Path) -> None:
    mine = GGUFFile(small_file)
    reference = gguf.GGUFReader(small_file)
    fields = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert mine.metadata == fields
    for tensor in reference.tensors:
        own = mine.tensors[tensor.name]
        assert own.shape == tuple(reversed(tensor.shape.tolist()))
        assert (own.type_name, own.offset) == (tensor.tensor_type.name, tensor.data_offset)


def test_dummy_weights_take_a_gguf_files_configuration(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen3", converted("qwen3", weights_of(model_of("qwen3"))))
    real, dummy = open_checkpoint(str(path)), open_checkpoint(str(path), load_format="dummy")
    assert real.config == dummy.config
    assert dummy.tensor("lm_head.weight").format == "BF16"
