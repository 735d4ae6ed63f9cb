"""One contract, three backends: each is fuzzed against a replay from scratch, and against the others."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from byte_automata import compile_bytes
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabulary import allowed, legal_tokens, vocabulary

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.byte_moves import byte_moves
from draftline.structured.automaton.host_automaton import HostAutomaton, HostAutomatonMatcher
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.backend import GrammarBackend
from draftline.structured.grammar.lark import regex_grammar
from draftline.structured.masks import MaskedRow, fill_masks
from draftline.structured.matcher import Matcher
from draftline.structured.vocabulary import ByteVocabulary

VOCABULARY = vocabulary("ab", "abc", "bc", "aa", "é", '{"', '": ', '":', '"}', "12", "3.", ' "', "true", '"a', 'b"')
SIZE = len(VOCABULARY.tokens)
EOS = sorted(VOCABULARY.eos_ids)

EXPRESSIONS = {
    "alternatives": "a|ab|abc1",
    "closed": r'\{"ab": "[ab]{0,3}", "c": (true|-?[0-9]{1,3}(\.[0-9]+)?)\}',
    "open": "[^b]*",
    "words": "(ab|é+|aa)*12",
    "once": "abc",
}
GRAMMARS = GrammarBackend(VOCABULARY)

Make = Callable[[str], Matcher]


@functools.cache
def automaton_of(expression: str) -> TokenAutomaton:
    automaton = compile_bytes(expression, 10_000)
    return compile_tokens(automaton, VOCABULARY.tokens, EOS, budgets=False, max_bytes=1 << 24)


def by_automaton(expression: str) -> Matcher:
    return AutomatonMatcher(automaton_of(expression))


@functools.cache
def host_of(expression: str) -> HostAutomaton:
    trie = TokenTrie.of(VOCABULARY.tokens)
    assert trie.is_complete
    automaton = ByteAutomaton.of(byte_moves(expression, 10_000)).within(trie.bytes_used)
    return HostAutomaton(automaton, trie, VOCABULARY)


def by_host(expression: str) -> Matcher:
    return HostAutomatonMatcher(host_of(expression))


def by_grammar(expression: str) -> Matcher:
    return GRAMMARS.compile(regex_grammar(expression))


def mask(matcher: Matcher) -> set[int]:
    return legal_tokens(matcher, VOCABULARY)


def verify(*rows: MaskedRow) -> list[set[int]]:
    masks = np.empty((sum(len(row.drafts) + 1 for row in rows), VOCABULARY.mask_words), np.int32)
    fill_masks(rows, masks)
    return [allowed(row, SIZE) for row in masks]


def look(matcher: Matcher) -> tuple[object, ...]:
    """All visible state of a matcher."""
    seen = mask(matcher)
    return seen, matcher.consumed, matcher.complete, matcher.finished, matcher.ended, matcher.forced(), matcher.error


BACKENDS: dict[str, Make] = {"automaton": by_automaton, "host": by_host, "grammar": by_grammar}
all_backends = pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
every = pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)


@all_backends
@every
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_matcher_equals_a_replay_after_any_operations(make: Make, expression: str, data: st.DataObject) -> None:
    matcher, taken = make(expression), list[int]()
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["legal", "legal", "legal", "any", "back", "verify"])):
            case "legal":
                token = data.draw(st.sampled_from(sorted(mask(matcher))))
                assert matcher.advance(token)
                taken.append(token)
            case "any":
                token = data.draw(st.integers(-1, SIZE))
                legal = token in mask(matcher)
                assert matcher.advance(token) == legal
                taken += [token] * legal
            case "back":
                count = data.draw(st.integers(0, len(taken)))
                matcher.rollback(count)
                del taken[len(taken) - count :]
            case "verify":
                drafts = data.draw(st.lists(st.sampled_from([*sorted(mask(matcher)), 0, 5]), max_size=4))
                verify(MaskedRow(matcher, drafts=drafts))
        again = make(expression)
        assert all(again.advance(token) for token in taken)
        assert look(matcher) == look(again)


@every
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_all_backends_allow_the_same(expression: str, data: st.DataObject) -> None:
    matchers = [make(expression) for make in BACKENDS.values()]
    for _ in range(10):
        first, *others = map(look, matchers)
        assert all(other == first for other in others)
        token = data.draw(st.sampled_from(sorted(mask(matchers[0]))))
        assert all(matcher.advance(token) for matcher in matchers)


@all_backends
def test_end_of_sequence_is_a_counted_token_allowed_where_the_text_is_complete(make: Make) -> None:
    matcher = make("ab*")
    assert not matcher.advance(EOS[0])
    assert not matcher.complete
    assert matcher.advance(VOCABULARY.tokens.index(b"a"))
    assert matcher.complete
    assert mask(matcher) >= set(EOS)
    assert matcher.advance(EOS[1])
    assert matcher.consumed == 2
    matcher.rollback(1)
    assert not matcher.finished
    assert matcher.advance(VOCABULARY.tokens.index(b"b"))
    assert matcher.consumed == 2


@all_backends
def test_after_the_end_nothing_but_the_end_is_allowed(make: Make) -> None:
    matcher = make("ab*")
    for token in (VOCABULARY.tokens.index(b"a"), EOS[0]):
        assert matcher.advance(token)
    assert mask(matcher) == set(EOS)
    assert not matcher.advance(VOCABULARY.tokens.index(b"b"))
    assert matcher.advance(EOS[1])
    assert mask(matcher) == set(EOS)
    matcher.rollback(2)
    assert mask(matcher) == {VOCABULARY.tokens.index(text) for text in (b"b",)} | set(EOS)


@all_backends
def test_masks_behind_an_illegal_draft_repeat_the_last_legal_one(make: Make) -> None:
    matcher = make("abc|abd*")
    a, b, c, d = (VOCABULARY.tokens.index(text) for text in (b"a", b"b", b"c", b"d"))
    before = look(matcher)
    seen = verify(MaskedRow(matcher, drafts=[a, b, a, d]))
    ab, abc, bc = (VOCABULARY.tokens.index(text) for text in (b"ab", b"abc", b"bc"))
    assert seen[0] == {a, ab, abc}
    assert seen[1] == {b, bc}
    assert seen[2] == seen[3] == seen[4] == {c, d, *EOS}
    assert look(matcher) == before


@every
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_masks_of_many_rows_equal_those_of_each_row_alone(expression: str, data: st.DataObject) -> None:
    verifies, expected = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        make = data.draw(st.sampled_from(list(BACKENDS.values())))
        matcher, alone = make(expression), make(expression)
        for _ in range(data.draw(st.integers(0, 3))):
            token = data.draw(st.sampled_from(sorted(mask(matcher))))
            assert matcher.advance(token)
            assert alone.advance(token)
        taken: list[int] = []
        for _ in range(data.draw(st.integers(0, 2))):
            taken.append(data.draw(st.sampled_from(sorted(mask(alone)))))
            assert alone.advance(taken[-1])
        drafts = data.draw(st.lists(st.integers(0, SIZE - 1), max_size=3))
        expected.append(mask(alone))
        for index, draft in enumerate(drafts):
            if not alone.advance(draft):
                expected += [expected[-1]] * (len(drafts) - index)
                break
            expected.append(mask(alone))
        verifies.append(MaskedRow(matcher, taken, drafts))
    before = [look(verify.matcher) for verify in verifies]
    assert verify(*verifies) == expected
    assert [look(verify.matcher) for verify in verifies] == before


@all_backends
def test_rollback_of_more_tokens_than_were_taken_is_an_error(make: Make) -> None:
    matcher = make("ab")
    assert matcher.advance(VOCABULARY.tokens.index(b"a"))
    with pytest.raises(ValueError, match="2 tokens of 1"):
        matcher.rollback(2)


def test_a_grammar_may_name_tokens_without_text() -> None:
    matcher = GRAMMARS.compile('start: "a" ("b" <[0]> "c" | "d")')
    for text in (b"a", b"b"):
        assert matcher.advance(VOCABULARY.tokens.index(text))
    assert mask(matcher) == {0}
    assert matcher.advance(0)
    assert not matcher.complete
    assert matcher.advance(VOCABULARY.tokens.index(b"c"))
    assert matcher.ended


def test_a_grammar_cannot_use_end_of_sequence_as_text() -> None:
    for grammar, after in (("<[{}]>", set(EOS)), ('(<[{}]> "b" | "c")', {VOCABULARY.tokens.index(b"c")})):
        matcher = GRAMMARS.compile('start: "a" ' + grammar.format(EOS[0]))
        assert matcher.advance(VOCABULARY.tokens.index(b"a"))
        assert mask(matcher) == after
        assert not matcher.complete
        assert not matcher.advance(EOS[0])
        assert (matcher.error is not None) == (after == set(EOS))
        matcher.rollback(1)
        assert matcher.error is None


def test_a_grammar_at_a_dead_end_reports_it_and_ends() -> None:
    words = ByteVocabulary((b"a", b"b", b""), frozenset({2}), frozenset({2}), lambda text: [])
    matcher = GrammarBackend(words).compile('start: "b"* ("a" "c" | "b")')
    bits = np.empty(1, np.int32)
    assert matcher.advance(0)
    matcher.fill_mask(bits)
    assert allowed(bits, 3) == {2}
    assert matcher.error is not None
    assert not matcher.complete
    assert not matcher.advance(1)
    matcher.rollback(1)
    assert matcher.error is None
    assert matcher.advance(1)
    assert matcher.complete


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: nope", 'line 1, column 8: unknown name: "nope"\n   1 | start: nope\n              ^'),
        ('start: "a', 'line 1, column 10: lexer error\n   1 | start: "a\n                ^'),
        ('start: "a" b\nb: /(a/', 'line 2, column 4: invalid regex "(a": regex parse error:'),
        ("", "no start rule found"),
        ("start: /[a&&b]/", "no text matches it"),
        ("start: <foo>", 'line 1, column 8: unknown special token: "<foo>"\n   1 | start: <foo>'),
        ("start: a\na[max_tokens=1]: /a*/", "the attributes max_tokens and stop of a rule are not supported"),
    ],
)
def test_errors_of_grammars_are_in_the_words_of_their_authors(grammar: str, message: str) -> None:
    with pytest.raises(InvalidConstraintError) as caught:
        GRAMMARS.compile(grammar)
    assert str(caught.value).startswith(message)
    for internal in ("llguidance", "no_forcing", "backtrace", "NoExtension", "verbose"):
        assert internal not in str(caught.value)


def test_matchers_of_one_grammar_are_independent() -> None:
    one = GRAMMARS.compile("start: /ab*/")
    other = one.beginning()
    assert one.advance(VOCABULARY.tokens.index(b"a"))
    assert one.advance(EOS[0])
    assert not other.finished
    assert other.consumed == 0
    assert other.advance(VOCABULARY.tokens.index(b"a"))
    assert other.advance(VOCABULARY.tokens.index(b"b"))
