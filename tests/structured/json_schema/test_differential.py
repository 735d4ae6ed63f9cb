"""Random schemas and values: both forms of the language agree with a real validator, for all spellings and orders."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_schemas import guesses, may_leave_out, schemas, serialisations, values
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.language import Language


def compile_or_skip(schema: Any) -> Language | None:
    """The language of a schema; None if it has no instance. One that is refused, or too large to normalise, proves nothing."""
    try:
        return json_schema_language(json.dumps(schema))
    except UnsupportedConstraintError:
        assume(False)
    except InvalidConstraintError as error:
        assume("intersections of shapes to normalise" not in str(error))
        if "no value" not in str(error):
            raise
    return None


def check(schema: Any, candidates: list[Any]) -> None:
    language = compile_or_skip(schema)
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    walkers = [] if language is None else [Walker.of_language(language)]
    if language is not None and language.regex is not None:
        walkers.append(Walker.of_regex(language.regex))
    for value in candidates:
        valid = validator.is_valid(value)
        assert not (valid and language is None) or may_leave_out(schema, value), value
        for text in serialisations(value):
            if "multipleOf" in json.dumps(schema) and re.search(r"e[+-]|\d\.0\b", text):
                continue  # multiples have fewer spellings: see docs/structured.md
            for walker in walkers:
                accepted = walker.accepts(text)
                assert accepted == valid or (valid and may_leave_out(schema, value)), (text, valid)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 2**32), st.lists(values(), max_size=3))
def test_a_text_is_in_the_language_exactly_if_its_value_is_valid(schema: Any, seed: int, others: list[Any]) -> None:
    source = random.Random(seed)
    check(schema, [guesses(schema, source) for _ in range(12)] + others)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 2**32), st.lists(values(), max_size=5))
def test_many_more_schemas(schema: Any, seed: int, others: list[Any]) -> None:
    source = random.Random(seed)
    check(schema, [guesses(schema, source) for _ in range(30)] + others)


def mutations(text: str, source: random.Random) -> list[str]:
    """Slightly different texts, which need not be JSON."""
    mutated = []
    for _ in range(8):
        where = source.randrange(len(text))
        piece = source.choice(
            ['"', ",", "{", "}", "[", "]", ":", " ", "\n", "0", "1", ".", "-", "e", "a", "\\", "null"]
        )
        cut = source.choice([0, 1, 1, 2])
        mutated.append(text[:where] + piece + text[where + cut :])
        mutated.append(text[:where] + text[where + 1 :])
    return mutated


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 2**32))
def test_accepted_texts_validate_even_after_random_edits(schema: Any, seed: int) -> None:
    source = random.Random(seed)
    language = compile_or_skip(schema)
    assume(language is not None)
    assert language is not None
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    walkers = [Walker.of_language(language)]
    if language.regex is not None:
        walkers.append(Walker.of_regex(language.regex))
    for _ in range(6):
        for text in serialisations(guesses(schema, source)):
            for mutated in mutations(text, source):
                verdicts = {walker.accepts(mutated) for walker in walkers}
                if True in verdicts:
                    assert validator.is_valid(json.loads(mutated)), mutated
                    if language.regex is not None and mutated == json.dumps(json.loads(mutated)):
                        assert verdicts == {True}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 2**32), st.sampled_from(["compact", "spaced", "free"]))
def test_the_language_in_the_schemas_order_is_a_subset(schema: Any, seed: int, whitespace: Any) -> None:
    compile_or_skip(schema)
    try:
        ordered = json_schema_language(json.dumps(schema), whitespace=whitespace, order="schema")
    except InvalidConstraintError:
        assume(False)
        return
    walkers = [Walker.of_language(ordered)]
    if ordered.regex is not None:
        walkers.append(Walker.of_regex(ordered.regex))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    source = random.Random(seed)
    for _ in range(12):
        value = guesses(schema, source)
        separators = {"compact": (",", ":"), "spaced": (", ", ": "), "free": (",", ": ")}[whitespace]
        text = json.dumps(value, separators=separators)
        verdicts = {walker.accepts(text) for walker in walkers}
        assert len(verdicts) == 1, text
        assert validator.is_valid(value) or verdicts == {False}, text
