"""``Ours``: what the engine's own matchers make of a text, byte by byte."""

from __future__ import annotations

import functools
import random

import numpy as np

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.byte_moves import byte_moves
from draftline.structured.automaton.host_automaton import HostAutomaton, HostAutomatonMatcher
from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.grammar.backend import GrammarBackend
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
