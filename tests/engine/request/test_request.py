"""Invalid prompts: each error names its field."""

from __future__ import annotations

from typing import Any

import pytest
from byte_compilers import byte_compiler
from fake_engine import FakeEngine
from pydantic import ValidationError

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import DEFAULT_MAX_TOKENS, Constraint, Reasoning, SamplingParams
from draftline.engine.protocol import GenerateRequest, Prompt
from draftline.engine.request.constraints import constraint_errors, structured_constraint
from draftline.engine.request.request import RequestBuilder
from draftline.engine.validation import violations
from draftline.structured.constraint import language
from draftline.structured.errors import InvalidConstraintError

LONE_SURROGATE = "a\ud800"


@pytest.mark.parametrize(
    ("prompt", "field", "problem"),
    [
        ("", "text", "is empty"),
        ([], "token_ids", "is empty"),
        ([1, 256], "token_ids.ids[1]", "256 is not a token id"),
        (LONE_SURROGATE, "text", "surrogate"),
        (Chat(()), "chat.messages", "is empty"),
        (Chat((("robot", "x"),)), "chat.messages", "roles system, user and assistant"),
    ],
    ids=["empty text", "no ids", "id out of range", "text", "empty chat", "role"],
)
def test_an_invalid_prompt_names_its_field(prompt: Prompt, field: str, problem: str, engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, engine.compiler)
    with pytest.raises(InvalidRequestError) as caught:
        builder.build("a", GenerateRequest(prompt), lambda updates: None, 0.0)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert problem in violation.description


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, engine.compiler)
    text = "ä" * (engine.info.max_model_len * engine.info.max_token_bytes // 2 + 1)
    with pytest.raises(InvalidRequestError, match=f"text: the prompt is too long: {2 * len(text)} bytes of UTF-8"):
        builder.prepare("a", GenerateRequest(text))
    cut = GenerateRequest(text, SamplingParams(truncate_prompt_tokens=5))
    assert len(builder.prepare("a", cut).request.prompt_token_ids) == 5


@pytest.mark.parametrize(
    ("sampling", "prompt", "field", "problem"),
    [
        ({"logit_bias": {3: 1.0, 700: 2.0}}, [1], "sampling.logit_bias[700]", "700 is not a token id"),
        ({"stop_token_ids": (3, 700)}, [1], "sampling.stop_token_ids[1]", "700 is not a token id"),
        (
            {"min_tokens": 300},
            [1],
            "sampling.min_tokens",
            f"(300) exceeds the {DEFAULT_MAX_TOKENS} tokens that can be generated: the default of max_tokens",
        ),
        (
            {"min_tokens": 30, "max_tokens": 50},
            [1] * 4076,
            "sampling.min_tokens",
            "(30) exceeds the 20 tokens that can be generated: the prompt leaves room for 20",
        ),
    ],
    ids=["bias", "stop", "default", "room"],
)
def test_invalid_sampling_names_its_field(
    sampling: dict[str, object], prompt: list[int], field: str, problem: str, engine: FakeEngine
) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, engine.compiler)
    with pytest.raises(InvalidRequestError) as caught:
        builder.build("a", GenerateRequest(prompt, SamplingParams.model_validate(sampling)), lambda updates: None, 0.0)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert problem in violation.description


def test_limits_that_the_output_cannot_meet_are_all_named_with_their_request(engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, byte_compiler())
    constraint = Constraint(choice=("abcdefgh",), close_within_budget=True)
    sampling = SamplingParams(min_tokens=6, max_tokens=9)
    wanted = GenerateRequest([1] * (engine.info.max_model_len - 5), sampling, constraint, path="prompts[3]")
    with pytest.raises(InvalidRequestError) as caught:
        builder.build("a", wanted, lambda updates: None, 0.0)
    assert [violation.field for violation in caught.value.violations] == [
        "prompts[3].sampling.min_tokens",
        "prompts[3].constraint.close_within_budget",
    ]


def test_more_tokens_than_the_context_has_room_for_are_cut_to_it(engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0, engine.compiler)
    wanted = GenerateRequest([1] * 10, SamplingParams(max_tokens=1_000_000))
    assert builder.build("a", wanted, lambda updates: None, 0.0).sequences[0].max_len == engine.info.max_model_len


def test_fields_that_contradict_one_another_are_both_named() -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(min_tokens=9, max_tokens=3)
    found = violations(caught.value, "sampling")
    assert [violation.field for violation in found] == ["sampling.min_tokens", "sampling.max_tokens"]
    assert {violation.description for violation in found} == {"min_tokens (9) exceeds max_tokens (3)"}


@pytest.mark.parametrize(
    ("schema", "field", "problem"),
    [
        ('{"properties": {"a": {"type": "strin"}}}', "constraint.json_schema#/properties/a/type", 'not "strin"'),
        ('{"properties": {"a": {"$ref": "#/x"}}}', "constraint.json_schema#/properties/a/$ref", "points to nothing"),
        ('{"a":', "constraint.json_schema", "the schema is not JSON"),
    ],
)
def test_an_error_in_a_schema_has_its_pointer_in_the_field(schema: str, field: str, problem: str) -> None:
    asked = structured_constraint(Constraint(json_schema=schema))
    with pytest.raises(InvalidRequestError) as caught, constraint_errors(asked):
        language(asked)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert problem in violation.description


def test_an_error_in_a_grammar_may_look_like_a_pointer() -> None:
    asked = structured_constraint(Constraint(regex="/a"))
    with pytest.raises(InvalidRequestError) as caught, constraint_errors(asked):
        raise InvalidConstraintError("/a: no")
    (violation,) = caught.value.violations
    assert (violation.field, violation.description) == ("constraint.regex", "/a: no")


@pytest.mark.parametrize("kind", [{"regex": "a"}, {"choice": ("a",)}, {"grammar": "a"}, {"reasoning": Reasoning()}])
def test_options_of_json_are_refused_where_there_is_none(kind: dict[str, Any]) -> None:
    name = "only reasoning" if "reasoning" in kind else next(iter(kind))
    with pytest.raises(InvalidRequestError) as caught:
        structured_constraint(Constraint(**kind, whitespace="spaced", close_objects=True, integers="plain"))
    problem = f"without effect where {name} is set: whitespace, close_objects"
    assert caught.value.violations == (
        FieldViolation("constraint.whitespace", problem),
        FieldViolation("constraint.close_objects", problem),
    )
    tags = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {}}}
    for of_json in ({"json_object": True}, {"json_schema": {}}, {"structural_tag": tags}):
        assert structured_constraint(Constraint(**of_json, whitespace="spaced")).whitespace == "spaced"


def test_options_of_schemas_are_refused_where_any_object_will_do() -> None:
    options: dict[str, Any] = {
        "best_effort": True, "integers": "standard", "member_order": "any", "close_objects": True, "whitespace": "spaced",
        "close_within_budget": True,
    }  # fmt: skip
    with pytest.raises(InvalidRequestError) as caught:
        structured_constraint(Constraint(json_object=True, **options))
    wrong = ["best_effort", "integers", "member_order", "close_objects"]
    problem = f"without effect where json_object is set: {', '.join(wrong)}"
    assert caught.value.violations == tuple(FieldViolation(f"constraint.{name}", problem) for name in wrong)
    assert structured_constraint(Constraint(json_schema={}, **options)).member_order == "any"
