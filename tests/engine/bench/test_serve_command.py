"""The commands ``bench serve`` and ``bench sweep`` on an engine in this process."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from exact_models import SHAPES
from typer.testing import CliRunner

from draftline.engine.bench.summary import unanswered
from draftline.engine.cli import app
from draftline.engine.cli.bench.load import notes


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *arguments])


def of_shape(folder: Path) -> tuple[str, ...]:
    """Options of an engine that starts fast."""
    shape = folder / "config.json"
    shape.write_text(json.dumps({**SHAPES["llama-64"], "model_type": "llama"}))
    own = ("--dtype", "float32", "--drafter", "none", "--kv-cache-memory-gib", "0.05", "--device", "cpu")
    return ("--shape", str(shape), *own, "--output", str(folder / "lines.jsonl"))


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


def test_turns_of_agents_are_shown_and_plotted(tmp_path: Path) -> None:
    small = ("--conversations", "2", "--turns", "3", "--shared-prefix", "64", "--prompt-len", "8", "--tool-len", "8")
    picture = tmp_path / "turns.svg"
    load = ("--workload", "agent-session", *small, "--output-len", "4", "--rate", "50", "--plot", str(picture))
    done = run("serve", *of_shape(tmp_path), *load)
    assert done.exit_code == 0, done.stderr
    [line] = written(tmp_path)
    assert (line["requests"], line["failed"], len(line["ttft_ms_by_turn"])) == (6, 0, 3)
    assert line["cache_hit_rate_by_turn"][2] > 0.5
    assert line["model"] == str(tmp_path / "config.json")
    assert "by turn" in done.stderr
    assert "agent-session" in picture.read_text()


def test_a_sweep_of_a_shape_is_plotted(tmp_path: Path) -> None:
    picture = tmp_path / "load.svg"
    load = (
        "--conversations",
        "4",
        "--prompt-len",
        "8",
        "--output-len",
        "4",
        "--clients",
        "1,2",
        "--plot",
        str(picture),
    )
    done = run("sweep", *of_shape(tmp_path), *load)
    assert done.exit_code == 0, done.stderr
    assert [(line["clients"], line["requests"], line["max_in_flight"]) for line in written(tmp_path)] == [
        (1, 4, 1),
        (2, 8, 2),
    ]
    assert "clients" in picture.read_text()


def test_what_is_drawn_counts_against_the_models_limit(tmp_path: Path) -> None:
    done = run(
        "serve", *of_shape(tmp_path), "--prompt-len", "lognormal:8,1", "--output-len", "4", "--conversations", "4"
    )
    assert done.exit_code == 0, done.stderr  # the distribution allows 437 tokens, of which none comes
    done = run("serve", *of_shape(tmp_path), "--prompt-len", "900", "--output-len", "4", "--conversations", "4")
    assert done.exit_code == 2
    assert "its contexts have up to 904 tokens, and the model's have 768" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("hit_rate", "turns", "shared_prefix", "said"),
    [(0.8, 1, 0, True), (0.01, 1, 0, False), (None, 1, 0, False), (0.8, 3, 0, False), (0.8, 1, 64, False)],
)
def test_prompts_that_the_cache_knew_before_are_told(
    hit_rate: float | None, turns: int, shared_prefix: int, said: bool
) -> None:
    options = {"arrivals": "closed", "turns": turns, "shared_prefix": shared_prefix}
    line = {"client_cpu_share": 0.1, "client_wait_ms": None, "protocol": "grpc", "failed": 0, "load_options": options}
    assert any("give another --seed" in note for note in notes([{**line, "cache_hit_rate": hit_rate}])) == said


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("serve", "--url", "grpc://h:1", "--shape", "qwen3-0.6b"), "--shape: the server at --url has its own model"),
        (("sweep", "--url", "grpc://h:1", "--shape", "qwen3-0.6b", "--clients", "1"), "--shape: the server at --url"),
        (("serve", "--shape", "no-such"), "no such file, and none of the shapes known by name"),
        (("serve", "--plot", "x.svg"), "--plot: shows turns, and a conversation of baseline has one"),
        (("serve", "--tool-len", "4"), "--tool-len: needs two --turns or more"),
        (("serve", "--shape", "qwen3-0.6b", "--load-format", "auto"), "--load-format and --shape: set one of them"),
        (
            ("throughput", "--shape", "qwen3-0.6b", "--load-format", "auto"),
            "--load-format and --shape: set one of them",
        ),
        (("ablate", "--shape", "qwen3-0.6b", "--model", "smollm2"), "--model and --shape: set one of them"),
        (("compare", "--shape", "qwen3-0.6b", "--model", "smollm2"), "--model and --shape: set one of them"),
        (("compare", "--flags", "vllm=--dtype half"), "--flags: vllm is not one of --engines draftline"),
        (("compare", "--engines", "draftline,vlm"), "--engines: vlm: not one of draftline, "),
        (("compare", "--program", "vlm=/opt/python"), "--program: vlm: not one of draftline, "),
        (("exactness", "--drafter", "ngram"), "--drafter: each of the --columns has its own"),
        (
            ("latency", "--batches", "2,9", "--max-waiting", "8"),
            "--batches: 9 requests come at once, and --max-waiting is 8",
        ),
        (
            ("latency", "--batches", "2", "--max-waiting-tokens", "255"),
            "256 tokens of prompts come at once, and --max-wai",
        ),
        (
            ("speculation", "--gpu-memory-utilization", "0.5"),
            "--gpu-memory-utilization: several engines share the device",
        ),
        (("exactness", "--no-prefix-caching"), "--prefix-caching: each of the --columns has its own"),
        (("exactness", "--gpu-memory-utilization", "0.5"), "--gpu-memory-utilization: all engines have a cache of"),
        (("exactness", "--synthetic-acceptance", "1"), "--synthetic-acceptance: changes answers on purpose"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())


class BusyHandler(http.server.BaseHTTPRequestHandler):
    """Lists a model, and refuses every request."""

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(429, {"error": {"message": "the queue is full"}})

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def busy_server() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BusyHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("serve",), "all 2 requests failed: the queue is full"),
        (("sweep", "--rates", "500,1000"), "all 4 requests of 2 of 2 runs failed: the queue is full"),
    ],
    ids=["serve", "sweep"],
)
def test_a_load_without_an_answer_is_an_error(command: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    load = ("--conversations", "2", "--warm-up", "0", "--prompt-len", "4", "--output-len", "4")
    output = tmp_path / "lines.jsonl"
    with busy_server() as url:
        done = run(*command, "--url", url, *load, "--output", str(output))
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == f"draftline: error: {problem}"
    assert all(line["errors"] == {"429": 2} for line in written(tmp_path))


def test_one_answer_is_a_measurement() -> None:
    some = {"requests": 3, "failed": 2, "first_error": "busy"}
    assert unanswered([some, {**some, "failed": 0}]) is None
    assert unanswered([some, {**some, "failed": 3}]) == "all 3 requests of 1 of 2 runs failed: busy"
