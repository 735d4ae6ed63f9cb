"""The plot of tokens/s by the number of GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parallel.plot import curves, main


def line(gpus: int, speed: float, workload: str = "bs1") -> dict[str, object]:
    options = {"max_model_len": 64} | ({"tensor_parallel_size": gpus} if gpus > 1 else {})
    return {"model": "m", "weights": "fp8", "workload": workload, "options": options, "tokens_per_s": speed}


def test_the_last_result_of_a_point_counts_and_single_points_are_no_curve() -> None:
    results = [line(1, 10.0), line(2, 15.0), line(2, 18.0), line(4, 30.0), line(4, 99.0, "bs8"), {"ranks": 2}]
    assert curves(results) == {"m": {"bs1, fp8": {1: 10.0, 2: 18.0, 4: 30.0}}}


def test_a_plot_is_written(tmp_path: Path) -> None:
    results, picture = tmp_path / "results.jsonl", tmp_path / "picture.svg"
    results.write_text("".join(json.dumps(one) + "\n" for one in (line(1, 10.0), line(4, 30.0))))
    main([str(results), "--output", str(picture)])
    assert "<svg" in picture.read_text()


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps(line(1, 10.0)) + "\n")
    with pytest.raises(SystemExit):
        main([str(results), "--output", str(tmp_path / "p.svg")])
