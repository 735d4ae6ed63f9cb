"""Regular expressions as values: those that may be written are read by every common engine."""

from __future__ import annotations

import json
import random
import re
from datetime import timedelta

import jsonschema_rs
import pytest
from pydantic import TypeAdapter
from walk import Walker

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.json_schema.formats import _PATTERNS, _WIDEST, format_set, widest_format_set
from draftline.structured.json_schema.shapes.strings import meet, outside

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


def test_durations_are_read_by_pydantic() -> None:
    walker = Walker.of_language(json_schema_language(json.dumps({"type": "string", "format": "duration"})))
    for text in ("P999999Y999999M999999DT999999H999999M999999S", "P999999W", "PT90M", "P0001D", "P1Y2M"):
        assert walker.accepts(json.dumps(text))
        TypeAdapter(timedelta).validate_python(text)
    for text in ("P1000000D", "PT99999999999S", "P1Y2D", "P", "P1DT"):
        assert not walker.accepts(json.dumps(text))


def test_the_domain_of_an_email_address_has_up_to_ten_labels() -> None:
    schema = {"type": "string", "format": "email"}
    walker = Walker.of_language(json_schema_language(json.dumps(schema)))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    longest = "x" * 64 + "@" + ".".join(["y" * 18] * 10)  # 254 characters
    for text in ("a@mail.eu.corp.example.co.uk", "a@1.2.3.4.5.6.7.8.9.org", "a@" + "b" * 60 + ".c.d", longest):
        assert validator.is_valid(text), text
        assert walker.accepts(json.dumps(text)), text
    assert not walker.accepts(json.dumps(longest + "y"))


@pytest.mark.parametrize("name", sorted(_PATTERNS))
def test_no_string_of_a_format_is_surely_outside(name: str) -> None:
    inside, most = format_set(name), widest_format_set(name)
    assert inside is not None
    assert most is not None
    assert all(meet(inside, rest).is_empty() for rest in outside(most))


@pytest.mark.parametrize("name", sorted(_WIDEST))
def test_a_validator_rejects_what_is_surely_outside(name: str) -> None:
    schema = {"type": "string", "not": {"format": name}}
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    walker = Walker.of_language(json_schema_language(json.dumps(schema)))
    source = random.Random(3)
    texts = [text for _ in range(50) if (text := walker.write(source, 60)) is not None]
    assert len(texts) > 20
    assert [text for text in texts if not validator.is_valid(json.loads(text))] == []


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        (
            "idn-email",
            ["a@b.c", "maximilian.müller@münchner-verein.de", "实例@例子.广告", "δοκιμή@παράδειγμα.gr"],
            ["@b.c", "ü b@c.d", "ü.@b.c", "ü", "a@ü-.de", "ü" * 33 + "@b.c"],
        ),
        (
            "idn-hostname",
            ["localhost", "straße.de", "пример.рф", "例え.テスト", "한국.kr", "zażółć-gęślą.pl"],
            ["", "-ü.de", "ü..de", "a_ü.de", "・.jp", "ü" * 60 + ".de", "ä\u0301.de"],
        ),
    ],
)
@pytest.mark.parametrize("draft", ["draft-07", "draft/2020-12"])
def test_international_names(draft: str, name: str, inside: list[str], outside: list[str]) -> None:
    schema = {"$schema": f"http://json-schema.org/{draft}/schema", "type": "string", "format": name}
    walker = Walker.of_language(json_schema_language(json.dumps(schema)))
    judge = jsonschema_rs.validator_for({"$schema": schema["$schema"], "format": name}, validate_formats=True)
    for text in inside:
        assert judge.is_valid(text)
        assert walker.accepts(json.dumps(text)), text
    for text in outside:
        assert not walker.accepts(json.dumps(text)), text
    source = random.Random(1)
    written = [text for _ in range(100) if (text := walker.write(source)) is not None]
    assert len(written) > 50
    assert all(judge.is_valid(json.loads(text)) for text in written)


ZOD_TIME = r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?$"


@pytest.mark.parametrize("draft", ["draft-07", "draft/2020-12"])
def test_a_time_s_pattern_without_an_offset_counts(draft: str) -> None:
    schema = {"type": "string", "format": "time", "pattern": ZOD_TIME}
    language = json_schema_language(json.dumps({"$schema": f"http://json-schema.org/{draft}/schema", **schema}))
    assert [(one.pointer, one.keyword) for one in language.unenforced] == [("/format", "format")]
    walker = Walker.of_language(language)
    assert walker.accepts('"10:30:00"')
    assert not walker.accepts('"10:30:00Z"')
    negated = Walker.of_language(json_schema_language(json.dumps({"type": "string", "not": schema})))
    assert negated.accepts('"10:30:00Z"')
    assert not negated.accepts('"10:30:00"')


def test_a_pattern_of_no_times_excludes_its_format() -> None:
    for name in ("time", "date-time"):
        with pytest.raises(InvalidConstraintError, match="no value matches"):
            json_schema_language(json.dumps({"type": "string", "format": name, "pattern": "^noon$"}))


def test_a_date_time_s_pattern_without_an_offset_counts() -> None:
    schema = {"type": "string", "format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"}
    walker = Walker.of_language(json_schema_language(json.dumps(schema)))
    assert walker.accepts('"2025-01-31T10:30:00"')
    assert not walker.accepts('"2025-01-31T10:30:00Z"')


def test_a_time_s_pattern_with_an_offset_narrows_its_format() -> None:
    language = json_schema_language(json.dumps({"type": "string", "format": "time", "pattern": "Z$"}))
    assert not language.unenforced
    walker = Walker.of_language(language)
    assert walker.accepts('"10:30:00Z"')
    assert not walker.accepts('"Z"')
