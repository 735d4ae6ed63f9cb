"""Whether an intersection of automata has a text, of any length or of one within bounds."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Final

from draftline.structured.regular.dfa import MAX_DFA_STATES, Part, TooComplexError, product_letters

State = tuple[int, ...]
"""A state of several automata: one of each."""

_MAX_STATES: Final = 4 * MAX_DFA_STATES
_MAX_STEPS: Final = 2_000_000
"""Steps between states, about 0.1 µs each, to find a text of a length."""


def is_empty(parts: Sequence[Part], min_length: int = 0, max_length: int | None = None) -> bool:
    """Whether no text of a length within the bounds (in code points) is in all parts.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    product = _Product(parts)
    layer = frozenset([product.start])
    length = 0
    found: dict[frozenset[State], int] = {}
    while length < min_length:
        # The states that texts of this length lead to. Once they repeat, they repeat for ever, so whole periods are skipped.
        period = length - found.setdefault(layer, length)
        if period and length + period <= min_length:
            length += (min_length - length) // period * period
        else:
            layer = product.after(layer)
            length += 1
    reached = set(layer)
    while layer and (max_length is None or length <= max_length):
        if any(map(product.accepts, layer)):
            return False
        layer = product.after(layer) - reached
        reached |= layer
        length += 1
    return True


class _Product:
    """The automaton of an intersection. Its states are found when they are asked for.

    Attributes:
        start: the first state.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        starts, joint = product_letters(parts)
        # Surrogates are not characters: skip intervals of them.
        self._letters = list(
            dict.fromkeys(letter for start, letter in zip(starts, joint, strict=True) if _has_characters(start, starts))
        )
        self._after: dict[State, frozenset[State]] = {}
        self._work = 0
        self.start: State = (0,) * len(parts)

    def accepts(self, state: State) -> bool:
        """Whether all parts accept."""
        return all(part.dfa.accepts[at] == part.inside for part, at in zip(self._parts, state, strict=True))

    def after(self, states: Iterable[State]) -> frozenset[State]:
        """The states that one more character leads to.

        Raises:
            TooComplexError: there were too many states, or too many steps between them.
        """
        found: set[State] = set()
        for state in states:
            targets = self._after.get(state)
            if targets is None:
                if len(self._after) >= _MAX_STATES:
                    raise TooComplexError(f"more than {_MAX_STATES} states")
                targets = self._after[state] = frozenset(
                    tuple(part.dfa.steps[at][one] for part, at, one in zip(self._parts, state, letter, strict=True))
                    for letter in self._letters
                )
            found |= targets
            self._work += len(targets)
        if self._work > _MAX_STEPS:
            raise TooComplexError("too many lengths to try")
        return frozenset(found)


def _has_characters(start: int, starts: tuple[int, ...]) -> bool:
    if not 0xD800 <= start <= 0xDFFF:
        return True
    position = bisect.bisect_right(starts, start)
    return (starts[position] if position < len(starts) else 0x110000) > 0xE000
