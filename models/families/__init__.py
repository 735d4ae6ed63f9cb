"""The model families, by the architecture name that a checkpoint's config.json gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from draftline.kernels.ops import Ops
from draftline.kernels.reference.attention_sizes import attention_sizes
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.decoder import Decoder
from draftline.models.errors import ModelLoadError
from draftline.models.families.gemma3 import Gemma3, gemma3_config, gemma3_shapes, gemma3_stored
from draftline.models.families.gpt2 import Gpt2, gpt2_config, gpt2_shapes, gpt2_stored
from draftline.models.families.llama import llama_config, mistral_config
from draftline.models.families.qwen2 import qwen2_config
from draftline.models.families.qwen3 import qwen3_config
from draftline.models.families.stored import StoredWeight
from draftline.models.hf_config import HfConfig
from draftline.models.model import Model
from draftline.models.parallel.shard import WHOLE, Shard
from draftline.models.weight_shapes import Shape, decoder_shapes
from draftline.models.weights import Weights
from draftline.quant import UnsupportedFormatError, compute_dtype


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Attributes:
        model_types: what ``model_type`` may be in its config.json, the usual one first.
        config: reads its config.json as a ModelConfig.
        build: makes the model of a checkpoint's weights.
        shapes: gives every weight's shape, by its name in `Checkpoint`.
        stored: maps a tensor's name in an HF folder to the weight.
    """

    model_types: tuple[str, ...]
    config: Callable[[HfConfig], ModelConfig]
    build: Callable[[Weights, ModelConfig, Ops], Model]
    shapes: Callable[[ModelConfig], dict[str, Shape]] = decoder_shapes
    stored: Callable[[str], StoredWeight] = StoredWeight


_GEMMA3_TYPES = ("gemma3_text", "gemma3")

FAMILIES: dict[str, Family] = {
    "GPT2LMHeadModel": Family(("gpt2",), gpt2_config, Gpt2, gpt2_shapes, gpt2_stored),
    "Gemma3ForCausalLM": Family(_GEMMA3_TYPES, gemma3_config, Gemma3, gemma3_shapes, gemma3_stored),
    "Gemma3ForConditionalGeneration": Family(_GEMMA3_TYPES, gemma3_config, Gemma3, gemma3_shapes, gemma3_stored),
    "LlamaForCausalLM": Family(("llama",), llama_config, Decoder),
    "MistralForCausalLM": Family(("mistral",), mistral_config, Decoder),
    "Qwen2ForCausalLM": Family(("qwen2",), qwen2_config, Decoder),
    "Qwen3ForCausalLM": Family(("qwen3",), qwen3_config, Decoder),
}


def config_from_hf(hf: Mapping[str, object], where: str = "config.json") -> ModelConfig:
    """The ModelConfig of an HF ``config.json``.

    Args:
        hf: the file's content, or the same fields from a file of another kind.
        where: the file that error messages name.

    Raises:
        ModelLoadError: the architecture is not supported (the message lists those that are), or a field is missing,
            malformed, or requests an unsupported feature.
    """
    config = HfConfig(hf, where)
    architectures = config.strings("architectures")
    if not architectures:
        raise config.error("architectures", "missing, so the model's family is unknown")
    family = FAMILIES.get(architectures[0])
    if family is None:
        raise config.error("architectures", f"{architectures[0]!r} is not supported; {', '.join(FAMILIES)} are")
    # Transformers goes by model_type. Another one means another arithmetic under a familiar name.
    model_type = config.text("model_type", family.model_types[0])
    if model_type not in family.model_types:
        known = " or ".join(map(repr, family.model_types))
        raise config.error("model_type", f"{model_type!r} does not go with {architectures[0]}, which is {known}")
    for section in (config, config.section("text_config")):
        if section is not None and not section.flag("is_causal", True):
            raise section.error("is_causal", "false is not supported")
    return family.config(config)


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight of a model, by its name in `Checkpoint`."""
    return FAMILIES[config.family].shapes(config)


def is_llama_like(config: ModelConfig) -> bool:
    """Whether the model is a `Decoder`, which its ModelConfig describes in full."""
    return FAMILIES[config.family].build is Decoder


def build_model(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = WHOLE,
) -> Model:
    """The model of a checkpoint, with its weights.

    Args:
        checkpoint: the weights.
        config: the checkpoint's own, perhaps with a smaller ``max_positions``.
        ops: the device's operations.
        dtype: of the weights; see `draftline.quant`.
        device: of the weights.
        shard: the part of the model to make; the result's ``config`` is that of the part.

    Raises:
        ModelLoadError: a tensor is missing, or has a wrong shape or a format that is not supported.
    """
    if device.type == "cpu":
        # Tried here, so that the first step need not wait for it.
        attention_sizes(config.head_dim, compute_dtype(dtype, device), device)
    try:
        weights = Weights(shard.checkpoint(checkpoint), dtype, device, scaled=ops.runs_scaled, shard=shard)
        return FAMILIES[config.family].build(weights, shard.config(config), ops)
    except UnsupportedFormatError as error:
        raise ModelLoadError(str(error)) from error
