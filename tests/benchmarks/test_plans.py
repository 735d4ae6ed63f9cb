"""benchmarks/parallel/plans.py measures plans that really arrive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from parallel import plans


@pytest.mark.slow
def test_every_receiver_gets_every_plan() -> None:
    command = [sys.executable, str(Path(plans.__file__)), "--receivers", "2", "--rows", "1,3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["receivers"], line["rows"]) for line in lines] == [(2, 1), (2, 3)]
    for line in lines:
        assert line["send_us"] > 0
        assert 0 < line["arrival_us"] <= line["arrival_p99_us"]
