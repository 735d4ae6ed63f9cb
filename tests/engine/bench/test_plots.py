"""Plots: which ones a file of results allows, what they show, and the command that draws them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftline.engine.bench.plots.ablation import plot_ablation
from draftline.engine.bench.plots.canvas import canvas, check_plot
from draftline.engine.bench.plots.choose import NAMES, plots_of, plotted_fields
from draftline.engine.bench.plots.memory import plot_memory
from draftline.engine.bench.plots.sweep import plot_sweep
from draftline.engine.bench.plots.training import plot_training
from draftline.engine.bench.plots.turns import plot_turns
from draftline.engine.bench.report.results import read_results
from draftline.engine.cli import app
from draftline.engine.errors import UsageError

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def times(milliseconds: float) -> dict[str, float]:
    return {
        name: milliseconds * factor for name, factor in (("mean", 1), ("p50", 1), ("p90", 2), ("p95", 3), ("p99", 4))
    }


def load(speed: float, **fields: Any) -> dict[str, Any]:
    line = {"benchmark": "load", "engine": "draftline", "model": "m", "workload": "load", "preset": "small"}
    numbers = {"tokens_per_s": speed, "ttft_ms": times(5), "inter_token_ms": times(1), "ttft_ms_by_turn": None}
    return {**line, **numbers, "cache_hit_rate_by_turn": None, **fields}


def agents(**fields: Any) -> dict[str, Any]:
    turns = {"ttft_ms_by_turn": [times(30), None, times(20)], "cache_hit_rate_by_turn": [0.5, None, 0.9]}
    return load(50.0, **{**turns, "workload": "agent-session", **fields})


def variant(name: str, state: str, change: float, **fields: Any) -> dict[str, Any]:
    line = {"benchmark": "ablation", "model": "m", "variant": name, "state": state, "error": None}
    numbers = {"tokens_per_s": 100 * (1 + change), "tokens_per_s_change": change, "within_noise": abs(change) < 0.02}
    return {**line, **numbers, "first_token_ms_p50": 10.0, "first_token_change": -change, **fields}


def memory(rows: int, running: int, **fields: Any) -> dict[str, Any]:
    line = {"benchmark": "memory", "model": "m", "prompt_len": 4096, "rows": rows, "running": running, "preemptions": 0}
    sizes = {"weights": 1 << 30, "graphs": 1 << 28, "activations": 1 << 29, "cache": rows << 28}
    return {**line, **sizes, "total": sum(sizes.values()), "cache_free": (64 - rows) << 28, **fields}


LOADS = [load(10.0 * clients, clients=clients) for clients in (1, 2, 4)]
ABLATIONS = [variant("baseline", "", 0.0), variant("graphs", "off", -0.5), variant("drafts", "ngram", 0.01)]
TRAINING: list[dict[str, Any]] = [
    {"benchmark": "training", "step": step, "steps": 30, "loss": loss, "acceptance": {"general": length, "json": 2.5}}
    for step, loss, length in ((1, 6.0, 1.2), (10, math.nan, 2.2), (20, 0.8, 2.1))
]
MEMORY = [memory(1, 1), memory(16, 16), memory(64, 64), memory(65, 64, cache_free=0)]


def texts(path: Path) -> set[str]:
    """The texts of a plot: matplotlib draws them as outlines, and names each in a comment."""
    return {found.strip() for found in re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)}


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (LOADS, ["load"]),
        ([agents()], ["turns"]),
        ([*LOADS, agents()], ["load", "turns"]),
        (ABLATIONS, ["ablation"]),
        (MEMORY, ["memory"]),
        (TRAINING, ["training"]),
        ([load(1.0), LOADS[0]], []),
        ([{"benchmark": "throughput"}, {}], []),
    ],
)
def test_a_file_allows_the_plots_of_its_results(lines: list[dict[str, Any]], names: list[str]) -> None:
    assert list(plots_of(lines)) == names
    assert set(names) <= set(NAMES)


def test_loads_are_plotted_over_what_was_varied(tmp_path: Path) -> None:
    path = tmp_path / "load.svg"
    failed = load(0.0, clients=8, ttft_ms=None, inter_token_ms=None)
    plots_of([*LOADS, failed])["load"](path)
    assert {"throughput", "time to the first token", "between tokens", "clients", "8", "p99"} <= texts(path)
    plot_sweep([{**line, "engine": "other"} for line in LOADS] + LOADS, "clients", path)
    assert {"draftline", "other", "p50"} <= texts(path)
    plot_sweep([{**line, "model": "small"} for line in LOADS] + LOADS, "clients", path)
    assert {"m", "small", "p99"} <= texts(path)
    plot_sweep([{**line, "engine": "other"} for line in LOADS] + LOADS, "clients", path)
    again = tmp_path / "again.svg"
    plot_sweep([{**line, "engine": "other"} for line in LOADS] + LOADS, "clients", again)
    assert again.read_text() == path.read_text()


@pytest.mark.parametrize(
    ("axis", "label"),
    [("rate", "conversations/s"), ("prompt_len", "new tokens of a turn"), ("output_len", "tokens of an answer")],
)
def test_an_axis_has_its_unit(axis: str, label: str, tmp_path: Path) -> None:
    path = tmp_path / "load.svg"
    plot_sweep([load(1.0, **{axis: 1}), load(2.0, **{axis: 2})], axis, path)
    assert label in texts(path)


def test_turns_are_plotted_without_those_that_no_conversation_reached(tmp_path: Path) -> None:
    path = tmp_path / "turns.svg"
    plot_turns([load(1.0), agents(), agents(workload="chat-serving", cache_hit_rate_by_turn=[None] * 3)], path)
    assert {"turn", "3", "agent-session", "p50", "p99", "cache hits"} <= texts(path)


def test_an_ablation_has_a_bar_for_each_variant(tmp_path: Path) -> None:
    path = tmp_path / "ablation.svg"
    slow = variant("all", "off", -0.999, first_token_change=80.0, first_token_ms_p50=810.0)
    refused = variant("fp8-cache", "on", 0.0, error="it cannot")
    nothing = variant("prefix-cache", "off", 0.2, first_token_ms_p50=None, first_token_change=None)
    plot_ablation([*ABLATIONS, slow, refused, nothing], path)
    assert {"graphs: off", "drafts: ngram", "all: off", "810 ms", "50", "prefix-cache: off"} <= texts(path)
    assert not texts(path) & {"fp8-cache: on", "baseline: "}
    plot_ablation([*ABLATIONS, {**ABLATIONS[1], "model": "other"}], path)
    assert {"m, graphs: off", "other, graphs: off"} <= texts(path)


def test_memory_is_stacked_for_each_model(tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    plot_memory([*MEMORY, memory(2, 2, model="other", weights=1 << 20)], path)
    assert {"m", "other", "65", "weights", "cache", "reserved", "GiB", "sequences of 4,096 tokens"} <= texts(path)


def test_a_training_has_its_loss_and_the_lengths_of_each_kind(tmp_path: Path) -> None:
    plot_training(TRAINING, tmp_path / "out.svg")
    assert {"loss", "step", "general", "json", "kept"} <= texts(tmp_path / "out.svg")


# By default every fourth file.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=[pytest.mark.slow] * bool(index % 4))
        for index, path in enumerate(sorted(RESULTS.glob("*.jsonl")))
    ],
)
def test_results_of_the_repository_can_be_plotted(path: Path, tmp_path: Path) -> None:
    for name, draw in plots_of(read_results(path, plotted_fields)).items():
        draw(tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "plot", *arguments])


def written(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_the_command_draws_files_of_results(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.jsonl", LOADS), written(tmp_path / "b.jsonl", [agents()])
    output = tmp_path / "out.svg"
    done = run(first, "--output", str(output))
    assert done.exit_code == 0, done.stderr
    assert "clients" in texts(output)
    done = run(first, second, "--what", "turns", "--output", str(output))
    assert done.exit_code == 0, done.stderr
    assert "turn" in texts(output)


@pytest.mark.parametrize(
    ("lines", "arguments", "problem"),
    [
        ([*LOADS, agents()], (), "--what: choose one of load, turns"),
        (LOADS, ("--what", "memory"), "has no results for memory"),
        (TRAINING * 2, (), "the results are of several trainings: plot one at a time"),
        (LOADS, ("--what", "cake"), "--what: cake: not one of"),
        ([load(1.0)], (), "has no results for load or turns or ablation or memory or training"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    lines: list[dict[str, Any]], arguments: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    done = run(written(tmp_path / "a.jsonl", lines), *arguments, "--output", str(tmp_path / "out.svg"))
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("lines", "fields", "problem"),
    [
        (LOADS, {"engine": ["a"]}, 'engine: must be a text, not ["a"]'),
        (LOADS, {"model": None}, "model: is missing"),
        (LOADS, {"tokens_per_s": "fast"}, 'tokens_per_s: must be a finite number, not "fast"'),
        (LOADS, {"tokens_per_s": math.inf}, "tokens_per_s: must be a finite number, not Infinity"),
        (LOADS, {"inter_token_ms": {"p99": True}}, "inter_token_ms.p99: must be a finite number, not true"),
        (LOADS, {"clients": {}}, "clients: must be a finite number or a text, not {}"),
        ([agents()] * 2, {"workload": 1}, "workload: must be a text, not 1"),
        ([agents()] * 2, {"ttft_ms_by_turn": {"p50": 1}}, 'ttft_ms_by_turn: must be a list, not {"p50": 1}'),
        (ABLATIONS, {"tokens_per_s_change": None}, "tokens_per_s_change: is missing"),
        (ABLATIONS, {"within_noise": "no"}, 'within_noise: must be true or false, not "no"'),
        (ABLATIONS, {"first_token_change": []}, "first_token_change: must be a finite number, not []"),
        (MEMORY, {"rows": "16"}, 'rows: must be a finite number, not "16"'),
        (MEMORY, {"weights": None}, "weights: is missing"),
        (TRAINING, {"step": None}, "step: is missing"),
        (TRAINING, {"acceptance": [2.0]}, "acceptance: must be an object, not [2.0]"),
        (TRAINING, {"acceptance": {"json": "long"}}, 'acceptance.json: must be a finite number, not "long"'),
    ],
)
def test_a_damaged_field_is_named(
    lines: list[dict[str, Any]], fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    done = run(written(path, [lines[0], {**lines[1], **fields}]), "--output", str(tmp_path / "out.svg"))
    assert done.exit_code == 2
    assert f"{path}:2: {problem}" in done.stderr


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    unknown = [load(1.0, clients=clients, ttft_ms={"p50": 3.0}) for clients in (1, "many")]
    for line in unknown:
        del line["inter_token_ms"]
    turns = agents(ttft_ms_by_turn=[{}, {"p50": 1.0}])
    del turns["preset"], turns["cache_hit_rate_by_turn"]
    variants = [{**ABLATIONS[1], "first_token_change": None}, {"benchmark": "ablation", "error": "it cannot"}]
    variants[1] |= {"model": "m", "variant": "fp8", "state": "on"}
    del variants[0]["error"], variants[0]["first_token_ms_p50"]
    for name, lines in (("load", unknown), ("turns", [turns]), ("ablation", variants)):
        output = tmp_path / f"{name}.svg"
        done = run(written(tmp_path / "a.jsonl", lines), "--what", name, "--output", str(output))
        assert done.exit_code == 0, done.stderr
        assert texts(output)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("out.png", "a plot is an SVG file"),
        ("out", "a plot is an SVG file"),
        ("missing/out.svg", "there is no folder"),
        ("folder.svg", "is a folder"),
    ],
)
def test_a_file_that_no_plot_can_have_is_refused_before_the_measurement(
    name: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError, match=problem):
        check_plot(tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "out.svg"
    with pytest.raises(UsageError, match=r"out\.svg: No such file"), canvas(path, 1, 2, 2):
        pass


@pytest.mark.parametrize("command", ["report", "plot"])
def test_results_are_not_replaced_by_their_picture(command: str, tmp_path: Path) -> None:
    results = tmp_path / "a.svg"
    written(results, LOADS)
    before = results.read_text()
    done = CliRunner().invoke(app, ["bench", command, str(results), "--output", str(results)])
    assert done.exit_code == 2
    assert "has the results" in done.stderr
    assert results.read_text() == before
