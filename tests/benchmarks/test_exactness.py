"""exactness.py: how answers are compared, and a run of all columns on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exact_cpu import EXACT
from exactness import main

from draftline.engine.bench.exact import measure
from draftline.engine.bench.exact.answers import Answer, Difference, EngineAnswers, equal_answers, first_difference
from draftline.engine.bench.exact.columns import ALONE, SMALL_CHUNK, Column, columns
from draftline.engine.bench.exact.results import holds, table
from draftline.engine.bench.exact.suites import SUITES, questions, random_prompts, suite
from draftline.engine.config import EngineConfig

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ONE: Answer = ((5, -0.5), (6, -0.25))
CLOSE: Answer = ((5, -0.5), (6, -0.25000003))
LONGER: Answer = (*ONE, (7, -1.0))


@pytest.fixture
def shape(tmp_path: Path) -> str:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(SHAPE))
    return str(path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_last_bit_is_a_difference_though_the_tokens_are_equal() -> None:
    assert equal_answers([ONE, CLOSE, LONGER], [ONE, ONE, ONE]) == (1, 2)
    assert first_difference([ONE, CLOSE, LONGER], [ONE, ONE, ONE]) == Difference(1, 1, CLOSE[1], ONE[1])
    assert first_difference([ONE, LONGER], [ONE, ONE]) == Difference(1, 2, (7, -1.0), None)
    assert first_difference([ONE], [ONE]) is None


def test_a_column_that_shows_nothing_does_not_hold() -> None:
    result = {"equal": 3, "questions": 3, "count": 9}
    assert holds(result)
    assert not holds(result | {"equal": 2})
    assert not holds(result | {"count": 0})


def test_every_request_wants_log_probabilities_and_is_the_same_in_every_call(tmp_path: Path) -> None:
    prompts = random_prompts(20, 300)
    assert prompts == random_prompts(20, 300)
    assert {type(prompt) for prompt in prompts} == {tuple}
    for name in SUITES:
        requests = suite(name, prompts, 40)
        assert requests == suite(name, prompts, 40)
        assert {request.sampling.logprobs for request in requests} == {0}
    assert len({request.sampling.seed for request in suite("seeded", prompts, 40)}) == 20
    assert len(questions(None, 5)) == 5


@pytest.mark.slow
@pytest.mark.skipif(not EXACT, reason="this CPU's kernels, or those chosen for it, are only close")
@pytest.mark.parametrize(
    ("suites", "limit", "max_tokens"),
    [(["constrained"], 16, 16), (["greedy", "constrained"], 16, 32)],
)
def test_a_tiny_model_gives_equal_answers_in_every_column(
    suites: list[str], limit: int, max_tokens: int, shape: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    options = f"--limit {limit} --max-tokens {max_tokens} --dtype float32 --kv-cache-dtype int8"
    options += f" --suites {','.join(suites)}"
    # On a busy machine steps would be small, and preempt nothing.
    options += " --set device=cpu --set kv_cache_memory_gib=0.01 --set inter_token_target=1000"
    main(f"--shape {shape} --draft-shape {shape} {options} --output {out}".split())
    results = lines(out)
    assert {result["kv_cache_dtype"] for result in results} == {"int8"}
    assert len({result["system_fingerprint"] for result in results}) == 1
    assert {(result["suite"], result["column"]) for result in results} == {
        *(
            (name, column)
            for name in suites
            for column in ("alone", "again", "batches of 8", "batches of 64", "small chunks", "preempted", "ngram")
        ),
        *((name, column) for name in suites for column in ("ngram_table", "draft_model", "fresh process")),
        ("constrained", "forced"),
    }
    for result in results:
        assert (result["equal"], result["equal_tokens"], result["questions"]) == (limit,) * 3
        assert result["count"] > 0
        assert result["first_difference"] is None
        assert result["tokens_per_s"] > 0
        assert result["commit"]


@pytest.mark.slow
@pytest.mark.skipif(not EXACT, reason="this CPU's kernels, or those chosen for it, are only close")
def test_a_divided_model_has_a_process_for_each_column(shape: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = "--limit 4 --max-tokens 8 --dtype float32 --suites greedy --set device=cpu --set kv_cache_memory_gib=0.01"
    main(f"--shape {shape} {options} --set tensor_parallel_size=2 --columns ngram --output {out}".split())
    results = lines(out)
    assert [(result["column"], result["equal"]) for result in results] == [("alone", 4), ("ngram", 4)]
    assert all(result["count"] > 0 for result in results)


@pytest.mark.skipif(not EXACT, reason="this CPU's kernels, or those chosen for it, are only close")
def test_options_of_a_draft_model_are_those_of_its_column(shape: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = "--limit 1 --max-tokens 4 --dtype float32 --suites greedy --columns draft_model --set device=cpu"
    options += " --set draft_quantization=int8 --set kv_cache_memory_gib=0.01"
    main(f"--shape {shape} --draft-shape {shape} {options} --output {out}".split())
    alone, drafted = lines(out)
    assert "draft_quantization" not in alone["options"]
    assert drafted["options"]["draft_quantization"] == "int8"
    assert drafted["count"] > 0


def test_another_arithmetic_fails_and_the_first_difference_is_named(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(measure, "columns", lambda *_, **__: [Column("other dtype", {"dtype": "bfloat16"})])
    arguments = (
        f"--shape {shape} --limit 3 --max-tokens 8 --dtype float32 --suites seeded --set kv_cache_memory_gib=0.01"
    )
    with pytest.raises(SystemExit) as caught:
        main(f"{arguments} --set device=cpu --output {out}".split())
    assert caught.value.code == 1
    reference, other = lines(out)
    assert reference["equal"] == 3
    assert other["equal"] < 3
    first = other["first_difference"]
    assert first["got"] != first["expected"]
    assert f"question {first['question']}, position {first['position']}" in str(
        list(table([reference, other]).columns[-1].cells)
    )


def test_a_run_without_a_preemption_fails(shape: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    arguments = f"--shape {shape} --limit 1 --max-tokens 4 --suites greedy --columns preempted --set device=cpu"
    arguments += " --set kv_cache_memory_gib=1e-2"  # a string in YAML
    with pytest.raises(SystemExit) as caught:
        main(f"{arguments} --output {out}".split())
    assert caught.value.code == 1
    _, preempted = lines(out)
    assert (preempted["equal"], preempted["count"]) == (1, 0)
    assert "nothing shown: no preemptions" in str(list(table([preempted]).columns[-1].cells))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suites", "greedy,odd"], "--suites odd"),
        (["--limit", "0"], "--limit: '0' is no whole number of at least 1"),
        (["--draft-shape", "llama-3.2-1b"], "--draft-shape"),
        (["--shape", "llama-3.2-1b", "--questions", "q.jsonl"], "--questions"),
        (["--suites", ","], "--suites: ',' has no name"),
        (["--dtype", ""], "--dtype: '' has no name"),
        (["--quantization", ","], "--quantization: ',' has no name"),
        (["--kv-cache-dtype", ","], "--kv-cache-dtype: ',' has no name"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("most", "small"), [(None, SMALL_CHUNK), (512, SMALL_CHUNK), (32, 32)])
def test_no_column_has_larger_steps_than_asked_for(most: int | None, small: int) -> None:
    [column] = columns(["small chunks"], max_batched_tokens=most, on_gpu=False, draft={})
    assert column.options["max_batched_tokens"] == small


@pytest.mark.parametrize("option", ["prefix_caching=false", "gpu_memory_utilization=0.5"])
def test_options_that_columns_replace_are_refused(option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(SystemExit, match=f"--set {name}: (each of the --columns|all engines) ha"):
        main(["--set", option])


def test_an_unknown_column_is_named_before_a_model_is_loaded() -> None:
    common = {"model": "./nowhere", "device": "cpu", "kv_cache_memory_gib": 1}
    for name in ("agian", "eager", "draft_model"):  # eager is a GPU's
        with pytest.raises(ValueError, match=f"--columns: {name}: not one of again, batches of 8, "):
            next(measure.measure(common, {}, 4, ["again", name]))


def test_an_unknown_column_is_named(shape: str, tmp_path: Path) -> None:
    arguments = f"--shape {shape} --limit 1 --max-tokens 4 --suites greedy --columns agian --set device=cpu"
    with pytest.raises(SystemExit, match="agian: not one of again, batches of 8"):
        main(f"{arguments} --output {tmp_path / 'out.jsonl'}".split())


def test_the_memory_of_caches_is_that_for_the_device_which_is_set(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(config: EngineConfig, *_: object) -> EngineAnswers:
        raise ValueError(f"{config.device}: {config.kv_cache_memory_gib} GiB")

    monkeypatch.setattr(measure, "ALONE", replace(ALONE, ask=ask))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(SystemExit, match=r"^cpu: 1\.0 GiB$"):
        main(f"--shape {shape} --limit 1 --set device=cpu".split())
