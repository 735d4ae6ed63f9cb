"""The tests' faster interpreter computes what Triton's own does."""

from __future__ import annotations

import json
from pathlib import Path

import interpreted_bits
import pytest
from uninterpreted import run


@pytest.mark.slow
def test_the_faster_interpreter_has_the_same_bits() -> None:
    found = []
    for way in ("plain", "hastened"):
        done = run(str(Path(interpreted_bits.__file__)), way, TRITON_INTERPRET="1")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert len(found[0]) == 6
