"""``GrammarMatcher``: llguidance's Earley parser behind the contract of `Matcher`.

This file reconciles the differences between the two. Tokens are offered to the parser, never forced on it: a parser
that has consumed an illegal token is unusable. The parser never sees end-of-sequence, because it can roll that back in
some states only. An answer that a limit may have changed is asked for again, of a new parser that has replayed the text
(see `parsers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from llguidance import LLExecutor, LLMatcher
from typing_extensions import override

from draftline.structured.grammar.parsers import GrammarParsers, ParserGeneration
from draftline.structured.matcher import MaskBatcher, Masks, Matcher, Words, end_mask
from draftline.structured.vocabulary import ByteVocabulary

T = TypeVar("T")

_MAX_FORCED_BYTES = 1024
"""Grammars that force more text than this are not asked again: it takes long, and it uses up the lexer."""


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
        mask = end_mask(vocabulary)
        return EndOfSequence(
            vocabulary.eos_ids, mask, tuple((index, mask.item(index)) for index in np.flatnonzero(mask).tolist())
        )

    def allowed(self, words: Words) -> bool:
        """Whether a mask allows any of them."""
        return any(words.item(index) & bits for index, bits in self.words)


class GrammarMatcher(Matcher):
    """The position of one output in a grammar.

    Attributes:
        parsers: those of the grammar, shared by all its matchers.
        generation: those that share the parser's lexer.
        parser: llguidance's matcher.
    """

    def __init__(self, parsers: GrammarParsers, generation: ParserGeneration, vocabulary: GrammarVocabulary) -> None:
        """At the beginning of a text.

        Args:
            parsers: those of the grammar.
            generation: the current one of them.
            vocabulary: shared by all matchers of the backend.
        """
        self.parsers = parsers
        self._vocabulary = vocabulary
        self.generation = generation
        self.parser = generation.parser()
        self._taken: list[int] = []
        self._ends = 0
        self._dead_end = False
        self._failure: tuple[list[int], str] | None = None  # the text behind which a limit was hit, and the limit

    def beginning(self) -> GrammarMatcher:
        """An independent matcher at the beginning of a text."""
        return GrammarMatcher(self.parsers, self.parsers.begin(), self._vocabulary)

    @property
    def sound(self) -> bool:
        """Whether no limit has changed what the parser has answered so far."""
        return not self.parser.is_error() and self.generation.error is None

    @property
    @override
    def failure(self) -> str | None:
        if self._failure is None:
            return None
        text, reason = self._failure
        return reason if self._taken[: len(text)] == text else None

    @property
    @override
    def error(self) -> str | None:
        return self.failure or ("no token of the model continues the text from here" if self._dead_end else None)

    def _ask(self, question: Callable[[LLMatcher], T]) -> T:
        """The parser's answer to a question; without meaning if `failure` is set.

        A parser whose answer does not count is replaced, so a question may also consume a token.
        """
        answer = question(self.parser)
        while not self.sound and self.failure is None:
            # Ask a new parser, on the lexer that the other texts use, or on a new lexer if that one is dead.
            fresh = False
            if self.generation.error is not None:
                self.generation, fresh = self.parsers.replace(self.generation)
            self._replay()
            answer = question(self.parser)
            # Only this text can have used up a fresh lexer, and on a live lexer no other text can spoil a parser.
            error = self.generation.error
            if not self.sound and (fresh or error is None):
                reason = self.parsers.limits.explain(error or self.parser.get_error())
                self._failure = list(self._taken), reason
        return answer

    def _replay(self) -> None:
        self.parser = self.generation.parser()
        self.parser.try_consume_tokens(self._taken)

    @property
    @override
    def consumed(self) -> int:
        return len(self._taken) + self._ends

    @property
    @override
    def complete(self) -> bool:
        return bool(self._ends) or (self._ask(LLMatcher.is_accepting) and self.failure is None)

    @property
    @override
    def finished(self) -> bool:
        return bool(self._ends)

    @property
    @override
    def ended(self) -> bool:
        return bool(self._ends) or (self.complete and self.parser.is_stopped())

    @property
    @override
    def mask_batcher(self) -> GrammarMasks:
        return self._vocabulary.masks

    @override
    def fill_mask(self, words: Words) -> None:
        def fill(parser: LLMatcher) -> None:
            parser.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            self.correct_mask(words)

        self._ask(fill)

    def correct_mask(self, words: Words) -> None:
        """Correct the end-of-sequence bits of a mask that the parser has computed.

        A parser that has stopped or failed allows a single end-of-sequence token.
        """
        end = self._vocabulary.end
        self._dead_end = False
        if self._ends or self.parser.is_stopped():
            words[:] = end.mask
        elif not self.parser.is_accepting() and end.allowed(words):
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
        if self._ends or not 0 <= token < self._vocabulary.size:
            return False
        # No limit makes a parser take an illegal token, so only a refusal may have to be asked again.
        refused = not self.parser.try_consume_tokens([token]) or self.parser.is_error()
        if refused and not self._ask(lambda parser: parser.try_consume_tokens([token])):
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
        if self.parser.is_error():  # a failed parser cannot roll back
            self._replay()
        else:
            self.parser.rollback(count)

    @override
    def forced(self) -> bytes:
        if not self.parsers.forces or self.ended or self.failure is not None or self.parser.is_stopped():
            return b""
        text = self.parser.compute_ff_bytes()
        if len(text) <= _MAX_FORCED_BYTES and self.sound:
            return text
        self.parsers.forces = False
        self._replay()
        return b""


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
        # The rows share lexers: whether one died shows only now. It takes a while to find out, so each is looked at once.
        dead = {
            generation for generation in {matcher.generation for matcher, _ in jobs} if generation.error is not None
        }
        for matcher, row in jobs:
            if matcher.generation in dead or matcher.parser.is_error():
                matcher.fill_mask(masks[row])


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
