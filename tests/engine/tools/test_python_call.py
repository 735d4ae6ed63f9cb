"""The arguments of a Python call keep the meaning that they have in the tool's schema."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from walk import Walker

from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.chat.plan import ChatPlan
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.tools.plan import plan_chat
from draftline.structured.constraint import language
from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.language import Language
from draftline.structured.tags.lark import tag_grammar

OBJECT = {"type": "object"}


def plan(schema: dict[str, Any]) -> ChatPlan:
    info: Any = SimpleNamespace(tool_format="pythonic", reasoning=None, model="m")
    tool = Tool("f", "", json.dumps(OBJECT | schema))
    chat = Chat([{"role": "user", "content": "x"}], tools=[tool], tool_choice="required")
    return plan_chat(GenerateRequest(chat), info, str)


def calls(made: ChatPlan) -> Language:
    assert made.constraint is not None
    return language(structured_constraint(made.constraint))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {
                "properties": {
                    "a": {"type": "integer"},
                    "b": {**OBJECT, "properties": {"a": {"$ref": "#/properties/a"}}},
                }
            },
            'b={"a":1}',
            'b={"a":true}',
        ),
        (
            {"properties": {"a": {"type": "string", "maxLength": 1}, "b": {"$ref": "#/properties/a"}}},
            'a="x", b="x"',
            'a="x", b="xx"',
        ),
        (
            {
                "properties": {"a": {"$defs": {"x": {"const": 1}}, "type": "array", "items": {"$ref": "#/$defs/x"}}},
                "$defs": {"x": {"const": 2}},
            },
            "a=[2]",
            "a=[1]",
        ),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}, 'a=[{"a":[]}]', "a=[[]]"),
        (
            {
                "$id": "https://example.com/tool",
                "properties": {"a": {"$ref": "tool#/$defs/x"}, "b": {"$ref": "#y"}},
                "$defs": {"x": {"const": 1}, "y": {"$anchor": "y", "const": 2}},
            },
            "a=1, b=2",
            "a=2, b=1",
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "properties": {
                    "a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
                    "b": {"$ref": "#/properties/a"},
                },
            },
            "a=2, b=2",
            "a=2, b=1",
        ),
        ({"properties": {"a": {"type": "boolean", "not": {"const": True}}}}, "a=false", "a=True"),
    ],
)
def test_arguments_match_the_whole_schema(schema: dict[str, Any], right: str, wrong: str) -> None:
    form = calls(plan(schema)).form
    assert form is not None
    walker = Walker.of_grammar(tag_grammar(form))
    assert walker.accepts(f"[f({right})]")
    assert not walker.accepts(f"[f({wrong})]")


@pytest.mark.parametrize("identity", [{}, {"$id": "https://example.com/tool"}])
@pytest.mark.parametrize(
    ("argument", "place"),
    [
        ({"pattern": "(a)\\1"}, "#/properties/a/pattern"),
        ({"$ref": "#/$defs/x"}, "#/$defs/x/pattern"),
        ({"items": {"$ref": "#/$defs/y"}}, "#/properties/a/items/$ref"),
    ],
)
def test_an_error_in_an_argument_names_the_place_in_the_tools_schema(
    argument: dict[str, Any], place: str, identity: dict[str, Any]
) -> None:
    made = plan({**identity, "properties": {"a": argument}, "$defs": {"x": {"pattern": "(a)\\1"}}})
    with pytest.raises(UnsupportedConstraintError) as caught:
        calls(made)
    fields = [f"constraint.structural_tag#{violation.pointer}" for violation in caught.value.violations]
    named = made.error(InvalidRequestError(*(FieldViolation(field, "is refused") for field in fields)))
    assert {violation.field for violation in named.violations} == {f"chat.tools[0].parameters{place}"}


def test_an_unknown_draft_is_named() -> None:
    schema = {"$schema": "draft-99", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}}
    with pytest.raises(
        InvalidRequestError, match=r"^chat\.tools\[0\]\.parameters#: /\$schema: 'draft-99' is not a known draft"
    ):
        plan(schema)
