"""``Contender``: an engine under measurement. It runs requests that all arrive at once."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from typing_extensions import override

from draftline import LLM, SamplingParams
from draftline.engine.bench.batches import BenchmarkRequest
from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer
from draftline.engine.bench.contenders.shapes import HfConfig, find_shape
from draftline.engine.bench.readiness import wait_until_ready
from draftline.models.checkpoints.resolve import SourceKind, resolve_model


@dataclass(frozen=True, slots=True)
class BenchmarkModel:
    """The model to run: a checkpoint, or a shape with random weights.

    Attributes:
        name: its name in the results.
        checkpoint: the option ``model`` of EngineConfig; for a shape, a folder without weights.
        shape: the shape, or None for a checkpoint.
    """

    name: str
    checkpoint: str
    shape: HfConfig | None

    @property
    def load_format(self) -> str:
        """The option ``load_format`` of EngineConfig."""
        return "auto" if self.shape is None else "dummy"

    @staticmethod
    def chosen(model: str, shape: str | None, folder: Path) -> BenchmarkModel:
        """A checkpoint, or else the shape with this name, whose files are written to ``folder``.

        Raises:
            ValueError: there is no such shape.
        """
        return (
            BenchmarkModel(model, model, None)
            if shape is None
            else BenchmarkModel.of_shape(shape, find_shape(shape), folder)
        )

    @staticmethod
    def of_shape(name: str, shape: HfConfig, folder: Path) -> BenchmarkModel:
        """A shape; its files are written to ``folder``, which is made if it is missing."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(shape))
        write_placeholder_tokenizer(folder, shape["vocab_size"])
        return BenchmarkModel(name, str(folder), shape)


class Contender(Protocol):
    """An engine with a loaded model.

    Attributes:
        name: the name of the engine.
        options: its options besides model, device and dtype.
        dtype: the dtype of its activations.
        weights: the format of its weights.
        device: its device.
        vocab_size: the vocabulary size of its model.
    """

    name: str
    options: Mapping[str, object]
    dtype: str
    weights: str
    device: torch.device
    vocab_size: int

    def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
        """Generate exactly ``output_len`` tokens for every request.

        Raises:
            RuntimeError: a request got a different number of tokens.
        """
        ...


class Draftline(Contender):
    """This engine, through its Python interface. Prefix caching is off, so every round computes its prompts."""

    name = "draftline"

    def __init__(
        self, model: BenchmarkModel, dtype: str, device: str, max_model_len: int, options: Mapping[str, Any]
    ) -> None:
        """``options`` are fields of EngineConfig. They override the benchmark's own settings."""
        own: dict[str, Any] = {
            "load_format": model.load_format,
            "prefix_caching": False,
            "max_model_len": max_model_len,
        }
        self.options = options
        self._llm = LLM(model.checkpoint, **{"dtype": dtype, "device": device, **own, **options})
        wait_until_ready(self._llm.stats)
        info = self._llm.info
        self.dtype, self.weights, self.device = info.dtype, info.quantization, torch.device(info.device)
        self.vocab_size = info.config.vocab_size

    @override
    def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        params = [
            SamplingParams(temperature=temperature, max_tokens=request.output_len, ignore_eos=True, seed=index)
            for index, request in enumerate(requests)
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        for request, output in zip(requests, outputs, strict=True):
            check_length(self.name, request, len(output.outputs[0].token_ids))


class Transformers(Contender):
    """Hugging Face transformers' ``generate`` with its defaults: one padded batch until the longest output ends."""

    name = "transformers"
    options: Mapping[str, object] = MappingProxyType({})
    weights = "dense"

    def __init__(self, model: BenchmarkModel, dtype: str, device: torch.device) -> None:
        """Load ``model`` on ``device`` with weights in ``dtype``. Weights of a GGUF file are dequantized."""
        self.dtype, self.device = dtype, device
        with device:
            self._model = _load_transformers(model, getattr(torch, dtype)).to(device).eval()
        self.vocab_size = self._model.config.vocab_size

    @override
    @torch.inference_mode()
    def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
        from transformers import GenerationConfig

        ids, attention_mask = _left_padded([request.prompt for request in requests])
        longest = max(request.output_len for request in requests)
        sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
        # Replace the model's own generation settings, so that they (such as end-of-sequence) do not fill unset fields.
        self._model.generation_config = GenerationConfig(max_new_tokens=longest, pad_token_id=0, **sampling)
        output = self._model.generate(ids.to(self.device), attention_mask=attention_mask.to(self.device))
        # Tokens of short outputs beyond their length are not counted.
        for request in requests:
            check_length(self.name, request, min(output.shape[1] - ids.shape[1], request.output_len))


def check_length(name: str, request: BenchmarkRequest, length: int) -> None:
    """Raise a RuntimeError if an output does not have the requested length."""
    if length != request.output_len:
        raise RuntimeError(f"{name} generated {length} tokens instead of {request.output_len}")


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask


def _silence_gguf_progress() -> None:
    """Disable the progress bar of dequantization, which transformers' own switch does not."""
    from transformers import modeling_gguf_pytorch_utils as reader

    reader.tqdm = functools.partial(reader.tqdm, disable=True)  # type: ignore[assignment, attr-defined]


def _load_transformers(model: BenchmarkModel, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    _silence_gguf_progress()
    if model.shape is not None:
        fields = {key: value for key, value in model.shape.items() if key != "model_type"}
        config = AutoConfig.for_model(str(model.shape["model_type"]), **fields)
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
    source = resolve_model(model.checkpoint)
    if source.kind is SourceKind.GGUF:
        unpacked = GgufConfig(dequantize=True)
        return AutoModelForCausalLM.from_pretrained(
            source.path.parent, gguf_file=source.path.name, dtype=dtype, quantization_config=unpacked
        )
    return AutoModelForCausalLM.from_pretrained(source.path, dtype=dtype)
