"""`Attempts` without an engine: prompts, seeds, corrections, and which error counts at the end."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from draftline import (
    Chat,
    DeadlineExceededError,
    IncompleteOutputError,
    InvalidOutputError,
    InvalidRequestError,
    SamplingParams,
    Schema,
)
from draftline.engine.errors import FieldViolation
from draftline.engine.extraction.attempts import Attempts
from draftline.engine.extraction.task import ExtractionOptions, extraction_attempts
from draftline.engine.outputs import (
    CompletionOutput,
    Finished,
    FinishReason,
    RequestOutput,
    SpeculationStats,
    Timing,
    Usage,
)
from draftline.engine.request.keywords import ConstraintInput


class Even(BaseModel):
    number: int = Field(ge=0)

    @field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


def begin(text: Any = "the text", *, retry: int = 2, seed: int | None = 7, **options: Any) -> Attempts[Even]:
    sampling = SamplingParams(seed=seed, temperature=0.5)
    as_chat = options.pop("as_chat", True)
    keywords: ExtractionOptions[Even] = {"instructions": "Count.", "retry": retry, **options}  # type: ignore[typeddict-item]
    output_type: ConstraintInput[Even] = Schema(Even, whitespace="compact")
    [attempts] = extraction_attempts(text, output_type, sampling, keywords, as_chat=as_chat)
    return attempts


def answer(text: str, *, complete: bool = True) -> RequestOutput[Even]:
    reason = FinishReason.EOS if complete else FinishReason.LENGTH
    finished = Finished(
        index=0,
        finish_reason=reason,
        matched_stop="",
        usage=Usage(5, 0, 9),
        speculation=SpeculationStats(),
        timing=Timing(0, 0, 0, 0),
        constraint_complete=complete,
        seed=1,
    )
    output = CompletionOutput(0, text, constraint=Schema(Even), finished=finished, finish_reason=reason.name.lower())
    return RequestOutput("a", None, [], [output])


def messages(attempts: Attempts[Even]) -> tuple[tuple[str, str], ...]:
    prompt = attempts.request().prompt
    assert isinstance(prompt, Chat)
    return prompt.messages


def test_a_value_ends_the_attempts() -> None:
    attempts = begin()
    assert messages(attempts) == (("user", "Count.\n\nthe text"),)
    result = attempts.take(answer('{"number":4}'))
    assert result is not None
    assert (result.value, result.error, result.attempts, result.index) == (Even(number=4), None, 1, 0)
    assert repr(result) == "Extraction(index=0, value=Even(number=4), attempts=1)"


def test_a_wrong_answer_is_shown_with_its_error_and_another_seed_is_drawn() -> None:
    attempts = begin(examples=[("six", Even(number=6))])
    assert attempts.request().sampling.seed == 7
    assert attempts.take(answer('{"number":3}')) is None
    assert attempts.request().sampling.seed == 8
    assert messages(attempts) == (
        ("user", "Count.\n\nsix"),
        ("assistant", '{"number":6}'),
        ("user", "the text"),
        ("assistant", '{"number":3}'),
        ("user", "This answer is wrong: number: must be even, not 3. Correct it."),
    )
    assert attempts.take(answer('{"number":5}')) is None
    assert len(messages(attempts)) == 7
    result = attempts.take(answer('{"number":7}'))
    assert result is not None
    assert isinstance(result.error, InvalidOutputError)
    assert str(result.error) == "number: must be even, not 7"
    assert result.attempts == 3
    with pytest.raises(InvalidOutputError):
        result.value  # noqa: B018


def test_an_answer_without_an_end_is_shortened_in_the_next_prompt() -> None:
    attempts = begin(retry=1)
    assert attempts.take(answer('{"number":' + "1" * 5000, complete=False)) is None
    [_, (_, shown), (_, correction)] = messages(attempts)
    assert len(shown) < 600
    assert correction == (
        "This answer is too long: the output ended at its limit of 9 tokens, before its constraint was complete. "
        "Answer again, and be brief."
    )
    result = attempts.take(answer("{", complete=False))
    assert result is not None
    assert isinstance(result.error, IncompleteOutputError)


def test_a_correction_that_does_not_fit_leaves_the_answers_own_error() -> None:
    attempts = begin()
    attempts.take(answer('{"number":3}'))
    result = attempts.take(InvalidRequestError(FieldViolation("texts[0].chat", "has 600 tokens")))
    assert result is not None
    assert isinstance(result.error, InvalidOutputError)
    assert result.output is not None
    assert result.attempts == 2


@pytest.mark.parametrize("error", [DeadlineExceededError(), InvalidRequestError(FieldViolation("chat", "too long"))])
def test_a_request_that_fails_is_not_repeated(error: Any) -> None:
    result = begin().take(error)
    assert result is not None
    assert (result.error, result.output, result.attempts) == (error, None, 1)


def test_without_a_seed_none_is_set_and_without_a_limit_there_is_one() -> None:
    request = begin(seed=None).request()
    assert request.sampling.seed is None
    assert request.sampling.max_tokens == 1024
    assert request.path == "texts[0]"


def test_what_is_no_text_is_refused_when_it_is_asked_for() -> None:
    for text, message in (
        (None, "texts[0]: must be text, not None"),
        ("a\ud800", "texts[0]: character 1 is a surrogate code point, which no Unicode text has"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            begin([text]).request()
        assert str(caught.value) == message


def test_without_a_chat_template_the_prompt_is_a_text_that_the_answer_continues() -> None:
    attempts = begin(as_chat=False, examples=[("six", Even(number=6))])
    first = 'Count.\n\nsix\n\nJSON: {"number":6}\n\nthe text\n\nJSON:'
    assert attempts.request().prompt == first
    attempts.take(answer('{"number":3}'))
    wrong = "This answer is wrong: number: must be even, not 3. Correct it."
    assert attempts.request().prompt == f'{first} {{"number":3}}\n\n{wrong}\n\nJSON:'
