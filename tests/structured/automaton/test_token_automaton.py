from __future__ import annotations

import itertools

import numpy as np
import outlines_core
import pytest
from byte_automata import compile_bytes
from small_vocabulary import allowed, vocabulary

from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.vocabulary import ByteVocabulary

VOCABULARY = vocabulary("ab", "abc", "bc", "aa", "é", b"\xa9a", "ba", '{"', '": "', "12", "3.", ' "', "true", "a" * 20)

EXPRESSIONS = [
    "a|ab",
    "(a|b)*c",
    "(aa)*",
    "é+a?",
    "[^a]{0,3}",
    r'\{"ab": "[^"\\]*", "c": (true|-?[0-9]+(\.[0-9]+)?)\}',
    "",
    "(ab|a)(bc|c){2,5}",
    "a{0,30}",
    "a{20}",
]


def build(expression: str, words: ByteVocabulary = VOCABULARY, *, budgets: bool = False) -> TokenAutomaton:
    automaton = compile_bytes(expression, 10_000)
    return compile_tokens(automaton, words.tokens, sorted(words.eos_ids), budgets=budgets, max_bytes=1 << 24)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_masks_equal_brute_force(expression: str) -> None:
    """A token is legal if its bytes lead to a state of the byte automaton: all of these reach acceptance."""
    over_bytes = compile_bytes(expression, 10_000)
    automaton = build(expression)
    over_bytes_of = {0: 0}
    front = [0]
    while front:
        state = front.pop()
        expected = set(VOCABULARY.eos_ids) if over_bytes.accepting[over_bytes_of[state]] else set()
        for token, text in enumerate(VOCABULARY.tokens):
            target = over_bytes_of[state]
            for byte in text:
                target = int(over_bytes.next[target, over_bytes.byte_class[byte]])
            if not text or target == over_bytes.states:
                continue
            expected.add(token)
            after = int(automaton.next[state, automaton.token_class[token]])
            if after not in over_bytes_of:
                front.append(after)
            assert over_bytes_of.setdefault(after, target) == target
        assert allowed(automaton.masks[automaton.mask_of[state]], len(VOCABULARY.tokens)) == expected
        assert set(np.flatnonzero(automaton.next[state, automaton.token_class] >= 0)) == expected
    assert len(over_bytes_of) == automaton.states - 1


@pytest.mark.parametrize("expression", ["(a|b)*c", r'\{"ab": "[^"\\]*", "c": (true|-?[0-9]+(\.[0-9]+)?)\}', "é+a?x"])
def test_it_equals_the_automaton_of_outlines_core_for_the_whole_vocabulary(expression: str) -> None:
    eos = min(VOCABULARY.eos_ids)
    ids: dict[bytes, list[int]] = {}
    for token, text in enumerate(VOCABULARY.tokens):
        if text:
            ids.setdefault(text, []).append(token)
    index = outlines_core.Index(expression, outlines_core.Vocabulary(eos, ids))
    automaton = build(expression)
    transitions = index.get_transitions()
    ours_of = {index.get_initial_state(): 0}
    front = [index.get_initial_state()]
    while front:
        state = front.pop()
        moves = transitions[state]
        allowed_here = allowed(automaton.masks[automaton.mask_of[ours_of[state]]], len(VOCABULARY.tokens))
        assert allowed_here - VOCABULARY.eos_ids == moves.keys() - {eos}
        assert bool(allowed_here & VOCABULARY.eos_ids) == (eos in moves)
        for token, target in moves.items():
            if token != eos and target not in ours_of:
                ours_of[target] = int(automaton.next[ours_of[state], automaton.token_class[token]])
                front.append(target)
    assert set(ours_of.values()) == set(range(automaton.states - 1))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_distances_and_closing_masks_equal_brute_force(expression: str) -> None:
    automaton = build(expression, budgets=True)
    size = len(VOCABULARY.tokens)
    moves = [
        {int(after) for after in row[automaton.token_class[np.array([bool(text) for text in VOCABULARY.tokens])]]}
        - {-1}
        for row in automaton.next
    ]
    within = [{state for state in range(automaton.states) if automaton.accepting[state]}]
    while len(within) < 40:
        within.append(within[-1] | {state for state in range(automaton.states) if moves[state] & within[-1]})
    for state in range(automaton.states):
        assert state in within[automaton.distance[state]]
        assert automaton.distance[state] == 0 or state not in within[automaton.distance[state] - 1]
        words = np.empty(VOCABULARY.mask_words, np.int32)
        for left in range(max(int(automaton.distance[state]), 1), 39):
            AutomatonMatcher(automaton, state, budget=left).fill_mask(words)
            expected = set()
            for token in range(size):
                after = int(automaton.next[state, automaton.token_class[token]])
                if after >= 0 and after in within[left - 1]:
                    expected.add(token)
            assert allowed(words, size) == expected
            assert expected


def test_only_text_that_tokens_can_write_is_allowed() -> None:
    tokens = (b"a", b"b", b"ac", b"", b"")
    words = ByteVocabulary(tokens, frozenset({4}), frozenset({3, 4}), lambda text: [])
    # Every token with "c" begins with "a": after "b" nothing could follow.
    automaton = build("(a|b)c|aa", words)
    matcher = AutomatonMatcher(automaton)
    mask = np.empty(1, np.int32)
    matcher.fill_mask(mask)
    assert allowed(mask, 5) == {0, 2}
    assert not matcher.advance(1)
    assert matcher.advance(0)
    matcher.fill_mask(mask)
    assert allowed(mask, 5) == {0}
    with pytest.raises(InvalidConstraintError, match="in the model's tokens"):
        build("bc", words)


def test_a_mask_is_never_empty_and_special_tokens_are_in_none() -> None:
    for expression, budgets in itertools.product(EXPRESSIONS, (False, True)):
        automaton = build(expression, budgets=budgets)
        bits = np.unpackbits(automaton.masks.view(np.uint8), axis=1, bitorder="little")
        assert bits.any(axis=1).all()
        assert not bits[:, 0].any()
        assert not bits[:, len(VOCABULARY.tokens) :].any()


def test_forced_bytes() -> None:
    automaton = build('(?s)\\{"ab": ("é+"|1)\\}')
    matcher = AutomatonMatcher(automaton)
    assert matcher.forced() == b'{"ab": '
    for text in ('{"', "a", "b", '"', ":", " "):
        assert matcher.advance(VOCABULARY.tokens.index(text.encode()))
    assert matcher.forced() == b""
    assert matcher.advance(VOCABULARY.tokens.index(b"1"))
    assert matcher.forced() == b"}"
    assert not matcher.ended
    assert matcher.advance(VOCABULARY.tokens.index(b"}"))
    assert matcher.forced() == b""
    assert matcher.ended


def test_tables_are_bounded() -> None:
    automaton = compile_bytes("[a-z]{0,400}", 10_000)
    with pytest.raises(AutomatonTooLargeError):
        compile_tokens(automaton, VOCABULARY.tokens, [271], budgets=False, max_bytes=1000)


def test_tokens_with_the_same_moves_are_one_class() -> None:
    automaton = build("[a-z]*[0-9]")
    classes = automaton.token_class
    tokens = VOCABULARY.tokens
    assert len({classes[tokens.index(text)] for text in (b"a", b"z", b"ab", b"abc", b"true")}) == 1
    assert classes[tokens.index(b"12")] == classes[tokens.index(b"!")] == classes[0] == 0
    assert automaton.classes == 4  # nowhere, letters, a digit, the end
