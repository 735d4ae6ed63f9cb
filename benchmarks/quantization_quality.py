"""Perplexity of SmolLM2 in each format of weights and cache, relative to the same model unquantized.

Three texts, since what an error costs depends on how sure the model is: what the model itself samples at temperature 1
(there the rise of the logarithm is an estimate of the Kullback-Leibler divergence, and not of luck alone with enough tokens),
its greedy answers to questions, and this repository's documentation.

A CPU computes with quantized weights, but wide activations. `gpu_arithmetic` lets it multiply the eight-bit numbers that a GPU's
kernels do, by their reference in plain torch, so that what these cost can be seen without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from provenance import ROOT

from draftline import LLM, SamplingParams, quant
from draftline.kernels.reference import ReferenceOps
from draftline.quant.scaled import mergeable
from draftline.quant.tensor import RawTensor

_OPENINGS = (
    "The history of", "In this tutorial", "Once upon a time", "Dear friends", "The experiment", "A recipe for",
    "def main():\n", "The city of", "Scientists have", "Water is", "Question:", "In 1912", "The theory", "She said",
)  # fmt: skip
_QUESTIONS = (
    "Explain how rain forms.", "Write a short story about a fox and a well.", "What is a prime number? Give examples.",
    "How do I bake bread at home?", "Write a Python function that reverses a string, and explain it.",
    "Describe the life cycle of a butterfly.", "What is inflation in economics?", "Compare cats and dogs as pets.",
    "How does a bicycle stay upright?", "What is machine learning?", "Plan a day in Paris.", "Write a poem about the sea.",
)  # fmt: skip
_DOCUMENTS = ("README.md", "docs/architecture.md", "docs/benchmarks.md", "CONTRIBUTING.md", "LICENSE")

_WINDOW = 512
"""Tokens of a piece of text, whose first tokens have little before them in every format alike."""

VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {"quantization": "fp8"},
    {"quantization": "int8"},
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "int8"},
    {"quantization": "fp8", "kv_cache_dtype": "fp8"},
)
"""Options of the engine; the first are what the others are compared with."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens to be predicted, after others that are not."""

    given: tuple[int, ...]
    text: tuple[int, ...]


def perplexity(llm: LLM, pieces: list[Piece]) -> float:
    """The exponential of the mean negative log-probability of all pieces' tokens."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": [*piece.given, *piece.text]} for piece in pieces]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    total, count = 0.0, 0
    for piece, output in zip(pieces, outputs, strict=True):
        # They begin with the second token: the first is predicted from nothing.
        scored = (output.prompt_logprobs or [])[max(len(piece.given) - 1, 0) :]
        total -= sum(entry.chosen.logprob for entry in scored)
        count += len(scored)
    return math.exp(total / count)


def make_texts(llm: LLM, tokens: int) -> dict[str, list[Piece]]:
    """The three texts, of about so many tokens each."""
    sampled = llm.generate(
        list(_OPENINGS),
        SamplingParams(temperature=1, seed=1, max_tokens=min(tokens // len(_OPENINGS), _WINDOW), ignore_eos=True),
        use_tqdm=False,
    )
    greedy = llm.chat(
        [[{"role": "user", "content": question}] for question in _QUESTIONS],
        SamplingParams(temperature=0, max_tokens=min(tokens // len(_QUESTIONS), _WINDOW)),
        use_tqdm=False,
    )
    documents = "\n\n".join((ROOT / name).read_text() for name in _DOCUMENTS)
    (read,) = llm.generate([documents[: 6 * tokens]], SamplingParams(max_tokens=1), use_tqdm=False)
    words = tuple(read.prompt_token_ids[:tokens])
    return {
        "sampled at 1": [_answered(output) for output in sampled],
        "greedy answers": [_answered(output) for output in greedy],
        "documentation": [Piece((), words[at : at + _WINDOW]) for at in range(0, len(words), _WINDOW)],
    }


def _answered(output: Any) -> Piece:
    return Piece(tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids))


@contextmanager
def gpu_arithmetic() -> Iterator[None]:
    """Within it, models are built whose eight-bit layers quantize their inputs, on a CPU too."""

    def runs_scaled(parts: Sequence[RawTensor], device: torch.device, packed: bool) -> bool:
        return all(part.scales is not None for part in parts) and mergeable(parts)

    with patch.object(quant, "_runs_scaled", runs_scaled), patch.object(ReferenceOps, "scripted", False):
        yield


def quality(dtype: str, tokens: int) -> Iterator[dict[str, object]]:
    """Each variant's perplexities, and how much they are above the first one's."""
    texts: dict[str, list[Piece]] = {}
    base: dict[str, float] = {}
    for options in VARIANTS:
        llm = LLM("smollm2", dtype=dtype, drafter="none", prefix_caching=False, max_num_seqs=16, **options)
        texts = texts or make_texts(llm, tokens)
        found = {name: perplexity(llm, pieces) for name, pieces in texts.items()}
        base = base or found
        info = llm.info
        yield {
            "options": options,
            "weights": info.quantization,
            "dtype": info.dtype,
            "device": info.device,
            "perplexity": {name: round(value, 4) for name, value in found.items()},
            "rise_percent": {name: round(100 * (value / base[name] - 1), 3) for name, value in found.items()},
        }
        del llm
