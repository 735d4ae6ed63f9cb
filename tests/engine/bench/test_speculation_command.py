"""``draftline bench speculation``: its exit code, and the memory of its engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftline.engine.bench.speculation import compare, engines
from draftline.engine.cli import app
from draftline.engine.cli.bench import speculation
from draftline.engine.config import EngineConfig


@pytest.mark.parametrize(("different", "exit_code"), [(0, 0), (1, 1)])
def test_an_answer_that_drafts_changed_is_a_fault_on_every_device(
    different: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*arguments: Any) -> list[dict[str, int]]:
        return [{"different_answers": different}]

    on_a_gpu = SimpleNamespace(info=SimpleNamespace(device="cuda:0"))
    monkeypatch.setattr(engines, "running", lambda config: nullcontext(on_a_gpu))
    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "tables", lambda lines: ["a table"])
    result = CliRunner().invoke(app, ["bench", "speculation", "--concurrency", "1", "--limit", "1"])
    assert result.exit_code == exit_code, result.output
    assert ("drafts changed an answer" in result.stderr) == bool(different)


@pytest.mark.parametrize(
    ("options", "gib"), [((), 8.0), (("--kv-cache-memory-gib", "2"), 2.0), (("--device", "cpu"), None)]
)
def test_two_engines_share_the_memory_of_a_gpu(
    options: tuple[str, ...], gib: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def select_device(config: EngineConfig) -> torch.device:
        return torch.device("cpu" if config.device == "cpu" else "cuda")

    def running(config: EngineConfig) -> AbstractContextManager[object]:
        started.append(config.kv_cache_memory_gib)
        return nullcontext()

    started: list[float | None] = []
    monkeypatch.setattr(engines, "select_device", select_device)
    monkeypatch.setattr(engines, "running", running)
    monkeypatch.setattr(speculation, "conditions_of", lambda config: {})
    monkeypatch.setattr(compare, "measure", lambda *arguments: [{}])
    monkeypatch.setattr(compare, "tables", lambda lines: ["a table"])
    result = CliRunner().invoke(app, ["bench", "speculation", "--concurrency", "1", "--limit", "1", *options])
    assert result.exit_code == 0, result.output
    assert started == [gib, gib]


def test_an_interrupted_run_has_the_lines_and_the_table_of_its_whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: Any) -> Iterator[dict[str, Any]]:
        yield {"interrupted": True, "rounds": 2}
        raise KeyboardInterrupt

    on_a_cpu = SimpleNamespace(info=SimpleNamespace(device="cpu"))
    monkeypatch.setattr(engines, "running", lambda config: nullcontext(on_a_cpu))
    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "tables", lambda lines: [f"a table of {len(lines)} line"])
    result = CliRunner().invoke(app, ["bench", "speculation", "--concurrency", "1", "--limit", "1"])
    assert result.exit_code == 130
    assert json.loads(result.stdout)["rounds"] == 2
    assert "a table of 1 line" in result.stderr
