"""Chats with tools as constraints: what is enforced in every format, and which place of the request an error names."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from walk import Walker

from draftline.engine.chat.calls import Tool, ToolChoice
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import Constraint
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.tools.formats import FORMATS
from draftline.engine.tools.plan import ChatPlan, plan_chat
from draftline.structured.constraint import language
from draftline.structured.tags.lark import tag_grammar

LEAF = {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 1}
TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/leaf"}},
    "required": ["left"],
    "$defs": {"leaf": LEAF},
}
TOOLS = (Tool("tree", "", json.dumps(TREE)), Tool("tree2", "", json.dumps(TREE)))
"""They recurse, so no automaton enforces them."""


def plan(tool_format: str, mode: Any, constraint: Constraint | None = None) -> ChatPlan:
    info: Any = SimpleNamespace(tool_format=tool_format, reasoning=None, model="m")
    chat = Chat([{"role": "user", "content": "x"}], tools=TOOLS, tool_choice=ToolChoice(mode))
    return plan_chat(GenerateRequest(chat, constraint=constraint), info, str)


def written(tool_format: str, *calls: tuple[str, str]) -> str:
    """Calls in a format, with their arguments as JSON."""
    how = FORMATS[tool_format]
    python = how.arguments == "python"
    one = [
        how.begin(name) + (f"left={json.dumps(json.loads(text)['left'])}" if python else text) + how.end
        for name, text in calls
    ]
    return how.open + how.separator.join(one) + how.close


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("tool_format", FORMATS)
def test_tools_without_an_automaton_are_enforced_in_every_format(tool_format: str, mode: str) -> None:
    constraint = plan(tool_format, mode).constraint
    assert constraint is not None
    form = language(structured_constraint(constraint)).form
    assert form is not None
    grammar = Walker.of_grammar(tag_grammar(form))
    deep, flat = ("tree", '{"left":[[[]]]}'), ("tree2", '{"left":[]}')
    assert grammar.accepts(written(tool_format, deep))
    assert grammar.accepts(written(tool_format, deep, flat, deep))
    assert not grammar.accepts(written(tool_format, deep, ("tree", '{"left":[[],[]]}')))
    assert grammar.accepts("Hello.") == (mode == "auto")


@pytest.mark.parametrize(
    ("path", "constraint", "place"),
    [
        ("#/format/elements/0/elements/1/pattern", Constraint(regex="a"), "constraint.regex"),
        ("#/format/elements/0/elements/1/grammar", Constraint(grammar='start: "a"'), "constraint.grammar"),
        ("", Constraint(grammar='start: "a"'), "constraint.grammar"),
        (
            "#/format/elements/0/elements/1/json_schema/properties/a",
            Constraint(json_schema="{}"),
            "constraint.json_schema#/properties/a",
        ),
        ("#/format/tags/1/content/json_schema/$defs", None, "chat.tools[1].parameters#/$defs"),
        ("#/format/tags/1", None, "chat.tools[1].parameters"),
        ("#/format/tags", None, "chat.tools"),
        ("", None, "chat.tools"),
    ],
)
def test_errors_name_what_the_client_has_written(path: str, constraint: Constraint | None, place: str) -> None:
    made = plan("hermes", "auto", constraint)
    error = made.error(InvalidRequestError(FieldViolation(f"constraint.structural_tag{path}", "is wrong")))
    assert [violation.field for violation in error.violations] == [place]
