"""Reasoning with a limit in front of a grammar: masks depend on the tokens taken alone, and reasoning ends in time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from small_vocabulary import legal_tokens, vocabulary

from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec
from draftline.structured.matcher import Matcher

# A token may end the reasoning and begin the answer.
WORDS = vocabulary("<r>", "</r>", "r>(", "</", "((", "))")
LIMIT = 7


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledConstraint]:
    compiler = ConstraintCompiler(WORDS)
    reasoning = ReasoningSpec("<r>", "</r>", limited=True)
    yield compiler.compile(ConstraintSpec("grammar", 'start: "(" start ")" | "a"', reasoning=reasoning))
    compiler.close()


def legal(matcher: Matcher) -> set[int]:
    return legal_tokens(matcher, WORDS)


@pytest.mark.parametrize("seed", range(5))
def test_masks_behind_a_rollback_are_those_of_a_new_matcher(compiled: CompiledConstraint, seed: int) -> None:
    source = random.Random(seed)
    matcher = compiled.begin(None, LIMIT).matcher
    taken: list[int] = []
    for _ in range(40):
        if taken and source.random() < 0.3:
            count = source.randrange(1, len(taken) + 1)
            matcher.rollback(count)
            del taken[len(taken) - count :]
        else:
            token = source.choice(sorted(legal(matcher)))
            assert matcher.advance(token)
            taken.append(token)
        fresh = compiled.begin(None, LIMIT).matcher
        assert all(fresh.advance(token) for token in taken)
        assert legal(matcher) == legal(fresh)
        assert matcher.consumed == len(taken)
        text = b"".join(WORDS.tokens[token] for token in taken)
        assert len(taken) < LIMIT or b"</r>" in text
