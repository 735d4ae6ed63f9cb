"""What the speculation benchmark reads, and what it makes of two engines' answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from speculation import Answers, Question, compare, read_spec_bench

from draftline.engine.outputs import (
    CompletionOutput,
    Finished,
    FinishReason,
    RequestOutput,
    SpeculationStats,
    Timing,
    Usage,
)


def dataset(path: Path, count: int) -> Path:
    lines = [json.dumps({"category": f"c{i}", "turns": [f"question {i}", "and then?"]}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_first_turns_are_read(tmp_path: Path) -> None:
    path = dataset(tmp_path / "q.jsonl", 3)
    assert read_spec_bench(path, None) == [Question(f"c{i}", f"question {i}") for i in range(3)]
    assert read_spec_bench(path, 9) == read_spec_bench(path, None)


def test_a_limit_is_spread_over_the_file(tmp_path: Path) -> None:
    questions = read_spec_bench(dataset(tmp_path / "q.jsonl", 10), 4)
    assert [question.category for question in questions] == ["c0", "c2", "c5", "c7"]


@pytest.mark.parametrize("line", ["no json", "{}", '{"category": "c", "turns": []}', "[]"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = dataset(tmp_path / "q.jsonl", 1)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"q\.jsonl:2: not a question"):
        read_spec_bench(path, None)


def answers(seconds: float, *outputs: tuple[list[int], SpeculationStats]) -> Answers:
    def output(tokens: list[int], stats: SpeculationStats) -> RequestOutput:
        usage, timing = Usage(1, 0, len(tokens)), Timing(0, 0, 0, 0)
        finished = Finished(0, FinishReason.LENGTH, "", usage, stats, timing, None, 0)
        return RequestOutput("r", None, [1], [CompletionOutput(0, token_ids=tokens, finished=finished)])

    return Answers(tuple(output(*one) for one in outputs), seconds)


def test_a_comparison_counts_tokens_drafts_and_differences() -> None:
    none = SpeculationStats(0, 0, 4)
    plain = answers(2.0, ([1, 2, 3, 4], none), ([5, 6, 7, 8], none))
    drafted = answers(
        1.0,
        ([1, 2, 3, 4], SpeculationStats(6, 2, 2, (1, 1))),
        ([5, 6, 7, 9], SpeculationStats(3, 1, 3, (1,))),
    )
    result = compare(plain, drafted)
    assert (result["plain_tokens_per_s"], result["tokens_per_s"], result["speedup"]) == (4.0, 8.0, 2.0)
    assert (result["drafted"], result["accepted"], result["accepted_by_position"]) == (9, 3, [2, 1])
    assert (result["steps"], result["tokens_per_step"], result["different_answers"]) == (5, 1.6, 1)
