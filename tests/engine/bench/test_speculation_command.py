"""``draftline bench speculation``: its exit code."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from draftline.engine.bench.speculation import compare, engines
from draftline.engine.cli import app


@pytest.mark.parametrize(("different", "exit_code"), [(0, 0), (1, 1)])
def test_an_answer_that_drafts_changed_is_a_fault_on_every_device(
    different: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*arguments: Any) -> dict[str, int]:
        return {"different_answers": different}

    on_a_gpu = SimpleNamespace(info=SimpleNamespace(device="cuda:0"))
    monkeypatch.setattr(engines, "running", lambda config: nullcontext(on_a_gpu))
    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "table", lambda lines: "a table")
    result = CliRunner().invoke(app, ["bench", "speculation", "--concurrency", "1", "--limit", "1"])
    assert result.exit_code == exit_code, result.output
    assert ("drafts changed an answer" in result.stderr) == bool(different)
