"""Cards of 8 and 16 GiB: what runs there with default options, and what is refused with the numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here"),
    pytest.mark.long,
]

CARD = Path(__file__).parents[1] / "helpers" / "small_card.py"


def on_a_card(gib: int, shape: str, **options: object) -> dict[str, Any]:
    """What `small_card` reports."""
    if torch.cuda.mem_get_info()[1] < gib << 30:
        pytest.skip(f"needs a GPU of at least {gib} GiB")
    done = subprocess.run(
        [sys.executable, "-P", str(CARD), str(gib), shape, json.dumps(options)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize(
    ("gib", "shape", "options"),
    [(8, "qwen3-0.6b", {}), (16, "llama-3.1-8b", {"quantization": "fp8"})],
    ids=["0.6B on 8 GiB", "8B in FP8 on 16 GiB"],
)
def test_it_serves_with_default_options(gib: int, shape: str, options: dict[str, str]) -> None:
    if "quantization" in options and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 needs compute capability 8.9")
    report = on_a_card(gib, shape, **options)
    assert report.get("refused") is None
    assert report["tokens"] == [32] * 17
    assert report["alike"]
    assert report["reserved"] < gib << 30
    assert report["max_model_len"] >= 4096


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    refused = on_a_card(12, "llama-3.1-8b")["refused"]
    for part in ("which needs 15.0 GiB", "of its 12.0 GiB", "quantization fp8 or int8"):
        assert part in refused
