"""``GuardedMatcher``: a matcher whose reasoning has to end within a budget of tokens.

A grammar cannot report the distance to the end of its reasoning. But reasoning is regular whatever follows it: an
automaton of it, and of any text behind it, walks along to its end and removes the tokens after which the budget is too
small.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.matcher import Matcher, Words, WrappedMatcher


class GuardedMatcher(WrappedMatcher):
    """A matcher, and the automaton that guards its reasoning. The guard takes no tokens behind it."""

    def __init__(self, inner: Matcher, guard: AutomatonMatcher) -> None:
        """Both at the beginning of a text."""
        super().__init__(inner)
        self._guard = guard

    @override
    def correct_mask(self, words: Words) -> None:
        """Remove the tokens from the inner matcher's mask after which the budget is too small."""
        if self._guard.early and self.inner.error is None:
            allowed = np.empty_like(words)
            self._guard.fill_mask(allowed)
            words &= allowed

    @override
    def advance(self, token: int) -> bool:
        if not self.inner.advance(token):
            return False
        if self._guard.early:
            taken = self._guard.advance(token)
            assert taken, "the guard does not allow a token of the reasoning that it guards"
        return True

    @override
    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        self._guard.rollback(max(0, self._guard.consumed - self.inner.consumed))
