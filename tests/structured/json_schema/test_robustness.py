"""Any input as a schema gives a language or one of the two errors, and quickly."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.regular.dfa import alive_states, build
from draftline.structured.regular.expression import to_tree
from draftline.structured.regular.syntax import ANY_CHAR, Anchor, Chars, Node, alt, literal, repeat, seq

_KEYWORDS = [
    "$anchor",
    "$defs",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "id",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
]
_SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 1.5, 10**30, 1e300, 1e-300, "a", "string", "integer", "object", "array", "#", "#/$defs/a", "#a",
    "http://x/y", "^a(b", "a*", "date", "\ud800", "", "[", "a~1b", [], {},
]  # fmt: skip

anything = st.recursive(
    st.sampled_from(_SCALARS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*_KEYWORDS, "a", "b"]), inner, max_size=4)
    ),
    max_leaves=12,
)
drafts = st.sampled_from(
    [
        None,
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
    ]
)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(_KEYWORDS), anything, max_size=4), drafts, st.booleans())
def test_any_json_is_a_schema_or_a_clear_error(schema: dict[str, Any], draft: str | None, best_effort: bool) -> None:
    if draft is not None:
        schema = {"$schema": draft, **schema}
    with contextlib.suppress(InvalidConstraintError, UnsupportedConstraintError):
        language = json_schema_language(json.dumps(schema), best_effort=best_effort)
        assert language.grammar.startswith("start:")


@settings(max_examples=examples(300))
@given(st.text(max_size=40))
def test_any_text_is_a_schema_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(InvalidConstraintError, UnsupportedConstraintError):
        json_schema_language(text)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ('{"const": 1e10000000}', "/const"),
        ('{"enum": [0, [-1e1000000000]]}', "/enum/1/0"),
        ('{"items": {"const": {"a/b": 1e-99999999999999999999}}}', "/items/const/a~1b"),
        ('{"maxLength": 1e3000000}', "/maxLength"),
        ('{"minItems": 1E+1000000000}', "/minItems"),
        ('{"maximum": %s}' % ("9" * 100_000), "/maximum"),
        ('{"multipleOf": 1e-401}', "/multipleOf"),
    ],
)  # fmt: skip
def test_numbers_of_many_digits_are_refused_before_they_are_written_out(schema: str, pointer: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidConstraintError, match=f"^{pointer}: a number of more than 400 digits$"):
        json_schema_language(schema)
    assert time.process_time() - started < 1


trees: st.SearchStrategy[Node] = st.recursive(
    st.sampled_from(
        [literal("a"), literal("b"), literal("ab"), ANY_CHAR, Chars(()), Anchor(end=False), Anchor(end=True)]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: seq(*parts)),
        st.lists(inner, max_size=3).map(alt),
        st.tuples(inner, st.integers(0, 2), st.sampled_from([None, 0, 1, 3])).map(
            lambda given: repeat(given[0], given[1], None if given[2] is None else given[1] + given[2])
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(trees)
def test_the_tree_of_an_automaton_has_the_same_automaton(tree: Node) -> None:
    first = build(tree)
    again = build(to_tree(first))
    assert len(alive_states(first)) == len(alive_states(again))
    for text in ("", "a", "b", "ab", "ba", "aab", "abab", "c", "acb"):
        assert first.matches(text) == again.matches(text)
