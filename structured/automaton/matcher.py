"""``AutomatonMatcher``: the position of one output in an automaton, and its states so far."""

from __future__ import annotations

from typing_extensions import override

from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.matcher import MAX_FORCED_BYTES, Matcher, RowByRow, Words


class AutomatonMatcher(Matcher):
    """The position of one output in an automaton. Every method is a look-up."""

    failure: str | None = None
    error: str | None = None
    mask_batcher = RowByRow()

    def __init__(
        self,
        automaton: TokenAutomaton,
        state: int = 0,
        budget: int | None = None,
        early_budget: int | None = None,
    ) -> None:
        """At a state of the automaton; state 0 is the beginning of a text.

        Args:
            automaton: compiled with budgets, if ``budget`` is given.
            state: where the text begins.
            budget: the number of tokens within which the text must be complete. Tokens that would make that impossible
                are illegal. If it is impossible from the start, the shortest completions are legal.
            early_budget: the same for the text up to the automaton's boundary.
        """
        self._automaton = automaton
        self._budget = budget
        self._early_budget = early_budget
        if early_budget is not None and budget is not None:
            # What follows the boundary needs its share of the budget.
            self._early_budget = min(early_budget, budget - automaton.late_distance)
        self._token_class = automaton.token_class
        self._next = automaton.next
        self._states = [state]

    @property
    def state(self) -> int:
        """The automaton's state."""
        return self._states[-1]

    @property
    def early(self) -> bool:
        """Whether the text is before the automaton's boundary."""
        return bool(self._automaton.early[self.state])

    @property
    @override
    def consumed(self) -> int:
        return len(self._states) - 1

    @property
    @override
    def complete(self) -> bool:
        return bool(self._automaton.accepting[self.state])

    @property
    @override
    def finished(self) -> bool:
        return self.state == self._automaton.states - 1

    @property
    @override
    def ended(self) -> bool:
        mask_of = self._automaton.mask_of
        return bool(mask_of[self.state] == mask_of[-1])

    @override
    def fill_mask(self, words: Words) -> None:
        automaton = self._automaton
        budget = self._early_budget if automaton.early[self.state] else self._budget
        mask = automaton.mask_of[self.state] if budget is None else self._closing_mask(budget)
        words[:] = automaton.masks[mask]

    def _closing_mask(self, budget: int) -> int:
        automaton = self._automaton
        first, end = automaton.budget_first[self.state : self.state + 2].tolist()
        after = budget - self.consumed - 1
        within = automaton.budget_distance[first:end].searchsorted(after, side="right")
        return int(automaton.budget_mask[first + max(int(within) - 1, 0)])

    @override
    def advance(self, token: int) -> bool:
        if not 0 <= token < len(self._token_class):
            return False
        state = int(self._next[self._states[-1], self._token_class[token]])
        if state < 0:
            return False
        self._states.append(state)
        return True

    @override
    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.consumed:
            raise ValueError(f"cannot take back {count} tokens of {self.consumed}")
        del self._states[len(self._states) - count :]

    @override
    def forced(self) -> bytes:
        text = bytearray()
        state = self.state
        while len(text) < MAX_FORCED_BYTES and (byte := int(self._automaton.forced_byte[state])) >= 0:
            text.append(byte)
            state = int(self._automaton.byte_next[state])
        return bytes(text)
