"""Strings with a bound on their length and several other conditions, followed within the engine's limits."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from own_matchers import Ours

from draftline.structured.json_schema import json_schema_language

PASSWORD = r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[^\w]).+$"
ADDRESSES = (
    "https://a.example:80/b/c.json",
    "https://me@a.example/b.json",
    "http://a.example/?b=$c",
    "urn:a:b",
    "a",
    "",
)


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"format": "uri", "pattern": r"\.json$", "maxLength": 2048}, ADDRESSES),
        ({"format": "uri", "minLength": 1, "maxLength": 2083, "not": {"pattern": "@"}}, ADDRESSES),
        ({"format": "uri", "maxLength": 65536, "not": {"pattern": r"(?<!\\)\$([_a-z]\w*).*"}}, ADDRESSES),
        ({"format": "iri", "pattern": "^https://", "minLength": 25, "maxLength": 2048}, (*ADDRESSES, "https://ä.example/" + "ö" * 9)),
        ({"pattern": PASSWORD, "minLength": 12, "maxLength": 128}, ("Passw0rd!xyzabc", "Passw0rd!", "password!123", "Pä55w0rd…ßüöä")),
        ({"pattern": r"^(?!.*--)(?!-)[\w\s-]+(?<!-)$", "maxLength": 9}, ("a b-c", "a--b", "-a", "a-", "a b c d e f")),
    ],
    ids=str,
)  # fmt: skip
def test_several_conditions_and_a_length(schema: Any, texts: tuple[str, ...]) -> None:
    schema = {"type": "string", **schema}
    ours = Ours(json_schema_language(json.dumps(schema)))
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    outcomes = [judge.is_valid(text) for text in texts]
    assert {True, False} == set(outcomes)
    source = random.Random(7)
    assert [ours.accepts(json.dumps(text), source) for text in texts] == outcomes


@pytest.mark.parametrize(
    "options",
    [
        [{"format": "uri", "maxLength": 2048}, {"format": "email", "maxLength": 254}],
        [{"format": "uri"}, {"format": "email", "maxLength": 254}],
        [{"format": "uri", "minLength": 1}, {"pattern": "^u", "minLength": 1, "maxLength": 1000}],
        [{"format": "uri", "minLength": 9}, {"pattern": "^u", "maxLength": 100}, {"pattern": "^a$"}],
    ],
    ids=str,
)
def test_exactly_one_of_several_with_lengths(options: list[Any]) -> None:
    schema = {"type": "string", "oneOf": options}
    ours = Ours(json_schema_language(json.dumps(schema)))
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    source = random.Random(7)
    # An address with an @ may be an e-mail address for some validator.
    others = [text for text in ADDRESSES if "@" not in text]
    for text in (*others, "me@a.example", "u", "urn:a:b:c:d", f"urn:{'a' * 100}", f"{'a' * 60}@{'b' * 60}.example"):
        assert ours.accepts(json.dumps(text), source) == judge.is_valid(text), text
