"""``GrammarMatcher``: llguidance's Earley parser behind the contract of `Matcher`.

This file reconciles the differences between the two. Tokens are offered to the parser, never forced on it: a parser
that has consumed an illegal token is unusable. The parser never sees end-of-sequence, because it can roll that back in
some states only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from llguidance import LLExecutor, LLMatcher
from typing_extensions import override

from draftline.structured.matcher import MaskBatcher, Masks, Matcher, Words
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class EndOfSequence:
    """The tokens that end an output.

    Attributes:
        ids: their ids.
        mask: [ceil(vocab / 32)] int32, allows these alone.
        words: the index and value of each nonzero word of ``mask``.
    """

    ids: frozenset[int]
    mask: Words
    words: tuple[tuple[int, int], ...]

    @staticmethod
    def of(vocabulary: ByteVocabulary) -> EndOfSequence:
        """The end-of-sequence tokens of a vocabulary."""
        bits = np.zeros(vocabulary.mask_words, np.uint32)
        for token in vocabulary.eos_ids:
            bits[token // 32] |= np.uint32(1 << token % 32)
        mask = bits.view(np.int32)
        return EndOfSequence(
            vocabulary.eos_ids, mask, tuple((index, mask.item(index)) for index in np.flatnonzero(mask).tolist())
        )

    def allowed(self, words: Words) -> bool:
        """Whether a mask allows any of them."""
        return any(words.item(index) & bits for index, bits in self.words)


class GrammarMatcher(Matcher):
    """The position of one output in a grammar."""

    def __init__(self, parser: LLMatcher, vocabulary: GrammarVocabulary, pristine: LLMatcher) -> None:
        """At the beginning of a text.

        Args:
            parser: owned by this matcher.
            vocabulary: shared by all matchers of the backend.
            pristine: a copy of ``parser`` that stays at the beginning.
        """
        self._parser = parser
        self._vocabulary = vocabulary
        self._pristine = pristine
        self._taken: list[int] = []
        self._ends = 0
        self._dead_end = False

    def copy(self) -> GrammarMatcher:
        """An independent matcher at the same position."""
        copy = GrammarMatcher(self._parser.deep_copy(), self._vocabulary, self._pristine)
        copy._taken, copy._ends, copy._dead_end = list(self._taken), self._ends, self._dead_end
        return copy

    @property
    def parser(self) -> LLMatcher:
        """Llguidance's matcher, for `GrammarMasks`."""
        return self._parser

    @property
    @override
    def error(self) -> str | None:
        if self._parser.is_error():
            return self._parser.get_error().partition("\n")[0]
        return "no token of the model continues the text from here" if self._dead_end else None

    @property
    @override
    def consumed(self) -> int:
        return len(self._taken) + self._ends

    @property
    @override
    def complete(self) -> bool:
        return bool(self._ends) or (self._parser.is_accepting() and not self._parser.is_error())

    @property
    @override
    def finished(self) -> bool:
        return bool(self._ends)

    @property
    @override
    def ended(self) -> bool:
        return bool(self._ends) or (self._parser.is_stopped() and self.complete)

    @property
    @override
    def mask_batcher(self) -> GrammarMasks:
        return self._vocabulary.masks

    @override
    def fill_mask(self, words: Words) -> None:
        self._parser.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self.correct_mask(words)

    def correct_mask(self, words: Words) -> None:
        """Correct the end-of-sequence bits of a mask that the parser has computed.

        A parser that has stopped or failed allows a single end-of-sequence token.
        """
        end = self._vocabulary.end
        if self._ends or self._parser.is_stopped():
            words[:] = end.mask
        elif not self._parser.is_accepting() and end.allowed(words):
            # The grammar names end-of-sequence as if it were text.
            words &= ~end.mask
            if not words.any():
                self._dead_end = True
                words[:] = end.mask

    @override
    def advance(self, token: int) -> bool:
        if token in self._vocabulary.end.ids:
            if not self.complete:
                return False
            self._ends += 1
            return True
        if self._ends or not 0 <= token < self._vocabulary.size or self._parser.is_error():
            return False
        if not self._parser.try_consume_tokens([token]):
            return False
        self._taken.append(token)
        return True

    @override
    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.consumed:
            raise ValueError(f"cannot take back {count} tokens of {self.consumed}")
        ends = min(count, self._ends)
        self._ends -= ends
        count -= ends
        if not count:
            return
        self._dead_end = False
        del self._taken[len(self._taken) - count :]
        if self._parser.is_error():  # a failed parser cannot roll back: replay the tokens on a new one
            self._parser = self._pristine.deep_copy()
            self._parser.try_consume_tokens(self._taken)
        else:
            self._parser.rollback(count)

    @override
    def forced(self) -> bytes:
        return b"" if self.ended or self._parser.is_stopped() else self._parser.compute_ff_bytes()


class GrammarMasks(MaskBatcher[GrammarMatcher]):
    """Computes the masks of many rows in one call of llguidance, on several threads."""

    @cached_property
    def _executor(self) -> LLExecutor:
        # Created on first use: it starts threads, which most engines never need.
        return LLExecutor()

    @override
    def fill(self, jobs: Sequence[tuple[GrammarMatcher, int]], masks: Masks) -> None:
        self._executor.unsafe_compute_mask_ptr(
            [(matcher.parser, row) for matcher, row in jobs], masks.ctypes.data, masks.strides[0], len(masks)
        )
        for matcher, row in jobs:
            matcher.correct_mask(masks[row])


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """State that all matchers of one backend share.

    Attributes:
        size: the number of tokens.
        end: the tokens that end an output.
        masks: the batcher of their masks.
    """

    size: int
    end: EndOfSequence
    masks: GrammarMasks
