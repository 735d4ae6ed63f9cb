"""The operations that an ablation puts in the place of the GPU's kernels: near in value, and whole engines run with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftline.engine.bench.ablation.substitutes import substitutes_of
from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.request import RequestBuilder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 1024, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    "eos_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("names", [("vendor",), ("reference-attention",), ("no-steps-ahead",), ()])
def test_an_engine_with_substitutes_answers(names: tuple[str, ...], tmp_path: Path) -> None:
    from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer

    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    write_placeholder_tokenizer(tmp_path, 1024)
    config = EngineConfig(
        model=str(tmp_path), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.1, max_num_seqs=8,
        enforce_eager=names == ("reference-attention",), kernels="auto" if names else "reference",
    )  # fmt: skip
    core = build_core(config, substitutes=substitutes_of(names))
    builder = RequestBuilder(core.info, core.tokenizer, config.ageing_s, core.compiler)
    lengths: dict[str, int] = {}

    def sink(updates: object) -> None:
        for name, update in updates:  # type: ignore[attr-defined]
            lengths[name] = lengths.get(name, 0) + len(getattr(update, "token_ids", ()))

    for name in ("a", "b", "c"):
        wanted = GenerateRequest(tuple(range(5, 40)), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        core.add(builder.build(name, wanted, sink, core.now()))
    while core.has_work:
        core.step()
    assert lengths == {"a": 12, "b": 12, "c": 12}
    # The graphs' memory is not asserted: it is the growth of what the whole device uses, other tests included.
    assert core.info.memory.weights > 0
    core.compiler.close()


@pytest.mark.parametrize("name", ["vendor", "reference-attention"])
def test_products_are_close_to_exact_ones(name: str) -> None:
    ops = substitutes_of((name,)).ops(torch.device("cuda"), "auto")
    x, weight = torch.randn(4, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    torch.testing.assert_close(ops.linear(x, weight, None), x @ weight.T, rtol=1e-2, atol=1e-2)
