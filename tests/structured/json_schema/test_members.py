"""Objects with many members, and the order of members."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language


def test_closed_objects_take_time_in_proportion_to_their_members() -> None:
    started = time.process_time()
    for required in ([], [f"p{index}" for index in range(1000)]):
        named = {f"p{index}": {"type": "string"} for index in range(1000)}
        schema = {"type": "object", "properties": named, "required": required, "additionalProperties": False}
        language = json_schema_language(json.dumps(schema), order="schema")
        assert language.not_regular == "#: its regular expression would have more than 50000 characters"
        assert len(language.grammar) < 200_000
    assert time.process_time() - started < 4


def test_thousands_of_required_members_are_refused_since_the_parser_would_recurse_too_deep() -> None:
    named = {f"p{index}": {} for index in range(2001)}
    schema = {"properties": named, "required": [*named][:65]}
    with pytest.raises(InvalidConstraintError, match="2001 named members, 65 of them required; at most 2000"):
        json_schema_language(json.dumps(schema))


@pytest.mark.parametrize("others", [False, {"type": "null"}])
def test_optional_members_in_order_come_in_every_selection(others: Any) -> None:
    names = "abcde"
    schema = {"type": "object", "properties": {name: {"const": 1} for name in names}, "additionalProperties": others}
    language = json_schema_language(json.dumps(schema), order="schema", whitespace="compact")
    assert language.regex is not None
    forms = Walker.of_regex(language.regex), Walker.of_grammar(language.grammar)
    for form in forms:
        for count in range(6):
            for chosen in itertools.permutations(names, count):
                text = json.dumps(dict.fromkeys(chosen, 1), separators=(",", ":"))
                assert form.accepts(text) == (sorted(chosen) == list(chosen)), text
        assert form.accepts('{"b":1,"z":null}') == form.accepts('{"z":null}') == (others is not False)
        assert not form.accepts('{"z":null,"b":1}')


@pytest.mark.parametrize("others", [False, {"type": "null"}])
@pytest.mark.parametrize("required", [(), ("n03", "n60")])
@pytest.mark.parametrize(("least", "most"), [(1, None), (3, None), (0, 2), (2, 2), (3, 5)])
def test_members_of_objects_with_many_properties_are_counted(
    others: Any, required: tuple[str, ...], least: int, most: int | None
) -> None:
    named = {f"n{index:02}": {"const": 1} for index in range(70)}
    schema = {"type": "object", "properties": named, "required": required, "additionalProperties": others}
    schema |= {"minProperties": least} | ({} if most is None else {"maxProperties": most})
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    for names in (frozenset[str](), {"n00"}, {"n69"}, {"n00", "n01", "n69"}, {"n10", "n20", "n30", "n40"}):
        for unnamed in range(4 if others else 1):
            chosen = sorted(names.union(required)) + [f"z{index}" for index in range(unnamed)]
            text = json.dumps({name: 1 if name in named else None for name in chosen}, separators=(",", ":"))
            assert walker.accepts(text) == (least <= len(chosen) <= (most or 99)), text
    assert walker.accepts('{"n03":1,"n05":1,"n60":1}') == (most is None or most >= 3)


def test_many_counted_members_have_the_schemas_order_and_large_counts_are_refused() -> None:
    named: dict[str, Any] = {f"n{index:02}": {} for index in range(70)}
    (form,) = forms({"type": "object", "properties": named, "minProperties": 2, "additionalProperties": False})
    assert form.accepts('{"n05":1,"n60":1}')
    assert not form.accepts('{"n60":1,"n05":1}')
    with pytest.raises(UnsupportedConstraintError, match="more than 48 named properties allow only small counts"):
        json_schema_language(json.dumps({"type": "object", "properties": named, "maxProperties": 500}))


NAMED: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}


def forms(schema: Any, **options: Any) -> list[Walker]:
    language = json_schema_language(json.dumps(schema), whitespace="compact", **options)
    regular = [Walker.of_regex(language.regex)] if language.regex is not None else []
    return [Walker.of_grammar(language.grammar), *regular]


def test_the_schemas_order_holds_for_open_and_recursive_objects_too() -> None:
    tree = {**NAMED, "properties": {**NAMED["properties"], "c": {"$ref": "#"}}, "required": ["a"]}
    for form in forms(tree, order="schema"):
        assert form.accepts('{"b":1,"a":2,"c":{"a":3,"z":[]},"z":null}')
        assert not form.accepts('{"a":2,"b":1}')
        assert not form.accepts('{"a":2,"c":{"z":0,"a":3}}')
    for form in forms(tree, order="any"):
        assert form.accepts('{"z":null,"c":{"z":[],"a":3},"a":2,"b":1}')
    counted = {"properties": {**NAMED["properties"], "c": {}}, "minProperties": 2, "additionalProperties": False}
    for form in forms(counted, order="schema"):
        assert form.accepts('{"a":2,"b":1}')  # an object that counts members has any order


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected", "closed"),
    [
        (NAMED, '{} {"b":1,"a":2}', '{"z":1} {"b":1,"z":null}', [""]),
        ({"allOf": [NAMED, {"properties": {"c": {}}}]}, '{"b":1,"c":{"q":1}}', '{"z":1}', [""]),
        ({**NAMED, "additionalProperties": True}, '{"z":1}', '{"b":null}', []),
        ({**NAMED, "unevaluatedProperties": True}, '{"z":1}', '{"b":null}', []),
        ({**NAMED, "additionalProperties": {"type": "null"}}, '{"z":null}', '{"z":1}', []),
        ({**NAMED, "patternProperties": {"^x": {"type": "null"}}}, '{"x1":null} {"z":1}', '{"x":1}', []),
        ({**NAMED, "additionalProperties": False}, '{"b":1}', '{"z":1}', []),
        ({"type": "object"}, '{"z":1}', "[]", []),
        ({"type": "object", "minProperties": 1}, '{"z":1}', "{}", []),
        ({**NAMED, "minProperties": 3}, '{"b":1,"a":2,"z":3}', "{}", []),
        ({"required": ["q"], "type": "object"}, '{"q":[1]}', '{"q":1,"z":1}', [""]),
        ({"items": NAMED, "type": "array"}, '[{"b":1}]', '[{"z":1}]', ["/items"]),
        ({"anyOf": [NAMED, {"additionalProperties": True}], "type": "object"}, '{"z":1}', "[]", [""]),
        ({"if": {**NAMED, "required": ["a"]}, "then": {"required": ["c"]}}, '{"a":1,"c":1} {"b":1}', '{"a":1}', [""]),
        ({"type": "object", "not": {**NAMED, "required": ["a"]}}, '{} {"b":1} {"a":""}', '{"b":1,"a":1} {"z":1}', [""]),
    ],
    ids=str,
)
def test_closing_leaves_out_members_that_no_schema_mentions(
    schema: Any, accepted: str, rejected: str, closed: list[str]
) -> None:
    for form in forms(schema, close_objects=True):
        assert [text for text in accepted.split() if not form.accepts(text)] == []
        assert [text for text in rejected.split() if form.accepts(text)] == []
    assert list(json_schema_language(json.dumps(schema), close_objects=True).closed) == closed
    assert json_schema_language(json.dumps(schema)).closed == ()
