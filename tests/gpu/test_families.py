"""The families with layers of their own on a GPU: graphs, single operations and the CPU give the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from byte_tokenizer import VOCAB, write_byte_tokenizer
from random_checkpoint import RandomCheckpoint
from safetensors.torch import save_file

from draftline import LLM, SamplingParams
from draftline.models.families import config_from_hf, weight_shapes

pytestmark = pytest.mark.long

CONFIGS: dict[str, dict[str, object]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCAB,
        "n_embd": 192,
        "n_layer": 3,
        "n_head": 3,
        "n_positions": 512,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 512,
        "sliding_window": 40,
        "sliding_window_pattern": 2,
    },
}
CONFIGS["gemma3-soft-caps"] = CONFIGS["gemma3"] | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
NAMES = [pytest.param(name, marks=pytest.mark.xdist_group(f"family-{name}")) for name in CONFIGS]
PROMPTS = [{"prompt_token_ids": [*range(7, 7 + length), length]} for length in (1, 5, 31, 60, 90, 200)]


@pytest.mark.parametrize("name", NAMES)
def test_graphs_operations_and_the_cpu_agree(tmp_path: Path, name: str) -> None:
    config = config_from_hf(CONFIGS[name])
    checkpoint = RandomCheckpoint(config, std=0.1)
    tensors = {weight: checkpoint.tensor(weight).data for weight in weight_shapes(config)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    write_byte_tokenizer(tmp_path)
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    answers = []
    for device, eager in (("cuda", False), ("cuda", True), ("cpu", True)):
        llm = LLM(
            str(tmp_path), device=device, dtype="float32", enforce_eager=eager, kv_cache_memory_gib=0.1, max_num_seqs=8
        )
        answers.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, sampling, use_tqdm=False)])
    assert answers[0] == answers[1] == answers[2]


# With soft caps of heads of 256, a kernel takes ten seconds to compile.
@pytest.mark.parametrize("name", [*NAMES[:2], pytest.param("gemma3-soft-caps", marks=pytest.mark.slow)])
def test_they_run_in_bfloat16(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    write_byte_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), load_format="dummy", device="cuda", kv_cache_memory_gib=0.1, max_num_seqs=32)
    sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    for count in (1, 5, 30):  # rows that other kernels run
        outputs = llm.generate((PROMPTS * 5)[:count], sampling, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == 20 for output in outputs)
