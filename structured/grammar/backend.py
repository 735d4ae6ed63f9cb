"""``GrammarBackend``: compiles Lark grammars for one vocabulary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.lark import NO_FORCING, grammar_error
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.grammar.matcher import EndOfSequence, GrammarMasks, GrammarMatcher, GrammarVocabulary
from draftline.structured.grammar.parsers import GrammarParsers, ParserGeneration
from draftline.structured.vocabulary import ByteVocabulary


class GrammarBackend:
    """Compiles grammars for one vocabulary. Thread-safe once constructed."""

    def __init__(self, vocabulary: ByteVocabulary, limits: GrammarLimits | None = None) -> None:
        """Takes a few tenths of a second."""
        self._limits = limits or GrammarLimits()
        self._parser_limits = self._limits.parser_limits()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)), n_vocab=len(vocabulary.tokens), eos_token=sorted(vocabulary.eos_ids)
        )
        self._mask_words = vocabulary.mask_words
        self._vocabulary = GrammarVocabulary(len(vocabulary.tokens), EndOfSequence.of(vocabulary), GrammarMasks())

    def compile(self, grammar: str) -> GrammarMatcher:
        """The matcher of a grammar, to be copied for every output.

        Args:
            grammar: Lark with llguidance's extensions.

        Raises:
            InvalidConstraintError: it is malformed, matches nothing, or is too large.
        """
        parsers = GrammarParsers(lambda: self._generation(grammar), grammar, self._limits, self._background)
        matcher = GrammarMatcher(parsers, parsers.current, self._vocabulary)
        # The first mask takes longest: compute it now. It also shows whether the language has any text.
        matcher.fill_mask(np.empty(self._mask_words, np.int32))
        if matcher.error is not None:
            raise InvalidConstraintError(matcher.error)
        return matcher

    def _generation(self, grammar: str) -> ParserGeneration:
        whole = LLMatcher.grammar_from_lark(f"{grammar}\n{NO_FORCING}")
        root = LLMatcher(self._tokenizer, whole, log_level=0, limits=self._parser_limits)
        if root.is_error():
            raise InvalidConstraintError(grammar_error(root.get_error()))
        # The first mask takes longest, and the texts share its states.
        mask = np.frombuffer(root.deep_copy().compute_bitmask(), np.uint8)
        first = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        texts = [token for token in first.tolist() if token not in self._vocabulary.end.ids]
        return ParserGeneration(root, texts[0] if texts else None)


class _Tokens:
    """The vocabulary in the form that ``TokenizerWrapper`` reads."""

    bos_token_id = None

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self.eos_token_id = min(vocabulary.eos_ids)
        # llguidance marks the names of special tokens with 0xFF, which UTF-8 never contains: no text token may have it.
        self.tokens = [b"" if b"\xff" in text else text for text in vocabulary.tokens]
        self.special_token_ids = sorted(vocabulary.special_ids)
        for token in self.special_token_ids:
            # Without names it would not tell them apart.
            self.tokens[token] = f"[{token}]".encode()
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())
