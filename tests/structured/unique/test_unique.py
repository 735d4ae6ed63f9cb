"""Arrays of different strings: masks, drafts and rollback follow the host's comparison, in every spelling and tokenization."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabulary import allowed, legal_tokens, vocabulary
from walk import Walker

from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec
from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.masks import MaskedRow, fill_masks
from draftline.structured.matcher import Matcher

VOCABULARY = vocabulary(
    '","',
    '["',
    '"]',
    '"a"',
    '"a","a"',
    'a"',
    'é"',
    "\\u00e9",
    "\\u00",
    '\\""',
    'e9"',
    "ab",
    '"],"',
    '":["',
    '""',
    "é",
    '["",""]',
    '</r>["a"',
    'r>["',
    'r>["a","a"',
)
SIZE = len(VOCABULARY.tokens)
UNIQUE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "a": UNIQUE,
        "b": {"type": "array", "items": {"type": "string"}},
        "c": {"type": "array", "items": UNIQUE},
    },
    "additionalProperties": {"$ref": "#"},
}


@functools.cache
def compiled() -> CompiledConstraint:
    compiler = ConstraintCompiler(VOCABULARY)
    constraint = compiler.compile(
        ConstraintSpec("json_schema", json.dumps(SCHEMA), whitespace="compact", member_order="any")
    )
    compiler.close()
    return constraint


@functools.cache
def reasoned(begin: str, *, required: bool = True) -> CompiledConstraint:
    compiler = ConstraintCompiler(VOCABULARY)
    reasoning = ReasoningSpec(begin, "</r>", limited=required, required=required)
    compiled = compiler.compile(
        ConstraintSpec("json_schema", json.dumps(UNIQUE), whitespace="compact", reasoning=reasoning)
    )
    compiler.close()
    return compiled


def begin() -> Matcher:
    return compiled().begin().matcher


def mask(matcher: Matcher) -> set[int]:
    return legal_tokens(matcher, VOCABULARY)


def is_valid(value: Any) -> bool:
    """Whether the arrays under "a" and in those under "c" hold different strings."""
    arrays = [*([value["a"]] if "a" in value else []), *value.get("c", [])]
    inner = [member for name, member in value.items() if name not in "abc"]
    return all(len(set(one)) == len(one) for one in arrays) and all(map(is_valid, inner))


def tokenizations(text: str, source: random.Random) -> list[int]:
    """A random tokenization."""
    data, tokens = text.encode(), []
    while data:
        fitting = [token for token, part in enumerate(VOCABULARY.tokens) if part and data.startswith(part)]
        tokens.append(source.choice(fitting))
        data = data[len(VOCABULARY.tokens[tokens[-1]]) :]
    return tokens


strings = st.sampled_from(["", "a", "aa", "é", "éa", '"', 'a"', "\\", "ab", "😀"])
lists = st.lists(strings, max_size=4)


def documents(depth: int = 1) -> st.SearchStrategy[dict[str, Any]]:
    own = {"a": lists, "b": lists, "c": st.lists(lists, max_size=2)}
    if not depth:
        return st.fixed_dictionaries({}, optional=own)
    return st.fixed_dictionaries({}, optional={**own, "z": documents(depth - 1)})


@settings(max_examples=examples(150), deadline=None)
@given(documents(), st.integers(0, 2**32), st.booleans())
def test_a_document_is_allowed_exactly_if_its_strings_differ(value: Any, seed: int, escaped: bool) -> None:
    matcher = begin()
    text = json.dumps(value, ensure_ascii=escaped, separators=(",", ":"))
    whole = all(token in mask(matcher) and matcher.advance(token) for token in tokenizations(text, random.Random(seed)))
    assert (whole and matcher.complete) == is_valid(value)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_matcher_equals_a_replay_after_any_operations(data: st.DataObject) -> None:
    matcher, taken = begin(), list[int]()
    for token in tokenizations('{"a":["', random.Random(data.draw(st.integers(0, 99)))):
        assert matcher.advance(token)
        taken.append(token)
    likely = [
        token for token, text in enumerate(VOCABULARY.tokens) if len(text) > 1 or text in (b'"', b"a", b",", b"\\")
    ]
    for _ in range(data.draw(st.integers(1, 10))):
        legal = mask(matcher)
        match data.draw(st.sampled_from(["legal", "legal", "any", "back", "verify"])):
            case "legal":
                token = data.draw(st.sampled_from(sorted(legal & set(likely)) or sorted(legal)))
                assert matcher.advance(token)
                taken.append(token)
            case "any":
                token = data.draw(st.sampled_from(likely))
                assert matcher.advance(token) == (token in legal)
                taken += [token] * (token in legal)
            case "back":
                count = data.draw(st.integers(0, len(taken)))
                matcher.rollback(count)
                del taken[len(taken) - count :]
            case "verify":
                drafts = data.draw(st.lists(st.sampled_from(likely), max_size=3))
                masks = np.empty((len(drafts) + 1, VOCABULARY.mask_words), np.int32)
                fill_masks([MaskedRow(matcher, drafts=drafts)], masks)
                assert allowed(masks[0], SIZE) == legal
        again = begin()
        assert all(again.advance(token) for token in taken)
        assert mask(matcher) == mask(again) != set()
        assert (matcher.complete, matcher.forced()) == (again.complete, again.forced())


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(["", "<r>"]),
    st.sampled_from(["", '"a"', '["a","a"', "</", "<r></", "é"]),
    lists,
    st.integers(0, 2**32),
)
def test_behind_reasoning_a_document_is_allowed_exactly_if_its_strings_differ(
    mark: str, thought: str, value: list[str], seed: int
) -> None:
    compiled = reasoned(mark)
    text = f"{mark}{thought}</r>{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
    tokens = tokenizations(text, random.Random(seed))
    matcher = compiled.begin(None, len(text.encode())).matcher
    taken = 0
    while taken < len(tokens) and tokens[taken] in mask(matcher):
        assert matcher.advance(tokens[taken])
        taken += 1
    assert (taken == len(tokens) and matcher.complete) == (len(set(value)) == len(value))
    matcher.rollback(taken // 2)
    again = compiled.begin(None, len(text.encode())).matcher
    assert all(again.advance(token) for token in tokens[: taken - taken // 2])
    assert mask(matcher) == mask(again) != set()


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(["", "[r]</r>", '[r]["a","a"</r>']),
    st.lists(st.sampled_from("ab"), max_size=3),
    st.integers(0, 2**32),
)
def test_reasoning_may_be_left_out_of_a_document_that_begins_like_its_mark(
    thought: str, value: list[str], seed: int
) -> None:
    text = thought + json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    matcher = reasoned("[r]", required=False).begin().matcher
    legal = True
    for token in tokenizations(text, random.Random(seed)):
        legal = token in mask(matcher)
        assert matcher.advance(token) == legal
        if not legal:
            break
    assert (legal and matcher.complete) == (len(set(value)) == len(value))


def test_random_texts_hold_different_strings() -> None:
    source = random.Random(0)
    likely = {
        token for token, text in enumerate(VOCABULARY.tokens) if text in (b'"', b"a", b'","', b'"a"', b'""', b"]", b"}")
    }
    finished = 0
    for _ in range(60):
        matcher, text = begin(), b""
        for token in tokenizations('{"a":[', source):
            assert matcher.advance(token)
            text += VOCABULARY.tokens[token]
        while len(text) < 60 and not matcher.finished:
            legal = mask(matcher)
            assert legal
            ends = legal & VOCABULARY.eos_ids
            token = source.choice(sorted(ends or legal & likely or legal))
            assert matcher.advance(token)
            text += VOCABULARY.tokens[token]
        if matcher.finished:
            finished += 1
            assert is_valid(json.loads(text)), text
    assert finished > 10


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"anyOf": [UNIQUE, {"type": "array", "items": {"const": "a"}, "minItems": 2}]}, "/anyOf/0/uniqueItems"),
        ({"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}}, "/not/uniqueItems"),
        ({**UNIQUE, "prefixItems": [{"const": "a"}, {"const": "a"}], "minItems": 2}, "/uniqueItems"),
        ({**UNIQUE, "contains": {"const": "a"}, "minContains": 2}, "/uniqueItems"),
        ({**UNIQUE, "items": {"pattern": "^a*$", "maxLength": 2048, "type": "string"}, "minItems": 2050}, "/uniqueItems"),
        ({**UNIQUE, "items": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}, "minItems": 9}, "/uniqueItems"),
    ],
)  # fmt: skip
def test_what_the_host_cannot_compare_exactly_is_refused(schema: Any, pointer: str) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        json_schema_language(json.dumps(schema))
    assert [violation.pointer for violation in caught.value.violations] == [pointer]


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected", "left_out"),
    [
        (
            {"anyOf": [UNIQUE, {"type": "array", "items": {"type": ["string", "null"]}}]},
            ['["a","b"]', "[null,null]", "[]"],
            ["[1]", '"a"'],
            ['["a","a"]'],
        ),
        (
            {"type": "object", "oneOf": [{"required": ["$ref"]}, {"properties": {"tags": UNIQUE}}]},
            ['{"tags":["a"]}', '{"$ref":0,"tags":1}', '{"$ref":0,"tags":["a",1]}', "{}"],
            ['{"tags":["a","a"]}', '{"tags":1}', '{"$ref":0,"tags":["a"]}'],
            ['{"$ref":0,"tags":["a","a"]}'],
        ),
    ],
    ids=str,
)
def test_repeated_items_are_left_out_where_an_alternative_forbids_them(
    schema: Any, accepted: list[str], rejected: list[str], left_out: list[str]
) -> None:
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    is_valid = jsonschema_rs.validator_for(schema).is_valid
    assert [text for text in accepted if not (walker.accepts(text) and is_valid(json.loads(text)))] == []
    assert [text for text in rejected if walker.accepts(text) or is_valid(json.loads(text))] == []
    assert [text for text in left_out if walker.accepts(text) or not is_valid(json.loads(text))] == []


@pytest.mark.parametrize(
    ("items", "count"),
    [
        ({"pattern": "(.+)", "minLength": 1, "maxLength": 2048}, 10**6),
        ({"pattern": "^a*$", "maxLength": 2048}, 2049),
        ({"pattern": "[ab]", "minLength": 2, "maxLength": 2048, "not": {"pattern": "[^a-c]"}}, 10**6),
        ({"pattern": "^a*$", "minLength": 600}, 10**6),
    ],
)
def test_texts_with_a_pattern_and_long_bounds_are_enough(items: Any, count: int) -> None:
    schema = {"type": "array", "items": {"type": "string", **items}, "uniqueItems": True}
    assert json_schema_language(json.dumps({**schema, "minItems": count})).unique is not None


def test_patterns_of_names_tell_places_apart() -> None:
    """Objects that may have any other members, of which some names have a pattern."""
    kinds = {"^[A-Z]": {"properties": {"tags": UNIQUE}}, "^x-": UNIQUE, "s$": {"items": {"type": "string"}}}
    schema = {"type": "object", "properties": {"own": UNIQUE}, "patternProperties": kinds}
    language = json_schema_language(json.dumps(schema))
    assert language.unique is not None
    walker, validator = Walker.of_language(language), jsonschema_rs.validator_for(schema)
    for name in ("own", "x-a", "x-s", "a", "as", "A", "As", "", "\u00c4"):
        for twice in (["a", "a"], ["a", "b"]):
            for value in ({name: twice}, {name: {"tags": twice}}, {"other": {name: twice}}):
                assert walker.accepts(json.dumps(value)) == validator.is_valid(value), value


def test_one_item_never_repeats() -> None:
    language = json_schema_language(
        '{"type": "array", "maxItems": 1, "uniqueItems": true, "items": {"type": "object"}}'
    )
    assert language.unique is None
