"""A grammar whose lexer states run out: masks stay exact, and a text that no lexer can follow fails by name."""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from byte_automata import compile_bytes
from small_vocabulary import allowed, legal_tokens, vocabulary

from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import compile_tokens
from draftline.structured.compiler import CompilerLimits, ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, language
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.backend import GrammarBackend
from draftline.structured.grammar.lark import regex_grammar
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.grammar.matcher import GrammarMatcher
from draftline.structured.grammar.parsers import GrammarParsers, ParserGeneration
from draftline.structured.grammar.trial import try_masks
from draftline.structured.masks import MaskedRow, fill_masks
from draftline.structured.matcher import Matcher

VOCABULARY = vocabulary("ab", "abb", "ba", "aaa")
SIZE = len(VOCABULARY.tokens)
EOS = sorted(VOCABULARY.eos_ids)
GROWING = "[ab]*a[ab]{10}"
"""Its automaton has 2,048 states, all of which random texts reach."""


@pytest.fixture(scope="module")
def grammars() -> GrammarBackend:
    return GrammarBackend(VOCABULARY, GrammarLimits(lexer_states=500))


@pytest.fixture(scope="module")
def exact() -> AutomatonMatcher:
    automaton = compile_bytes(GROWING, 10_000)
    return AutomatonMatcher(compile_tokens(automaton, VOCABULARY.tokens, EOS, budgets=False, max_bytes=1 << 26))


def mask(matcher: Matcher) -> set[int]:
    return legal_tokens(matcher, VOCABULARY)


def ids(text: str) -> list[int]:
    return [VOCABULARY.tokens.index(bytes([byte])) for byte in text.encode()]


@pytest.mark.parametrize("texts", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_texts_of_one_grammar_are_exact_whatever_states_they_use_up(
    grammars: GrammarBackend, exact: AutomatonMatcher, texts: int
) -> None:
    rng = random.Random(1)
    compiled = grammars.compile(regex_grammar(GROWING))
    for _ in range(texts):
        matcher = compiled.beginning()
        for _ in range(12):
            legal = mask(matcher)
            assert legal == mask(exact)
            assert matcher.complete == exact.complete
            token = rng.choice(sorted(legal - set(EOS)))
            assert matcher.advance(token)
            assert exact.advance(token)
        assert matcher.error is None
        exact.rollback(exact.consumed)
    assert compiled.parsers.generations > 5


def test_a_grammar_that_uses_up_lexers_is_counted_with_a_full_one() -> None:
    """The cache has room for two grammars with few states, and for one whose lexer is full."""
    limits = CompilerLimits(cache_bytes=(2 << 20) + (1 << 17), grammar=GrammarLimits(lexer_states=500))
    compiler = ConstraintCompiler(VOCABULARY, limits)
    try:
        growing, other = [ConstraintSpec("grammar", regex_grammar(text)) for text in (GROWING, "a{3}")]
        beside = compiler.compile(other)
        kept = compiler.compile(growing)
        before = kept.nbytes
        assert compiler.compile(other) is beside
        assert compiler.compile(growing) is kept
        rng = random.Random(1)
        for _ in range(2000):
            matcher = kept.begin().matcher
            for _ in range(12):
                mask(matcher)
                assert matcher.advance(rng.choice(ids("ab")))
            if kept.nbytes != before:
                break
        assert kept.nbytes == before + 420 * limits.grammar.lexer_states
        assert compiler.compile(growing) is kept
        assert compiler.compile(other) is not beside
    finally:
        compiler.close()


@pytest.mark.parametrize("rounds", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_rows_that_share_a_lexer_carry_on_when_one_of_them_uses_it_up(
    grammars: GrammarBackend, exact: AutomatonMatcher, rounds: int
) -> None:
    rng = random.Random(2)
    compiled = grammars.compile(regex_grammar(GROWING))
    matchers = [compiled.beginning() for _ in range(16)]
    texts: list[list[int]] = [[] for _ in matchers]
    for _ in range(rounds):
        drafts = [[rng.choice(ids("ab")) for _ in range(3)] for _ in matchers]
        masks = np.empty((4 * len(matchers), VOCABULARY.mask_words), np.int32)
        fill_masks([MaskedRow(matcher, (), tokens) for matcher, tokens in zip(matchers, drafts, strict=True)], masks)
        for row, (matcher, text, tokens) in enumerate(zip(matchers, texts, drafts, strict=True)):
            assert all(exact.advance(token) for token in text)
            for index, draft in enumerate(tokens):
                assert allowed(masks[4 * row + index], SIZE) == mask(exact)
                assert exact.advance(draft)
            exact.rollback(exact.consumed)
            text += tokens[:2]
            assert all(matcher.advance(token) for token in tokens[:2])
    assert compiled.parsers.generations > 2


def test_a_step_asks_once_whether_a_lexer_is_alive(grammars: GrammarBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    alive = ParserGeneration.error.fget
    assert alive is not None
    monkeypatch.setattr(ParserGeneration, "error", property(lambda self: (asked.append(self), alive(self))[1]))
    compiled = grammars.compile("start: /[ab]+/")
    matchers = [compiled.beginning() for _ in range(8)]
    words = np.empty((len(matchers), VOCABULARY.mask_words), np.int32)
    asked.clear()
    for token in ids("abba"):
        assert not fill_masks([MaskedRow(matcher, [token]) for matcher in matchers], words)
        assert all(matcher.advance(token) for matcher in matchers)
    assert len(asked) == 4


def test_a_text_that_no_lexer_can_follow_fails_by_name_and_alone(grammars: GrammarBackend) -> None:
    compiled = grammars.compile(regex_grammar("(x|a{600})"))
    long, short = compiled.beginning(), compiled.beginning()
    a, x = ids("ax")
    taken = 0
    while long.failure is None:
        if mask(long) != set(EOS):
            assert long.advance(a)
            taken += 1
    assert 450 < taken < 500
    assert long.failure == "it needs more than 500 lexer states"
    assert not long.complete
    assert not long.advance(EOS[0])
    # Other texts of the grammar are not touched, and the text itself is fine where it is shorter.
    assert x in mask(short)
    assert short.advance(x)
    assert short.ended
    long.rollback(10)
    assert long.failure is None
    assert a in mask(long)


def test_a_mask_beyond_the_limits_of_a_step_fails_by_name() -> None:
    with pytest.raises(InvalidConstraintError, match="more than 2 units of the lexer's work"):
        GrammarBackend(VOCABULARY, GrammarLimits(step_fuel=2)).compile(regex_grammar("[ab]*a[ab]{60}x"))
    ambiguous = "start: a* \na: b* \nb: c* \nc: /[ab]/"
    matcher = GrammarBackend(VOCABULARY, GrammarLimits(step_items=100)).compile(ambiguous).beginning()
    for token in ids("abab" * 10):
        mask(matcher)
        if not matcher.advance(token):
            break
    assert matcher.failure == "one mask needs more than 100 Earley items"


def test_a_grammar_that_its_trial_cannot_follow_is_rejected() -> None:
    limits = GrammarLimits(step_items=100)
    backend = GrammarBackend(VOCABULARY, limits)
    ambiguous = backend.compile('start: a* "!!!!"\na: b*\nb: c*\nc: /[ab]/')
    with pytest.raises(InvalidConstraintError, match="cannot be followed: one mask needs more than 100 Earley items"):
        try_masks(ambiguous, VOCABULARY.mask_words, limits)
    try_masks(backend.compile('start: "a" | "b"'), VOCABULARY.mask_words, limits)


@pytest.mark.parametrize(
    ("grammar", "before"),
    [
        (regex_grammar("a{51000}"), ""),
        (regex_grammar("x[0-9]b{51000}"), "x1"),
        # Each rule is twice the next: 65,536 bytes, and as many Earley items.
        ('start: "x" a0\n' + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(16)) + 'a16: "b"', "x"),
    ],
    ids=["repeats", "repeats-later", "doubling"],
)
def test_long_forced_text_is_not_followed_to_its_end(grammar: str, before: str) -> None:
    matcher = GrammarBackend(VOCABULARY).compile(grammar).beginning()
    assert all(matcher.advance(token) for token in ids(before))
    following = mask(matcher)
    assert matcher.forced() == b""
    assert mask(matcher) == following
    [token] = following & set(ids("ab"))
    assert matcher.advance(token)
    assert matcher.parsers.generations == 1
    assert matcher.error is None


def test_a_grammar_that_takes_long_to_build_is_built_beforehand(grammars: GrammarBackend) -> None:
    threads: list[int] = []
    real: GrammarMatcher = grammars.compile(regex_grammar("a{600}"))

    def build() -> ParserGeneration:
        threads.append(threading.get_ident())
        time.sleep(0.02)
        return ParserGeneration(real.generation.parser(), ids("a")[0])

    with ThreadPoolExecutor(1) as background:
        parsers = GrammarParsers(build, "", GrammarLimits(), background)
        first = parsers.begin()
        second, fresh = parsers.replace(first)
    assert fresh
    assert second is not first
    assert parsers.generations == 2
    here, *elsewhere = threads
    assert here == threading.get_ident()
    assert len(elsewhere) == 2
    assert here not in elsewhere


def test_a_mask_may_take_400_000_units_of_fuel() -> None:
    texts = vocabulary(*("".join(letters) for letters in itertools.product("ab", repeat=10)))
    names = [f"T{index}" for index in range(30)]
    terminals = [f"{name}: /[ab]*a[ab]{{{20 + index}}}x/" for index, name in enumerate(names)]
    grammar = "\n".join([f"start: {' | '.join(names)}", *terminals])
    with pytest.raises(InvalidConstraintError, match="one mask needs more than 200000 units"):
        GrammarBackend(texts, GrammarLimits(step_fuel=200_000)).compile(grammar)
    assert GrammarBackend(texts).compile(grammar).error is None


def test_a_slow_mask_behind_a_rare_branch_is_broken_off_by_name() -> None:
    """The first masks are quick, so the grammar compiles, and a trial may miss the branch. Other branches go on."""
    texts = vocabulary("q", *("".join(letters) for letters in itertools.product("ab", repeat=10)))
    names = [f"T{index}" for index in range(60)]
    terminals = [f"{name}: /[ab]*a[ab]{{{20 + index}}}x/" for index, name in enumerate(names)]
    grammar = "\n".join(['start: "q" rare | "a"', f"rare: {' | '.join(names)}", *terminals])
    compiled = GrammarBackend(texts).compile(grammar)
    slow, quick = compiled.beginning(), compiled.beginning()
    words = np.empty(texts.mask_words, np.int32)
    slow.fill_mask(words)
    assert slow.advance(texts.tokens.index(b"q"))
    slow.fill_mask(words)
    assert slow.failure == "one mask needs more than 500000 units of the lexer's work"
    assert quick.advance(texts.tokens.index(b"a"))
    quick.fill_mask(words)
    assert quick.failure is None


def test_a_rule_of_too_many_alternatives_is_refused_by_name() -> None:
    texts = " | ".join(f'"w{index}x"' for index in range(2_001))
    with pytest.raises(
        InvalidConstraintError, match="the rule 'after' has 2001 alternatives; at most 2000 are allowed"
    ):
        language(ConstraintSpec("grammar", f'start: "aaab" after\nafter: {texts}'))
    # A rule out of reach does no harm, and terminals have no such limit.
    for grammar in (f'start: "a"\nafter: {texts}', f"start: AFTER\nAFTER: {texts}"):
        assert language(ConstraintSpec("grammar", grammar)).grammar == grammar
    spread = "\n".join(f"part{n}: " + " | ".join(f'"{n}w{i}x"' for i in range(1_900)) for n in range(5))
    two = (
        GrammarBackend(VOCABULARY)
        .compile(f'start: "{"a" * 9}" (part0 | part1 | part2 | part3 | part4)\n{spread}')
        .beginning()
    )
    for token in ids("a" * 8):
        assert two.advance(token)
    assert not two.advance(ids("a")[0])
    assert two.failure is not None
    assert "alternatives are open at one place; at most 8000 are allowed" in two.failure


@pytest.mark.parametrize(
    ("grammar", "rule"),
    [
        ('start: "x" start', "start"),
        ('start: start "x"', "start"),
        ('start: "a" | "b" more\nmore: "c" more  // never ends', "more"),
        ('start: "(" start{1,3} ")"', "start"),
        ('start: "(" start~2 ")"', "start"),
        ('%llguidance {}\nstart: INT _x\n_x: ("a" _x)+\n%import common.INT', "_x"),
    ],
)
def test_a_rule_without_a_finite_text_is_refused_by_name(grammar: str, rule: str) -> None:
    with pytest.raises(InvalidConstraintError, match=f"the rule '{rule}' matches no finite text"):
        language(ConstraintSpec("grammar", grammar))


@pytest.mark.parametrize(
    "grammar",
    [
        'start: start "x" | "x"',
        'start: part "x"\npart: start | "y"',
        'start: "x" start?',
        'start: "(" start{0,3} ")"',
        'start: ab+ // text\n  | /[0-9]/ -> z\n?ab[max_tokens=3]: %json {"type": "object", "properties": {"b": {}}}',
        'start: more::0x0\nmore::_: "a" more::incr(_) %if lt(_, 3)\n  | "b"',
        'start: unknown "x"',
        "start: [",
    ],
)
def test_other_rules_are_left_to_the_parser(grammar: str) -> None:
    assert language(ConstraintSpec("grammar", grammar)).grammar == grammar


def test_a_grammar_with_too_many_symbols_is_refused_for_its_size(grammars: GrammarBackend) -> None:
    names = [f"a{index}" for index in range(66_000)]
    rules = "\n".join(f'{name}: "x" start' for name in names)
    with pytest.raises(InvalidConstraintError, match="it has more than 65,525 rules, terminals and groups"):
        grammars.compile(f'start: "y" | {" | ".join(names)}\n{rules}')
