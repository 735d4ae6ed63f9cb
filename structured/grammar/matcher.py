"""The matcher of any other constraint: llguidance's Earley parser, behind the same contract.

Where the contract and llguidance differ, this is where they are brought together. Tokens are offered to it, never forced
on it: one that it had to take and could not would leave it useless. End-of-sequence it never sees, since it takes that
back in some states and not in others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.matcher import Words
from draftline.structured.vocabulary import ByteVocabulary

_LIMITS = LLParserLimits(max_lexer_states=50_000, precompute_large_lexemes=False, verbose_errors=False)
"""llguidance's own, but for a fifth of the memory."""


_NO_FORCING = '%llguidance {"no_forcing": true}'
"""Else where only one text can follow, masks would allow only one way to write it. At the end, so that it is what counts
and messages have the right line numbers."""


class GrammarBackend:
    """Compiles grammars for one vocabulary. Thread-safe once constructed."""

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        """Takes a few tenths of a second."""
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)), n_vocab=len(vocabulary.tokens), eos_token=sorted(vocabulary.eos_ids)
        )
        self._vocabulary = vocabulary
        self._end = EndOfSequence.of(vocabulary)

    def compile(self, grammar: str) -> GrammarMatcher:
        """The matcher of a grammar, to be copied for every output.

        Args:
            grammar: Lark with llguidance's extensions.

        Raises:
            InvalidConstraintError: it is not valid, matches nothing, or is too large.
        """
        whole = LLMatcher.grammar_from_lark(f"{grammar}\n{_NO_FORCING}")
        engine = LLMatcher(self._tokenizer, whole, log_level=0, limits=_LIMITS)
        if engine.is_error():
            raise InvalidConstraintError(engine.get_error().strip())
        matcher = GrammarMatcher(engine, len(self._vocabulary.tokens), self._end, pristine=engine.deep_copy())
        # The first mask takes longest. It also tells whether there is any text.
        matcher.fill_mask(np.empty(self._vocabulary.mask_words, np.int32))
        if matcher.error is not None:
            raise InvalidConstraintError(matcher.error)
        return matcher


@dataclass(frozen=True, slots=True)
class EndOfSequence:
    """The tokens that end an output.

    Attributes:
        ids: which.
        mask: [ceil(vocab / 32)] int32, allows these alone.
        words: the place and value of each word of ``mask`` that is not 0.
    """

    ids: frozenset[int]
    mask: Words
    words: tuple[tuple[int, int], ...]

    @staticmethod
    def of(vocabulary: ByteVocabulary) -> EndOfSequence:
        """A vocabulary's."""
        bits = np.zeros(vocabulary.mask_words, np.uint32)
        for token in vocabulary.eos_ids:
            bits[token // 32] |= np.uint32(1 << token % 32)
        mask = bits.view(np.int32)
        return EndOfSequence(
            vocabulary.eos_ids, mask, tuple((place, mask.item(place)) for place in np.flatnonzero(mask).tolist())
        )

    def allowed(self, words: Words) -> bool:
        """Whether a mask allows any of them."""
        return any(words.item(place) & bits for place, bits in self.words)


class GrammarMatcher:
    """See `Matcher`."""

    def __init__(self, engine: LLMatcher, size: int, end: EndOfSequence, pristine: LLMatcher) -> None:
        """At the beginning of a text.

        Args:
            engine: this matcher's own.
            size: how many tokens there are.
            end: which of them end an output.
            pristine: a copy of ``engine`` that stays at the beginning.
        """
        self._engine = engine
        self._pristine = pristine
        self._size = size
        self._end = end
        self._taken: list[int] = []
        self._ends = 0
        self._dead_end = False

    def copy(self) -> GrammarMatcher:
        """Another one, at the same place, independent of this one."""
        copy = GrammarMatcher(self._engine.deep_copy(), self._size, self._end, self._pristine)
        copy._taken, copy._ends, copy._dead_end = list(self._taken), self._ends, self._dead_end
        return copy

    @property
    def error(self) -> str | None:
        """See `Matcher.error`."""
        if self._engine.is_error():
            return self._engine.get_error().partition("\n")[0]
        return "no token of the model goes on from here" if self._dead_end else None

    @property
    def consumed(self) -> int:
        """See `Matcher.consumed`."""
        return len(self._taken) + self._ends

    @property
    def complete(self) -> bool:
        """See `Matcher.complete`."""
        return bool(self._ends) or (self._engine.is_accepting() and not self._engine.is_error())

    @property
    def finished(self) -> bool:
        """See `Matcher.finished`."""
        return bool(self._ends)

    @property
    def ended(self) -> bool:
        """See `Matcher.ended`."""
        return bool(self._ends) or (self._engine.is_stopped() and self.complete)

    @property
    def mask_engine(self) -> LLMatcher:
        """See `Matcher.mask_engine`."""
        return self._engine

    def fill_mask(self, words: Words) -> None:
        """See `Matcher.fill_mask`."""
        self._engine.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self.finish_mask(words)

    def finish_mask(self, words: Words) -> None:
        """See `Matcher.finish_mask`. An engine that has stopped, or failed, allows one end-of-sequence token."""
        if self._ends or self._engine.is_stopped():
            words[:] = self._end.mask
        elif not self._engine.is_accepting() and self._end.allowed(words):
            # The grammar names end-of-sequence as if it were text.
            words &= ~self._end.mask
            if not words.any():
                self._dead_end = True
                words[:] = self._end.mask

    def advance(self, token: int) -> bool:
        """See `Matcher.advance`."""
        if token in self._end.ids:
            if not self.complete:
                return False
            self._ends += 1
            return True
        if self._ends or not 0 <= token < self._size or self._engine.is_error():
            return False
        if not self._engine.try_consume_tokens([token]):
            return False
        self._taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        """See `Matcher.rollback`."""
        if not 0 <= count <= self.consumed:
            raise ValueError(f"cannot take back {count} tokens of {self.consumed}")
        ends = min(count, self._ends)
        self._ends -= ends
        count -= ends
        if not count:
            return
        self._dead_end = False
        del self._taken[len(self._taken) - count :]
        if self._engine.is_error():  # it does not come back from there
            self._engine = self._pristine.deep_copy()
            self._engine.try_consume_tokens(self._taken)
        else:
            self._engine.rollback(count)

    def forced(self) -> bytes:
        """See `Matcher.forced`."""
        return b"" if self.ended or self._engine.is_stopped() else self._engine.compute_ff_bytes()


class _Tokens:
    """The vocabulary in the shape that ``TokenizerWrapper`` reads."""

    bos_token_id = None

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self.eos_token_id = min(vocabulary.eos_ids)
        # 0xFF, which no UTF-8 has, is how llguidance begins a special token's name: no text token may.
        self.tokens = [b"" if b"\xff" in text else text for text in vocabulary.tokens]
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())
