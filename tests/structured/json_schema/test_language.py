"""Texts that particular schemas accept and reject, rejected schemas, and their errors."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import SchemaLimits, json_object_language, json_schema_language


def walker(schema: Any, **options: Any) -> Walker:
    return Walker.of_grammar(json_schema_language(json.dumps(schema), **{"whitespace": "compact", **options}).grammar)


def refused(schema: Any) -> dict[str, str]:
    with pytest.raises(UnsupportedConstraintError) as caught:
        json_schema_language(json.dumps(schema))
    return {violation.pointer: violation.keyword for violation in caught.value.violations}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"type": "integer"}, "0 -0 7 -12 1.0 1e16 1.5E+20 123456789012345678901234567890", "01 1. 1.5 1.00 1e5 +1 -"),
        ({"type": "number"}, "0 -0.0 1.50 1e5 1E-5 2.5e+300 5e-324", "01 .5 1. 1e400 1e 0x1 NaN Infinity"),
        ({"type": "integer", "minimum": 3, "maximum": 12}, "3 9 10 12 12.0", "2 13 -3 03 3e0 120"),
        ({"type": "integer", "minimum": -5, "exclusiveMaximum": 3}, "-5 -1 0 -0 2", "-6 3 4 -10"),
        ({"minimum": 1.25, "exclusiveMaximum": 2.5}, "1.25 1.250 1.3 2 2.49999", "1.24999 2.5 2.50 3 1 12"),
        ({"type": "number", "exclusiveMinimum": 0}, "0.001 1e-05 1 1e16", "0 0.0 -1 -1e-05"),
        ({"type": "number", "multipleOf": 0.01}, "0.01 1.1 4.35 7 7.00 7.10", "0.001 7.123 7.10001"),
        ({"type": "integer", "multipleOf": 7}, "0 7 14 -7 70 700 7777", "1 6 8 71 7778"),
        ({"type": "integer", "multipleOf": 64, "minimum": 65}, "128 640 6400 64000", "64 0 -128 100 129 65"),
        ({"multipleOf": 9, "maximum": 900, "not": {"const": 18}}, "9 900 -27 0", "18 18.0 909 10 9.9"),
        ({"type": "number", "not": {"type": "integer"}}, "1.5 -0.25 1e-07 -2.5e-300", "1 1.0 0.0 1e16"),
        ({"multipleOf": 1.5}, "0 4.5 -3 45.0 1000000000000000002", "35 1.4 4.55 100000000000000.5"),
        ({"multipleOf": 0.37, "minimum": -1, "exclusiveMaximum": 37}, "0.37 3.7 36.63 -0.74", "37 -1.11 0.07 1"),
        ({"multipleOf": 20}, "20 20.0 -140.0 0.0 123456789012340.0", "10.0 20.5 1234567890123460.0"),
        ({"const": 1}, "1 1.0", "2 1.5 true"),
        ({"const": 1e20}, "100000000000000000000 100000000000000000000.0 1e+20", "1e20 1"),
        ({"enum": [0, None, False]}, "0 0.0 -0 null false", "true 1"),
        # A reader of 64-bit floats finds 9007199254740992.0 in 9007199254740993.0.
        (
            {"enum": [9007199254740992, 9007199254740993]},
            "9007199254740992 9007199254740992.0 9007199254740993",
            "9007199254740993.0 9.007199254740993e15",
        ),
        ({"const": 10**399 // 3}, str(10**399 // 3), f"{10**399 // 3}.0"),
        ({"enum": [3 * value for value in range(300)]}, "0 3 897 297.0", "1 296 900 -3"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, "1 -20", "1.0 1e16"),
    ],
    ids=str,
)
def test_numbers(schema: Any, accepted: str, rejected: str) -> None:
    language = json_schema_language(json.dumps(schema))
    walkers = [Walker.of_grammar(language.grammar)] + ([Walker.of_regex(language.regex)] if language.regex else [])
    for one in walkers:
        assert [text for text in accepted.split() if not one.accepts(text)] == []
        assert [text for text in rejected.split() if one.accepts(text)] == []


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"type": "integer"}, "0 7 -12 123456789012345678901234567890", "1.0 1e16 1.5E+20 01 -"),
        ({"type": "integer", "minimum": 3}, "3 12 12345678901234567890", "2 3.0 1e16"),
        ({"type": "integer", "multipleOf": 20}, "20 -140 0", "20.0 0.0 10"),
        ({"type": ["integer", "null"], "maximum": 5}, "5 -20 null", "5.0 6"),
        ({"const": 9007199254740993}, "9007199254740993", "9007199254740993.0 9.007199254740993e15"),
        ({"enum": [1, 2.5, 1e20]}, "1 2.5 100000000000000000000", "1.0 1e+20"),
        ({"const": {"a": [1]}}, '{"a":[1]}', '{"a":[1.0]}'),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, "[] [1,2] [2]", "[1.0] [1,1]"),
        ({"type": "number"}, "1 1.0 1e16", "01"),
        ({"not": {"type": "integer"}, "type": "number"}, "1.5", "1 1.0"),
    ],
    ids=str,
)
def test_plain_integers(schema: Any, accepted: str, rejected: str) -> None:
    language = json_schema_language(json.dumps(schema), whitespace="compact", integers="plain")
    walkers = [Walker.of_grammar(language.grammar)] + ([Walker.of_regex(language.regex)] if language.regex else [])
    for one in walkers:
        assert [text for text in accepted.split() if not one.accepts(text)] == []
        assert [text for text in rejected.split() if one.accepts(text)] == []


@pytest.mark.parametrize(
    ("bounds", "accepted", "rejected"),
    [
        (
            {},
            "0 -0.0 1.5 9999999999999999 1e16 1e+16 9.9e307 1e308 5e-324 1e-05",
            "10000000000000000 1.8e308 1e15 1e-400 1E400",
        ),
        ({"exclusiveMinimum": 0}, "0.001 1e-05 1e-307 2e16", "0 0.0 1e-308 -1 0.000000000000000000000000001"),
        ({"minimum": -1.5, "exclusiveMaximum": 2}, "-1.5 0 -1e-5 1.999", "-1.51 2 2.0 1e16"),
        (
            {"minimum": 2e16, "maximum": 5e18},
            "1e17 9.99e17 1e18 5e18 20000000000000000.0 5000000000000000000.0",
            "1e16 1.9e16 5.1e18 2",
        ),
        ({"multipleOf": 0.5}, "0.5 123456789012345 -7.0", "1234567890123456 0.25"),
        ({"enum": [0, 1.5, 1e300]}, "0 0.0 1.5 1e+300", "1 1e300"),
        ({"enum": [1, 9007199254740993]}, "1 1.0", "9007199254740993 9007199254740992 9007199254740992.0"),
    ],
    ids=str,
)
def test_doubles(bounds: Any, accepted: str, rejected: str) -> None:
    language = json_schema_language(json.dumps({"type": "number", "format": "double", **bounds}))
    assert language.regex is not None
    for one in (Walker.of_grammar(language.grammar), Walker.of_regex(language.regex)):
        assert [text for text in accepted.split() if not one.accepts(text)] == []
        assert [text for text in rejected.split() if one.accepts(text)] == []


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"type": "string"}, ['"é"', r'"\u00e9"', r'"\u00E9"', '"😀"', r'"\ud83d\ude00"', r'"\n\"\\"', '"/"'], []),
        ({"type": "string"}, [], ['"\n"', r'"\x41"', r'"\ud83d"', r'"\ude00\ud83d"', r'"\u0041"', '"a', r'"\/"']),
        ({"type": "string", "maxLength": 1}, ['"é"', r'"\u00e9"', r'"\ud83d\ude00"', '"😀"', '""'], ['"ab"', '"😀a"']),
        ({"type": "string", "minLength": 2}, ['"ab"', '"😀a"', r'"\n\n"'], ['"😀"', '"a"']),
        ({"const": "naïve"}, ['"naïve"', r'"na\u00efve"'], ['"naive"']),
        ({"pattern": "b", "type": "string"}, ['"b"', '"abc"'], ['""', '"ac"']),
        ({"pattern": "^dev|rc$", "type": "string"}, ['"development"', '"1rc"', '"dev"'], ['"a dev"', '"rc1"']),
        ({"pattern": "^.$", "type": "string"}, ['"a"', '"😀"'], [r'"\n"', '"ab"', r'"\u2028"']),
        ({"pattern": "^\\d\\w\\s$", "type": "string"}, ['"1a "', '"1_\u00a0"'], ['"٣a "', '"1é "']),
        ({"not": {"pattern": "^a"}, "type": "string"}, ['""', '"ba"'], ['"a"', '"ab"']),
        ({"pattern": "^a", "maxLength": 2, "allOf": [{"pattern": "b$"}], "type": "string"}, ['"ab"'], ['"a"', '"acb"']),
        (
            {
                "pattern": "^x(-[^:]+)?:([!-~]{1,510}/)?([\\w+=,.@-]{1,128})$",
                "minLength": 1,
                "maxLength": 2048,
                "type": "string",
            },
            ['"x:a"', '"x-y:/+/=/a"', f'"x-{2044 * "y"}:a"'],
            ['"x:"', '""', f'"x-{2045 * "y"}:a"'],
        ),
        ({"pattern": "^a{2,3}$", "minLength": 3, "maxLength": 3, "type": "string"}, ['"aaa"'], ['"aa"', '"aaaa"']),
        ({"format": "date", "type": "string"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
        ({"format": "google-datetime", "type": "string"}, ['"anything"'], ["1"]),
    ],
    ids=str,
)
def test_strings(schema: Any, accepted: list[str], rejected: list[str]) -> None:
    language = json_schema_language(json.dumps(schema))
    walkers = [Walker.of_grammar(language.grammar)] + ([Walker.of_regex(language.regex)] if language.regex else [])
    for one in walkers:
        assert [text for text in accepted if not one.accepts(text)] == []
        assert [text for text in rejected if one.accepts(text)] == []


ALL_INTEGERS = {"type": "object", "additionalProperties": {"type": "integer"}}
ALL_NULL = {"type": "object", "additionalProperties": {"type": "null"}}


@pytest.mark.parametrize(
    ("excluded", "accepted", "rejected"),
    [
        ([ALL_INTEGERS, {"const": {}}], ['{"a":null}', '{"a":1,"b":null}'], ["{}", '{"a":1}']),
        ([{"const": {}}, ALL_INTEGERS], ['{"a":null}', '{"a":1,"b":null}'], ["{}", '{"a":1}']),
        ([ALL_INTEGERS, ALL_NULL], ['{"a":true}', '{"a":1,"b":null}'], ["{}", '{"a":1}', '{"a":null,"b":null}']),
    ],
)
def test_one_member_may_be_why_an_object_is_none_of_several(
    excluded: list[Any], accepted: list[str], rejected: list[str]
) -> None:
    found = walker({"type": "object", "allOf": [{"not": schema} for schema in excluded]})
    assert [text for text in (*accepted, *rejected) if found.accepts(text)] == accepted


def test_all_spellings_of_a_name_are_one_name() -> None:
    closed = walker({"properties": {"é": {"type": "null"}}, "required": ["é"], "type": "object"})
    assert closed.accepts('{"é":null}')
    assert closed.accepts(r'{"\u00e9":null}')
    assert not closed.accepts(r'{"\u00e9":1}')
    assert not closed.accepts(r'{"é":null,"\u00e9":1}')


def test_a_named_property_comes_once() -> None:
    one = walker({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"]})
    assert one.accepts('{"b":1,"a":1,"z":0,"z":1}')
    assert not one.accepts('{"b":1,"a":1,"a":2}')


def test_members_in_any_order_or_in_the_schemas() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "c"]}
    free, fixed = walker(schema), walker(schema, order="schema")
    assert free.accepts('{"c":1,"x":2,"a":3}')
    assert not free.accepts('{"c":1,"x":2}')
    assert fixed.accepts('{"a":1,"c":2,"x":3}')
    assert fixed.accepts('{"a":1,"b":0,"c":2}')
    assert not fixed.accepts('{"c":1,"a":3}')
    assert not fixed.accepts('{"a":1,"b":0}')


def test_the_schemas_order_makes_more_languages_regular() -> None:
    properties = {name: {"type": "integer"} for name in "abcdefgh"}
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    assert json_schema_language(json.dumps(closed), order="any").regex is None
    in_order = json_schema_language(json.dumps(closed), order="schema", whitespace="compact")
    assert in_order.regex is not None
    for one in (Walker.of_regex(in_order.regex), Walker.of_grammar(in_order.grammar)):
        assert one.accepts('{"a":1,"b":2}')
        assert not one.accepts('{"b":1,"a":2}')


def test_sixty_and_more_properties() -> None:
    many = {f"p{index}": {"type": "integer"} for index in range(130)}
    optional = walker({"type": "object", "properties": many, "required": ["p129"], "additionalProperties": False})
    assert optional.accepts('{"p129":1,"p3":2,"p100":3}')
    assert not optional.accepts('{"p3":2,"p100":3}')
    required = walker({"type": "object", "properties": many, "required": list(many), "additionalProperties": False})
    everything = {name: 1 for name in many}
    assert required.accepts(json.dumps(everything, separators=(",", ":")))
    del everything["p77"]
    assert not required.accepts(json.dumps(everything, separators=(",", ":")))


def test_whitespace() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    value = {"a": [1, 2]}
    texts = {
        "compact": json.dumps(value, separators=(",", ":")),
        "spaced": json.dumps(value),
        "two": json.dumps(value, indent=2),
        "eight": json.dumps(value, indent=8),
    }
    for policy in ("compact", "spaced"):
        accepted = {name for name, text in texts.items() if walker(schema, whitespace=policy).accepts(text)}
        assert accepted == {policy}
    free = walker(schema, whitespace="free")
    assert all(free.accepts(text) for text in texts.values())
    for text in ('{\n\n"a":[]}', '{"a" :[]}', '{"a":\n[]}', ' {"a":[]}', '{"a":[]}\n', '{     "a":[]}', '{\t"a":[]}'):
        assert not free.accepts(text)
    assert not free.accepts('{"a":[\n' + " " * 65 + "1]}")


def test_recursion() -> None:
    tree = walker(
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"left": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}},
                    "required": ["v"],
                    "additionalProperties": False,
                }
            },
        }
    )
    assert tree.accepts('{"v":1,"left":{"left":{"v":2},"v":3}}')
    assert not tree.accepts('{"v":1,"left":{"left":{},"v":3}}')


def test_values_without_a_finite_text_are_never_begun() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "required": ["b"], "properties": {"b": {"enum": []}}},
            "list": {"type": "array", "items": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
            "loop": {"$ref": "#/$defs/loop"},
        },
        "$defs": {"loop": {"type": "object", "required": ["again"], "properties": {"again": {"$ref": "#/$defs/loop"}}}},
        "additionalProperties": False,
    }
    language = json_schema_language(json.dumps(schema), whitespace="compact")
    assert Walker.of_grammar(language.grammar).accepts('{"list":[]}')
    assert '"a"' not in language.grammar
    assert "loop" not in language.grammar


@pytest.mark.parametrize("dialect", ["3.1/dialect/base", "3.1/dialect/2024-11-10", "3.2/dialect/2025-09-17"])
def test_the_dialects_of_openapi_are_draft_2020_12(dialect: str) -> None:
    schema = {"prefixItems": [{"type": ["string", "null"], "example": "x"}], "items": False, "minItems": 1}
    one = walker({"$schema": f"https://spec.openapis.org/oas/{dialect}", "type": "array", **schema})
    assert one.accepts('["a"]')
    assert one.accepts("[null]")
    assert not one.accepts("[1]")
    with pytest.raises(InvalidConstraintError, match="not a known draft"):
        json_schema_language('{"$schema": "https://spec.openapis.org/oas/3.0/dialect/base"}')


@pytest.mark.parametrize(
    ("schema", "pointer", "text"),
    [
        ({"type": "string", "not": {"pattern": "(a)\\1"}}, "/not/pattern", '"b"'),
        ({"type": "object", "not": {"patternProperties": {"(a)\\1": False}}}, "/not/patternProperties", '{"aa":1}'),
        ({"type": "object", "not": {"propertyNames": {"pattern": "(a)\\1"}}}, "/not/propertyNames/pattern", '{"b":1}'),
    ],
)
def test_a_pattern_within_not_is_named_and_a_best_effort_drops_it(schema: Any, pointer: str, text: str) -> None:
    assert refused(schema) == {pointer: pointer.split("/")[-1]}
    language = json_schema_language(json.dumps(schema), best_effort=True)
    assert [one.pointer for one in language.unenforced] == [pointer]
    assert Walker.of_grammar(language.grammar).accepts(text)


def test_an_unknown_draft_or_a_draft_sevens_reference() -> None:
    with pytest.raises(InvalidConstraintError, match=r"/\$schema"):
        json_schema_language('{"$schema": "https://example.com/mine"}')
    schema = {"$ref": "#/definitions/a", "minimum": 5, "definitions": {"a": {"type": "integer"}}}
    assert not walker(schema).accepts("4")
    assert walker({"$schema": "http://json-schema.org/draft-07/schema#", **schema}).accepts("4")


def test_everything_unsupported_is_named_with_its_pointer() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a/b": {"items": {"const": 1}, "uniqueItems": True, "contains": {"const": 1}, "minContains": 2},
            "c": {"type": "string", "pattern": "(x)\\1"},
            "d": {"$ref": "https://example.com/other"},
            "e": {"not": {"uniqueItems": True}},
            "f": {"type": "object", "minProperties": 2, "propertyNames": {"pattern": "^a"}},
            "g": {"type": "integer", "multipleOf": 123457},
            "h": {"patternProperties": {"x\\b": {"type": "null"}}},
        },
    }
    assert refused(schema) == {
        "/properties/h/patternProperties": "patternProperties",
        "/properties/a~1b/uniqueItems": "uniqueItems",
        "/properties/c/pattern": "pattern",
        "/properties/d/$ref": "$ref",
        "/properties/e/not/uniqueItems": "uniqueItems",
        "/properties/f/minProperties": "minProperties",
        "/properties/g/multipleOf": "multipleOf",
    }


def test_best_effort_reports_ignored_keywords() -> None:
    schema = {"type": "string", "pattern": "(x)\\1"}
    language = json_schema_language(json.dumps(schema), whitespace="compact", best_effort=True)
    assert [(one.pointer, one.keyword) for one in language.unenforced] == [("/pattern", "pattern")]
    assert Walker.of_grammar(language.grammar).accepts('"a"')
    assert language.regex is not None
    assert json_schema_language('{"type": "string"}').unenforced == ()


def test_schemas_exclude_one_another_within_the_types_of_the_whole() -> None:
    one = walker({"type": "string", "oneOf": [{"format": "date"}, {"format": "date-time"}, {"type": "null"}]})
    assert one.accepts('"2024-02-29"')
    assert one.accepts('"2024-02-29T10:00:00Z"')
    assert not one.accepts('"2024"')
    assert not one.accepts("null")
    several = walker({"type": ["string", "null"], "oneOf": [{"format": "date"}, {"format": "date-time"}]})
    assert several.accepts('"2024-02-29"')
    assert several.accepts('"2024-02-29T10:00:00Z"')
    assert not several.accepts("null")  # both hold for it
    two = walker({"type": "string", "oneOf": [{"format": "uri"}, {"format": "hostname"}]})
    assert two.accepts('"https://a.b"')
    assert two.accepts('"a.b"')


def test_schemas_with_tags_exclude_one_another_without_intersections_of_all_pairs() -> None:
    tags = [f"t{index}" for index in range(40)]
    options = [
        {"type": "object", "properties": {"tag": {"const": tag}, tag: {"type": "null"}}, "required": ["tag"]}
        for tag in tags
    ]
    language = json_schema_language(json.dumps({"oneOf": options}), limits=SchemaLimits(intersections=1_500))
    one = Walker.of_language(language)
    assert all(one.accepts(f'{{"tag":"{tag}","{tag}":null}}') for tag in tags[::8])
    assert not one.accepts('{"tag":"t1","t1":1}')
    assert one.accepts('{"tag":"t1","t2":1}')


def test_many_members_may_need_the_same_one() -> None:
    names = [f"p{index}" for index in range(20)]
    one = walker(
        {
            "type": "object",
            "properties": {name: {"type": "null"} for name in (*names, "key")},
            "dependentRequired": {name: ["key"] for name in names},
            "additionalProperties": False,
        }
    )
    assert all(one.accepts(text) for text in ("{}", '{"key":null}', '{"p3":null,"key":null}'))
    assert not any(one.accepts(text) for text in ('{"p3":null}', '{"p0":null,"p19":null}'))


def test_schemas_exclude_one_another_for_every_reading_of_a_format() -> None:
    one = walker({"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]})
    assert one.accepts('"2024-01-01"')
    assert one.accepts('"2024-01-01T00:00:00Z"')
    # Punycode is not a host name here, but is one for most validators.
    two = walker({"oneOf": [{"type": "string", "format": "hostname"}, {"type": "string", "pattern": "^xn--"}]})
    assert two.accepts('"a.b"')
    assert two.accepts('"xn--a b"')
    assert not two.accepts('"xn--nxasmq6b"')


def test_a_string_violates_a_format_if_it_does_for_every_validator() -> None:
    user = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "url": {"format": "uri"}}}
    team = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "url": {"type": "string"}}}
    one = walker({"oneOf": [user, team]})
    assert one.accepts('{"id":1,"url":"a/b"}')
    assert one.accepts('{"id":1,"url":null}')
    assert not one.accepts('{"id":1,"url":"https://a.b"}')
    assert not one.accepts('{"id":1}')
    branches = walker({"type": "string", "if": {"format": "email"}, "then": {"maxLength": 9}, "else": {"minLength": 2}})
    assert [branches.accepts(f'"{text}"') for text in ("a@b.c", "ab", "a", "abcdefg@hij.kl")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(InvalidConstraintError, match="no value matches"):
        json_schema_language('{"not": {"format": "uri-template"}}')  # a lax validator may read anything
    # The proof that options exclude each other also asks every validator: "@x" is no address for some.
    two = walker({"oneOf": [{"type": "string", "not": {"format": "email"}}, {"type": "string", "pattern": "^@x$"}]})
    assert not two.accepts('"@x"')


def test_numbers_without_a_short_expression_share_one_rule() -> None:
    nines = {"type": "integer", "multipleOf": 9, "minimum": 1}
    one = walker({"type": "array", "prefixItems": [nines, {"anyOf": [nines, {"type": "array", "items": nines}]}]})
    assert one.accepts("[9,99]")
    assert one.accepts("[9,[18,27]]")
    assert not one.accepts("[9,[18,28]]")
    some = walker({"type": "array", "contains": {"type": "integer", "multipleOf": 9}})
    assert some.accepts('[{},100,{"a":1},99]')
    assert not some.accepts('[{},100,{"a":1}]')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number", "exclusiveMaximum": 0.3}, "0.29999999999999999999"),
        ({"type": "number", "exclusiveMinimum": 2.5}, "2.50000000000000000001"),
        ({"type": "integer", "multipleOf": 5}, "-9165414670472035.0"),
        ({"type": "number", "not": {"type": "integer"}}, "1.00000000000000000001"),
        ({"type": "integer", "maximum": 9007199254740991}, "9007199254740991.0000"),
    ],
)
def test_numbers_stay_valid_when_rounded_to_floats(schema: Any, text: str) -> None:
    assert not walker(schema).accepts(text)


def test_unique_items() -> None:
    one = walker({"type": "array", "items": {"enum": ["a", "b", 1, None]}, "uniqueItems": True, "minItems": 2})
    assert one.accepts('["b","a"]')
    assert one.accepts('[1.0,null,"a"]')
    assert not one.accepts('["a","a"]')
    assert not one.accepts("[1,1.0]")
    assert not one.accepts('["a"]')


def test_unique_items_may_be_bounded_by_more_than_there_are() -> None:
    one = walker({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 100})
    assert one.accepts('["b","a"]')
    assert not one.accepts('["b","a","a"]')


@pytest.mark.parametrize(
    ("item", "value", "other"),
    [
        (
            {"type": "array", "items": {"type": "string"}, "contains": {"pattern": "^en"}, "uniqueItems": True},
            ["de", "en"],
            ["en"],
        ),
        (
            {"type": "array", "items": {"type": "string"}, "contains": {"const": "en"}, "minItems": 2},
            ["en", "a"],
            ["a", "en"],
        ),
        (
            {"properties": {"a": {"type": "string"}, "b": {"type": "null"}}, "minProperties": 1, "type": "object"},
            {"a": "x"},
            {"b": None},
        ),
    ],
)
def test_unique_items_that_count_their_own_parts(item: Any, value: Any, other: Any) -> None:
    closed = {"additionalProperties": False} if item["type"] == "object" else {}
    schema = {"type": "array", "items": {**item, **closed}, "minItems": 1, "uniqueItems": True}
    one = Walker.of_language(json_schema_language(json.dumps(schema)))
    assert one.accepts(json.dumps([value, other]))
    assert one.accepts(json.dumps([other]))
    assert not one.accepts(json.dumps([value, other, value]))
    assert not one.accepts("[]")


def test_unique_items_are_too_few_if_each_of_them_counts_the_same() -> None:
    item = {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxItems": 1}
    assert refused({"type": "array", "items": item, "minItems": 2, "uniqueItems": True}) == {
        "/uniqueItems": "uniqueItems"
    }


def test_unique_items_are_unique_for_readers_of_floats_too() -> None:
    one = walker({"type": "array", "items": {"enum": [2**53, 2**53 + 1, 0.1]}, "uniqueItems": True})
    assert one.accepts("[9007199254740993,9007199254740992.0,0.1]")
    assert not one.accepts("[9007199254740992,9007199254740993.0]")
    two = json_schema_language(
        '{"items": {"enum": [0.1, 0.1000000000000000000001, 9007199254740992.3, 9007199254740992]},'
        ' "uniqueItems": true, "type": "array"}'
    )
    assert not Walker.of_grammar(two.grammar).accepts("[0.1,0.1000000000000000000001]")
    assert not Walker.of_grammar(two.grammar).accepts("[9007199254740992.3,9007199254740992]")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not JSON"),
        ("[]", "an object or a boolean"),
        ('{"type": "strnig"}', "/type"),
        ('{"minimum": "1"}', "/minimum"),
        ('{"properties": []}', "/properties"),
        ('{"items": [{}]}', '/items: expected one schema, not [{}]; an older draft has that: "$schema": "https://json-schema.org/draft/2019-09/schema"'),
        ('{"exclusiveMinimum": true}', 'not true; an older draft has that: "$schema": "http://json-schema.org/draft-04/schema"'),
        ('{"minLength": -1}', "/minLength"),
        ('{"anyOf": []}', "/anyOf"),
        ('{"a": 1, "a": 2}', "two members"),
        ('{"minimum": NaN}', "NaN"),
        ('{"minimum": 1e999999999}', "/minimum"),
        ("false", "no value matches"),
        ('{"type": "string", "enum": [1]}', "no value matches"),
        ('{"not": {"pattern": ""}}', "no value matches"),
    ],
)  # fmt: skip
def test_malformed_schemas_are_rejected(schema: str, message: str) -> None:
    with pytest.raises(InvalidConstraintError, match=re.escape(message)):
        json_schema_language(schema)


@pytest.mark.parametrize(
    ("limits", "schema", "message"),
    [
        (SchemaLimits(schema_bytes=20), {"title": "x" * 30}, "larger than 20 bytes"),
        (SchemaLimits(depth=3), {"not": {"not": {"not": {"type": "null"}}}}, "nests 4 deep"),
        (SchemaLimits(enum_values=3), {"enum": [1, 2, 3, 4]}, "more than 3 enum values"),
        (
            SchemaLimits(shapes=20),
            {"items": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}}},
            "more than 20 shapes when normalised, 22 of them at #/items$",
        ),
        (
            SchemaLimits(intersections=40),
            {"items": {"allOf": [{"properties": {f"p{n}": {"type": "string"}}} for n in range(20)]}},
            r"more than 40 intersections of shapes to normalise, the last of them at #/items/allOf/",
        ),
        (SchemaLimits(grammar_bytes=100), {"type": "object"}, "larger than 100 bytes"),
    ],
)
def test_limits_are_named(limits: SchemaLimits, schema: Any, message: str) -> None:
    with pytest.raises(InvalidConstraintError, match=message):
        json_schema_language(json.dumps(schema), limits=limits)


def test_references_that_nest_too_deep_are_an_error() -> None:
    chain: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(1000)}
    with pytest.raises(InvalidConstraintError, match="too deep"):
        json_schema_language(json.dumps({"$ref": "#/$defs/d0", "$defs": {**chain, "d1000": {"type": "null"}}}))


def test_counts_that_no_document_reaches() -> None:
    assert walker({"type": "array", "maxItems": 2**63, "items": {"type": "null"}}).accepts("[null,null]")
    assert walker({"type": "string", "maxLength": 2**31 - 1}).accepts('"abc"')
    with pytest.raises(InvalidConstraintError, match="/minLength"):
        json_schema_language(json.dumps({"minLength": 10**12}))


CLOSED = {"type": "object", "additionalProperties": False}
LIST = {"n": CLOSED | {"properties": {"next": {"$ref": "#/$defs/n"}}}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (CLOSED | {"properties": {"a": {"type": "object"}}}, "#/properties/a: members or items may be any value"),
        ({}, "#: members or items may be any value"),
        (CLOSED | {"$defs": LIST, "properties": {"list": {"$ref": "#/$defs/n"}}}, "#/$defs/n: it recurses"),
        (
            CLOSED | {"properties": {"a": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}}},
            "#/properties/a: it requires unique items",
        ),
        ({"type": "array", "items": {"type": "string", "maxLength": 60_000}}, "#/items: its regular expression"),
        ({"additionalProperties": {"type": "null"}, "minProperties": 1, "type": "object"}, "#: it counts members"),
    ],
)
def test_the_reason_for_a_missing_regex_is_reported(schema: dict[str, object], why: str) -> None:
    found = json_schema_language(json.dumps(schema))
    assert found.regex is None
    assert (found.not_regular or "").startswith(why)


def test_a_regex_over_its_limit_leaves_the_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    assert json_schema_language(json.dumps(schema)).regex is not None
    limited = json_schema_language(json.dumps(schema), limits=SchemaLimits(regex_bytes=10))
    assert limited.regex is None
    assert limited.not_regular == "#: its regular expression would have more than 10 bytes"


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(6)]} for i in range(8)]},
        pytest.param(
            {"not": {"oneOf": [{"properties": {f"p{i}": {"const": i + n} for i in range(12)}} for n in range(6)]}},
            marks=pytest.mark.slow,
        ),
        {"type": "string", "allOf": [{"pattern": f"(a|b)*{'(a|b)' * n}a(a|b){{12}}"} for n in range(4)]},
        pytest.param(
            {"patternProperties": {f"{chr(97 + i)}.*{chr(98 + i)}": {"minimum": i} for i in range(12)}},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["allOf of anyOf", "not oneOf", "patterns", "overlapping patternProperties"],
)
def test_schemas_that_would_explode_are_rejected_by_keyword(schema: Any) -> None:
    with pytest.raises((UnsupportedConstraintError, InvalidConstraintError)):
        json_schema_language(json.dumps(schema))


def test_overlapping_patterns_of_names_are_refused_by_name() -> None:
    # Each name may match any of the patterns: 2^8 kinds of names.
    patterns = {letter: {"minLength": index} for index, letter in enumerate("abcdefgh")}
    with pytest.raises(UnsupportedConstraintError) as caught:
        json_schema_language(json.dumps({"type": "object", "patternProperties": patterns}))
    [violation] = caught.value.violations
    assert (violation.pointer, violation.keyword) == ("/patternProperties", "patternProperties")
    assert "more than 64 kinds of names: each pattern that overlaps with the others doubles them" in violation.reason
    apart = {f"^{letter}": schema for letter, schema in patterns.items()}
    assert walker({"type": "object", "patternProperties": apart}).accepts('{"hb":"1234567","a":"","x":1}')


def test_any_object() -> None:
    one = Walker.of_grammar(json_object_language("spaced").grammar)
    assert one.accepts('{"a": [1, {"b": null}], "c": {}}')
    assert not one.accepts("[]")
    assert not one.accepts('{"a": 1, }')


def test_the_same_schema_gives_the_same_grammar() -> None:
    schema = json.dumps({"oneOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["b"]}], "type": "object"})
    assert json_schema_language(schema) == json_schema_language(schema)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("base64", ["", "YQ==", "YWI=", "YWJj"], ["YQ", "YR==", "Y Q=", "_-8="]),
        ("base64url", ["", "YQ==", "_-8="], ["YQ", "+/8="]),
        (
            "base32",
            ["", "ME======", "MFRA====", "MFRGG===", "MFRGGZA=", "MFRGGZDF"],
            ["ME", "MF======", "ME=====", "me======"],
        ),
        ("base16", ["", "6F61"], ["6", "6G"]),
    ],
)
def test_draft_7_asserts_encodings(name: str, inside: list[str], outside: list[str]) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": name, "type": "string"}
    judge = jsonschema_rs.Draft7Validator(schema)
    one = walker(schema)
    for texts, valid in ((inside, True), (outside, False)):
        assert [(judge.is_valid(text), one.accepts(json.dumps(text))) for text in texts] == [(valid, valid)] * len(
            texts
        )
    assert refused({"$schema": schema["$schema"], "not": {"contentEncoding": name}}) == {
        "/not/contentEncoding": "contentEncoding"
    }


@pytest.mark.parametrize(
    ("keyword", "value"), [("contentEncoding", "quoted-printable"), ("contentMediaType", "text/html")]
)
def test_other_contents_are_annotations_in_draft_7_too(keyword: str, value: str) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": {keyword: value}}
    language = json_schema_language(json.dumps(schema))
    assert [one.pointer for one in language.unenforced] == [f"/items/{keyword}"]
    assert Walker.of_grammar(language.grammar).accepts('["<"]')


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("contentMediaType", "application/json"),
        ("contentMediaType", "application/problem+json; charset=utf-8"),
    ],
)
def test_what_older_drafts_assert_is_refused_and_listed_where_it_is_an_annotation(keyword: str, value: str) -> None:
    schema: dict[str, Any] = {"properties": {"a": {keyword: value}}}
    assert refused({"$schema": "http://json-schema.org/draft-07/schema#", **schema}) == {
        f"/properties/a/{keyword}": keyword
    }
    for draft in ("2019-09", "2020-12"):
        later = {"$schema": f"https://json-schema.org/draft/{draft}/schema", **schema}
        language = json_schema_language(json.dumps(later))
        assert [(one.pointer, one.keyword) for one in language.unenforced] == [(f"/properties/a/{keyword}", keyword)]
        assert Walker.of_grammar(language.grammar).accepts('{"a": "("}')
        negated = json_schema_language(json.dumps({"not": {"type": "string", keyword: value}}))
        assert not Walker.of_grammar(negated.grammar).accepts('"("')  # an annotation rejects no string
    assert json_schema_language('{"contentSchema": true, "$schema": "http://json-schema.org/draft-07/schema"}')


def test_cases_that_vanish_do_not_count() -> None:
    # 5 * 5 * 5 * 5 = 625 cases while allOf is read. The last part leaves one of them.
    parts = [[{"required": [f"{letter}{index}"]} for index in range(5)] for letter in "abcd"]
    names = [f"{letter}0" for letter in "abcd"]
    only = {"properties": {name: {"type": "null"} for name in names}, "additionalProperties": False}
    one = walker({"type": "object", "allOf": [*({"anyOf": part} for part in parts), only]})
    assert one.accepts('{"a0":null,"d0":null,"c0":null,"b0":null}')
    assert not one.accepts('{"a0":null,"b0":null,"c0":null}')
    parts = [[{"required": [f"{letter}{index}"]} for index in range(5)] for letter in "abcd"]
    assert refused({"allOf": [{"anyOf": part} for part in parts]}) == {"/allOf": "allOf"}


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ({"$ref": "#/$defs/closed"}, "no value matches the schema, since none matches #/$defs/closed"),
        ({"type": "array", "items": {"$ref": "#/$defs/closed"}, "minItems": 1}, "none matches #/$defs/closed"),
        ({"anyOf": [{"$ref": "#/$defs/closed"}, False]}, "none matches #/properties/place"),
        ({"allOf": [{"minimum": 2}, {"maximum": 1}], "type": "integer"}, "none matches #/properties/place"),
    ],
)
def test_the_error_of_a_schema_without_values_names_the_part_that_leaves_none(inner: Any, reason: str) -> None:
    closed = {"additionalProperties": False, "type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    schema = {"type": "object", "properties": {"place": inner}, "required": ["place"], "$defs": {"closed": closed}}
    with pytest.raises(InvalidConstraintError, match=re.escape(reason)):
        json_schema_language(json.dumps(schema))
