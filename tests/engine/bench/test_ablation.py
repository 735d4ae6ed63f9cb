"""Ablations: what each variant changes, and the same load on servers of several variants."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typing_extensions import override

from draftline.engine.bench.ablation import run as ablation
from draftline.engine.bench.ablation.run import Measured, _result
from draftline.engine.bench.ablation.substitutes import substitutes_of
from draftline.engine.bench.ablation.variants import NAMES, Variant, variants
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.build import NO_SUBSTITUTES
from draftline.engine.cli import app
from draftline.engine.config import EngineConfig
from draftline.engine.errors import CallFailedError, UsageError

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}  # fmt: skip


def chosen(only: str | None = None, *, gpu: bool, **options: Any) -> list[Variant]:
    return variants(EngineConfig(**options), gpu, only)[0]


def test_on_a_gpu_every_optimization_is_switched_once() -> None:
    found = chosen(gpu=True)
    assert len(found) == len(NAMES) + 1
    assert found[0] == Variant("baseline", "", engine_process=True)
    seen = {
        (
            json.dumps({name: str(value) for name, value in each.options.items()}),
            each.substitutes,
            each.engine_process,
            each.batching,
        )
        for each in found
    }
    assert len(seen) == len(found)  # no two measure the same
    for each in found:
        each.config(EngineConfig(max_model_len=64))


def test_a_cpu_leaves_out_what_it_has_not_and_says_why() -> None:
    found, left_out = variants(EngineConfig(), False, None)
    assert left_out.keys() == {"graphs", "steps-ahead", "fused-kernels", "attention", "fp8-weights"}
    assert all(left_out.values())
    assert [each.engine_process for each in found if each.name == "engine-process"] == [True]
    assert not found[0].engine_process


def test_what_is_off_is_switched_on() -> None:
    [_, drafts, weights, cache] = chosen("drafts,fp8-weights,fp8-cache", gpu=True, model="./m")
    assert [each.state for each in (drafts, weights, cache)] == ["ngram", "on", "on"]
    options = {"drafter": "ngram", "quantization": "fp8", "kv_cache_dtype": "fp8"}
    [_, drafts, weights, cache] = chosen("drafts,fp8-weights,fp8-cache", gpu=True, **options)
    assert [each.state for each in (drafts, weights, cache)] == ["off", "off", "off"]
    assert drafts.config(EngineConfig(drafter="ngram", draft_tokens=6)) == EngineConfig(drafter="none")
    assert chosen("drafts", gpu=False)[1].state == "off"  # a CPU drafts by itself
    assert chosen("drafts", gpu=True)[1].state == "off"  # and for the embedded model a GPU does
    config = EngineConfig(draft_model="m", draft_quantization="int8")
    assert variants(config, True, "drafts")[0][1].config(config).draft_model is None


def test_whole_prompts_fit_into_a_step() -> None:
    [_, whole] = chosen("chunked-prefill", gpu=True, max_batched_tokens=512, max_model_len=20_000)
    config = whole.config(EngineConfig(max_batched_tokens=512, max_model_len=20_000))
    assert (config.inter_token_target, config.max_batched_tokens) == (math.inf, 20_000)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="--only: 'nothing' is not one of graphs, steps-ahead"):
        chosen("graphs,nothing", gpu=True)


def test_substitutes_replace_the_engines_own_parts() -> None:
    assert substitutes_of(()) == NO_SUBSTITUTES
    both = substitutes_of(("no-steps-ahead", "vendor"))
    assert both.steps_ahead == 0
    assert both.ops is not NO_SUBSTITUTES.ops


def test_changes_are_against_the_baseline_and_outputs_are_compared() -> None:
    def measured(speeds: list[float], first_ms: float, texts: dict[tuple[int, int, int], list[int]]) -> Measured:
        rounds = [{"tokens_per_s": speed, "first_token_ms": {"p50": first_ms}, "failed": 0} for speed in speeds]
        memory = {"weights": 5, "cache": 100, "activations": 2, "graphs": 1}
        return Measured(rounds, texts, {"memory": memory, "cache_tokens": 50, "address": "a", "drafters": []})

    base = measured([90.0, 100.0, 110.0], 10.0, {(1, 0, 0): [1, 2], (1, 1, 0): [3]})
    slower = _result(measured([40.0, 50.0, 60.0], 15.0, {(1, 0, 0): [1, 2], (1, 1, 0): [4]}), base)
    assert slower["tokens_per_s_change"] == -0.5
    assert slower["first_token_change"] == 0.5
    assert (slower["outputs"], slower["outputs_equal"], slower["within_noise"]) == (2, 1, False)
    assert (slower["fixed_bytes"], slower["cache_bytes_a_token"]) == (8, 2.0)
    alike = _result(measured([95.0, 104.0, 120.0], 10.0, base.texts), base)
    assert (alike["within_noise"], alike["outputs_equal"]) == (True, 2)
    once = _result(measured([50.0], 10.0, base.texts), measured([100.0], 10.0, base.texts))
    assert (once["tokens_per_s_change"], once["within_noise"]) == (-0.5, True)  # one round shows no spread


class Busy(Target):
    """Refuses every request."""

    info = TargetInfo("test", "busy", "1", "m", None, None, 100, None, "tokens")

    @override
    async def ask(self, question: Question, answer: Answer) -> None:
        raise RequestError("RESOURCE_EXHAUSTED", "the queue is full")

    @override
    async def close(self) -> None:
        pass


async def test_a_baseline_without_an_answer_ends_the_ablation(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def server(variant: Variant, config: EngineConfig) -> AsyncIterator[tuple[Target, dict[str, Any]]]:
        yield Busy(), {}

    monkeypatch.setattr(ablation, "_server", server)
    load = LoadConfig(conversations=2, prompt_len="4", output_len="4", warm_up=0)
    with pytest.raises(CallFailedError, match="all 2 requests failed: the queue is full"):
        await ablation.Ablation(EngineConfig(), load).measure(Variant("baseline", ""), lambda answer: None)


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "ablate", *arguments])


@pytest.mark.slow  # each variant has a server of its own, which takes longer to start than all else
def test_servers_of_several_variants_get_the_same_load(tmp_path: Path) -> None:
    variants = ["prefix-cache", "one-at-a-time", "fp8-cache"]
    shape, output, picture = tmp_path / "config.json", tmp_path / "lines.jsonl", tmp_path / "ablation.svg"
    shape.write_text(json.dumps(SHAPE))
    done = run(
        "--shape", str(shape), "--device", "cpu", "--dtype", "float32", "--kv-cache-memory-gib", "0.01",
        "--only", ",".join(variants), "--conversations", "3", "--prompt-len", "40", "--output-len", "6",
        "--shared-prefix", "64", "--workload", "prefix_caching", "--output", str(output), "--warm-up", "1",
        "--plot", str(picture),
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "prefix-cache: off" in picture.read_text()
    base, uncached, single, eight = map(json.loads, output.read_text().splitlines())
    assert (base["outputs"], base["outputs_equal"], base["tokens_per_s_change"]) == (3, 3, 0.0)
    assert base["rounds"][0]["cache_hit_rate"] is not None
    assert uncached["rounds"][0]["cache_hit_rate"] == 0.0
    assert uncached["outputs_equal"] == 3
    assert single["outputs_equal"] == 3
    assert single["rounds"][0]["max_in_flight"] == 1
    assert eight["error"] or eight["cache_bytes_a_token"] < base["cache_bytes_a_token"]
    assert "continuous-batching" in done.stderr
    assert "one at a time" in done.stderr


@pytest.mark.slow  # `test_targets.py` has servers that cannot start
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(SHAPE))
    common = ("--shape", str(shape), "--device", "cpu", "--dtype", "float32", "--drafter", "none")
    done = run(
        *common,
        "--max-model-len",
        "256",
        "--kv-cache-memory-gib",
        "0.00001",
        "--only",
        "prefix-cache",
        "--conversations",
        "1",
    )
    assert done.exit_code == 1
    assert "Raise kv_cache_memory_gib" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--rate", "3"), "all conversations are there at once"),
        (("--prompts", "chat"), "compares the tokens of drawn prompts"),
        (("--only", "x"), "--only: 'x' is not one of"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())
