"""Calls of a random model in every format, in every mix of what may change how they are computed: all are right."""

from __future__ import annotations

import random

import pytest
from drafters import Adversary
from tiny import draft_model, free_constraints
from tool_cases import check_output, run, streamed_calls, tool_case, tool_core

from draftline.engine.core import Core
from draftline.engine.tools.formats import FORMATS
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.ngram import NGram

KINDS = 4


def core_of_kind(kind: int, tool_format: str, *, reasoning: bool) -> Core:
    match kind:
        case 0:
            return tool_core(tool_format, reasoning=reasoning, steps_ahead=1)
        case 1:  # with preemption
            drafter = NGram(3, ReferenceOps())
            return tool_core(tool_format, reasoning=reasoning, num_blocks=40, drafter=drafter, steps_ahead=1)
        case 2:
            drafter = Adversary(3, lambda known, ahead: (31 * len(known) + 7 * ahead) % 256)
            return tool_core(tool_format, reasoning=reasoning, drafter=drafter, num_slots=3, token_budget=19)
        case _:
            table = free_constraints()
            drafter = draft_model(4, noise=0.05, constraints=table)
            return tool_core(tool_format, reasoning=reasoning, drafter=drafter, constraints=table, steps_ahead=1)


def check(numbers: range, kind: int, tool_format: str, *, reasoning: bool) -> tuple[int, int]:
    """Run these cases, and again without drafts in an engine with room for everything; calls, and preemptions."""
    cases = {str(number): tool_case(number, tool_format, reasoning=reasoning) for number in numbers}
    core = core_of_kind(kind, tool_format, reasoning=reasoning)
    outputs, client = run(cases, core)
    plain, _ = run(cases, tool_core(tool_format, reasoning=reasoning, num_blocks=2000, num_slots=16, token_budget=256))
    calls = 0
    for name, case in cases.items():
        for got, want in zip(outputs[name], plain[name], strict=True):
            assert (got.token_ids, got.text, got.reasoning) == (want.token_ids, want.text, want.reasoning), case
            made = [[(call.name, call.arguments) for call in one.tool_calls] for one in (got, want)]
            assert made[0] == made[1]
            calls += check_output(got, case, streamed_calls(client, name, got.index))
    return calls, core.stats().preemptions


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("tool_format", FORMATS)
def test_calls_are_right_whatever_computes_them(tool_format: str, reasoning: bool) -> None:
    kind = (sorted(FORMATS).index(tool_format) + reasoning) % KINDS
    calls, _ = check(range(4), kind, tool_format, reasoning=reasoning)
    assert calls


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tool_format", FORMATS)
def test_no_call_of_two_thousand_is_wrong(tool_format: str) -> None:
    source = random.Random(tool_format)
    calls = preempted = begin = 0
    while calls < 2000:
        kind, reasoning = source.randrange(KINDS), source.random() < 0.5
        made, times = check(range(begin, begin + 24), kind, tool_format, reasoning=reasoning)
        calls, preempted, begin = calls + made, preempted + times, begin + 24
    assert preempted
