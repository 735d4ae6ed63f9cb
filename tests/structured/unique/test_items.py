"""Arrays of different items of any kind: the mask of every position is that of a search through all texts."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabulary import allowed, legal_tokens, vocabulary

from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.json_schema.spelling import PropertyOrder
from draftline.structured.masks import MaskedRow, fill_masks
from draftline.structured.matcher import Matcher
from draftline.structured.unique.values import may_become, spelled_alike, value_of

VOCABULARY = vocabulary(
    '","', '["', '"]', '":', "10", "00", "[1", ",1", "1,", "1]", "[]", "],", "],[", "[[", "]]", "},", '{"', '},{"', "tr",
    "true", "false,", "null", ",null", '"a"', '"a":', '":1', '":1}', '"a":1,', ":true", ":true}", '{"a":1}', '","b',
)  # fmt: skip
SIZE = len(VOCABULARY.tokens)
WITH_TEXT = [token for token, text in enumerate(VOCABULARY.tokens) if text]


def unique(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **more}


def record(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


BOOLEAN = {"type": "boolean"}
DIGITS = {"type": "string", "pattern": "^[ab]{1,2}$"}
PAIR = {"type": "array", "prefixItems": [BOOLEAN, {"enum": [1, 10]}], "items": False, "minItems": 1}
# Each has finitely many texts: the values of an item, and the schema.
FINITE: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "strings": (["a", "b", "aa", "ab", "ba", "bb"], unique(DIGITS, maxItems=3, minItems=1)),
    "pairs": (
        [[one] for one in (True, False)] + [[one, two] for one in (True, False) for two in (1, 10)],
        unique(PAIR, maxItems=3),
    ),
    "records": (
        [{"a": one, "b": two} for one in (1, 10, 100) for two in (True, False)],
        unique(record(a={"enum": [1, 10, 100]}, b=BOOLEAN), minItems=2, maxItems=3),
    ),
    "all of them": ([{"a": one} for one in (True, False, None)], unique(record(a={"enum": [True, False, None]}), minItems=3)),
    "nested": (
        [[], *[[one] for one in ("a", "b")], ["a", "b"], ["b", "a"]],
        unique(unique({"type": "string", "pattern": "^[ab]$"}), maxItems=3),
    ),
    "numbers": ([1, 2, 10, 11, 12, "1"], unique({"enum": [1, 2, 10, 11, 12, "1"]}, maxItems=3, contains={"const": 10})),
}  # fmt: skip


@functools.cache
def compiler() -> ConstraintCompiler:
    """One for all constraints: each starts a process of its own, which takes far longer than to compile one of these."""
    return ConstraintCompiler(VOCABULARY)


@functools.cache
def compiled(schema: str, order: PropertyOrder = "schema") -> CompiledConstraint:
    return compiler().compile(
        ConstraintSpec("json_schema", schema, whitespace="compact", integers="plain", member_order=order)
    )


@functools.cache
def texts(name: str) -> frozenset[bytes]:
    values, schema = FINITE[name]
    validator = jsonschema_rs.validator_for(schema)
    found = (list(one) for size in range(7) for one in itertools.permutations(values, size))
    return frozenset(json.dumps(one, separators=(",", ":")).encode() for one in found if validator.is_valid(one))


@functools.cache
def prefixes(name: str) -> frozenset[bytes]:
    return frozenset(text[:size] for text in texts(name) for size in range(len(text) + 1))


def mask(matcher: Matcher) -> set[int]:
    return legal_tokens(matcher, VOCABULARY)


def expected(name: str, text: bytes) -> set[int]:
    found = {token for token, more in enumerate(VOCABULARY.tokens) if more and text + more in prefixes(name)}
    return found | (set(VOCABULARY.eos_ids) if text in texts(name) else set())


@pytest.mark.parametrize("name", FINITE)
def test_the_mask_of_every_position_is_that_of_a_search(name: str) -> None:
    source = random.Random(0)
    for _ in range(examples(25)):
        matcher, text = compiled(json.dumps(FINITE[name][1])).begin().matcher, b""
        while not matcher.finished:
            legal = mask(matcher)
            assert legal == expected(name, text), text
            drafts = [source.randrange(SIZE) for _ in range(2)]
            masks = np.empty((3, VOCABULARY.mask_words), np.int32)
            fill_masks([MaskedRow(matcher, drafts=drafts)], masks)
            assert allowed(masks[0], SIZE) == legal
            for token in source.sample(range(SIZE), 20):
                if token not in VOCABULARY.eos_ids and VOCABULARY.tokens[token]:
                    assert matcher.advance(token) == (token in legal), (text, VOCABULARY.tokens[token])
                    matcher.rollback(token in legal)
            token = source.choice(sorted(legal))
            assert matcher.advance(token)
            text += VOCABULARY.tokens[token] if token not in VOCABULARY.eos_ids else b""
        assert text in texts(name)


@pytest.mark.parametrize("name", ["records", "all of them", "nested"])
def test_with_little_work_for_a_mask_texts_are_fewer_but_still_come_to_an_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftline.structured.unique.matcher.MAX_WORK", 100)
    source = random.Random(0)
    for _ in range(examples(15)):
        matcher, text = compiled(json.dumps(FINITE[name][1])).begin().matcher, b""
        while not matcher.finished:
            legal = mask(matcher)
            assert legal
            assert legal <= expected(name, text)
            token = source.choice(sorted(legal))
            assert matcher.advance(token)
            text += VOCABULARY.tokens[token] if token not in VOCABULARY.eos_ids else b""
        assert text in texts(name)


ENDLESS: dict[str, Any] = {
    "anything": unique({}),
    "records": unique(record(id={"type": "integer"}, name={"type": "string"}), minItems=2),
    "short strings": unique({"type": "string", "maxLength": 1}, minItems=2),
    "integers": unique({"type": "integer", "minimum": 1, "maximum": 300}, minItems=5),
    "numbers": unique({"type": "number", "minimum": 0, "maximum": 10}, minItems=3),
    "trees": {"$ref": "#/$defs/t", "$defs": {"t": record(v={"type": "integer"}, t=unique({"$ref": "#/$defs/t"}))}},
    "tuples": {"type": "array", "prefixItems": [BOOLEAN, BOOLEAN], "uniqueItems": True},
    "lists": unique(unique({"type": "string"}), minItems=1),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_random_texts_hold_different_items(name: str) -> None:
    source = random.Random(1)
    validator = jsonschema_rs.validator_for(ENDLESS[name])
    finished = 0
    for _ in range(examples(15)):
        matcher, text = compiled(json.dumps(ENDLESS[name])).begin().matcher, b""
        while len(text) < 150 and not matcher.finished:
            legal = mask(matcher)
            assert legal, text
            likely = {token for token in legal if set(VOCABULARY.tokens[token]) <= set(b'[]{},:"0123av')}
            ends = {token for token in likely if text[30:] and VOCABULARY.tokens[token] in (b'"', b"}", b"]")}
            token = source.choice(sorted(legal & VOCABULARY.eos_ids or ends or likely or legal))
            assert matcher.advance(token)
            text += VOCABULARY.tokens[token] if token not in VOCABULARY.eos_ids else b""
        if matcher.finished:
            finished += 1
            assert validator.is_valid(json.loads(text)), text
    assert finished


def matching(names: str, value: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {names: value}, "additionalProperties": False}


def some_items(source: random.Random) -> Any:
    """A schema of items, most of which have few values."""
    kinds = [{"type": "string"}, {"type": "boolean"}, {"enum": ["a", "b", "é"]}, {"const": 1}, {"enum": [1, 10]}]
    value, other = source.sample(kinds, 2)
    both = record(k=value, v=other)
    names = source.choice(["^a$", "^[ab]$", "^a+$", "^(a|b.*)$"])
    return source.choice([
        record(k=value), both, {**both, "required": ["k"]}, matching(names, value), {**matching(names, value), "maxProperties": 2},
        {**matching(names, value), "properties": {"k": other}}, {"type": "object", "additionalProperties": value},
        unique(value), unique(matching(names, other)), {"anyOf": [value, matching(names, other)]},
    ])  # fmt: skip


def some_array(source: random.Random) -> dict[str, Any]:
    first = [some_items(source) for _ in range(source.choice([0, 0, 1, 2]))]
    limits = source.choice([{}, {}, {"maxItems": 3}])
    return unique(some_items(source), **limits, **({"prefixItems": first} if first else {}))


@pytest.mark.parametrize("seed", range(24))
def test_every_token_of_a_mask_is_taken_and_others_are_not(seed: int) -> None:
    source = random.Random(seed)
    schema = some_array(source)
    schema = source.choice([schema, record(a=schema), unique(schema)])
    validator = jsonschema_rs.validator_for(schema)
    constraint = compiled(json.dumps(schema), source.choice(["schema", "any"]))
    for _ in range(examples(4)):
        matcher, text = constraint.begin().matcher, b""
        while len(text) < 60 and not matcher.finished:
            legal = mask(matcher)
            assert legal, text
            texts = legal - VOCABULARY.eos_ids
            for token in source.sample(WITH_TEXT, 40) + source.sample(sorted(texts), min(20, len(texts))):
                taken = matcher.advance(token)
                assert taken == (token in legal), (text, VOCABULARY.tokens[token])
                matcher.rollback(taken)
            likely = {token for token in legal if set(VOCABULARY.tokens[token]) <= set(b'[]{},:"01abkv')}
            ends = legal & VOCABULARY.eos_ids if text[20:] else set()
            token = source.choice(sorted(ends or likely or legal))
            assert matcher.advance(token)
            text += VOCABULARY.tokens[token] if token not in VOCABULARY.eos_ids else b""
        assert not matcher.finished or validator.is_valid(json.loads(text)), (schema, text)


@pytest.mark.parametrize(
    ("schema", "text", "more"),
    [
        (unique(record(k={"type": "string"})), '[{"k":"a"},{"k":"a', b"ab,]}"),
        (unique(matching("^a$", {"const": 1})), '[{},{"a":1}', b"]"),
        (unique(matching("^[ab]$", {"const": 1})), '[{},{"a":1},{"a":1', b","),
        (unique(matching("^[ab]$", {"const": 1})), '[{"a":1,"', b"b"),
        (unique(matching("^(a|b.*)$", {})), '[{"a":1,"', b"b"),
        (unique(BOOLEAN, prefixItems=[{"type": "string"}]), '["a",true,false', b"]"),
        (unique({"type": "null"}, prefixItems=[{"type": "string"}]), '["a",null', b"]"),
        (unique({"const": 1}, prefixItems=[{"type": "string"}], maxItems=9), '["a",1', b"]"),
        (unique({"enum": ["b"]}, prefixItems=[{"type": "string"}]), '["b"', b"]"),
        (unique(unique(BOOLEAN, prefixItems=[{"type": "string"}])), '[["a",true,false', b"]"),
    ],
)
def test_nothing_may_follow_that_only_repeats(schema: Any, text: str, more: bytes) -> None:
    matcher = compiled(json.dumps(schema)).begin().matcher
    assert all(matcher.advance(token) for token in VOCABULARY.encode(text))
    legal = {VOCABULARY.tokens[token] for token in mask(matcher)}
    assert {one for one in b'ab,]}"' if bytes([one]) in legal} == set(more)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-30, 30)
    | st.sampled_from([0.5, 1.0, 1e16, 1e-7])
    | st.text('ab"é', max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=2),
    max_leaves=5,
)


def spellings(value: Any) -> Iterator[bytes]:
    yield json.dumps(value).encode()
    yield json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(values, max_size=4), st.integers(0, 2**32))
def test_an_array_is_allowed_exactly_if_its_items_differ(items: list[Any], seed: int) -> None:
    matcher = compiled(json.dumps({"uniqueItems": True})).begin().matcher
    source = random.Random(seed)
    data = json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()
    whole = True
    while data and whole:
        token = source.choice([one for one, part in enumerate(VOCABULARY.tokens) if part and data.startswith(part)])
        whole = token in mask(matcher) and matcher.advance(token)
        data = data[len(VOCABULARY.tokens[token]) :]
    assert (whole and matcher.complete) == jsonschema_rs.is_valid({"uniqueItems": True}, items)


@pytest.mark.parametrize(
    "other",
    [
        {"type": ["null", "object"]},
        {"type": ["boolean", "number"]},
        {"type": "array", "items": {"type": "string"}},
        {"enum": [1, 2, [], None]},
    ],
)
def test_the_types_of_items_tell_arrays_apart(other: Any) -> None:
    """Strings have to differ, and items of other types do not."""
    schema = {"anyOf": [unique({"type": "string"}), {"type": "array", "items": other}]}
    matcher = compiled(json.dumps(schema)).begin().matcher
    for items in itertools.product(["a", "b", None, True, 1, {}, [], ["a", "a"]], repeat=3):
        data, taken = json.dumps(items, separators=(",", ":")).encode(), 0
        while data:
            token = max(one for one, part in enumerate(VOCABULARY.tokens) if part and data.startswith(part))
            allowed = token in mask(matcher)
            assert matcher.advance(token) == allowed
            if not allowed:
                break
            data, taken = data[len(VOCABULARY.tokens[token]) :], taken + 1
        assert (not data and matcher.complete) == jsonschema_rs.is_valid(schema, list(items)), items
        matcher.rollback(taken)


@given(values, values)
def test_a_text_may_become_its_value_and_equal_values_are_one(one: Any, other: Any) -> None:
    same = jsonschema_rs.is_valid({"const": other}, one)
    for text, another in zip(spellings(one), spellings(other), strict=True):
        value = value_of(another)
        assert (value_of(text) == value) == same
        if same:
            assert value is not None
            assert all(may_become(text[:size], value) for size in range(len(text) + 1))
        elif not isinstance(one, int | float):
            assert value is None or not may_become(text, value)


NAMED = {"type": "object", "properties": {"a": {}}, "minProperties": 3, "additionalProperties": {"type": "integer"}}


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "ab", "", '"', "é"]), st.integers(0, 1)), max_size=5),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_members_are_counted_by_name(members: list[tuple[str, int]], nested: bool, seed: int) -> None:
    schema = {"items": NAMED, "uniqueItems": True} if nested else {"items": NAMED}
    matcher = compiled(json.dumps(schema)).begin().matcher
    source = random.Random(seed)
    body = ",".join(f"{json.dumps(name, ensure_ascii=source.random() < 0.5)}:{value}" for name, value in members)
    data, whole = b"[{" + body.encode() + b"}]", True
    while data and whole:
        token = source.choice([one for one, part in enumerate(VOCABULARY.tokens) if part and data.startswith(part)])
        legal = mask(matcher)
        assert legal
        whole = matcher.advance(token)
        assert whole == (token in legal)
        data = data[len(VOCABULARY.tokens[token]) :]
    assert (whole and matcher.complete) == (len(members) == len(dict(members)) >= 3)


@pytest.mark.slow
def test_spellings_and_white_space_do_not_make_a_search_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest search takes 6,208 units of work, little more than a mask may; by spellings it would not end."""
    monkeypatch.setattr("draftline.structured.unique.matcher.MAX_WORK", 8_000)
    pair = {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2}
    schema = json.dumps(unique({"type": "array", "items": pair, "minItems": 2, "maxItems": 2}))
    matcher = compiler().compile(ConstraintSpec("json_schema", schema, integers="standard")).begin().matcher
    items = [[[a, b], [c, d]] for a, b, c, d in itertools.product((0, 1), repeat=4)]
    for token in VOCABULARY.encode(json.dumps(items, indent=2)):
        assert matcher.advance(token)
    assert matcher.complete


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (b'[1.0, {"a b": "\\" "', b'[1,{"a b":"\\" "', True),
        (b"[1 ", b"[1", False),
        (b"[1.0 ", b"[1 ", True),
        (b"[10", b"[1.0", False),
        (b'["1.0, ', b'["1, ', False),
        (b'["a ', b'["a', False),
        (b"[-0.0,1e1 ]", b"[0,10]", True),
    ],
)
def test_what_is_spelled_alike_goes_on_alike(one: bytes, other: bytes, alike: bool) -> None:
    assert (spelled_alike(one) == spelled_alike(other)) == alike
