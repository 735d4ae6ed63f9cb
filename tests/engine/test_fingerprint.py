"""The fingerprint: equal for equal facts in every process, and different as soon as one fact is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftline import LLM, SamplingParams, __version__
from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer
from draftline.engine.fingerprint import SystemFingerprint
from draftline.kernels.arithmetic import ARITHMETIC_REVISION

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}

# A fixed draft length: for an adaptive one each engine would first measure the cost of drafts.
OPTIONS: dict[str, Any] = {
    "load_format": "dummy", "device": "cpu", "dtype": "float32", "kv_cache_memory_gib": 0.01, "draft_length": "fixed"
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shape")
    (path / "config.json").write_text(json.dumps(SHAPE))
    write_placeholder_tokenizer(path, SHAPE["vocab_size"])  # type: ignore[arg-type]
    return str(path)


@pytest.fixture(scope="module")
def usual(folder: str) -> str:
    return LLM(folder, **OPTIONS).info.system_fingerprint


def facts() -> SystemFingerprint:
    return SystemFingerprint.of(
        [torch.device("cpu")], dtype=torch.bfloat16, weights="float16", conversion="fp8", cache_dtype=torch.int8
    )


def test_it_is_short_and_states_its_facts() -> None:
    one = facts()
    assert str(one).startswith("fp_")
    assert len(str(one)) == 15
    for fact in ("bfloat16", "conversion: fp8", "int8", __version__, torch.__version__, str(ARITHMETIC_REVISION)):
        assert fact in one.facts
    assert torch.backends.cpu.get_cpu_capability() in one.device


def test_ranks_on_devices_of_several_kinds_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {0: (8, 6), 1: (8, 6), 2: (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {capabilities[device.index][1]}")

    def named(*indices: int) -> tuple[str, int]:
        devices = [torch.device("cuda", index) for index in indices]
        options = {"dtype": torch.bfloat16, "weights": "bfloat16", "conversion": "auto", "cache_dtype": torch.int8}
        facts = SystemFingerprint.of(devices, **options)  # type: ignore[arg-type]
        return facts.device, facts.ranks

    assert named(0) == ("GPU 6 (compute capability 8.6)", 1)
    assert named(0, 1) == ("GPU 6 (compute capability 8.6)", 2)
    assert named(0, 1, 2) == (
        "GPU 6 (compute capability 8.6) + GPU 6 (compute capability 8.6) + GPU 9 (compute capability 8.9)",
        3,
    )


@pytest.mark.parametrize("field", [field.name for field in fields(SystemFingerprint)])
def test_every_fact_changes_it(field: str) -> None:
    one = facts()
    value = getattr(one, field)
    other = value + 1 if isinstance(value, int) else value + "x"
    assert str(replace(one, **{field: other})) != str(one)
    assert str(replace(one, **{field: value})) == str(one)


@pytest.mark.parametrize(
    "option",
    [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "fp8"}, {"kv_cache_dtype": "int8"}],
    ids=lambda option: "-".join(map(str, *option.items())),
)
def test_options_of_the_arithmetic_change_it(folder: str, usual: str, option: dict[str, Any]) -> None:
    assert LLM(folder, **(OPTIONS | option)).info.system_fingerprint != usual


@pytest.mark.parametrize(
    "option",
    [
        {"block_size": 8},
        {"max_batched_tokens": 16, "max_num_seqs": 3},
        {"drafter": "ngram_table"},
        {"prefix_caching": False},
    ],
    ids=lambda option: "-".join(option),
)
def test_options_that_change_no_output_leave_it(folder: str, usual: str, option: dict[str, Any]) -> None:
    assert LLM(folder, **(OPTIONS | option)).info.system_fingerprint == usual


@pytest.mark.slow  # `test_remote_engine` compares two processes by default
def test_another_process_has_the_same(folder: str, usual: str) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, "-m", "draftline", "info", "--json", "--model", folder, *options]
    printed = subprocess.run(command, cwd=Path(folder), capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["system_fingerprint"] == usual


def test_every_output_has_it(folder: str, usual: str) -> None:
    [output] = LLM(folder, **OPTIONS).generate([1, 2, 3], SamplingParams(n=2, max_tokens=2), use_tqdm=False)
    assert output.system_fingerprint == usual
    assert [one.finished and one.finished.system_fingerprint for one in output.outputs] == [usual, usual]
