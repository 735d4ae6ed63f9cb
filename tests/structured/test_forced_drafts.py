from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from byte_automata import compile_bytes
from small_vocabulary import vocabulary

from draftline.models.loader import open_checkpoint
from draftline.models.tokenization.tokenizer import load_tokenizer
from draftline.structured.automaton.draft_table import MAX_FORCED_DRAFTS, DraftTable
from draftline.structured.automaton.host_automaton import HostAutomaton, HostAutomatonMatcher
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.forced_drafts import forced_drafts
from draftline.structured.grammar.backend import GrammarBackend
from draftline.structured.grammar.lark import regex_grammar
from draftline.structured.matcher import MAX_FORCED_BYTES, Matcher
from draftline.structured.vocabulary import ByteVocabulary

VOCABULARY = vocabulary("abc", "bc", '{"', '": ', '":', '"}', "é")
GRAMMARS = GrammarBackend(VOCABULARY)


def automaton(expression: str, words: ByteVocabulary = VOCABULARY) -> TokenAutomaton:
    return compile_tokens(
        compile_bytes(expression, 10_000), words.tokens, sorted(words.eos_ids), budgets=False, max_bytes=1 << 26
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda expression: AutomatonMatcher(automaton(expression)),
        lambda expression: GRAMMARS.compile(regex_grammar(expression)),
    ],
    ids=["automaton", "grammar"],
)
@pytest.mark.parametrize(
    ("expression", "drafts"),
    [
        # The last forced token may be the beginning of a longer one.
        (r'\{"abc": [0-9]', [b'{"', b"abc"]),
        ("abc[0-9]", []),
        ("a[0-9]", []),
        ("[0-9]a", []),
        # Nothing can follow: the end is forced too.
        ("abcabc", [b"abc", b"abc", None]),
        ("abcab?", [b"abc"]),
        # Bytes within a character cannot be tokenized.
        ("abcabc[é×]", [b"abc"]),
    ],
    ids=["key", "one", "none", "free", "end", "open", "character"],
)
def test_forced_text_is_drafted_without_its_last_token(
    make: Callable[[str], Matcher], expression: str, drafts: list[bytes | None]
) -> None:
    matcher = make(expression)
    expected = [min(VOCABULARY.eos_ids) if text is None else VOCABULARY.tokens.index(text) for text in drafts]
    assert list(forced_drafts(matcher, VOCABULARY, 16)) == expected
    assert matcher.consumed == 0
    assert list(forced_drafts(matcher, VOCABULARY, 1)) == expected[:1]


def test_the_draft_table_equals_the_drafts_of_a_matcher() -> None:
    tables = automaton(r'\{"abc": ("abc"|1), "bc": "(abc|é)*"\}' + "x{50}")
    drafts = DraftTable.of(tables, VOCABULARY)
    assert drafts.first[-1] == len(drafts.tokens) > 20
    for state in range(tables.states):
        expected = forced_drafts(AutomatonMatcher(tables, state), VOCABULARY, MAX_FORCED_DRAFTS)
        assert tuple(drafts.tokens[drafts.first[state] : drafts.first[state + 1]]) == expected
    assert np.diff(drafts.first).max() == MAX_FORCED_DRAFTS


def test_long_forced_text_is_not_tokenized_as_a_whole() -> None:
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return VOCABULARY.encode(text)

    tables = automaton("abc" * 200)
    words = replace(VOCABULARY, encode=encode)
    drafts = DraftTable.of(tables, words)
    assert max(lengths) <= MAX_FORCED_BYTES
    assert drafts.at(0) == (VOCABULARY.tokens.index(b"abc"),) * MAX_FORCED_DRAFTS
    host = HostAutomaton(compile_bytes("abc" * 200, 10_000), TokenTrie.of(words.tokens), words)
    assert forced_drafts(HostAutomatonMatcher(host), words, MAX_FORCED_DRAFTS) == drafts.at(0)
    assert max(lengths) <= MAX_FORCED_BYTES


def test_drafts_of_the_embedded_model_are_its_tokenization() -> None:
    config = open_checkpoint("smollm2", load_format="auto").config
    tokenizer = load_tokenizer("smollm2", config)
    words = ByteVocabulary.of(tokenizer, config.vocab_size, tokenizer.eos_ids)
    tables = automaton(r'\{"first name": "[a-z]+", "last name": "[a-z]+"\}', words)
    drafts = forced_drafts(AutomatonMatcher(tables), words, 16)
    assert drafts == tuple(tokenizer.encode('{"first name": "')[:-1])
    assert all(not words.tokens[token] for token in tokenizer.special_ids)
