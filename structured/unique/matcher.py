"""``UniqueMatcher``: a matcher whose arrays hold different strings.

The strings are not limited in length, so each can go on where it must not end: a mask never becomes empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from draftline.structured.matcher import MaskBatcher, Masks, Matcher, Words, WrappedMatcher
from draftline.structured.unique.cursor import Position, string_of
from draftline.structured.unique.paths import UniquePaths
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class QuoteTokens:
    """The tokens of a vocabulary that may end a string.

    Attributes:
        texts: the bytes of all tokens.
        ending: tokens with one quote, by the text before it.
        single: all of these.
        others: tokens with more quotes, or with an escape or a part of a character before their quote.
        pairs: those of them that may hold two whole strings.
    """

    texts: tuple[bytes, ...]
    ending: dict[str, npt.NDArray[np.int64]]
    single: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int64]

    @staticmethod
    def of(vocabulary: ByteVocabulary) -> QuoteTokens:
        """Those of a vocabulary; it takes some tens of milliseconds."""
        ending: dict[str, list[int]] = defaultdict(list)
        others: list[int] = []
        for token, text in enumerate(vocabulary.tokens):
            before, quote, after = text.partition(b'"')
            if not quote:
                continue
            head = None if b'"' in after or b"\\" in before else string_of(before)
            if head is None:
                others.append(token)
            else:
                ending[head].append(token)
        single = [token for tokens in ending.values() for token in tokens]
        by_head = {head: np.array(tokens, np.int64) for head, tokens in ending.items()}
        pairs = [token for token in others if vocabulary.tokens[token].count(b'"') >= 4]
        lists = [np.array(tokens, np.int64) for tokens in (single, others, pairs)]
        return QuoteTokens(vocabulary.tokens, by_head, *lists)


class UniqueMatcher(WrappedMatcher):
    """A matcher of JSON documents, without those texts in which an array has a string twice."""

    def __init__(self, inner: Matcher, paths: UniquePaths, quotes: QuoteTokens, start: Position) -> None:
        """Both at the beginning of a text.

        Args:
            inner: allows a string everywhere in these arrays, of any length.
            paths: where strings have to differ.
            quotes: of the matcher's vocabulary.
            start: the position of the empty text.
        """
        super().__init__(inner)
        self._paths = paths
        self._quotes = quotes
        self._cursors = [start]

    @property
    @override
    def mask_batcher(self) -> _UniqueMasks:
        return _UNIQUE

    @override
    def fill_mask(self, words: Words) -> None:
        self.inner.fill_mask(words)
        self.correct_mask(words)

    def correct_mask(self, words: Words) -> None:
        """Remove the tokens from the inner matcher's mask that end a string which is there already."""
        cursor = self._cursors[-1]
        # Outside of all arrays, a token that repeats a string has both.
        self._remove_repeating(words, cursor, self._quotes.pairs if cursor.level is None else self._quotes.others)
        if not cursor.seen or cursor.text is None:
            return
        begun = string_of(cursor.text) if not cursor.escaped else None
        if begun is None:
            self._remove_repeating(words, cursor, self._quotes.single)
            return
        for value in cursor.seen:
            if value.startswith(begun):
                tokens = self._quotes.ending.get(value[len(begun) :])
                if tokens is not None:
                    _remove(words, tokens)

    def _remove_repeating(self, words: Words, cursor: Position, tokens: npt.NDArray[np.int64]) -> None:
        """Try the tokens one by one."""
        allowed = tokens[(words[tokens >> 5] >> (tokens & 31) & 1) != 0]
        repeating = [token for token in allowed.tolist() if self._after(cursor, token) is None]
        if repeating:
            _remove(words, np.array(repeating, np.int64))

    def _after(self, cursor: Position | None, token: int) -> Position | None:
        for byte in self._quotes.texts[token]:
            if cursor is None:
                return None
            cursor = cursor.step(byte, self._paths)
        return cursor

    @override
    def advance(self, token: int) -> bool:
        if not 0 <= token < len(self._quotes.texts):
            return False
        after = self._after(self._cursors[-1], token)
        if after is None or not self.inner.advance(token):
            return False
        self._cursors.append(after)
        return True

    @override
    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        del self._cursors[len(self._cursors) - count :]

    @override
    def forced(self) -> bytes:
        return self.inner.forced()


def _remove(words: Words, tokens: npt.NDArray[np.int64]) -> None:
    bits = words.view(np.uint32)
    np.bitwise_and.at(bits, tokens >> 5, ~(np.uint32(1) << (tokens & 31).astype(np.uint32)))


class _UniqueMasks(MaskBatcher[UniqueMatcher]):
    """Fills the inner matchers' masks by their own batchers."""

    @override
    def fill(self, jobs: Sequence[tuple[UniqueMatcher, int]], masks: Masks) -> None:
        by_batcher: dict[MaskBatcher[Matcher], list[tuple[Matcher, int]]] = defaultdict(list)
        for matcher, row in jobs:
            by_batcher[matcher.inner.mask_batcher].append((matcher.inner, row))
        for batcher, inner in by_batcher.items():
            batcher.fill(inner, masks)
        for matcher, row in jobs:
            matcher.correct_mask(masks[row])


_UNIQUE = _UniqueMasks()
