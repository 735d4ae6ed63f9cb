from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import regex as reference
from byte_automata import accepts, compile_bytes
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabulary import texts

from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.regex_anchors import without_outer_anchors
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.regular.syntax import (
    EMPTY,
    MAX_NESTING,
    Node,
    alt,
    literal,
    nesting,
    optional,
    repeat,
    seq,
    to_regex,
)

ALPHABET = "abé"


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", "", "ab", "(?i:A)"])

    def combine(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = parts.map(lambda part: f"(?:{part})")
        repeat = st.tuples(group, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?"]))
        return st.one_of(
            st.tuples(parts, parts).map("".join),
            st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})"),
            repeat.map("".join),
        )

    return st.recursive(leaves, combine, max_leaves=6)


@settings(max_examples=examples(150), deadline=None)
@given(expressions())
def test_it_accepts_whole_matches(expression: str) -> None:
    pattern = reference.compile(expression)
    automaton = compile_bytes(expression, 10_000)
    for text in texts(ALPHABET, 4):
        assert accepts(automaton, text) == bool(pattern.fullmatch(text)), text


@settings(max_examples=examples(100), deadline=None)
@given(expressions())
def test_its_states_are_distinct_and_alive(expression: str) -> None:
    automaton = compile_bytes(expression, 10_000)
    states = automaton.states
    # Two states are equivalent until a text tells them apart: try all texts at once, longest first.
    kind = np.append(automaton.accepting.astype(int), -1)
    for _ in range(states):
        _, kind = np.unique(np.column_stack((kind, kind[automaton.next])), axis=0, return_inverse=True)
        kind = kind.reshape(-1)
    assert len(np.unique(kind)) == states + 1
    leads = np.append(automaton.accepting, False)
    for _ in range(states):
        leads |= leads[automaton.next].any(axis=1)
    assert leads[:-1].all()
    assert not leads[-1]


@pytest.mark.parametrize(
    ("expression", "inside"),
    [
        (r"^abc$", "abc"),
        (r"\Aabc\z", "abc"),
        (r"^a|b$|^c$", "a|b|c"),
        (r"[]^|]a|b", "[]^|]a|b"),
        (r"^[^]$]$", "[^]$]"),
        (r"a\|b$", r"a\|b"),
        (r"\^a\$", r"\^a\$"),
        (r"(a|b$)c", r"(a|b$)c"),
        (r"[[^a]|]$", "[[^a]|]"),
        (r"$", ""),
        ("[a", "[a"),
        ("a\\", "a\\"),
    ],
)
def test_outer_anchors_are_redundant(expression: str, inside: str) -> None:
    assert without_outer_anchors(expression) == inside


@pytest.mark.parametrize("expression", ["(^a|b)c", "a^b", "(?m)^a$\n^b"])
def test_an_inner_opening_anchor_is_rejected(expression: str) -> None:
    with pytest.raises(InvalidConstraintError, match="at the beginning only"):
        compile_bytes(expression, 100)


def test_an_inner_closing_anchor_keeps_its_meaning() -> None:
    automaton = compile_bytes("(?:a$|b)c?", 100)
    assert [text for text in texts("abc", 2) if accepts(automaton, text)] == ["a", "b", "bc"]


def test_ascii_word_boundaries_keep_their_meaning() -> None:
    automaton = compile_bytes(r"(?-u:\b)?[a .]+(?-u:\b)[a .]*", 1000)
    pattern = reference.compile(r"\b?[a .]+\b[a .]*")
    for text in texts("a .", 4):
        assert accepts(automaton, text) == bool(pattern.fullmatch(text)), text


@pytest.mark.parametrize(
    "expression", ["(a", "a)", "a)|(b", r"\p{Nope}", "(?=a)b", r"(a)\1", r"\bfoo", "a{2,1}", "[z-a]"]
)
def test_malformed_expressions_are_rejected(expression: str) -> None:
    with pytest.raises(InvalidConstraintError, match="not a supported regular expression"):
        compile_bytes(expression, 1000)


@pytest.mark.parametrize("expression", ["[a&&b]", "a$b"])
def test_an_expression_that_matches_nothing_is_rejected(expression: str) -> None:
    with pytest.raises(InvalidConstraintError, match="no text matches"):
        compile_bytes(expression, 1000)


def test_states_are_bounded() -> None:
    with pytest.raises(AutomatonTooLargeError, match="at most 100 are allowed"):
        compile_bytes("a{0,200}b", 100)


@pytest.mark.parametrize("wrap", [0, 1, 2, 3, 4, None])
def test_an_expression_may_nest_as_deep_as_its_tree_is_allowed_to(wrap: int | None) -> None:
    a, b = literal("a"), literal("b")
    wraps: list[Callable[[Node], Node]] = [
        lambda inner: seq(a, optional(inner)),
        lambda inner: seq(a, alt([EMPTY, inner])),
        lambda inner: seq(a, alt([seq(a, b), inner]), b),
        lambda inner: repeat(seq(b, inner), 0, None),
        lambda inner: alt([seq(a, a), seq(b, inner)]),
    ]
    source = random.Random(0)  # some mixtures have more states than are allowed
    tree = seq(a, b)
    for _ in range(300):
        deeper = wraps[source.randrange(5) if wrap is None else wrap](tree)
        if nesting(deeper) > MAX_NESTING:
            break
        tree = deeper
    assert nesting(tree) > MAX_NESTING - 6
    assert compile_bytes(to_regex(tree), 100_000).states > 50
