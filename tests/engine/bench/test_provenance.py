"""The conditions of results: the machine is the device of the engine that is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from byte_tokenizer import write_byte_model
from typer.testing import CliRunner

from draftline.engine.bench import provenance
from draftline.engine.cli import app
from draftline.engine.cli.bench import compare
from draftline.engine.errors import UsageError


@pytest.mark.parametrize(
    "command",
    [
        "latency --prompt-len 4 --output-len 2 --rounds 1",
        "speculation --limit 1 --max-tokens 2 --rounds 1 --concurrency 1",
        "structured --limit 1 --max-tokens 4 --rounds 1 --regex [a-z]+",
        "exactness --limit 1 --max-tokens 2 --suites greedy --columns again",
    ],
)
def test_the_machine_is_that_of_an_engine_in_this_process(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_machine", lambda device: f"the machine of {device}")
    engine = f"--model {write_byte_model(tmp_path)} --load-format dummy --device cpu --kv-cache-memory-gib 0.05"
    done = CliRunner().invoke(app, f"bench {command} {engine}".split())
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.output
    assert {line["machine"] for line in lines} == {"the machine of cpu"}


@pytest.mark.parametrize(("has_gpu", "machine"), [(True, "GPU cuda"), (False, "cores")])
def test_the_machine_of_servers_is_the_gpu_where_there_is_one(
    has_gpu: bool, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"GPU {device}")

    found: list[object] = []

    def result_lines(output: object, common: dict[str, object]) -> NoReturn:
        found.append(common["machine"])
        raise UsageError("no server starts")

    monkeypatch.setattr(compare, "result_lines", result_lines)
    assert "no server starts" in CliRunner().invoke(app, ["bench", "compare"]).output
    [name] = found
    assert machine in str(name)


def test_a_line_begins_with_the_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"GPU {device}")
    found = provenance.conditions("cuda:1")
    assert list(found) == ["date", "machine", "load", "commit", "versions", "command"]
    assert found["machine"] == provenance.conditions(torch.device("cuda:1"))["machine"] == "GPU cuda:1"
    assert "cores" in provenance.conditions("cpu")["machine"]
