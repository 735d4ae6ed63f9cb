"""Random generation under a schema never gets stuck, and finished documents validate."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from own_matchers import Ours
from random_schemas import schemas
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language

SCHEMAS = sorted((Path(__file__).resolve().parents[3].parent / "shared" / "data" / "schemas").glob("*.json"))


def check(schema: Any, source: random.Random, rounds: int, **options: Any) -> None:
    """Generate documents, and validate those that end."""
    try:
        language = json_schema_language(json.dumps(schema), **options)
    except (InvalidConstraintError, UnsupportedConstraintError):
        assume(False)
        return
    walkers = [Walker.of_grammar(language.grammar)]
    if language.regex is not None:
        walkers.append(Walker.of_regex(language.regex))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    # A walker knows no more than the grammar, so it writes equal items where the host compares them.
    compared = Ours(language) if language.unique is not None else None
    for walker in walkers:
        for _ in range(rounds):
            text = walker.write(source)
            if text is not None and (compared is None or compared.accepts(text, source)):
                assert validator.is_valid(json.loads(text)), text


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 2**32), st.sampled_from(["compact", "free"]), st.sampled_from(["any", "schema"]))
def test_random_schemas(schema: Any, seed: int, whitespace: str, order: str) -> None:
    check(schema, random.Random(seed), 4, whitespace=whitespace, order=order)


def test_equal_items_that_the_host_compares() -> None:
    """A random schema once had a text with them, which the grammar alone allows."""
    schema = {"type": "array", "prefixItems": [True], "items": {"enum": [None]}, "uniqueItems": True}
    language = json_schema_language(json.dumps(schema), whitespace="compact")
    accepts = Ours(language).accepts
    assert not accepts("[0.7505,null,null]", random.Random(1))
    assert accepts("[0.7505,null]", random.Random(1))
    assert not accepts("[null,null]", random.Random(1))


def test_integers_that_readers_round_may_be_items() -> None:
    """Another: behind ``6e91`` the mask allowed an end that the matcher refused."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    accepts = Ours(json_schema_language(json.dumps(schema), whitespace="compact")).accepts
    for source in map(random.Random, range(8)):
        assert accepts("[6e91]", source)
        assert accepts("[6e91,7e91]", source)
        assert not accepts("[6e91,6.0e91]", source)
        assert not accepts(f"[{6 * 10**91},6e91]", source), "equal before it is rounded"
        assert not accepts(f"[6e91,{int(6e91)}]", source), "equal behind that"
        assert accepts("[9007199254740992,9007199254740993]", source)


def test_members_are_counted_though_another_keyword_requires_one() -> None:
    """Another random schema: of its two kinds of objects, one had a text with one member."""
    integers = {"additionalProperties": {"type": "integer"}, "dependentRequired": {"a": []}}
    kinds = [{"type": "object", **one} for one in ({"additionalProperties": False}, integers)]
    schema = {"type": "object", "minProperties": 2, "unevaluatedProperties": False, "anyOf": kinds}
    accepts = Ours(json_schema_language(json.dumps(schema), whitespace="compact")).accepts
    assert not accepts('{"":-9}', random.Random(1))
    assert accepts('{"":-9,"b":1}', random.Random(1))
    assert accepts('{"a":-9,"b":1}', random.Random(1))
    assert not accepts('{"b":-9,"b":1}', random.Random(1))


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 2**32), st.sampled_from(["compact", "free"]), st.sampled_from(["any", "schema"]))
def test_many_random_schemas(schema: Any, seed: int, whitespace: str, order: str) -> None:
    check(schema, random.Random(seed), 8, whitespace=whitespace, order=order)


@pytest.mark.skipif(not SCHEMAS, reason="no folder of schemas beside the repository")
@pytest.mark.slow
@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_real_schemas(path: Path) -> None:
    schema = json.loads(path.read_text())["schema"]
    try:
        json_schema_language(json.dumps(schema))
    except UnsupportedConstraintError as error:
        pytest.skip(f"refused: {error.violations[0]}")
    check(schema, random.Random(path.stem), 2, whitespace="spaced")
