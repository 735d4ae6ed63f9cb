"""The model families, by the architecture name that a checkpoint's config.json gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftline.models.config import ModelConfig
from draftline.models.hf_config import HfConfig
from draftline.models.llama import llama_config, mistral_config
from draftline.models.qwen2 import qwen2_config
from draftline.models.qwen3 import qwen3_config


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture is read.

    Attributes:
        config: its config.json as a ModelConfig.
    """

    config: Callable[[HfConfig], ModelConfig]


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(llama_config),
    "MistralForCausalLM": Family(mistral_config),
    "Qwen2ForCausalLM": Family(qwen2_config),
    "Qwen3ForCausalLM": Family(qwen3_config),
}


def config_from_hf(hf: Mapping[str, object]) -> ModelConfig:
    """The ModelConfig of an HF ``config.json``.

    Raises:
        ModelLoadError: the architecture is not supported (the message lists those that are), or a field is missing,
            malformed, or asks for something that the family does not do here.
    """
    config = HfConfig(hf)
    architectures = config.strings("architectures")
    if not architectures:
        raise config.error("architectures", "missing, so the model's family is unknown")
    family = FAMILIES.get(architectures[0])
    if family is None:
        raise config.error("architectures", f"{architectures[0]!r} is not supported; {', '.join(FAMILIES)} are")
    return family.config(config)
