"""regression.py: which results are compared, and what counts as slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from regression import main


def line(workload: str, tokens_per_s: float, **fields: Any) -> dict[str, Any]:
    """A result of throughput.py."""
    return {
        "date": "2026-11-22T13:21:00+00:00",
        "machine": "NVIDIA H200",
        "commit": "abc1234",
        "engine": "draftline",
        "options": {"max_model_len": 4096},
        "model": "qwen3-0.6b",
        "weights": "bfloat16",
        "dtype": "bfloat16",
        "workload": workload,
        "tokens_per_s": tokens_per_s,
        "prompt_tokens_per_s": 100 * tokens_per_s,
    } | fields


def compare(
    folder: Path, before: list[dict[str, Any]], after: list[dict[str, Any]], *arguments: str
) -> int | str | None:
    """Run the command; the exit status, or the message."""
    for name, lines in (("before", before), ("after", after)):
        Path(folder, name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "before"), str(folder / "after"), *arguments])
    return ended.value.code


def test_results_of_the_same_kind_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [line("bs1", 900), line("bs1", 1000), line("prefill", 30), line("bs1", 5, weights="fp8")]
    after = [line("prefill", 33, commit="def5678"), line("bs1", 990, commit="def5678"), line("bs8", 7)]
    assert compare(tmp_path, before, after) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "| model | weights | workload | before | after | change |"
    assert out[2:4] == [
        "| qwen3-0.6b | bfloat16 | `prefill` | 3,000 | 3,300 | +10.0% |",
        "| qwen3-0.6b | bfloat16 | `bs1` | 1,000 | 990 | -1.0% |",
    ]
    assert out[5] == (
        "Before: commit abc1234, 2026-11-22, NVIDIA H200. After: commit def5678, 2026-11-22, NVIDIA H200; "
        "commit abc1234, 2026-11-22, NVIDIA H200."
    )
    assert len(out) == 6


def test_a_slower_result_is_named_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [line("bs1", 1000), line("bs8", 1000), line("bs8", 1000, options={"drafter": "ngram"})]
    after = [line("bs1", 960), line("bs8", 980), line("bs8", 1200, options={"drafter": "ngram"})]
    assert compare(tmp_path, before, after) == 1
    done = capsys.readouterr()
    assert "**-4.0%**" in done.out
    assert '| `{"drafter": "ngram"}` | `bs8` | 1,000 | 1,200 | +20.0% |' in done.out
    assert done.err == "slower: qwen3-0.6b, bfloat16, bs1: -4.0%\n"
    assert compare(tmp_path, before, after, "--tolerance", "0.05") == 0


def test_files_that_cannot_be_compared_say_why(tmp_path: Path) -> None:
    one = [line("bs1", 1)]
    assert "no measurement in common" in str(compare(tmp_path, one, [line("bs1", 1, model="other")]))
    assert "no measurement in common" in str(compare(tmp_path, [{"benchmark": "another"}], one))
    broken = {"prompt_tokens_per_s": 1}
    assert "before:2: no result: KeyError('options')" in str(compare(tmp_path, [*one, broken], one))
