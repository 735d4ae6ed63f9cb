"""Three judges of generated schemas and texts: the engine's matchers, llguidance's own reading of schemas, and jsonschema-rs.

jsonschema-rs says what is valid. llguidance finds texts that our generators do not make, and is never the reason to
accept a text. A case is a schema and a text that all three have looked at, or all but llguidance if it refuses the schema.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from own_matchers import Ours
from random_schemas import guesses, may_leave_out, schemas, serialisations
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.language import Language


def llguidance(schema: Any) -> Walker | None:
    """Its own reading of a schema; None if it refuses it."""
    try:
        return Walker(LLMatcher.grammar_from_json_schema(schema))
    except (ValueError, AssertionError):
        return None


def edited(text: str, source: random.Random) -> str:
    where = source.randrange(len(text))
    piece = source.choice(['"', ",", "}", "]", ":", " ", "0", "1", ".", "-", "e", "a", "null", '"a":1,'])
    return text[:where] + piece + text[where + source.choice([0, 1, 1, 2]) :]


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read(text: str) -> tuple[Any, bool]:
    """The value of a text, and whether it is JSON of Unicode text; members may repeat, as the standard allows."""
    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return None, False
    return value, True


def judge(schema: Any, source: random.Random, rounds: int, found: Counter[str]) -> None:
    try:
        language = json_schema_language(json.dumps(schema))
        ours: Ours | None = Ours(language)
    except UnsupportedConstraintError:
        return
    except InvalidConstraintError as error:
        if "no value" not in str(error):
            raise
        ours = None
    valid = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
    other = llguidance(schema)
    spelled = "multipleOf" in json.dumps(schema)  # multiples have fewer spellings: see docs/structured.md
    patterns = "attern" in json.dumps(schema)
    texts = [text for _ in range(rounds) for text in serialisations(guesses(schema, source))[: 1 + spelled]]
    guessed = len(texts)
    theirs = [text for _ in range(rounds) if other is not None and (text := other.write(source, 120)) is not None]
    written = [text for _ in range(rounds) if ours is not None and (text := written_by(language, source)) is not None]
    for text in written:
        value, is_json = read(text)
        assert is_json, text
        assert valid(value), text
    for text in theirs:
        # Its numbers and strings have spellings that are left out here; the usual spelling of their values has none.
        value, is_json = read(text)
        if is_json:
            texts.append(json.dumps(value))
    usual = len(texts)
    texts += [edited(source.choice(texts), source) for _ in range(rounds)] + theirs
    for index, text in enumerate(texts):
        value, is_json = read(text)
        right = is_json and valid(value)
        verdict = ours is not None and ours.accepts(text, source)
        assert right or not verdict, (schema, text)
        # Formats leave out texts that llguidance may find.
        exact = index < guessed or (index < usual and "format" not in json.dumps(schema))
        exact = exact and not may_leave_out(schema, value)
        # The "." of a pattern stands for no line end in ECMA-262, and in jsonschema-rs for all but one.
        doubtful = patterns and any(end in json.dumps(value) for end in (r"\r", r"\u2028", r"\u2029"))
        if exact and not doubtful and not (spelled and any(sign in text for sign in ("e+", "e-", ".0"))):
            assert verdict == right, (schema, text)
        found["cases"] += 1
        found["accepted"] += verdict
        if other is not None:
            found["llguidance"] += 1
            found["llguidance accepts what is invalid"] += other.accepts(text) and not right


def written_by(language: Language, source: random.Random) -> str | None:
    if language.unique is not None:
        return None  # a walker compares items only at the end
    return Walker.of_grammar(language.grammar).write(source, 120)


def judge_many(count: int, examples: int, rounds: int) -> Counter[str]:
    found: Counter[str] = Counter()

    @seed(18)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas(), st.integers(0, 2**32))
    def one(schema: Any, number: int) -> None:
        judge(schema, random.Random(number), rounds, found)

    one()
    assert found["cases"] >= count, found
    assert found["accepted"] > count / 10, found
    assert found["llguidance"] > count / 4, found
    return found


def test_500_cases() -> None:
    judge_many(500, 50, 4)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_100_000_cases() -> None:
    print(judge_many(100_000, 9_000, 5))
