"""`extract` on the four faces: results in order, each a value or an error of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pytest
from byte_tokenizer import write_byte_model
from four_faces import FACES, FourFaces, four_faces
from pydantic import BaseModel, field_validator

from draftline import (
    Constraint,
    DeadlineExceededError,
    IncompleteOutputError,
    InvalidOutputError,
    InvalidRequestError,
    SamplingParams,
    Schema,
)

SHORT = SamplingParams(temperature=1, seed=3, max_tokens=40)
TWO_FACES = ("LLM", "AsyncClient")
"""Of those that run by default where each takes long: without a server, and with one."""
YES_OR_NO = Constraint(choice=["yes", "no"])


class Flag(BaseModel):
    colour: Literal["red", "blue"]
    stripes: Literal[2, 3, 4]


class Digit(BaseModel):
    """As few tokens as an object can have."""

    n: Literal[1, 2, 3]


class Picky(BaseModel):
    """A validator that no mask can enforce."""

    digit: Literal["0", "1", "2", "3"]

    @field_validator("digit")
    @classmethod
    def _not_even(cls, digit: str) -> str:
        if int(digit) % 2 == 0:
            raise ValueError("must be odd")
        return digit


# By default fewer texts.
@pytest.mark.long
@pytest.mark.parametrize(
    ("face", "count"),
    [
        *(pytest.param(face, 150, marks=[pytest.mark.slow] * (face not in TWO_FACES)) for face in FACES),
        *(pytest.param(face, 500, marks=pytest.mark.slow) for face in FACES),
    ],
)
def test_of_many_texts_the_impossible_one_has_a_named_error(faces: FourFaces, face: str, count: int) -> None:
    texts = [f"flag {index}" for index in range(count)]
    texts[137] = "x" * 600
    results = faces.call(face, "extract", texts, Schema(Digit, whitespace="compact"), SHORT)
    assert [result.index for result in results] == list(range(count))
    assert sum(isinstance(result.value, Digit) for result in results if result.error is None) == count - 1
    error = results[137].error
    assert isinstance(error, InvalidRequestError)
    assert [violation.field for violation in error.violations] == ["texts[137].chat"]
    assert "at most 511 fit" in str(error)
    with pytest.raises(InvalidRequestError):
        results[137].value  # noqa: B018


@pytest.mark.parametrize("face", FACES)
def test_each_kind_of_failure_stays_with_its_text(faces: FourFaces, face: str) -> None:
    samplings = [SHORT, SamplingParams(max_tokens=3), SHORT, SHORT]
    good, cut, none, late = faces.call(face, "extract", ["a", "b", None, "d"], Flag, samplings)
    assert isinstance(good.value, Flag)
    assert isinstance(late.value, Flag)
    assert isinstance(cut.error, IncompleteOutputError)
    assert str(cut.error) == "the output ended at its limit of 3 tokens, before its constraint was complete"
    assert cut.error.text == cut.output.outputs[0].text
    assert str(none.error) == "texts[2]: must be text, not None"
    [half] = faces.call(face, "extract", ["\ud83d"], Flag, SHORT)
    assert str(half.error) == "texts[0]: character 0 is a surrogate code point, which no Unicode text has"
    [timed_out] = faces.call(face, "extract", "a", Flag, SHORT, timeout=1e-9)
    assert isinstance(timed_out.error, DeadlineExceededError)


@pytest.mark.parametrize(
    "face", [pytest.param(face, marks=[pytest.mark.slow] * (face not in TWO_FACES)) for face in FACES]
)
def test_a_rejected_answer_is_tried_again_with_its_error(faces: FourFaces, face: str) -> None:
    texts = [f"text {index}" for index in range(12)]
    sampling = [SamplingParams(seed=1000 * index, max_tokens=30) for index in range(12)]
    once = faces.call(face, "extract", texts, Picky, sampling)
    failed = [result for result in once if result.error is not None]
    assert 0 < len(failed) < len(texts)
    for result in failed:
        assert isinstance(result.error, InvalidOutputError)
        assert [violation.field for violation in result.error.violations] == ["digit"]
        assert "must be odd" in str(result.error)
        assert result.error.text == result.output.outputs[0].text
    again = faces.call(face, "extract", texts, Picky, sampling, retry=9)
    assert [result.value.digit in "13" for result in again] == [True] * len(texts)
    assert [result.attempts > 1 for result in again] == [result.error is not None for result in once]
    assert all(a.value == b.value for a, b in zip(again, once, strict=True) if b.error is None)


def test_all_faces_give_the_same_values(faces: FourFaces) -> None:
    texts = [f"flag {index}" for index in range(20)]
    values = [[result.value for result in faces.call(face, "extract", texts, Flag, SHORT)] for face in FACES]
    assert values[1:] == values[:1] * 3


def test_the_prompt_is_a_chat_with_instructions_and_examples(faces: FourFaces) -> None:
    [result] = faces.llm.extract(
        "the text",
        Schema(Flag, whitespace="compact"),
        SHORT,
        instructions="Which flag?",
        examples=[("an example", Flag(colour="red", stripes=2))],
        use_tqdm=False,
    )
    messages = (
        ("user", "Which flag?\n\nan example"),
        ("assistant", '{"colour":"red","stripes":2}'),
        ("user", "the text"),
    )
    assert result.output is not None
    assert result.output.prompt_token_ids == faces.llm.tokenizer.encode_chat(messages)


def test_the_default_instructions_name_the_type(faces: FourFaces) -> None:
    [result] = faces.llm.extract("abc", Flag, SHORT, use_tqdm=False)
    assert result.output is not None
    prompt = faces.llm.tokenizer.decode(result.output.prompt_token_ids)
    assert "Flag" in prompt
    assert "abc" in prompt


def test_a_model_without_a_chat_template_gets_a_text(tmp_path: Path) -> None:
    example = ("one", Flag(colour="blue", stripes=3))
    with four_faces(write_byte_model(tmp_path, template=None)) as faces:
        for face in FACES:
            [result] = faces.call(face, "extract", ["two"], Flag, SHORT, instructions="Which flag?", examples=[example])
            assert isinstance(result.value, Flag)
            if face in ("LLM", "AsyncEngine"):
                expected = 'Which flag?\n\none\n\nJSON: {"colour": "blue", "stripes": 3}\n\ntwo\n\nJSON:'
                assert result.output.prompt == expected


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "texts: must be a list of texts, not None": ((None, Flag), {}),
    "output_type: must be a type or a Constraint, not None": (("a", None), {}),
    "output_type: must be a Constraint or a type, not a dict; for a JSON Schema, pass Schema(…)": (("a", {}), {}),
    "sampling_params: must be SamplingParams, not a dict": (("a", Flag, {"n": 1}), {}),
    "sampling_params: has 1 entries for 2 prompts": ((["a", "b"], Flag, [SHORT]), {}),
    "sampling_params.n: must be 1, not 2: each text has one value": (("a", Flag, SamplingParams(n=2)), {}),
    "instructions: must be text, not an int": (("a", Flag), {"instructions": 3}),
    "retry: must be a number of attempts, 0 or more, not -1": (("a", Flag), {"retry": -1}),
    "examples: must be a list of pairs of a text and its value, not an int": (("a", Flag), {"examples": 5}),
    "examples[0]: must be a pair of a text and its value": (("a", Flag), {"examples": ["a"]}),
    "timeout: must be more than 0 s, not -1 s": (("a", Flag), {"timeout": -1}),
}


@pytest.mark.parametrize("face", FACES)
def test_an_argument_for_all_texts_that_is_wrong_is_named(faces: FourFaces, face: str) -> None:
    for message, (arguments, options) in WRONG.items():
        with pytest.raises(InvalidRequestError) as caught:
            faces.call(face, "extract", *arguments, **options)
        assert str(caught.value) == message
    for output_type, value in ((Flag, {"colour": "green", "stripes": 2}), (YES_OR_NO, "maybe"), (float, math.inf)):
        with pytest.raises(InvalidRequestError, match=r"examples\[0\]: its value is none of the type"):
            faces.call(face, "extract", "a", output_type, examples=[("a", value)])


@pytest.mark.parametrize("face", FACES)
def test_an_unknown_keyword_is_named_with_the_closest_of_extract(faces: FourFaces, face: str) -> None:
    for name, meant in (("instruction", "instructions"), ("example", "examples"), ("retries", "retry")):
        with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'; did you mean {meant}\?"):
            faces.call(face, "extract", "a", Flag, **{name: "b"})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'constraint'$"):  # it is output_type here
        faces.call(face, "extract", "a", Flag, constraint=Flag)


@pytest.mark.parametrize("face", FACES)
def test_the_progress_counts_what_failed(faces: FourFaces, face: str, capsys: pytest.CaptureFixture[str]) -> None:
    faces.call(face, "extract", ["a", None, "c"], Flag, SHORT, use_tqdm=True)
    first, *_, last = capsys.readouterr().err.lstrip("\r").split("\r")
    assert first.startswith("Compiling")
    assert last.startswith("Extracted")
    assert "3/3" in last
    assert "failed=1" in last
    assert "text/s" in last or "s/text" in last
