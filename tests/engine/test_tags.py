"""Structural tags and reasoning, in every mix of what may change how an output is computed: it is right, and the same."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from byte_compilers import byte_compiler
from drafters import Adversary
from tag_cases import FORMATS, TagCase, assert_right, tag_case
from tiny import Client, alone, draft_model, free_constraints, tiny_core

from draftline.engine.core import Core
from draftline.engine.errors import InvalidRequestError
from draftline.engine.outputs import CompletionOutput
from draftline.engine.params import Constraint, Reasoning, SamplingParams
from draftline.engine.request.constraints import structured_constraint
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.ngram import NGram

KINDS = 5


def core_of_kind(kind: int, ahead: int) -> Core:
    match kind:
        case 0:
            return tiny_core(steps_ahead=ahead)
        case 1:
            return tiny_core(num_blocks=36, drafter=NGram(3, ReferenceOps()), steps_ahead=ahead)  # with preemption
        case 2:
            return tiny_core(
                drafter=Adversary(3, lambda known, ahead: (31 * len(known) + 7 * ahead) % 256),
                num_slots=3,
                token_budget=19,
                steps_ahead=ahead,
            )
        case 3:
            # The automata have no room on the device: the host walks them.
            table = free_constraints(drafts=3, words=1000)
            return tiny_core(drafter=NGram(3, ReferenceOps()), constraints=table, steps_ahead=ahead)
        case _:
            table = free_constraints()
            return tiny_core(
                drafter=draft_model(4, noise=0.05, constraints=table), constraints=table, steps_ahead=ahead
            )


def check(numbers: Iterable[int], core: Core) -> int:
    """Run these cases, and again in an engine with room for everything and no drafts; the number of outputs."""
    cases = {str(number): tag_case(number) for number in numbers}
    plain = run(cases, tiny_core(num_blocks=1000, num_slots=16, token_budget=256))
    for name, outputs in run(cases, core).items():
        for got, want in zip(outputs, plain[name], strict=True):
            assert (got.token_ids, got.text) == (want.token_ids, want.text), cases[name]
            assert got.finished is not None
            assert want.finished is not None
            assert got.finished.tags == want.finished.tags
            assert_right(got, cases[name].constraint)
    return sum(case.sampling.n for case in cases.values())


def run(cases: dict[str, TagCase], core: Core) -> dict[str, list[CompletionOutput]]:
    client = Client(core)
    for name, case in cases.items():
        client.submit(name, case.prompt, case.sampling, int(name) % 3, constraint=case.constraint)
    return {name: whole.outputs for name, whole in client.run().items()}


@pytest.mark.parametrize("kind", range(KINDS))
def test_tags_and_reasoning_are_right_whatever_computes_them(kind: int) -> None:
    check(range(100 * kind, 100 * kind + 3), core_of_kind(kind, kind % 2))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(10))
def test_no_output_of_ten_thousand_is_wrong(part: int) -> None:
    source = random.Random(part)
    count = preempted = 0
    begin = 100_000 * part
    while count < 1000:
        core = core_of_kind(source.randrange(KINDS), source.randrange(2))
        count += check(range(begin, begin + 24), core)
        preempted += core.stats().preemptions
        begin += 24
    assert preempted


def test_automata_enforce_what_is_regular() -> None:
    for name, form in FORMATS.items():
        asked = Constraint(structural_tag={"type": "structural_tag", "format": form}, reasoning=Reasoning())
        report = byte_compiler().compile(structured_constraint(asked)).report
        assert (report.backend, report.no_automaton) == (
            ("grammar", "#/format/tags/0/content/json_schema: it recurses") if "open" in name else ("automaton", None)
        )


@pytest.mark.parametrize("kind", [{"regex": "[0-9]{30}"}, {"grammar": 'start: "(" start ")" | /[0-9]{30}/'}])
@pytest.mark.parametrize("limit", [11, 12, 30])
def test_reasoning_ends_within_its_budget_and_the_answer_follows(kind: dict[str, str], limit: int) -> None:
    constraint = Constraint(**kind, reasoning=Reasoning(begin="<r>", end="</reason>", max_tokens=limit))  # type: ignore[arg-type]
    if limit < len("<r></reason>"):
        with pytest.raises(InvalidRequestError, match="the marks of the reasoning alone take 12 tokens"):
            alone([1], SamplingParams(), constraint)
        return
    for seed in range(2):
        (output,) = alone([1, 2], SamplingParams(max_tokens=64, seed=seed), constraint).outputs
        assert output.finished is not None
        assert output.finished.reasoning is not None
        assert len(output.text[: output.finished.reasoning.end].encode()) <= limit
        assert output.answer.strip("()").isdigit()


def test_a_budget_of_the_whole_text_leaves_room_for_the_answer() -> None:
    reasoning = Reasoning(begin="", end="</r>", max_tokens=40)
    constraint = Constraint(regex="[0-9]{20,}", reasoning=reasoning, close_within_budget=True)
    for seed in range(3):
        (output,) = alone([1, 2], SamplingParams(max_tokens=30, seed=seed), constraint).outputs
        assert output.finished is not None
        assert output.finished.constraint_complete
        assert len(output.answer) >= 20
        assert len(output.token_ids) <= 30
