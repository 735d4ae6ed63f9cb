"""The matcher of a regular constraint: an automaton's state, and those before it."""

from __future__ import annotations

from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.matcher import Words


class AutomatonMatcher:
    """See `Matcher`. Everything is a look-up."""

    error: str | None = None
    mask_engine: None = None

    def __init__(self, automaton: TokenAutomaton, state: int = 0, budget: int | None = None) -> None:
        """At a state of the automaton, the first of which is the beginning of a text.

        Args:
            automaton: made with budgets, if there is one.
            state: where the text begins.
            budget: how many tokens the text may take: what would not let it be complete by then is not allowed. If that
                cannot be in the first place, what comes closest is.
        """
        self._automaton = automaton
        self._budget = budget
        self._token_class = automaton.token_class
        self._next = automaton.next
        self._states = [state]

    @property
    def state(self) -> int:
        """The automaton's state."""
        return self._states[-1]

    @property
    def consumed(self) -> int:
        """See `Matcher.consumed`."""
        return len(self._states) - 1

    @property
    def complete(self) -> bool:
        """See `Matcher.complete`."""
        return bool(self._automaton.accepting[self.state])

    @property
    def finished(self) -> bool:
        """See `Matcher.finished`."""
        return self.state == self._automaton.states - 1

    @property
    def ended(self) -> bool:
        """See `Matcher.ended`."""
        mask_of = self._automaton.mask_of
        return bool(mask_of[self.state] == mask_of[-1])

    def fill_mask(self, words: Words) -> None:
        """See `Matcher.fill_mask`."""
        automaton = self._automaton
        mask = automaton.mask_of[self.state] if self._budget is None else self._closing_mask(self._budget)
        words[:] = automaton.masks[mask]

    finish_mask = fill_mask

    def _closing_mask(self, budget: int) -> int:
        automaton = self._automaton
        first, end = automaton.budget_first[self.state : self.state + 2].tolist()
        after = budget - self.consumed - 1
        within = automaton.budget_distance[first:end].searchsorted(after, side="right")
        return int(automaton.budget_mask[first + max(int(within) - 1, 0)])

    def advance(self, token: int) -> bool:
        """See `Matcher.advance`."""
        if not 0 <= token < len(self._token_class):
            return False
        state = int(self._next[self._states[-1], self._token_class[token]])
        if state < 0:
            return False
        self._states.append(state)
        return True

    def rollback(self, count: int) -> None:
        """See `Matcher.rollback`."""
        if not 0 <= count <= self.consumed:
            raise ValueError(f"cannot take back {count} tokens of {self.consumed}")
        del self._states[len(self._states) - count :]

    def forced(self) -> bytes:
        """See `Matcher.forced`."""
        text = bytearray()
        state = self.state
        while (byte := int(self._automaton.forced_byte[state])) >= 0:
            text.append(byte)
            state = int(self._automaton.byte_next[state])
        return bytes(text)
