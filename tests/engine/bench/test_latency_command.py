"""``draftline bench latency`` that is interrupted."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from exact_models import SHAPES
from typer.testing import CliRunner

from draftline.engine.bench.load.run import LoadRun, run_load
from draftline.engine.cli import app
from draftline.engine.cli.bench import latency


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where the tests run in the background of a shell: such processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_has_the_lines_and_the_table_of_its_whole_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps({**SHAPES["llama-64"], "model_type": "llama"}))
    rounds = count(1)

    async def interrupted(*arguments: Any) -> LoadRun:
        if next(rounds) == 6:  # the third with the second size
            signal.raise_signal(signal.SIGINT)
        return await run_load(*arguments)

    monkeypatch.setattr(latency, "run_load", interrupted)
    engine = ("--shape", str(shape), "--drafter", "none", "--dtype", "float32", "--kv-cache-memory-gib", "0.1")
    load = ("--prompt-len", "8", "--output-len", "4", "--batches", "1,2", "--rounds", "3")
    done = CliRunner().invoke(app, ["bench", "latency", *engine, *load])
    assert done.exit_code == 130
    lines = list(map(json.loads, done.stdout.splitlines()))
    assert [(line["batch"], line["rounds"], line.get("interrupted")) for line in lines] == [(1, 3, None), (2, 2, True)]
    assert [line["model"] for line in lines] == [str(shape)] * 2
    assert done.stderr.count("8/4") == 2
