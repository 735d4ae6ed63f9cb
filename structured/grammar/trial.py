"""``try_masks``: follow a few texts of a grammar, and reject a grammar whose masks take long.

The steps of all outputs wait for a mask. The parser's own limits bound its work, but a unit of work can take a hundred times
as long as usual. In real schemas a mask takes less than a millisecond.
"""

from __future__ import annotations

import random
import time

import numpy as np

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.grammar.matcher import GrammarMatcher

_TEXTS = 4
_TOKENS = 24
_SECONDS = 0.25
"""Processor time for all texts: a trial need not find everything."""


def try_masks(matcher: GrammarMatcher, mask_words: int, limits: GrammarLimits) -> None:
    """Follow random texts, the same for each grammar.

    Args:
        matcher: at the beginning of a text, where it is left.
        mask_words: the length of a mask.
        limits: those of the grammar.

    Raises:
        InvalidConstraintError: one mask takes longer than ``limits.mask_seconds`` of a processor, or one of the limits keeps
            the parser from following a text.
    """
    rng = random.Random(0)
    words = np.empty(mask_words, np.int32)
    until = time.thread_time() + _SECONDS
    for _ in range(_TEXTS):
        for _ in range(_TOKENS):
            started = time.thread_time()
            matcher.fill_mask(words)
            ended = time.thread_time()
            if ended - started > limits.mask_seconds:
                raise InvalidConstraintError(f"one mask of it takes longer than {limits.mask_seconds:g} s")
            if matcher.failure is not None:
                raise InvalidConstraintError(f"its texts cannot be followed: {matcher.failure}")
            tokens = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            if ended > until or matcher.error is not None or not matcher.advance(int(rng.choice(tokens))):
                break
            if matcher.finished:
                break
        matcher.rollback(matcher.consumed)
