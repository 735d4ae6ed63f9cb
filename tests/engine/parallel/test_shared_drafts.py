"""A draft model that the ranks share drafts as one of a single rank does. That it changes no output: `test_equality.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_models import write_model

from draftline import LLM, Constraint, SamplingParams
from draftline.engine.config import EngineOptions

OPTIONS: EngineOptions = {
    "device": "cpu",
    "dtype": "float32",
    "tensor_parallel_size": 2,
    "kv_cache_memory_gib": 0.05,
    "max_num_seqs": 4,
    "draft_length": "fixed",
    "draft_tokens": 3,
}


@pytest.mark.slow  # by default, `test_equality.py` has a shared draft model
def test_a_shared_copy_of_the_target_is_always_right(tmp_path: Path) -> None:
    """It has the target's arithmetic, noise and forced tokens, so that every draft is what the target samples."""
    write_model(tmp_path, "llama-64")
    prompts = [{"prompt_token_ids": list(range(3, 3 + length))} for length in (1, 30, 5, 90, 17)]
    greedy = SamplingParams(temperature=0, max_tokens=25, ignore_eos=True)
    seeded = SamplingParams(temperature=0.9, seed=11, max_tokens=25, ignore_eos=True)
    greedy_text = SamplingParams(temperature=0, max_tokens=60)
    forced = Constraint(regex="(abcdefgh|ijklmnop){4}")
    with LLM(str(tmp_path), draft_model=str(tmp_path), draft_tensor_parallel_size=2, **OPTIONS) as llm:
        for sampling in (greedy, seeded):
            llm.generate(prompts, sampling, use_tqdm=False)
        stats = llm.stats()
        assert stats.accepted_tokens == stats.drafted_tokens > 100
        (output,) = llm.generate(prompts[1], greedy_text, constraint=forced, use_tqdm=False)
        assert len(output.outputs[0].text) == 32
