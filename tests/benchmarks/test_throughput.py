"""throughput.py: its workloads, its arithmetic, and the command from end to end on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
import throughput
import torch
from regression import read
from rich.console import Console

from draftline.engine.bench.batches import WORKLOADS, BenchmarkRequest, OfflineWorkload, find_workloads
from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer
from draftline.engine.bench.contenders.shapes import SHAPES, find_shape
from draftline.engine.bench.lines import json_line
from draftline.engine.bench.throughput import Round, compare, measure, summarize, table
from draftline.models.families import config_from_hf
from draftline.models.tokenization.tokenizer import Tokenizer

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}


class Recorder:
    """A contender that generates nothing, and records the requests."""

    name = "recorder"
    options: Mapping[str, object] = MappingProxyType({"block_size": 8})
    dtype = "float32"
    weights = "none"
    device = torch.device("cpu")
    vocab_size = 100

    def __init__(self) -> None:
        self.runs: list[tuple[list[BenchmarkRequest], float]] = []

    def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
        self.runs.append((list(requests), temperature))


def ticking(*durations: float) -> Iterator[float]:
    """The readings of a clock around events of these durations."""
    now = 0.0
    for duration in durations:
        yield now
        now += duration
        yield now


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_a_workload_draws_the_same_requests_every_time(workload: OfflineWorkload) -> None:
    requests = workload.draw(49152)
    assert requests == workload.draw(49152)
    assert len(requests) == workload.requests
    is_uneven = any(workload.longest)
    assert not is_uneven or (len(requests[0].prompt), requests[0].output_len) == workload.longest
    for request in requests[1:] if is_uneven else requests:
        assert workload.prompt_len[0] <= len(request.prompt) <= workload.prompt_len[1]
        assert workload.output_len[0] <= request.output_len <= workload.output_len[1]
    assert all(len(request.prompt) + request.output_len <= workload.max_model_len for request in requests)
    assert len({request.prompt for request in requests}) == workload.requests


def test_prompts_draw_on_the_whole_vocabulary() -> None:
    (request,) = OfflineWorkload("long", 1, (20_000, 20_000), (1, 1)).draw(50)
    counts = torch.bincount(torch.tensor(request.prompt), minlength=50)
    assert len(counts) == 50
    assert counts.min() > 300  # 400 expected, with a standard deviation of 20


@pytest.mark.parametrize(
    ("name", "parameters"),
    # The numbers of their model cards and checkpoints.
    [
        ("smollm2-135m", 134_515_008),
        ("qwen3-0.6b", 596_049_920),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
    ],
)
def test_a_shape_has_its_models_size(name: str, parameters: int) -> None:
    shape = config_from_hf(SHAPES[name])
    attention = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim * shape.hidden_size
    norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size + norms
    embeddings = (1 if shape.tied_embeddings else 2) * shape.vocab_size * shape.hidden_size
    assert shape.num_layers * layer + embeddings + shape.hidden_size == parameters


def test_a_shape_is_found_by_name_in_any_case_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    assert find_shape("Qwen3-0.6B") is SHAPES["qwen3-0.6b"]
    assert find_shape(str(path)) == TINY


@pytest.mark.parametrize("vocab_size", [100, 256, 3000])
def test_every_id_of_a_placeholder_tokenizer_has_a_text(tmp_path: Path, vocab_size: int) -> None:
    write_placeholder_tokenizer(tmp_path, vocab_size)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.vocab_size == vocab_size
    spelled = [tokenizer.token_bytes(index) for index in range(vocab_size)]
    assert all(spelled)
    assert len(set(spelled)) == vocab_size


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("{", "not JSON"), ("[]", "lacks"), ("{}", "lacks"), ('{"model_type": "llama"}', "lacks")],
)
def test_an_invalid_shape_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "shape.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=rf"shape '{path}': .*{message}"):
        find_shape(str(path))


def test_workloads_are_found_in_the_order_asked_for() -> None:
    assert [workload.name for workload in find_workloads("bs8, bs1")] == ["bs8", "bs1"]


@pytest.mark.parametrize("names", ["bs2", "bs1,bs2", "", ","])
def test_an_unknown_workload_is_rejected(names: str) -> None:
    with pytest.raises(ValueError, match="is not one of nano, bs1"):
        find_workloads(names)


def test_a_round_is_one_token_each_and_then_the_whole() -> None:
    recorder, workload = Recorder(), OfflineWorkload("w", 3, (5, 9), (2, 4), temperature=0.5)
    taken = measure(recorder, workload, ticking(2.0, 10.0).__next__)
    assert taken == Round(prefill_s=2.0, total_s=10.0)
    (first, first_temperature), (whole, whole_temperature) = recorder.runs
    assert [request.output_len for request in first] == [1, 1, 1]
    assert whole == workload.draw(recorder.vocab_size)
    assert [request.prompt for request in first] == [request.prompt for request in whole]
    assert first_temperature == whole_temperature == 0.5


def test_a_prefill_workload_runs_once() -> None:
    recorder, workload = Recorder(), OfflineWorkload("w", 3, (5, 5), (1, 1))
    assert measure(recorder, workload, ticking(2.0).__next__) == Round(2.0, 2.0)
    assert len(recorder.runs) == 1


@pytest.mark.parametrize(
    ("statistic", "prefill_s", "seconds"), [("best", 1.0, 5.0), ("median", 2.0, 6.0)], ids=["best", "median"]
)
def test_rates_follow_from_the_rounds(statistic: str, prefill_s: float, seconds: float) -> None:
    rounds = [Round(1.0, 9.0), Round(2.0, 5.0), Round(3.0, 6.0)]
    workload = OfflineWorkload("w", 4, (10, 10), (16, 16))
    result = summarize(Recorder(), "m", workload, rounds, statistic)
    assert (result["prefill_s"], result["seconds"]) == (prefill_s, seconds)
    assert (result["requests"], result["prompt_tokens"], result["tokens"]) == (4, 40, 64)
    assert result["tokens_per_s"] == pytest.approx(64 / seconds)
    assert result["decode_tokens_per_s"] == pytest.approx(60 / (seconds - prefill_s))
    assert result["prompt_tokens_per_s"] == pytest.approx(40 / prefill_s)
    assert result["rounds"] == [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0)]


def test_prefill_alone_has_no_decode_rate() -> None:
    result = summarize(Recorder(), "m", OfflineWorkload("w", 2, (5, 5), (1, 1)), [Round(1.0, 1.0)], "best")
    assert result["decode_tokens_per_s"] is None


def test_contenders_take_turns_after_their_warm_ups() -> None:
    order: list[str] = []

    class Turn(Recorder):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
            order.append(self.name)

    workload = OfflineWorkload("w", 1, (5, 5), (16, 16))
    results = list(compare([Turn("a"), Turn("b")], "m", workload, rounds=2))
    assert order == ["a", "b", *["a", "a", "b", "b"] * 2]
    assert [(line["engine"], line["statistic"]) for line in results] == [("a", "median"), ("b", "median")]


def test_the_best_round_of_a_single_contender_counts() -> None:
    (result,) = compare([Recorder()], "m", OfflineWorkload("w", 1, (5, 5), (2, 2)), 3)
    assert result["statistic"] == "best"
    assert len(result["rounds"]) == 3


def test_an_interruption_leaves_the_rounds_that_every_contender_has_run() -> None:
    class Interrupted(Recorder):
        def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
            super().run(requests, temperature)
            if len(self.runs) == 6:  # in its third round, after a warm-up
                raise KeyboardInterrupt

    found = compare([Recorder(), Interrupted()], "m", OfflineWorkload("w", 1, (5, 5), (2, 2)), 5)
    lines = [next(found), next(found)]
    assert [(line["interrupted"], len(line["rounds"])) for line in lines] == [(True, 2)] * 2
    with pytest.raises(KeyboardInterrupt):
        next(found)


def test_a_comparison_of_commits_leaves_out_what_was_interrupted(tmp_path: Path) -> None:
    result = summarize(Recorder(), "m", OfflineWorkload("w", 1, (5, 5), (2, 2)), [Round(1, 2)], "best")
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json_line, (result, {"interrupted": True, **result, "tokens_per_s": 0.1}))))
    assert [line["tokens_per_s"] for line in read(path).values()] == [1.0]


def test_a_line_has_the_engines_options() -> None:
    result = summarize(Recorder(), "m", OfflineWorkload("w", 1, (5, 5), (2, 2)), [Round(1, 2)], "best")
    line = json.loads(json_line(result))
    assert (line["engine"], line["options"]) == (Recorder().name, {"block_size": 8})


def test_the_table_gives_the_first_engines_speed_up() -> None:
    workload = OfflineWorkload("w", 1, (5, 5), (16, 16))
    ours = summarize(Recorder(), "m", workload, [Round(1.0, 4.0)], "median")
    other = Recorder()
    other.name = "other"
    theirs = summarize(other, "m", workload, [Round(1.0, 10.0)], "median")
    console = Console(width=160, record=True, quiet=False)
    with console.capture() as shown:
        console.print(table([{"machine": "a machine", **line} for line in (ours, theirs)]))
    assert "2.50×" in shown.get()
    assert "speed-up: tokens/s of recorder (float32) divided by" in shown.get()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "bs2"], "workload 'bs2' is not one of"),
        (["--shape", "gpt-5"], "shape 'gpt-5': no such file"),
        (["--set", "max_batched_tokens"], "--set max_batched_tokens: expected OPTION=VALUE"),
        (["--set", "speed=fast"], "speed"),
    ],
)
def test_a_bad_argument_is_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        throughput.main(["--device", "cpu", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "transformers,ollama"], "--compare ollama: not one of transformers, llama.cpp"),
        (["--dtype", ","], "--dtype: ',' has no name"),
        (["--compare", "transformers", "--compare-dtype", " "], "--compare-dtype: ' ' has no name"),
        (["--best-of", "0"], "--best-of: '0' is no whole number of at least 1"),
    ],
)
def test_invalid_lists_are_rejected_before_a_model_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        throughput.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("workloads", [["cpu1"], pytest.param(["cpu1", "cpu8"], marks=pytest.mark.slow)], ids=",".join)
def test_the_command_writes_a_line_for_each_engine_and_workload(
    workloads: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape, output = tmp_path / "config.json", tmp_path / "results.jsonl"
    shape.write_text(json.dumps(TINY))
    throughput.main(
        [
            *("--shape", str(shape), "--device", "cpu", "--dtype", "float32,bfloat16", "--best-of", "1"),
            *("--workloads", ",".join(workloads), "--set", "max_batched_tokens=256", "--output", str(output)),
            *("--compare", "transformers", "--compare-dtype", "float32"),
        ]
    )
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(line["engine"], line["dtype"], line["workload"], line["tokens"]) for line in lines] == [
        (engine, dtype, workload, {"cpu1": 128, "cpu8": 1024}[workload])
        for workload in workloads
        for engine, dtype in (("draftline", "float32"), ("draftline", "bfloat16"), ("transformers", "float32"))
    ]
    for line in lines:
        assert line["seconds"] > line["prefill_s"] > 0
        assert line["tokens_per_s"] == pytest.approx(line["tokens"] / line["seconds"])
        assert line["versions"]["torch"] == torch.__version__
    assert lines[0]["options"] == {"max_batched_tokens": 256}
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "speed-up: tokens/s of draftline (float32) divided by" in printed.err
