"""``ForcedDrafts``: what each state of an automaton forces, as tokens, so that drafting it is a look-up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftline.structured.automaton.byte_automaton import Ints
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.forced import forced_tokens
from draftline.structured.vocabulary import ByteVocabulary

MAX_FORCED_DRAFTS = 16
"""The most tokens that are drafted at one state; more than a step verifies is no use."""

_MAX_STATES = 4096
"""The most states that are looked at, the first ones: each takes the tokenizer some microseconds."""


@dataclass(frozen=True, slots=True)
class ForcedDrafts:
    """Tokens by state.

    Attributes:
        first: [states + 1] int32: state s's tokens are ``tokens[first[s]:first[s + 1]]``, most of them none.
        tokens: int32.
    """

    first: Ints
    tokens: Ints

    @property
    def nbytes(self) -> int:
        """Their size."""
        return self.first.nbytes + self.tokens.nbytes

    def at(self, state: int) -> tuple[int, ...]:
        """A state's tokens."""
        return tuple(self.tokens[self.first[state] : self.first[state + 1]].tolist())

    @staticmethod
    def of(automaton: TokenAutomaton, vocabulary: ByteVocabulary) -> ForcedDrafts:
        """The drafts of all states."""
        tokens: list[int] = []
        counts = np.zeros(automaton.states + 1, np.int32)
        for state in np.flatnonzero(automaton.forced_byte >= 0)[:_MAX_STATES].tolist():
            drafts = forced_tokens(AutomatonMatcher(automaton, state), vocabulary, MAX_FORCED_DRAFTS)
            tokens.extend(drafts)
            counts[state + 1] = len(drafts)
        return ForcedDrafts(counts.cumsum(dtype=np.int32), np.array(tokens, np.int32))
