"""Lookaheads and lookbehinds of ECMA patterns, compared with Python's."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from itertools import product

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language
from draftline.structured.regular import ecma
from draftline.structured.regular.dfa import Part, TooComplexError, build, conjunction
from draftline.structured.regular.expression import conjuncts, searching, to_tree, without_anchors
from draftline.structured.regular.sides import resolved

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # pydantic's
HOSTNAME = r"^(?=.{1,253}\.?$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-0-9a-z]{0,61}[0-9a-z])?)*\.?$"
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"  # zod's
DOMAIN = r"^(?=.{1,253}$)(?:(?!-)[A-Za-z0-9-]{1,63}(?<!-)\.)+[A-Za-z]{2,63}$"
AWS_NAME = r"(?=^.{2,256}$)(?!.*\s)[0-9a-zA-Z-_.:=+@]*$"
URL = r"^https?:\/\/(www\.)?[-a-zA-Z0-9@:%._\+~#=]{1,256}\.[a-zA-Z0-9()]{1,6}\b([-a-zA-Z0-9()@:%_\+.~#?&//=]*)$"
PATTERNS = {
    DECIMAL: "+0.1",
    r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,2}|(?=[\d.]{1,4}0*$)\d{0,2}\.\d{0,2}0*$)": "-0.1",
    DURATION: "PT1WS",
    r"^(?!\.)(?!.*\.\.)([a-z\-\.]*)[a-z-]@([a-z]\.)+[a-z]{2,}$": "a.@-",
    r"^(?!000|666|9\d\d)\d{3}$": "069",
    r"(?!^xn)^[xn-]+(?!n)": "xn-",
    r"^(?:(?!ab).)*$": "abc",
    r"^(?:(?=a(?!c))ab?|(?=b)[ab])+(?=c|$)": "abc",
    r"(?!^)a|(?=b$)": "ab",
    r"a(?=^)|b(?!$)|(?=c*$)^": "abc",
    r"^(?=.*a)(?=.*b)(?!.*c).{3,5}$": "abcd",
    r"(?=^.{2,4}$)(?!.*cb)[abc]+$": "abc",
    r"(?=(?=^a|b)[ab]).{2}$": "abc",
    r"(?:^(?!a)|(?=b))?c(?:(?!$))*": "abc",
    r"(?=)a(?!)|(?!a(?=b))(?=[^b])": "abc",
    r"(?=)(?=(?=)b|a)b?": "ab",
    r"(?!)a": "ab",
    r"^[ab-]{1,4}(?<!-)$": "ab-",
    r"(?:(?<=a)b|(?<!b)c|(?<!^)a)+$": "abc",
    r"(?<!^a)(?<=a|c)(?=b|$)": "abc",
    r"(?:^|(?<=^(?<!b)a))b(?<=(?<!a)b)c?": "abc",
    r"\ba+\b-?(?:\Bb|a\b)": "ab-",
    r"^(?!.*\bab?\b)(?=.*b\B)[ab-]+$": "ab-",
    r"^(?:\b|-)a\B.|\Bb$": "ab-",
    r"^(?:(?!-)[ab-]{1,3}(?<!-)c)+(?:a?(?!b)(?<![ac])(?<!^)|b)?": "abc-",
    r"(?:(?:(?<=b)|^)a?(?=-|$)(?<!-))?(?:(?=[^b])[ab]?(?<=a)){0,2}$": "ab-",
}


def texts(letters: str, longest: int) -> list[str]:
    return ["".join(each) for length in range(longest + 1) for each in product(letters, repeat=length)]


def agrees(pattern: str, some: list[str]) -> None:
    """Assert that the automata of a pattern match the texts in which Python finds a match."""
    tree = ecma.parse(pattern)
    automata = [
        build(searching(tree)),
        conjunction([Part(build(searching(one)), holds) for one, holds in conjuncts(tree)]),
    ]
    with suppress(TooComplexError):  # a few small automata have large expressions
        automata += [build(without_anchors(tree)), build(to_tree(automata[0]))]
    python = re.compile(pattern.replace("$", r"\Z"))
    for automaton in automata:
        assert [text for text in some if automaton.matches(text) != bool(python.search(text))] == [], pattern


@pytest.mark.parametrize(("pattern", "letters"), PATTERNS.items())
def test_patterns_match_where_pythons_do(pattern: str, letters: str) -> None:
    agrees(pattern, texts(letters, 5))
    assert without_anchors(ecma.parse(pattern)).size < 500


@pytest.mark.parametrize("rounds", [300, pytest.param(30_000, marks=pytest.mark.slow)])
def test_generated_patterns_match_where_pythons_do(rounds: int) -> None:
    some = texts("abc-", 4)
    source = random.Random(rounds)

    def generated(depth: int) -> str:
        if source.random() < 0.2:  # Python's have a fixed length
            behind = source.choice(["a", "^", "ab", "[ab]", "a|b", "..", "^a", "", "(?<=a)b", "(?<!^)a"])
            return f"(?<{source.choice('=!')}{behind})"
        if depth == 0:
            return source.choice(["a", "b", "c", "[ab]", ".", "[^a]", "^", "$", r"\b"])
        first, second = generated(depth - 1), generated(source.randrange(depth))
        return source.choice(
            [
                second,
                first + second,
                f"(?:{first}|{second})",
                f"(?:{first}){source.choice(['*', '+', '?', '{2}', '{0,2}', '{1,}'])}{second}",
                f"(?={first}){second}",
                f"(?!{first}){second}",
            ]
        )

    for _ in range(rounds):
        pattern = source.choice(["", "^"]) + generated(source.randrange(1, 5)) + source.choice(["", "$"])
        with suppress(ecma.UntranslatablePatternError):  # a lookbehind in a lookahead
            agrees(pattern, some)


@pytest.mark.parametrize("pattern", [r"^(?:(?=.*a.{12})b|a)*$", HOSTNAME])
def test_size_is_bounded(pattern: str) -> None:
    with pytest.raises(TooComplexError):
        without_anchors(ecma.parse(pattern))


@pytest.mark.parametrize(
    "pattern", [DOMAIN, URL, r"\b[\w.]{1,1000}\B[a-z-]{1,1000}\b", "^(?:(?!-)[a-z-]{1,500}(?<!-)){1,500}$"]
)
def test_conditions_on_one_character_write_no_counts_out(pattern: str) -> None:
    assert all(without_anchors(part).size < 400 for part, _ in conjuncts(ecma.parse(pattern)))


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?:" + "|".join(f"{number:07}" for number in range(2_000)) + ")$",
        "|".join(f"^{number:07}$" for number in range(2_000)),
        f"^{'a' * 8_000}$",
        f"^(?!-)[a-z-]{'0' * 8_000}(?<!-)$",
    ],
    ids=["words", "whole texts", "text", "conditions"],
)
def test_a_large_pattern_with_conditions_grows_by_no_copies(pattern: str) -> None:
    tree = ecma.parse(pattern)
    assert without_anchors(tree).size < tree.size + 50


def test_a_pattern_that_would_copy_its_parts_again_and_again_is_left_to_automata() -> None:
    pattern = rf"\b{'a?' * 200}\b"
    tree = ecma.parse(pattern)
    assert resolved(searching(tree)) is None
    assert build(without_anchors(tree)).matches("-aaa")


@pytest.mark.parametrize("opening", ["(?:", "(?=", "(?!^"])
def test_nesting_is_bounded(opening: str) -> None:
    assert build(searching(ecma.parse(opening * 40 + "a" + ")" * 40))).matches("a")
    with pytest.raises(ecma.UntranslatablePatternError, match="nest too deep"):
        ecma.parse(opening * 201 + "a" + ")" * 201)


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"type": "string", "pattern": AWS_NAME}, ["ab", "a" * 256], ["", "a", "a" * 257, "a b", "a/b"]),
        ({"type": "string", "pattern": DECIMAL}, ["0", "-1.50", ".5", "+007."], ["", "-", ".", "+.", "1e3", "1.2.3"]),
        ({"type": "string", "pattern": DECIMAL, "maxLength": 3}, ["1.5", "-12"], ["1.25", "+.-"]),
        ({"type": "string", "not": {"pattern": "^(?!a)"}}, ["a", "ab"], ["", "ba"]),
        ({"type": "string", "not": {"pattern": "(?!)"}}, ["", "a"], []),
        ({"type": "string", "pattern": DURATION}, ["P3W", "P1Y", "PT5S", "P1DT2H"], ["P", "PT", "P1YT", "P1Y1W"]),
        ({"type": "string", "pattern": "^[a-z.-]+(?<![.-])$", "maxLength": 63}, ["a", "a.b-c"], ["a.", "-", "a" * 64]),
        ({"type": "string", "not": {"pattern": "(?<!a)b"}}, ["ab", "c"], ["b", "abb"]),
        ({"type": "string", "pattern": r".*\/search(\?.*)?\b"}, ["/search", "x/search?a"], ["/searches", "/search_"]),
        ({"type": "string", "pattern": r"^(?!.*\btest\b).+$"}, ["a", "tests"], ["a test", "test-b", "", "é test"]),
        # Words of ECMA-262 have only ASCII's letters, those of most validators all of Unicode's.
        ({"type": "string", "pattern": r"a\b"}, ["a", "éa-"], ["ab", "aé"]),
        ({"type": "string", "not": {"pattern": r"a\b"}}, ["ab", "é"], ["a", "aé"]),
        ({"type": "string", "pattern": r"^(?!\.)\P{L}(?=é|\u{1F600}$)"}, ["1é-", "-😀"], ["aé", ".é", "1😀😀"]),
        # The automaton of both conditions would be too large. A grammar has them apart.
        ({"type": "string", "pattern": HOSTNAME}, ["a.b-c.d", f"{'a.' * 126}a"], ["a..b", "a-", f"{'a.' * 126}aa"]),
        ({"type": "string", "pattern": DOMAIN}, ["a.co", "a-b.c.org", f"{'a.' * 125}co"], ["a", "-a.co", "a-.co", f"{'a.' * 126}co"]),
        ({"type": "string", "pattern": URL}, ["https://example.com/a?b=c", "http://a.b."], ["http://a", "http://a.é", "x"]),
    ],
    ids=str,
)  # fmt: skip
def test_schemas(schema: dict[str, object], accepted: list[str], rejected: list[str]) -> None:
    language = json_schema_language(json.dumps(schema), whitespace="compact")
    walkers = [Walker.of_grammar(language.grammar)] + ([Walker.of_regex(language.regex)] if language.regex else [])
    for walker in walkers:
        assert [text for text in accepted if not walker.accepts(f'"{text}"')] == []
        assert [text for text in rejected if walker.accepts(f'"{text}"')] == []


def test_names_of_members() -> None:
    schema = {
        "patternProperties": {"^(?!x-)": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
        "type": "object",
    }
    walker = Walker.of_grammar(json_schema_language(json.dumps(schema), whitespace="compact").grammar)
    assert [walker.accepts(text) for text in ('{"a":1}', '{"x-a":true}', '{"x":1}')] == [True] * 3
    assert [walker.accepts(text) for text in ('{"a":true}', '{"x-a":1}')] == [False] * 2


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^(?!.*b)[a-c]": True, "(?=c)": {"type": "null"}}, "additionalProperties": False},
        {"patternProperties": {"^(?=.*b)(?!c)a": {"type": "null"}}, "unevaluatedProperties": False},
        {"propertyNames": {"pattern": "^(?!.*b)(?!c)."}},
        {"patternProperties": {"^(?!b)": {"type": "integer"}}, "properties": {"b": True}, "minProperties": 1},
    ],
    ids=str,
)
def test_names_of_objects_that_hold_and_that_fail(schema: dict[str, object]) -> None:
    names = texts("abc", 2)
    instances = [{one: value} for one in names for value in (1, None)]
    instances += [{one: 1, other: None} for one, other in zip(names, names[4:], strict=False)]
    for whole in ({"type": "object", **schema}, {"type": "object", "not": schema}):
        walker = Walker.of_grammar(json_schema_language(json.dumps(whole), whitespace="compact").grammar)
        valid = jsonschema_rs.validator_for(whole).is_valid
        for one in instances:
            written = {json.dumps(order, separators=(",", ":")) for order in (one, dict(reversed(one.items())))}
            assert any(map(walker.accepts, written)) == valid(one), (whole, one)
