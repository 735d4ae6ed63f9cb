"""Perplexity of SmolLM2 in each format of weights and cache, relative to the unquantized model.

There are three texts, since the effect of an error depends on the confidence of the model:

- the model's own samples at temperature 1, where the rise of the log-perplexity estimates the Kullback-Leibler
  divergence;
- its greedy answers to questions;
- the documentation of this repository.

A CPU uses quantized weights, but unquantized activations. `GpuArithmetic` quantizes activations too, with the plain
torch reference of the GPU's kernels, so that the loss of quality on a GPU can be measured without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from draftline import LLM, SamplingParams
from draftline.engine.bench.provenance import ROOT
from draftline.engine.config import DType
from draftline.kernels import select_ops
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.models.model import Model

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
DOCUMENTS = ("README.md", "docs/architecture.md", "docs/benchmarks.md", "CONTRIBUTING.md", "LICENSE")
"""Files of the repository that make up the text ``documentation``."""

_WINDOW = 512
"""Tokens of a piece of text. Its first tokens have little context, in every format."""

_BLOCK_SIZE = 16

CACHES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""The dtype of the cache by ``kv_cache_dtype``; ``auto`` is the dtype of activations."""

VARIANTS: tuple[dict[str, str], ...] = (
    {},
    {"quantization": "fp8"},
    {"quantization": "int8"},
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "int8"},
    {"quantization": "fp8", "kv_cache_dtype": "fp8"},
)
"""Options of the engine; the first one is the baseline."""


class GpuArithmetic(ReferenceOps):
    """`ReferenceOps` whose eight-bit layers quantize their inputs, as on a GPU."""

    scripted = False
    runs_scaled = True


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens to be predicted (``text``), behind a context (``given``)."""

    given: tuple[int, ...]
    text: tuple[int, ...]


def perplexity(model: Model, cache_dtype: torch.dtype, pieces: list[Piece]) -> float:
    """The exponential of the mean negative log-probability of the tokens of all pieces."""
    total, count = 0.0, 0
    for piece in pieces:
        tokens = torch.tensor([*piece.given, *piece.text], device=model.device)
        # Without a context, start with the second token: nothing predicts the first.
        first = max(len(piece.given), 1)
        logits = _logits(model, cache_dtype, tokens)[first - 1 : -1]
        chosen = logits.float().log_softmax(-1).gather(1, tokens[first:, None])
        total -= float(chosen.double().sum())
        count += len(chosen)
    return math.exp(total / count)


def _logits(model: Model, cache_dtype: torch.dtype, tokens: torch.Tensor) -> torch.Tensor:
    """[T, vocab], the logits of all tokens, run as one prompt."""
    count, config, device = len(tokens), model.config, model.device
    blocks = -(-count // _BLOCK_SIZE)
    cache = KVCache.allocate(
        config.num_layers, blocks, _BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype=cache_dtype, device=device
    )
    steps = torch.arange(count, device=device)
    starts = torch.tensor([0, count], dtype=torch.int32, device=device)
    table = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    batch = Batch(tokens, steps, steps, starts, starts[1:], table, steps, (count,), (count,))
    with torch.inference_mode():
        return model.forward(batch, cache)


def make_texts(llm: LLM, tokens: int) -> dict[str, list[Piece]]:
    """The three texts, of about ``tokens`` tokens each."""
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
    documents = "\n\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    (read,) = llm.generate([documents[: 6 * tokens]], SamplingParams(max_tokens=1), use_tqdm=False)
    words = tuple(read.prompt_token_ids[:tokens])
    return {
        "sampled at 1": [_answered(output) for output in sampled],
        "greedy answers": [_answered(output) for output in greedy],
        "documentation": [Piece((), words[start : start + _WINDOW]) for start in range(0, len(words), _WINDOW)],
    }


def _answered(output: Any) -> Piece:
    return Piece(tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids))


def quality(dtype: DType, tokens: int, ops: Ops | None = None) -> Iterator[dict[str, object]]:
    """The perplexities of each variant, and their rise over the first one.

    Args:
        dtype: the dtype of the models, as an option of the engine.
        tokens: the approximate number of tokens of a text.
        ops: operations that run the models, in place of the device's own.
    """
    llm = LLM("smollm2", dtype=dtype, drafter="none", prefix_caching=False, max_num_seqs=16)
    texts, info = make_texts(llm, tokens), llm.info
    del llm
    device = torch.device(info.device)
    ops = ops or select_ops(device)
    base: dict[str, float] = {}
    for options in VARIANTS:
        checkpoint = open_checkpoint("smollm2", quantization=options.get("quantization", "auto"))
        variant = build_model(checkpoint, checkpoint.config, ops, getattr(torch, info.dtype), device)
        cache_dtype = CACHES.get(options.get("kv_cache_dtype", "auto"), variant.cache_dtype)
        found = {name: perplexity(variant, cache_dtype, pieces) for name, pieces in texts.items()}
        base = base or found
        yield {
            "options": options,
            "weights": variant.quantization,
            "dtype": info.dtype,
            "device": info.device,
            "perplexity": {name: round(value, 4) for name, value in found.items()},
            "rise_percent": {name: round(100 * (value / base[name] - 1), 3) for name, value in found.items()},
        }
