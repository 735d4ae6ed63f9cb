"""On a GPU nothing is compiled while a step waits for it, as long as requests ask for nothing out of the ordinary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "helpers" / "launch_variants.py"


@pytest.mark.parametrize(
    ("shape", "max_rows", "drafts", "max_len"),
    [
        ("qwen3", 256, 0, 640),
        ("llama-8b", 64, 4, 2048),
        pytest.param("smollm2", 32, 0, 2048, marks=pytest.mark.slow),
        pytest.param("qwen3", 1, 0, 4096, marks=pytest.mark.slow),
        pytest.param("llama-8b", 48, 16, 300, marks=pytest.mark.slow),
    ],
)
def test_steps_by_operation_launch_what_graphs_have_too(shape: str, max_rows: int, drafts: int, max_len: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = (sys.executable, str(PROGRAM), shape, str(max_rows), str(drafts), str(max_len))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    launched, *unforeseen = done.stdout.splitlines()
    assert int(launched) >= 10
    assert not unforeseen
