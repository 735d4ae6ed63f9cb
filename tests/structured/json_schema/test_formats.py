"""Regular expressions as values: those that may be written are read by every common engine."""

from __future__ import annotations

import json
import random
import re

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language

SCHEMA = {"type": "string", "format": "regex"}


def test_random_regular_expressions_are_valid() -> None:
    walker = Walker.of_language(json_schema_language(json.dumps(SCHEMA)))
    validator = jsonschema_rs.validator_for(SCHEMA, validate_formats=True)
    source = random.Random(8)
    found = [json.loads(text) for _ in range(60) if (text := walker.write(source, 100)) is not None]
    assert len(found) > 30
    for pattern in found:
        assert validator.is_valid(pattern), pattern
        re.compile(pattern)  # without a warning


@pytest.mark.parametrize(
    ("patterns", "written"),
    [
        (["", "^[a-z0-9_-]+$", r"^\d{4}-\d\d$", "^(foo|bar(?:baz)?)*$", r"^(?=.*\d)[^&<>]{8,}$", r"\u00e9\$", "(((a)))"], True),
        (["(", "a**", "[z-a]", "a{2,1}", "[]", "(?=a)*", r"\c", "[a&&b]", "[||]", "(?<=a)b", r"(a)\1", "((((a))))"], False),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_regular_expressions(draft: str, patterns: list[str], written: bool) -> None:
    language = json_schema_language(json.dumps({"$schema": draft, **SCHEMA}))
    assert language.unenforced == ()
    walker = Walker.of_language(language)
    assert [pattern for pattern in patterns if walker.accepts(json.dumps(pattern)) != written] == []
