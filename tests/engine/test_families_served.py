"""The families with layers of their own, through the whole engine: greedy tokens are transformers'."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from byte_tokenizer import VOCAB, write_byte_tokenizer

from draftline import LLM, SamplingParams

_SIZES: Any = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": 256}
CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "gpt2": lambda: transformers.GPT2Config(
        **_SIZES, n_embd=48, n_layer=2, n_head=3, n_positions=256, initializer_range=0.3
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_SIZES,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        sliding_window=20,
        sliding_window_pattern=2,
        initializer_range=0.1,
    ),
}


@pytest.mark.parametrize("drafter", [pytest.param("none", marks=pytest.mark.slow), "ngram"])
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, name: str, drafter: str) -> None:
    """In chunks of prompts, with prefixes that were computed before, on both sides of the window, with drafts.

    One forward of transformers over each whole output: by induction its greedy tokens are ours, if every one is.
    """
    torch.manual_seed(0)
    reference = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    reference.save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    llm = LLM(
        str(tmp_path),
        device="cpu",
        dtype="float32",
        max_batched_tokens=24,
        max_num_seqs=6,
        kv_cache_memory_gib=0.05,
        drafter=drafter,
    )
    rng = random.Random(0)
    shared = [rng.randrange(256) for _ in range(64)]
    prompts = [shared[:length] + [rng.randrange(256) for _ in range(3)] for length in (0, 5, 15, 16, 30, 48, 64)] * 2
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        assert len(tokens) == 30
        with torch.inference_mode():
            logits = cast(Any, reference)(torch.tensor([[*prompt, *tokens]])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
    assert sum(output.outputs[0].finished.usage.cached_tokens for output in outputs if output.outputs[0].finished) >= 64
