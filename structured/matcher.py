"""``Matcher``: the position of one output in its constraint. Every backend has the same contract.

* Masks: ``fill_mask`` writes which tokens may come next. It works at any time, also after the end. The mask is never
  empty.
* An illegal token changes nothing, and ``advance`` returns False.
* End-of-sequence is a token like any other: it counts, ``rollback`` takes it back, and it is legal exactly where the
  text so far is complete. After it only end-of-sequence is legal.
* ``rollback`` is exact: it restores the matcher to its state before the tokens that it takes back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from draftline.structured.vocabulary import ByteVocabulary

Words = npt.NDArray[np.int32]
"""[ceil(vocab / 32)] int32 of allowed tokens: token t is bit t % 32 of word t // 32."""

Masks = npt.NDArray[np.int32]
"""[rows, ceil(vocab / 32)] int32, contiguous: one `Words` a row."""


def packed(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Whether each token is allowed, [..., vocab] bool, as `Words`: [..., ceil(vocab / 32)] int32."""
    bits = np.packbits(allowed, axis=-1, bitorder="little")
    words = np.zeros((*allowed.shape[:-1], 4 * -(-allowed.shape[-1] // 32)), np.uint8)
    words[..., : bits.shape[-1]] = bits
    return words.view("<i4").astype(np.int32, copy=False)


def end_mask(vocabulary: ByteVocabulary) -> Words:
    """The mask that allows only the tokens that end an output."""
    allowed = np.zeros(len(vocabulary.tokens), np.bool_)
    allowed[list(vocabulary.eos_ids)] = True
    return packed(allowed)


MAX_FORCED_BYTES = 256
"""The most forced text of an automaton that is looked at. The drafts of one step seldom have more."""

M_contra = TypeVar("M_contra", contravariant=True)


class MaskBatcher(Protocol[M_contra]):
    """Writes the masks of many matchers of one backend. One thread at a time uses it.

    A backend whose masks take real work computes them in one call for all rows: the call releases the interpreter once
    and may use several threads.
    """

    def fill(self, jobs: Sequence[tuple[M_contra, int]], masks: Masks) -> None:
        """For each (matcher, row), write what `Matcher.fill_mask` writes into ``masks[row]``."""
        ...


class Matcher(Protocol):
    """The position of one output in its constraint."""

    @property
    def failure(self) -> str | None:
        """The limit that keeps the matcher from telling what may follow; None if there is none.

        Its masks then allow only end-of-sequence, but an output must not end by that.
        """
        ...

    @property
    def error(self) -> str | None:
        """Why only end-of-sequence can follow although the text is incomplete; None while all is well.

        It is the `failure`, or the text has reached a point from which no token of the model continues.
        """
        ...

    @property
    def consumed(self) -> int:
        """The number of tokens taken, end-of-sequence included."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the text so far is a text of the language."""
        ...

    @property
    def finished(self) -> bool:
        """Whether end-of-sequence has been taken."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the text is complete and only end-of-sequence can follow."""
        ...

    @property
    def mask_batcher(self) -> MaskBatcher[Self]:
        """The batcher of this backend. Matchers with the same batcher can share one call to it."""
        ...

    def fill_mask(self, words: Words) -> None:
        """Write which tokens may come next."""
        ...

    def advance(self, token: int) -> bool:
        """Take one more token; return False, and change nothing, if it is illegal here."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens, at most ``consumed``.

        Raises:
            ValueError: fewer tokens have been taken.
        """
        ...

    def forced(self) -> bytes:
        """The text that every continuation begins with; of a long one, a backend may give the beginning or nothing."""
        ...


class RowByRow(MaskBatcher[Matcher]):
    """The batcher of matchers whose masks are look-ups: there is nothing to batch."""

    @override
    def fill(self, jobs: Sequence[tuple[Matcher, int]], masks: Masks) -> None:
        for matcher, row in jobs:
            matcher.fill_mask(masks[row])


class WrappedMatcher(Matcher):
    """A matcher that allows fewer tokens than the one inside it, whose state is otherwise its own.

    Attributes:
        inner: the matcher inside.
    """

    def __init__(self, inner: Matcher) -> None:
        """``inner`` at the beginning of a text."""
        self.inner = inner

    def correct_mask(self, words: Words) -> None:
        """Remove tokens from the inner matcher's mask."""
        raise NotImplementedError

    @property
    @override
    def mask_batcher(self) -> WrappedMasks:
        return _WRAPPED

    @override
    def fill_mask(self, words: Words) -> None:
        self.inner.fill_mask(words)
        self.correct_mask(words)

    @override
    def forced(self) -> bytes:
        return self.inner.forced()

    @property
    @override
    def failure(self) -> str | None:
        return self.inner.failure

    @property
    @override
    def error(self) -> str | None:
        return self.inner.error

    @property
    @override
    def consumed(self) -> int:
        return self.inner.consumed

    @property
    @override
    def complete(self) -> bool:
        return self.inner.complete

    @property
    @override
    def finished(self) -> bool:
        return self.inner.finished

    @property
    @override
    def ended(self) -> bool:
        return self.inner.ended


class WrappedMasks(MaskBatcher[WrappedMatcher]):
    """Fills the inner matchers' masks by their own batchers."""

    @override
    def fill(self, jobs: Sequence[tuple[WrappedMatcher, int]], masks: Masks) -> None:
        by_batcher: defaultdict[MaskBatcher[Matcher], list[tuple[Matcher, int]]] = defaultdict(list)
        for matcher, row in jobs:
            by_batcher[matcher.inner.mask_batcher].append((matcher.inner, row))
        for batcher, inner in by_batcher.items():
            batcher.fill(inner, masks)
        for matcher, row in jobs:
            matcher.correct_mask(masks[row])


_WRAPPED = WrappedMasks()
