"""``DraftTable``: the forced drafts of every state of an automaton, so that drafting is a look-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.rows import Ints
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.forced_drafts import forced_drafts
from draftline.structured.vocabulary import ByteVocabulary

MAX_FORCED_DRAFTS = 16
"""The most tokens that are drafted at one state: about as many as one step verifies."""

_MAX_STATES = 4096
"""The most states that get drafts, the first ones: each costs the tokenizer some microseconds."""


@dataclass(frozen=True, slots=True)
class DraftTable:
    """Drafts by state.

    Attributes:
        first: [states + 1] int32: state s drafts ``tokens[first[s]:first[s + 1]]``, which is empty for most states.
        tokens: int32.
    """

    first: Ints
    tokens: Ints

    @property
    def nbytes(self) -> int:
        """Size of the arrays."""
        return self.first.nbytes + self.tokens.nbytes

    def at(self, state: int) -> tuple[int, ...]:
        """The drafts of a state."""
        return tuple(self.tokens[self.first[state] : self.first[state + 1]].tolist())

    @staticmethod
    def of(automaton: TokenAutomaton, vocabulary: ByteVocabulary) -> DraftTable:
        """The drafts of all states of an automaton."""
        # Many states force the same text: the rest of a member's name, for example.
        vocabulary = replace(vocabulary, encode=cache(vocabulary.encode))
        tokens: list[int] = []
        counts = np.zeros(automaton.states + 1, np.int32)
        for state in np.flatnonzero(automaton.forced_byte >= 0)[:_MAX_STATES].tolist():
            drafts = forced_drafts(AutomatonMatcher(automaton, state), vocabulary, MAX_FORCED_DRAFTS)
            tokens.extend(drafts)
            counts[state + 1] = len(drafts)
        return DraftTable(counts.cumsum(dtype=np.int32), np.array(tokens, np.int32))
