"""Memory on a GPU: none is lost while serving, and a lack of it at start is explained."""

from __future__ import annotations

import gc
import json
import resource
from pathlib import Path

import pytest
import torch

from draftline import LLM, SamplingParams
from draftline.engine.bench.readiness import wait_until_ready
from draftline.engine.runner.memory import OutOfMemoryAtStartError

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 0,
}


def write_model(path: Path) -> str:
    from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer

    (path / "config.json").write_text(json.dumps(SHAPE))
    write_placeholder_tokenizer(path, SHAPE["vocab_size"])
    return str(path)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_ten_thousand_steps_keep_no_memory(tmp_path: Path) -> None:
    """Requests of every length come and go; what is allocated between two long stretches does not grow."""
    llm = LLM(write_model(tmp_path), load_format="dummy", device="cuda", kv_cache_memory_gib=0.05, max_num_seqs=16)

    def serve(rounds: int) -> tuple[int, int]:
        for i in range(rounds):
            prompts = [[1 + (7 * i + 3 * j) % 500] * (1 + 5 * j) for j in range(16)]
            params = [
                SamplingParams(temperature=j % 2, seed=j, max_tokens=400 + 40 * j, ignore_eos=True) for j in range(16)
            ]
            llm.generate(prompts, params, use_tqdm=False)
        torch.cuda.synchronize()
        gc.collect()
        return torch.cuda.memory_allocated(), _resident_bytes()

    wait_until_ready(llm.stats)  # a graph that is captured later takes memory, once
    device_before, host_before = serve(2)
    steps = llm.stats().steps
    device_after, host_after = serve(11)
    assert llm.stats().steps - steps >= 10_000
    assert device_after <= device_before
    assert host_after - host_before < 32 << 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory_utilization": 0.0005}, "nothing is left for the cache"),
        ({"kv_cache_memory_gib": 0.0005, "max_model_len": 8192}, "the cache has room for"),
        ({"kv_cache_memory_gib": 4000.0}, "no room for a cache of 4000"),
    ],
    ids=["utilization", "cache too small", "cache too large"],
)
def test_a_lack_of_memory_is_explained(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OutOfMemoryAtStartError, match=message):
        LLM(write_model(tmp_path), load_format="dummy", device="cuda", **options)  # type: ignore[arg-type]
