"""Three judges of generated schemas and texts: the engine's matchers, llguidance's own reading of schemas, and jsonschema-rs.

jsonschema-rs says what is valid. llguidance finds texts that our generators do not make, and is never the reason to
accept a text. A case is a schema and a text that all three have looked at, or all but llguidance if it refuses the schema.
"""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from random_schemas import guesses, schemas, serialisations
from walk import Walker

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.byte_moves import byte_moves
from draftline.structured.automaton.host_automaton import HostAutomaton, HostAutomatonMatcher
from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.backend import GrammarBackend
from draftline.structured.json_schema import json_schema_language
from draftline.structured.language import Language
from draftline.structured.matcher import Matcher
from draftline.structured.unique.cursor import Cursor
from draftline.structured.unique.matcher import UniqueMatcher
from draftline.structured.unique.tokens import ItemTokens
from draftline.structured.vocabulary import ByteVocabulary

EOS = 256
VOCABULARY = ByteVocabulary(
    (*(bytes([byte]) for byte in range(EOS)), b""), frozenset({EOS}), frozenset({EOS}), lambda text: list(text.encode())
)
ITEMS = ItemTokens.of(VOCABULARY)
TRIE = TokenTrie.of(VOCABULARY.tokens)


@functools.cache
def grammars() -> GrammarBackend:
    return GrammarBackend(VOCABULARY)


class Ours:
    """The matchers of a schema: the grammar's and, if there is one, the automaton's."""

    def __init__(self, language: Language) -> None:
        self._pristine = grammars().compile(language.grammar)
        self._unique = language.unique
        self._host: HostAutomaton | None = None
        if language.regex is not None:
            automaton = ByteAutomaton.of(byte_moves(language.regex, 50_000)).within(TRIE.bytes_used)
            self._host = HostAutomaton(automaton, TRIE, VOCABULARY)
        self._words = np.empty(VOCABULARY.mask_words, np.int32)

    def accepts(self, text: str, source: random.Random) -> bool:
        """Whether a text is complete. Both matchers say the same, and at some place their masks do."""
        matcher: Matcher = self._pristine.beginning()
        if self._unique is not None:
            matcher = UniqueMatcher(matcher, self._unique, ITEMS, Cursor())
        matchers = [matcher] if self._host is None else [matcher, HostAutomatonMatcher(self._host)]
        data = text.encode()
        looked = source.randrange(len(data) + 1)
        for index, token in enumerate((*data, EOS)):
            if index == looked:
                assert len({self._mask(one) for one in matchers}) == 1, text
                legal = bool(self._words[token // 32] >> token % 32 & 1)
            steps = {one.advance(token) for one in matchers}
            assert len(steps) == 1, (text, index)
            assert index != looked or steps == {legal}, (text, index)
            if steps == {False}:
                return False
        return True

    def _mask(self, matcher: Matcher) -> bytes:
        matcher.fill_mask(self._words)
        return self._words.tobytes()


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
        if exact and not (spelled and any(sign in text for sign in ("e+", "e-", ".0"))):
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


def test_1_000_cases() -> None:
    judge_many(1_000, 100, 4)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_100_000_cases() -> None:
    print(judge_many(100_000, 9_000, 5))
