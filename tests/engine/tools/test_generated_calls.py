"""Calls of a random model in every format, in every mix of what may change how they are computed: all are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from drafters import Adversary
from tiny import draft_model, free_constraints
from tool_cases import TableModel, ToolCase, calling_case, check_output, run, streamed_calls, tool_case, tool_core

from draftline.engine.core import Core
from draftline.engine.tools.formats import FORMATS
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.ngram import NGram

KINDS = 4
QUICK = ("mistral", "pythonic", "json")


def core_of_kind(kind: int, tool_format: str, **options: Any) -> Core:
    match kind:
        case 0:
            return tool_core(tool_format, steps_ahead=1, **options)
        case 1:  # with preemption
            return tool_core(tool_format, num_blocks=40, drafter=NGram(3, ReferenceOps()), steps_ahead=1, **options)
        case 2:
            drafter = Adversary(3, lambda known, ahead: (31 * len(known) + 7 * ahead) % 256)
            return tool_core(tool_format, drafter=drafter, num_slots=3, token_budget=19, **options)
        case _:
            table = free_constraints()
            drafter = draft_model(4, noise=0.05, constraints=table)
            return tool_core(tool_format, drafter=drafter, constraints=table, steps_ahead=1, **options)


def check(cases: dict[str, ToolCase], kind: int, tool_format: str, **options: Any) -> tuple[int, int]:
    """Run cases, and again without drafts in an engine with room for everything; the calls, and the preemptions."""
    core = core_of_kind(kind, tool_format, **options)
    outputs, client = run(cases, core)
    plain, _ = run(
        cases,
        tool_core(tool_format, num_blocks=150 * len(cases), num_slots=64, token_budget=256, **options),
    )
    calls = 0
    for name, case in cases.items():
        for got, want in zip(outputs[name], plain[name], strict=True):
            assert (got.token_ids, got.text, got.reasoning) == (want.token_ids, want.text, want.reasoning), case
            made = [[(call.name, call.arguments) for call in one.tool_calls] for one in (got, want)]
            assert made[0] == made[1]
            assert got.finished is not None
            assert want.finished is not None
            assert got.finished.reasoning_tokens == want.finished.reasoning_tokens
            calls += check_output(got, case, streamed_calls(client, name, got.index))
    return calls, core.stats().preemptions


def some_cases(
    make: Callable[..., ToolCase], numbers: range, tool_format: str, *, reasoning: bool
) -> dict[str, ToolCase]:
    """Cases by their numbers."""
    return {str(number): make(number, tool_format, reasoning=reasoning) for number in numbers}


@pytest.mark.parametrize("reasoning", [pytest.param(False, marks=pytest.mark.slow), True])
# By default a format of each kind of text, and of each kind of engine.
@pytest.mark.parametrize(
    "tool_format", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in FORMATS]
)
def test_calls_are_right_whatever_computes_them(tool_format: str, reasoning: bool) -> None:
    kind = (sorted(FORMATS).index(tool_format) + reasoning) % KINDS
    cases = some_cases(tool_case, range(2), tool_format, reasoning=reasoning)
    calls, _ = check(cases, kind, tool_format, reasoning=reasoning)
    assert calls


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tool_format", FORMATS)
def test_no_call_of_two_thousand_is_wrong(tool_format: str) -> None:
    source = random.Random(tool_format)
    target = TableModel()
    calls = preempted = begin = 0
    while calls < 2000:
        kind, reasoning = source.randrange(KINDS), source.random() < 0.3
        cases = some_cases(calling_case, range(begin, begin + 16), tool_format, reasoning=reasoning)
        made, times = check(cases, kind, tool_format, reasoning=reasoning, target=target)
        calls, preempted, begin = calls + made, preempted + times, begin + 16
    assert preempted


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_no_output_of_ten_thousand_mixes_is_wrong(part: int) -> None:
    """Random mixes of a format, tools, a schema, reasoning and drafts: each output by its definition."""
    source = random.Random(part)
    target = TableModel()
    outputs = calls = begin = 0
    while outputs < 1000:
        tool_format, reasoning = source.choice(list(FORMATS)), source.random() < 0.5
        numbers = range(100_000 * (part + 1) + begin, 100_000 * (part + 1) + begin + 32)
        cases = some_cases(tool_case, numbers, tool_format, reasoning=reasoning)
        core = core_of_kind(source.randrange(KINDS), tool_format, reasoning=reasoning, target=target)
        answers, client = run(cases, core)
        for name, of_case in answers.items():
            for output in of_case:
                calls += check_output(output, cases[name], streamed_calls(client, name, output.index))
                outputs += 1
        begin += 32
    assert calls
