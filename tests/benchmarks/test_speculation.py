"""The inputs of speculation.py, and its comparison of two engines."""

from __future__ import annotations

import io
import json
import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drafts.plot import main as draw
from drafts.plot import series
from fake_engine import FakeEngine
from rich.console import Console
from speculation import _arguments, _configurations, _requests, main

from draftline.engine.bench.speculation.answers import Answers, ask, since
from draftline.engine.bench.speculation.compare import compare, costs_of, differences, measure, tables
from draftline.engine.bench.speculation.engines import in_own_process
from draftline.engine.bench.speculation.prompts import SpecBenchQuestion, extraction, random_tokens, read_spec_bench
from draftline.engine.config import EngineConfig
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.stats import DrafterStats, EngineStats, StepTimes


def dataset(path: Path, count: int) -> Path:
    lines = [json.dumps({"category": f"c{i}", "turns": [f"question {i}", "and then?"]}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_first_turns_are_read(tmp_path: Path) -> None:
    path = dataset(tmp_path / "q.jsonl", 3)
    assert read_spec_bench(path, None) == [SpecBenchQuestion(f"c{i}", f"question {i}") for i in range(3)]
    assert read_spec_bench(path, 9) == read_spec_bench(path, None)


def test_a_limit_is_spread_over_the_file(tmp_path: Path) -> None:
    questions = read_spec_bench(dataset(tmp_path / "q.jsonl", 10), 4)
    assert [question.category for question in questions] == ["c0", "c2", "c5", "c7"]


@pytest.mark.parametrize("line", ["no json", "{}", '{"category": "c", "turns": []}', "[]"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = dataset(tmp_path / "q.jsonl", 1)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"q\.jsonl:2: not (a question|JSON)"):
        read_spec_bench(path, None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: No such file"):
        read_spec_bench(tmp_path / "none.jsonl", None)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.touch()
    with pytest.raises(ValueError, match=r"q\.jsonl: has no question"):
        read_spec_bench(path, None)


def test_generated_prompts_are_deterministic() -> None:
    assert extraction(4) == extraction(4)
    assert len({question.text for question in extraction(20)}) > 15
    first, second = random_tokens(8, 1000), random_tokens(8, 1000)
    assert first == second
    assert len({request.prompt for request in first}) == 8


def test_a_comparison_counts_tokens_drafts_and_differences() -> None:
    before = DrafterStats("ngram", 5, (5, 2), (1, 1), StepTimes(1, 2, 3, 4))
    now = DrafterStats("ngram", 10, (10, 6, 3), (3, 2, 0), StepTimes(2, 4, 6, 8))
    plain = Answers(((1, 2, 3, 4), (5, 6, 7, 8)), 2.0, DrafterStats("none"))
    drafted = Answers(((1, 2, 3, 4), (5, 6, 7, 9)), 1.0, since(now, before))
    result = compare([plain], [drafted])
    assert (result["plain_tokens_per_s"], result["tokens_per_s"], result["speedup"]) == (4.0, 8.0, 2.0)
    assert (result["drafted"], result["accepted"]) == (12, 3)
    assert result["drafted_by_position"] == [5, 4, 3]
    assert result["accepted_by_position"] == [2, 1, 0]
    assert (result["drafted_steps"], result["acceptance_length"]) == (5, 1.6)
    assert differences([plain], [drafted]) == {
        "different_answers": 1,
        "differences": [{"round": 0, "answer": 1, "position": 3, "plain": 8, "drafted": 9}],
    }
    assert result["times"] == {"draft_s": 1, "verify_s": 2, "sample_s": 3, "host_s": 4}
    assert result["verdict"] == "one run"


def test_a_gain_is_claimed_only_beyond_noise_and_with_drafts() -> None:
    def rounds(name: str, drafted: int, *seconds: float) -> list[Answers]:
        stats = DrafterStats(name, drafted, (drafted,), (drafted,))
        return [Answers(((1, 2, 3, 4),), each, stats) for each in seconds]

    plain = rounds("none", 0, 2.0, 2.0, 2.0)
    assert compare(plain, rounds("ngram", 5, 1.0, 1.1, 1.2))["verdict"] == "faster"
    assert compare(plain, rounds("ngram", 5, 1.0, 2.1, 1.2))["verdict"] == "within noise"
    assert compare(plain, rounds("ngram", 5, 3.0, 2.1, 2.2))["verdict"] == "slower"
    undrafted = compare(plain, rounds("ngram", 0, 1.0, 1.1, 1.2))
    assert undrafted["verdict"] == "nothing drafted"
    line = {**undrafted, "concurrency": 1, "model": "m", "dataset": "d", "synthetic": False, "step_costs": []}
    shown = printed([line])
    assert "nothing drafted" in shown
    assert not re.search(r" 1\.\d\d× ", shown.replace("–", "to"))
    assert "ms of a step" not in shown, "draft lengths are fixed"
    assert re.search(
        r"ngram +│ +1 │ +0\.700 │ +0\.905", printed([line, {**line, "step_costs": [(0, 7e-4), (2, 9.05e-4)]}])
    )


def printed(results: list[dict[str, Any]]) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    for table in tables(results):
        console.print(table)
    return console.export_text()


def test_costs_are_those_of_the_next_larger_step_that_was_measured() -> None:
    measured = tuple((rows, drafts, rows + drafts / 8) for rows in (1, 4, 16) for drafts in (0, 2))
    assert costs_of(measured, 3) == costs_of(measured, 4) == [(0, 4.0), (2, 4.25)]
    assert costs_of(measured, 64) == [(0, 16.0), (2, 16.25)]
    assert costs_of((), 4) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "spec-bench"], "--path"),
        (["--dataset", "random"], "--acceptance-length"),
        (["--dataset", "extraction", "--shape", "smollm2-135m"], "random weights"),
        (["--rounds", "0"], "--rounds: '0' is no whole number of at least 1"),
        (["--limit", "-1"], "--limit: '-1' is no whole number of at least 1"),
        (["--concurrency", "1,0"], "--concurrency: '0' is no whole number of at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_options_that_several_engines_on_a_device_cannot_have_are_refused() -> None:
    with pytest.raises(SystemExit, match="--set gpu_memory_utilization: several engines share the device"):
        main(["--dataset", "extraction", "--set", "gpu_memory_utilization=0.5"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "drafter", "ranks"),
    [({}, "draft_model", 1), ({"draft_vocab_size": 100}, "ngram+eagle3", 1), ({}, "draft_model", 2)],
)
def test_a_run_on_random_weights_is_marked_synthetic(
    tmp_path: Path, fields: dict[str, int], drafter: str, ranks: int
) -> None:
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (tmp_path / "shape.json").write_text(json.dumps(shape))
    draft = shape | fields | ({"num_hidden_layers": 1, "tie_word_embeddings": False} if fields else {})
    (tmp_path / "draft.json").write_text(json.dumps(draft))
    out = tmp_path / "out.jsonl"
    arguments = f"--dataset random --shape {tmp_path}/shape.json --draft-shape {tmp_path}/draft.json --concurrency 2"
    options = "--rounds 1 --set draft_length=fixed --set device=cpu --set kv_cache_memory_gib=0.1"
    options += f" --set tensor_parallel_size={ranks}"
    main(f"{arguments} --acceptance-length 3.0 {options} --output {out}".split())
    (line,) = out.read_text().splitlines()
    result = json.loads(line)
    assert result["synthetic"]
    assert result["drafter"] == drafter
    assert result["acceptance_length"] == pytest.approx(3.0, abs=0.3)
    assert result["tokens"] == 512
    assert "SYNTHETIC" in printed([result])
    assert result["step_costs"] == [], "draft lengths are fixed"


def test_statistics_may_come_behind_the_answers() -> None:
    """An engine in another process sends its own now and then."""

    class Late(FakeEngine):
        asked = 0

        def stats(self) -> EngineStats:
            self.asked += 1
            drafter = DrafterStats("ngram", 9, (9,), (4,)) if self.asked > 3 else DrafterStats("ngram")
            return replace(super().stats(), generated_tokens=8 if self.asked > 3 else 0, drafter=drafter)

    engine = Late()
    requests = [GenerateRequest("abc", SamplingParams(max_tokens=4, ignore_eos=True)) for _ in range(2)]
    answers = ask(engine, requests, 2)
    assert [len(tokens) for tokens in answers.tokens] == [4, 4]
    assert answers.drafts.drafted_by_position == (9,)
    engine.close()


def test_speed_ups_are_plotted_by_label(tmp_path: Path) -> None:
    def line(concurrency: int, speedup: float, **fields: object) -> dict[str, object]:
        common = {"model": "m", "draft_model": None, "drafter": "ngram", "dataset": "random", "synthetic": False}
        return common | {"options": {}, "concurrency": concurrency, "speedup": speedup} | fields

    synthetic = {"synthetic": True, "options": {"synthetic_acceptance": 0.8, "draft_length": "fixed"}}
    results = [line(1, 1.5), line(8, 1.2), line(1, 1.6), line(1, 2.0, **synthetic)]
    assert series(results) == {
        "m + ngram, random": {1: 1.6, 8: 1.2},
        "m + ngram, SYNTHETIC acceptance, fixed": {1: 2.0},
    }
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, results)))
    draw([str(tmp_path / "results.jsonl"), "--output", str(tmp_path / "gains.svg")])
    picture = (tmp_path / "gains.svg").read_text()
    assert "SYNTHETIC" in picture


def test_a_plot_may_be_of_some_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr("drafts.plot.plot", lambda results, path: drawn.extend(result["commit"] for result in results))
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(json.dumps({"commit": commit}) for commit in "abcab"))
    arguments = [str(path), "--output", str(tmp_path / "gains.svg")]
    draw([*arguments, "--commit", "a", "--commit", "c"])
    assert drawn == ["a", "c", "a"]
    with pytest.raises(SystemExit):
        draw([*arguments, "--commit", "d"])


class Named(str):
    """An engine that is nothing but its name, and counts how often it was made to forget."""

    forgot = 0
    chance: float | None = None

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(step_costs=((1, 0, 1e-3), (1, 4, 2e-3)), synthetic_acceptance=self.chance)

    def flush_prefix_cache(self) -> Future[int]:
        self.forgot += 1
        done: Future[int] = Future()
        done.set_result(0)
        return done


def test_all_engines_answer_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(engine: str, requests: list[int], concurrency: int) -> Answers:
        asked.append(engine)
        stats = DrafterStats(engine, 2, (2, 1), (1, 1))
        return Answers(((1, 2), (3, 4)), {"plain": 2.0}.get(engine, 1.0), stats, {"plain": 0.4}.get(engine, 0.1))

    monkeypatch.setattr("draftline.engine.bench.speculation.compare.ask", ask)
    engines = [Named("plain"), Named("a"), Named("b")]
    found = list(measure(engines[0], engines[1:], [1, 2], 1, 3))  # type: ignore[arg-type]
    assert asked == ["plain", "a", "b"] * 2 + ["a", "b", "plain"] + ["b", "plain", "a"], (
        "each round begins with another"
    )
    assert [engine.forgot for engine in engines] == [1, 1, 1]
    assert [result["drafter"] for result in found] == ["a", "b"]
    assert found[0]["speedup"] == 2.0
    assert found[0]["survival"] == [0.5, 0.5]
    assert found[0]["step_costs"] == [(0, 1e-3), (4, 2e-3)]
    assert (found[0]["plain_cpu_ms_per_token"], found[0]["cpu_ms_per_token"]) == pytest.approx((100.0, 25.0))
    assert found[0]["cpu_speedup"] == pytest.approx(4.0)


def test_outputs_of_synthetic_acceptance_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(engine: str, requests: list[int], concurrency: int) -> Answers:
        return Answers(((1, 2 if engine == "plain" else 3),), 1.0, DrafterStats(engine, 2, (2,), (1,)), 0.1)

    monkeypatch.setattr("draftline.engine.bench.speculation.compare.ask", ask)
    synthetic = Named("synthetic")
    synthetic.chance = 0.5
    honest, meaningless = measure(Named("plain"), [Named("a"), synthetic], [1, 2], 1, 3)  # type: ignore[arg-type, list-item]
    assert (honest["synthetic"], honest["different_answers"], len(honest["differences"])) == (False, 1, 3)
    assert meaningless["synthetic"]
    assert not meaningless.keys() & {"different_answers", "differences"}
    gains, _ = tables([{**meaningless, "model": "m", "dataset": "d"}])
    assert list(gains.columns[-1].cells) == ["–"]


def test_an_interruption_leaves_the_whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(engine: str, requests: list[int], concurrency: int) -> Answers:
        asked.append(engine)
        if len(asked) == 8:  # the warm-up, two rounds, and one engine's part of the third
            raise KeyboardInterrupt
        return Answers(((1, 2),), 1.0, DrafterStats(engine, 2, (2,), (1,)), 0.1)

    monkeypatch.setattr("draftline.engine.bench.speculation.compare.ask", ask)
    found = measure(Named("plain"), [Named("a")], [1, 2], 1, 5)  # type: ignore[arg-type, list-item]
    assert [(line["rounds"], line["interrupted"]) for line in [next(found)]] == [(2, True)]
    with pytest.raises(KeyboardInterrupt):
        next(found)
    line = {"model": "m", "draft_model": None, "dataset": "d", "synthetic": False, "options": {}, "drafter": "a"}
    point = {**line, "concurrency": 1, "speedup": 2.0}
    assert series([point, {**point, "speedup": 1.0, "interrupted": True}]) == {"m + a, d": {1: 2.0}}


def test_no_request_comes_twice_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[list[int]]] = {"plain": [], "a": []}

    def ask(engine: str, requests: list[int], concurrency: int) -> Answers:
        asked[engine].append(list(requests))
        return Answers(((1, 2),), 1.0, DrafterStats(engine, 2, (2,), (1,)), 0.1)

    monkeypatch.setattr("draftline.engine.bench.speculation.compare.ask", ask)
    list(measure(Named("plain"), [Named("a")], list(range(11)), 2, 3))  # type: ignore[arg-type, list-item]
    assert asked["plain"] == asked["a"] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    asked["plain"].clear()
    list(measure(Named("plain"), [Named("a")], list(range(11)), 3, 3))  # type: ignore[arg-type, list-item]
    assert asked["plain"] == [list(range(11))] * 4


def test_requests_are_grouped_by_temperature_and_category(tmp_path: Path) -> None:
    path = dataset(tmp_path / "q.jsonl", 6)
    categories = {json.loads(line)["category"] for line in path.read_text().splitlines()}
    arguments = _arguments(
        ["--path", str(path), "--temperature", "0,1", "--by-category", "--contender", "draft_tokens=2"]
    )
    groups = list(_requests(arguments, 1, 10))
    assert [about["temperature"] for about, _ in groups] == sorted(about["temperature"] for about, _ in groups)
    assert {about.get("category") for about, _ in groups} == {None, *categories}
    assert [len(requests) for about, requests in groups if "category" not in about] == [6, 6]
    assert all(each.sampling.temperature == about["temperature"] for about, requests in groups for each in requests)
    without, [config] = _configurations(arguments, tmp_path)
    assert (without.drafter, config.drafter, config.draft_tokens) == ("none", "ngram", 2)


@pytest.mark.parametrize(
    ("gpu", "device", "ranks", "wanted", "own"),
    [
        (False, "auto", 1, None, False),
        (True, "auto", 1, None, True),
        (True, "cpu", 1, None, False),
        (True, "cuda", 1, False, False),
        (False, "cpu", 1, True, True),
        (False, "cpu", 2, False, True),
    ],
)
def test_engines_have_processes_as_servers_do(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, device: str, ranks: int, wanted: bool | None, own: bool
) -> None:
    monkeypatch.setattr("draftline.engine.process.startup.has_gpu", lambda: gpu)
    config = EngineConfig.model_validate({"device": device, "tensor_parallel_size": ranks})
    assert in_own_process(config, wanted) == own
