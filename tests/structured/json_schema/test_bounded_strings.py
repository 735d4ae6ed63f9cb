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


@pytest.mark.parametrize(
    ("pattern", "low", "high"),
    [
        ("^https://.+$", 0, 100),
        (r"^.*\.json$", 7, 2000),
        (r"^(?:[ab]{2})+$|^c?d*$", 3, 9),
        (r"^(?:ab){2,40}(?:cd)?$", 9, 11),
        (r"^[a-z]{3}-?$|^e{2,}$|^abcdef$", 4, 5),
        ("^(a+)+$", 1, 100),
        (r"^[^@]+@[^@]{2}$", 4, 90),
        (r"^\d+(\.[0-9]+)?(Z|[+-]\d\d)?$", 2, 99),
    ],
)
def test_one_pattern_and_a_length(pattern: str, low: int, high: int) -> None:
    schema = {"type": "string", "pattern": pattern, "minLength": low, "maxLength": high}
    judge = jsonschema_rs.validator_for(schema)
    source = random.Random(8)
    parts = ["https://", "a", "b", "ab", "cd", "c", "d", "-", "e", ".json", "@", "1", ".", "+01", "Z", "abcdef", "é"]
    some = {"".join(source.choices(parts, k=source.randrange(6))) for _ in range(600)}
    for body in ("a", "e", "ab", "1"):
        for around in ("{}", "https://{}", "{}.json", "{}cd", "c{}", "{}@ab", "{}.1", "{}+01", "{}1Z"):
            some |= {around.format(body * count) for count in (1, 2, 3, 5, 30, 46, 90, 92, 93, 97, 98, 99, 100, 101)}
    ours = Ours(json_schema_language(json.dumps(schema)))
    outcomes = {text: judge.is_valid(text) for text in sorted(some)}
    assert {True, False} == set(outcomes.values())
    wrong = [text for text, valid in outcomes.items() if ours.accepts(json.dumps(text), source) != valid]
    assert wrong == []


def test_a_bounded_part_keeps_its_count() -> None:
    for pattern in ("^https://.+$", r"^.*\.json$", "^[a-z]([a-z0-9]{2})*$|^x{3,}$"):
        schema = {"type": "string", "pattern": pattern, "maxLength": 200}
        language = json_schema_language(json.dumps(schema), whitespace="compact")
        assert language.regex is not None
        assert len(language.regex) < 3_000
