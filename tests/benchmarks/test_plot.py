"""The numbers of plot.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plot import Comparison, join, main, markdown, read


def write(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    def line(workload: str, speed: float) -> dict[str, object]:
        numbers = {"tokens_per_s": speed, "prompt_tokens_per_s": 7 * speed}
        return {"engine": "draftline", "model": "m", "workload": workload, **numbers}

    return write(tmp_path / "ours.jsonl", line("bs1", 100), line("prefill", 10), line("bs8", 800), line("bs1", 150))


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    return write(
        tmp_path / "peers.jsonl",
        {"engine": "other", "model": "m", "workload": "bs1", "tokens_per_s": 100},
        {"engine": "other", "model": "m", "workload": "prefill", "prompt_tokens_per_s": 35},
        {"engine": "other", "model": "elsewhere", "workload": "bs8", "tokens_per_s": 5},
    )


def test_the_last_result_counts_and_prefill_is_prompt_tokens(ours: Path) -> None:
    assert read(ours)[Comparison("m", "bs1")] == {"draftline": 150}
    assert read(ours)[Comparison("m", "prefill")] == {"draftline": 70}


def test_only_common_models_and_workloads_are_compared(ours: Path, peers: Path) -> None:
    cases = join(read(ours), read(peers))
    assert list(cases) == [Comparison("m", "bs1"), Comparison("m", "prefill")]
    assert "| m | `bs1` | 150 | 100 | 1.50× |" in markdown(cases, ["draftline", "other"])


def test_a_plot_is_written(ours: Path, peers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "picture.svg"
    main([str(ours), "--peers", str(peers), "--output", str(output)])
    assert "<svg" in output.read_text()
    assert "2.00×" in capsys.readouterr().out


def test_nothing_in_common_is_an_error(ours: Path, tmp_path: Path) -> None:
    none = write(tmp_path / "none.jsonl", {"engine": "other", "model": "x", "workload": "bs1", "tokens_per_s": 1})
    with pytest.raises(SystemExit):
        main([str(ours), "--peers", str(none), "--output", str(tmp_path / "p.svg")])
