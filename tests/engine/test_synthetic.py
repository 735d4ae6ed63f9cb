"""Synthetic acceptance: as many drafts are accepted as the chance says, and every output says that it is synthetic."""

from __future__ import annotations

import pytest
from equality import prompts
from tiny import Client, tiny_core

from draftline.engine.errors import InvalidRequestError
from draftline.engine.params import Constraint, Reasoning, SamplingParams
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.ngram import NGram
from draftline.spec.synthetic import chance_of_length


# At either end nothing is left to chance.
@pytest.mark.parametrize(
    ("length", "drafts", "tokens"),
    [(1.0, 4, 40), (3.5, 4, 200), pytest.param(2.0, 1, 200, marks=pytest.mark.slow), (5.0, 4, 41)],
)
def test_the_acceptance_length_is_what_was_asked_for(length: float, drafts: int, tokens: int) -> None:
    chance = chance_of_length(length, drafts)
    client = Client(tiny_core(drafter=NGram(drafts, ReferenceOps()), synthetic_acceptance=chance))
    for i, prompt in enumerate(prompts(8, 3)):
        client.submit(str(i), prompt, SamplingParams(max_tokens=tokens, ignore_eos=True, seed=i))
    results = client.run()
    stats = client.core.stats().drafter
    assert stats.acceptance_length == pytest.approx(length, abs=0.15)
    for result in results.values():
        finished = result.outputs[0].finished
        assert finished is not None
        assert finished.speculation.synthetic
        assert finished.speculation.drafter == "ngram"
        assert finished.usage.completion_tokens == tokens


def test_no_chance_gives_an_impossible_length() -> None:
    with pytest.raises(ValueError, match=r"between 1 and 5, not 5\.5"):
        chance_of_length(5.5, 4)


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (Constraint(json_schema={"type": "integer"}), "constraint.json_schema"),
        (Constraint(reasoning=Reasoning()), "constraint.reasoning"),
    ],
)
def test_no_constraint_is_taken_where_its_text_would_be_left_to_chance(constraint: Constraint, field: str) -> None:
    client = Client(tiny_core(drafter=NGram(2, ReferenceOps()), synthetic_acceptance=0.5))
    with pytest.raises(InvalidRequestError, match=rf"{field}: cannot be enforced .* \(synthetic_acceptance\)"):
        client.submit("one", prompts(1, 3)[0], SamplingParams(), constraint=constraint)


def test_real_outputs_are_not_called_synthetic() -> None:
    client = Client(tiny_core(drafter=NGram(2, ReferenceOps())))
    client.submit("one", prompts(1, 3)[0], SamplingParams(max_tokens=9, ignore_eos=True))
    finished = client.run()["one"].outputs[0].finished
    assert finished is not None
    assert not finished.speculation.synthetic
    assert finished.speculation.times.verify_s > 0
    assert client.core.stats().drafter.times.host_s > 0
