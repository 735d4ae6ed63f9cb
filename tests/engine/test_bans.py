"""Allowed ids and bad words hold for every output, and drafts or preemption do not change which tokens they leave."""

from __future__ import annotations

import random

import pytest
from drafters import Adversary
from equality import assert_same, prompts
from fake_engine import FakeEngine
from tiny import Client, alone, tiny_core

from draftline.engine.errors import InvalidRequestError
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.request import RequestBuilder

A, B, C = b"abc"
WORDS = ("aa", "bab", "acb", "bb")


def samplings() -> list[SamplingParams]:
    """Of words in three letters: an output without the ban has most of them."""
    return [
        SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=30,
            ignore_eos=True,
            allowed_token_ids=(A, B, C),
            bad_words=WORDS if seed % 3 else (),
        )
        for seed, temperature in enumerate((3.0, 0.0, 1.0) * 3)
    ]


@pytest.fixture(scope="module")
def solo() -> list[RequestOutput]:
    return [alone(prompt, sampling) for prompt, sampling in zip(prompts(9, 2), samplings(), strict=True)]


def test_no_output_has_a_bad_word_or_another_token(solo: list[RequestOutput]) -> None:
    without: set[str] = set()
    for sampling, result in zip(samplings(), solo, strict=True):
        output = result.outputs[0]
        assert set(output.text) <= set("abc")
        assert len(output.token_ids) == 30
        found = {word for word in WORDS if word in output.text}
        if sampling.bad_words:
            assert not found
        without |= found
    assert without == set(WORDS)


@pytest.mark.parametrize(
    ("drafts", "num_blocks", "steps_ahead"),
    [(4, 80, 0), (3, 16, 2), (0, 14, 1)],
    ids=["drafts", "both", "preemption"],
)
def test_drafts_and_preemption_change_nothing(
    solo: list[RequestOutput], drafts: int, num_blocks: int, steps_ahead: int
) -> None:
    draw = random.Random(3)
    drafter = Adversary(drafts, lambda known, ahead: draw.choice((A, B, C))) if drafts else None
    core = tiny_core(num_blocks=num_blocks, drafter=drafter, num_slots=8, token_budget=48, steps_ahead=steps_ahead)
    client = Client(core)
    for index, (prompt, sampling) in enumerate(zip(prompts(9, 2), samplings(), strict=True)):
        client.submit(str(index), prompt, sampling)
    results = client.run()
    for index, expected in enumerate(solo):
        assert_same(results[str(index)], expected)
    stats = core.stats()
    assert not drafts or 0 < stats.accepted_tokens < stats.drafted_tokens
    assert num_blocks > 50 or stats.preemptions > 0, "the pool was not tight enough to preempt"


def test_a_prompt_s_end_does_not_begin_a_bad_word() -> None:
    """Only the output's own tokens count, as in vLLM."""
    sampling = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=(A,), bad_words=("ba",))
    assert alone([B], sampling).outputs[0].text == "a"


@pytest.mark.parametrize(
    "sampling",
    [{"bad_words": ("ab",)}, {"allowed_token_ids": (A,)}, {"bad_words": ("a", "b"), "allowed_token_ids": (C,)}],
    ids=["words", "ids", "both"],
)
def test_a_constraint_weighs_more(sampling: dict[str, tuple[object, ...]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, **sampling)  # type: ignore[arg-type]
    output = alone([1, 2, 3], params, Constraint(choice=("ab",))).outputs[0]
    assert output.text == "ab"
    assert output.finished is not None
    assert output.finished.constraint_complete


def test_a_constraint_and_bans_share_its_choices() -> None:
    params = SamplingParams(temperature=0, max_tokens=9, bad_words=("y",), allowed_token_ids=tuple(b"yesno"))
    output = alone([1, 2, 3], params, Constraint(choice=("yes", "no", "maybe"))).outputs[0]
    assert output.text == "no"


def test_a_word_is_banned_with_and_without_a_space(engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, engine.compiler)
    sampling = SamplingParams(bad_words=(" ab", "ab", "\n"))
    request = builder.prepare("a", GenerateRequest([1], sampling)).request
    assert request.bad_words == (tuple(b"ab"), tuple(b" ab"), tuple(b"\n"))


def test_too_many_words_are_refused(engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, engine.compiler)
    sampling = SamplingParams(bad_words=("a" * 256, "b" * 256), allowed_token_ids=(3, 700))
    with pytest.raises(InvalidRequestError) as caught:
        builder.prepare("a", GenerateRequest([1], sampling))
    first, second = caught.value.violations
    assert (first.field, second.field) == ("sampling.allowed_token_ids[1]", "sampling.bad_words")
    assert second.description == "have 1026 tokens, with and without a space before them; at most 1024 fit"
