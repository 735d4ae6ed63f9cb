"""XGrammar's structural tags: what is read, what is refused by name, and how many tools compile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_vocabulary import vocabulary
from walk import Walker

from draftline.structured.automaton.jobs import WorkerSetup
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.worker import find_language
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec, language
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.tags.lark import tag_grammar
from draftline.structured.tags.nfa_builder import NfaBuilder
from draftline.structured.tags.walk import TagReader

NAME: dict[str, Any] = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
A: dict[str, Any] = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
DIFFERENT: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
TEXT: dict[str, Any] = {"type": "const_string", "value": "x"}


def new(form: dict[str, Any]) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


def spec(source: str, **options: Any) -> ConstraintSpec:
    return ConstraintSpec("structural_tag", source, **options)


OLD = json.dumps(
    {
        "type": "structural_tag",
        "structures": [
            {"begin": "<function=f>", "schema": NAME, "end": "</function>"},
            {"begin": "<function=g>", "schema": json.dumps({"enum": ["y"]}), "end": "</function>"},
        ],
        "triggers": ["<function="],
    }
)


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        (
            OLD,
            ["", "a <", '<function=f>{"n": 1}</function> <function=g>"y"</function>.'],
            ["<function=", "<function=h", '<function=g>"y"</function', "<function=f>{}</functio"],
        ),
        (new(A), ["<a></a>", "<a>é</a </a>"], ["", "<a>", "<a></a> ", "<a></a></a>"]),
        (new(TEXT), ["x"], ["", "xx"]),
        (new({"type": "any_text", "excludes": ["no", "<"]}), ["", "nn o"], ["a no", "<"]),
        (new({"type": "json_schema", "json_schema": {"enum": ["y"]}, "style": "json"}), ['"y"'], ["y"]),
        (new({"type": "regex", "pattern": "[0-9]+"}), ["12"], ["", "1a"]),
        (new({"type": "grammar", "grammar": 'root ::= "(" root ")" | [a-c]'}), ["((b))"], ["(b", "d"]),
        (new({"type": "grammar", "grammar": 'start: "(" start ")" | "a"'}), ["((a))"], ["(a", "b"]),
        (new({"type": "sequence", "elements": [TEXT, A, TEXT]}), ["x<a>x</a>x"], ["x<a>x</a>", "x<a></a>x</a>x"]),
        (new({"type": "or", "elements": [TEXT, A]}), ["x", "<a></a>"], ["", "x<a></a>"]),
        (new({"type": "optional", "content": TEXT}), ["", "x"], ["xx"]),
        (new({"type": "star", "content": TEXT}), ["", "xxx"], ["y"]),
        (new({"type": "plus", "content": TEXT}), ["x", "xxx"], [""]),
        (new({"type": "repeat", "min": 2, "max": 3, "content": TEXT}), ["xx", "xxx"], ["x", "xxxx"]),
        (new({"type": "repeat", "min": 2, "max": -1, "content": TEXT}), ["xx", "xxxx"], ["x"]),
        (
            new({"type": "tags_with_separator", "tags": [A], "separator": ","}),
            ["", "<a></a>", "<a>,</a>,<a></a>"],
            [",", "<a></a>,"],
        ),
        (
            new({"type": "tags_with_separator", "tags": [A], "separator": ",", "stop_after_first": True}),
            ["", "<a></a>"],
            ["<a></a>,<a></a>"],
        ),
    ],
)
def test_every_format_is_read_as_it_is_meant(source: str, inside: list[str], outside: list[str]) -> None:
    allowed = language(spec(source))
    assert allowed.form is not None
    grammar = Walker.of_grammar(tag_grammar(allowed.form))
    nfa = NfaBuilder(1000).build(allowed.form) if allowed.is_regular else None
    for text in (*inside, *outside):
        assert grammar.accepts(text) == (text in inside), text
        if nfa is not None:
            state = nfa.start
            for byte in text.encode():
                state = nfa.arrive(nfa.reached(state, byte))
            assert nfa.is_complete(state) == (text in inside), text


def _tags(*tags: dict[str, Any], triggers: tuple[str, ...] = ("<",), **options: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **options}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"type": "nonsense"}, '/format/type: "nonsense" is not a format'),
        ({"type": "sequence", "elements": []}, "/format/elements: has to be a list that is not empty"),
        ({**A, "other": 1}, '/format: has an unknown member "other"'),
        ({"type": "regex"}, '/format: has no "pattern"'),
        ({"type": "regex", "pattern": 3}, "/format/pattern: has to be a string"),
        ({"type": "const_string", "value": "\ud800"}, "/format/value: has a lone surrogate, which no text has"),
        (_tags(A, triggers=("<b",)), "/format/tags/0/begin: begins with none of the triggers"),
        (_tags(A, triggers=("<", "<b")), "/format/triggers/1: no tag begins with it"),
        (_tags(A, triggers=("",)), "/format/triggers/0: is empty"),
        (
            _tags(A, {**A, "begin": "<a>b"}),
            "/format/tags/1/begin: begins with the begin mark of /format/tags/0: nothing tells them apart",
        ),
        (
            _tags({**A, "content": {"type": "json_schema", "json_schema": {"enum": 3}}}),
            "/format/tags/0/content/json_schema/enum: ",
        ),
    ],
)
def test_what_is_malformed_says_where(form: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConstraintError) as caught:
        language(spec(new(form)))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("form", "pointer", "keyword"),
    [
        ({**A, "begin": {"type": "token", "token": 3}}, "/format/begin", "token"),
        ({**A, "content": {"type": "any_tokens"}}, "/format/content", "any_tokens"),
        ({"type": "json_schema", "json_schema": NAME, "style": "qwen_xml"}, "/format/style", "style"),
        ({"type": "json_schema", "json_schema": NAME, "any_order": True}, "/format/any_order", "any_order"),
        ({"type": "any_text", "max_tokens": 4}, "/format/max_tokens", "max_tokens"),
        (
            {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True, "items": {"type": "array"}}},
            "/format/json_schema/uniqueItems",
            "uniqueItems",
        ),
        (
            {**A, "content": {"type": "json_schema", "json_schema": {"properties": {"a": DIFFERENT}}}},
            "/format/content/json_schema/properties/a/uniqueItems",
            "uniqueItems",
        ),
        ({"type": "json_schema", "json_schema": {"pattern": "("}}, "/format/json_schema/pattern", "pattern"),
        ({"type": "dispatch", "rules": []}, "/format", "dispatch"),
    ],
)
def test_what_cannot_be_said_exactly_is_refused_by_name(form: dict[str, Any], pointer: str, keyword: str) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        language(spec(new(form)))
    assert [(one.pointer, one.keyword) for one in caught.value.violations] == [(pointer, keyword)]


def test_with_best_effort_a_report_names_what_is_not_enforced_and_what_is_closed() -> None:
    schema = {"type": "json_schema", "json_schema": {"properties": {"a": DIFFERENT}}}
    source = new(_tags({**A, "content": schema}))
    allowed = language(spec(source, best_effort=True, close_objects=True, reasoning=ReasoningSpec("", "</r>", False)))
    inside = "/format/tags/0/content/json_schema"
    assert [violation.pointer for violation in allowed.unenforced] == [f"{inside}/properties/a/uniqueItems"]
    assert allowed.closed == (inside,)
    assert allowed.unique is None


@pytest.mark.parametrize(
    "form",
    [
        {
            "type": "repeat",
            "min": 900,
            "max": 900,
            "content": {"type": "star", "content": {**TEXT, "value": "x" * 300}},
        },
        {"type": "any_text", "excludes": ["x" * 20_000]},
    ],
)
def test_what_would_take_long_to_read_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(InvalidConstraintError, match="has more than 200000 characters in its marks"):
        language(spec(new(form)))


def test_two_members_of_one_name_are_an_error() -> None:
    with pytest.raises(InvalidConstraintError, match="has an object with two members named 'value'"):
        language(spec('{"type": "structural_tag", "format": {"type": "const_string", "value": "a", "value": "b"}}'))


@pytest.mark.parametrize("source", ["", "3", "[1", '{"format": 1}', '{"type": "tag", "format": {}}'])
def test_what_is_no_structural_tag_is_an_error(source: str) -> None:
    with pytest.raises(InvalidConstraintError):
        language(spec(source))


def tools(count: int) -> str:
    """A structural tag of so many tools."""
    tags = []
    for index in range(count):
        properties = {f"city_{index}": {"type": "string"}, "days": {"type": "integer", "maximum": index}}
        schema = {"type": "object", "properties": properties, "required": [f"city_{index}"]}
        content = {"type": "json_schema", "json_schema": {**schema, "additionalProperties": False}}
        begin = f'<tool_call>\n{{"name": "tool_{index}", "arguments": '
        tags.append({"type": "tag", "begin": begin, "content": content, "end": "}\n</tool_call>"})
    return new(_tags(*tags, triggers=("<tool_call>",)))


def test_many_tools_are_too_large_for_an_automaton_and_are_enforced_all_the_same() -> None:
    words = vocabulary("tool", "city", "}\n")
    setup = WorkerSetup(words, AutomatonLimits(), GrammarLimits())
    job = spec(tools(150))
    allowed = find_language(setup, job)
    assert not isinstance(allowed, Exception)
    assert allowed.form is not None
    assert allowed.not_regular is not None
    assert allowed.not_regular.endswith("the regular expressions inside the structural tag have more than 65536 bytes")
    fewer = find_language(setup, spec(tools(60)))
    assert not isinstance(fewer, Exception)
    assert fewer.is_regular
    grammar = Walker.of_grammar(tag_grammar(allowed.form))
    call = '<tool_call>\n{"name": "tool_77", "arguments": {"city_77":"Roma"}}\n</tool_call>'
    assert grammar.accepts(f"I look. {call} {call}")
    assert not grammar.accepts(call.replace("city_77", "city_7"))
    walk = TagReader(allowed.form).begin()
    for character in f"é {call}":
        walk.feed(character)
    (span,) = walk.spans
    assert (span.name, f"é {call}"[span.content_start : span.content_end]) == ("/format/tags/77", '{"city_77":"Roma"}')


def test_a_report_names_the_part_without_an_automaton() -> None:
    recursive = {"type": "json_schema", "json_schema": {"type": "array", "items": {"$ref": "#"}}}
    compiler = ConstraintCompiler(vocabulary())
    try:
        compiled = compiler.compile(spec(new(_tags({**A, "content": recursive}))))
        assert compiled.report.no_automaton == "#/format/tags/0/content/json_schema: it recurses"
        reasoning = ReasoningSpec("<r>", "</r>", limited=True)
        compiled = compiler.compile(ConstraintSpec("json_schema", "true", reasoning=reasoning))
        assert (compiled.report.backend, compiled.shortest_reasoning) == ("grammar", 7)
        compiled = compiler.compile(ConstraintSpec("regex", "a+", reasoning=reasoning))
        assert (compiled.report.backend, compiled.shortest_reasoning) == ("automaton", 7)
    finally:
        compiler.close()
