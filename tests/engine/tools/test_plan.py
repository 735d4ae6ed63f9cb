"""Chats with tools as constraints: what is enforced in every format, and which place of the request an error names."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from walk import Walker

from draftline.engine.chat.calls import Tool, ToolChoice
from draftline.engine.chat.messages import Chat
from draftline.engine.chat.plan import ChatPlan
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import Constraint, Reasoning
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.tools.formats import FORMATS
from draftline.engine.tools.plan import _ANSWERS, plan_chat
from draftline.models.tokenization.rendering import Rendering
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


def form_of(chat: Chat) -> str:
    """The structural tag of a chat, as text."""
    info: Any = SimpleNamespace(tool_format="hermes", reasoning=None, model="m")
    constraint = plan_chat(GenerateRequest(chat), info, str).constraint
    assert constraint is not None
    assert isinstance(constraint.structural_tag, str)
    return constraint.structural_tag


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("names", [("tree2",), ("tree2", "tree")])
def test_allowed_tools_are_those_that_may_be_called_any_number_of_times(names: tuple[str, ...], mode: Any) -> None:
    messages = [{"role": "user", "content": "x"}]
    whole = {"name": "tree2", "parameters": TREE}
    entries = [{"type": "function", "function": whole if name == "tree2" else {"name": name}} for name in names]
    in_chats = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": entries}}
    in_responses = {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", **entry["function"]} for entry in [*entries, entries[0]]],
    }
    forms = [form_of(Chat(messages, tools=TOOLS, tool_choice=choice)) for choice in (in_chats, in_responses)]
    allowed = tuple(tool for tool in TOOLS if tool.name in names)
    assert forms == [form_of(Chat(messages, tools=allowed, tool_choice=mode))] * 2
    named: Any = {"type": "function", "function": {"name": "tree2"}}
    one = form_of(Chat(messages, tools=TOOLS, tool_choice=named))
    assert one == form_of(Chat(messages, tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False))
    assert one not in forms


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([], r"tools: is empty: use \"none\" for no calls"),
        ([{"type": "mcp", "server_label": "x"}], r"tools\[0\]: must be a tool of the type \"function\""),
        (["tree"], r"tools\[0\]: must be a tool of the type"),
        ([{"type": "function", "name": "tree"}, {"type": "function", "name": "bush"}], r"tools\[1\]\.name: there is no tool 'bush'"),
        ([{"type": "function", "name": "tree", "description": "a bush"}], r"tools\[0\]\.description: differs from that of the tool"),
        ([{"type": "function", "name": "tree", "parameters": LEAF}], r"tools\[0\]\.parameters: differs from that of the tool 'tree'"),
    ],
)  # fmt: skip
def test_what_cannot_be_allowed_is_named(entries: list[Any], problem: str) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": entries}
    with pytest.raises(InvalidRequestError, match=r"^chat\.tool_choice\." + problem):
        Chat([{"role": "user", "content": "x"}], tools=TOOLS, tool_choice=choice)


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


@pytest.mark.parametrize(
    "constraint", [Constraint(regex="a"), Constraint(structural_tag={"type": "structural_tag", "format": {}})]
)
def test_a_kind_of_constraint_without_a_format_of_answers_is_refused_beside_tools(
    constraint: Constraint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(_ANSWERS, "regex")
    with pytest.raises(InvalidRequestError, match=rf"^constraint\.{constraint.kind}: cannot come with tools$"):
        plan("hermes", "auto", constraint)


@pytest.mark.parametrize("kind", [{"regex": "a"}, {"choice": ("a",)}, {"grammar": "a"}, {"reasoning": Reasoning()}])
def test_options_of_json_are_those_of_arguments_whatever_the_answer_is(kind: dict[str, Any]) -> None:
    made = plan("hermes", "auto", Constraint(**kind, whitespace="compact", best_effort=True))
    assert made.constraint is not None
    asked = structured_constraint(made.constraint)
    assert (asked.kind, asked.whitespace, asked.best_effort) == ("structural_tag", "compact", True)


def test_parameters_with_two_members_of_one_name_are_named() -> None:
    tool = Tool("f", "", '{"type": "object", "properties": {"a": {"type": "string"}, "a": {"type": "integer"}}}')
    with pytest.raises(
        InvalidRequestError, match=r"^chat\.tools\[0\]\.parameters: has an object with two members named 'a'$"
    ):
        form_of(Chat([{"role": "user", "content": "x"}], tools=(tool,)))


@pytest.mark.parametrize(
    ("rendering", "constraint", "problem"),
    [
        (Rendering(continue_final_message=True, add_generation_prompt=False), None, "the last message is continued"),
        (Rendering(add_generation_prompt=False), None, "no new message is begun"),
        (Rendering(), Constraint(structural_tag={"type": "structural_tag"}), "structural_tag is set"),
    ],
)
def test_a_limit_of_reasoning_that_the_client_reads_is_refused(
    rendering: Rendering, constraint: Constraint | None, problem: str
) -> None:
    info: Any = SimpleNamespace(tool_format="hermes", reasoning=("<think>", "</think>"), model="m")
    messages = [{"role": "assistant", "content": "x"}]
    assert plan_chat(GenerateRequest(Chat(messages, rendering), constraint=constraint), info, str).reading is None
    limited = Chat(messages, rendering, max_reasoning_tokens=8)
    with pytest.raises(InvalidRequestError, match=f"chat.max_reasoning_tokens: has no effect where {problem}"):
        plan_chat(GenerateRequest(limited, constraint=constraint), info, str)
