"""Outputs of chats taken apart, text by text: what is the answer, what a call and what reasoning, however it is cut."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.config import ToolFormatName
from draftline.engine.errors import InvalidRequestError
from draftline.engine.params import Constraint
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.tools.answer_reader import AnswerReader
from draftline.engine.tools.formats import FORMATS, find_format, find_reasoning
from draftline.engine.tools.plan import plan_chat
from draftline.structured.constraint import language
from draftline.structured.tags.walk import TagReader

TOOLS = [
    Tool("f", "", json.dumps({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}})),
    Tool("g", "", json.dumps({"type": "object", "properties": {}})),
]
SCHEMA = json.dumps({"enum": [{"x": 1}, 2]})


def read(
    text: str, tool_format: str = "hermes", *, size: int = 1, marks: Any = None, end: str = "", **options: Any
) -> tuple[str, str, list[tuple[str, str]]]:
    """The answer, the reasoning, and the calls of a text that comes in pieces of ``size`` characters."""
    info: Any = SimpleNamespace(tool_format=tool_format, reasoning=marks, model="m")
    constraint = Constraint(json_schema=SCHEMA) if options.pop("json", False) else None
    chat = Chat([{"role": "user", "content": "x"}], **{"tools": TOOLS, **options})
    plan = plan_chat(GenerateRequest(chat, constraint=constraint), info, lambda: end)
    if plan.reading is None:
        return text, "", []
    form = None if plan.constraint is None else language(structured_constraint(plan.constraint)).form
    reader = AnswerReader(plan.reading, None if form is None else TagReader(form).begin())
    pieces = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    parts = [*(reader.feed(piece) for piece in pieces), reader.finish()]
    return (
        "".join(part.text for part in parts),
        "".join(part.reasoning for part in parts),
        [(call.name, call.arguments) for call in reader.calls],
    )


THINK = ("<think>", "</think>")
F = ("f", '{"a": "x"}')
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
MARK_INSIDE = CALL.replace('"x"', '"</tool_call><tool_call>"')

CASES: list[tuple[str, dict[str, Any], tuple[str, str, list[tuple[str, str]]]]] = [
    ("Hi <tool> there", {}, ("Hi <tool> there", "", [])),
    ("Hi <tool_ca", {}, ("Hi <tool_ca", "", [])),
    (f"Hi.\n{CALL}", {}, ("Hi.", "", [F])),
    (f"{CALL}\n{CALL}\n", {}, ("", "", [F, F])),
    (f"{CALL} So.", {}, (" So.", "", [F])),
    (MARK_INSIDE, {}, ("", "", [("f", '{"a": "</tool_call><tool_call>"}')])),
    ('A <tool_call>\n{"name": "f", "arguments": {"a": ', {}, ("A", "", [])),
    (f"<think>ab</think>\n\n{CALL}", {"marks": THINK}, ("", "ab", [F])),
    ("<think>ab</think>\n\nHi", {"marks": THINK}, ("Hi", "ab", [])),
    ("<thin air", {"marks": THINK}, ("<thin air", "", [])),
    ("ab</th</think>Hi", {"marks": THINK, "end": "<think>\n", "tools": None}, ("Hi", "ab</th", [])),
    ("Hi", {"marks": THINK, "end": "<think>\n\n</think>\n\n", "tools": None}, ("Hi", "", [])),
    ('{"x": 1}', {"json": True}, ('{"x": 1}', "", [])),
    (CALL, {"json": True}, ("", "", [F])),
    ('{"name": "f", "parameters": {"a": "x"}}', {"tool_format": "llama3_json"}, ("", "", [F])),
    ("A {", {"tool_format": "llama3_json"}, ("A {", "", [])),
    ('[f(a="x", b=True), g()]', {"tool_format": "pythonic"}, ("", "", [("f", '{"a": "x", "b": true}'), ("g", "{}")])),
    ('[TOOL_CALLS]f[ARGS]{"a": "x"}[TOOL_CALLS]g[ARGS]{}', {"tool_format": "mistral_args"}, ("", "", [F, ("g", "{}")])),
    ('A {"tool_calls": [{"name": "f", "arguments": {"a": "x"}}]}', {"tool_format": "json"}, ("A", "", [F])),
]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("text", "options", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_outputs_are_taken_apart(
    text: str, options: dict[str, Any], wanted: tuple[str, str, list[tuple[str, str]]], size: int
) -> None:
    assert read(text, size=size, **options) == wanted


TEMPLATES = {
    "hermes": '{% for t in tools %}{{ t }}{% endfor %}<tool_call>{"name": n, "arguments": a}</tool_call>',
    "llama3_json": '{{ tools }}<|start_header_id|>respond with a JSON for a function call {"parameters": p}',
    "mistral": '{{ tools }}{{ "[TOOL_CALLS] [" }}',
    "mistral_tekken": '{{ tools }}{{ "[TOOL_CALLS][" }}',
    "mistral_args": '{{ tools }}{{ "[TOOL_CALLS]" }}{{ "[ARGS]" }}',
    "pythonic": "{{ tools }}[func_name1(a=1)]",
    "deepseek": "{{ tools }}<｜tool▁calls▁begin｜>```json",  # noqa: RUF001
    "deepseek_v31": "{{ tools }}<｜tool▁calls▁begin｜><｜tool▁sep｜>",  # noqa: RUF001
}


@pytest.mark.parametrize("name", ["llama3_json", "json"])
def test_calls_that_are_json_need_a_choice_beside_a_schema(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="an answer in JSON could be read as a call: set tool_choice"):
        read("", name, json=True)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "json"])
def test_a_template_shows_its_format(name: str) -> None:
    assert find_format("auto", TEMPLATES[name], shows_tools=True) == name


def test_formats_are_chosen_by_name() -> None:
    assert find_format("auto", "{{ messages }}", shows_tools=False) == "json"
    assert find_format("auto", "{{ tools }}", shows_tools=True) == ""
    assert find_format("auto", None, shows_tools=False) == ""
    assert find_format("pythonic", "{{ tools }}", shows_tools=True) == "pythonic"
    assert get_args(ToolFormatName) == ("auto", *FORMATS)
    assert find_reasoning("x </think> y") == ("<think>", "</think>")
    assert find_reasoning("x") is None
