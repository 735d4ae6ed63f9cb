"""Nondeterministic automata of syntax trees, by Thompson's construction, and alphabets for automata.

The letters of an alphabet are classes of characters that none of its sets tells apart.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.syntax import Alt, Chars, Condition, Node, Seq

MAX_NFA_STATES: Final = 40_000


class TooComplexError(ValueError):
    """An automaton would need more states than the budget allows."""


class Nfa:
    """The automaton of a tree. Anchors, lookaheads and lookbehinds are conditions on its empty moves.

    Attributes:
        empty: for each state, the targets of its empty moves, each with its condition.
        moves: for each state, the characters that it reads and the next state; None if it reads none.
        start: the state before the text.
        end: the state behind the text, which reads nothing.
    """

    def __init__(self, tree: Node) -> None:
        self.empty: list[list[tuple[int, Condition | None]]] = []
        self.moves: list[tuple[CharSet, int] | None] = []
        self.start = self._state()
        self.end = self._build(tree, self.start)

    def _state(self) -> int:
        if len(self.moves) >= MAX_NFA_STATES:
            raise TooComplexError(f"more than {MAX_NFA_STATES} positions")
        self.empty.append([])
        self.moves.append(None)
        return len(self.moves) - 1

    def _build(self, node: Node, start: int) -> int:
        if isinstance(node, Chars):
            end = self._state()
            source = self._state()
            self.empty[start].append((source, None))
            self.moves[source] = (node.set, end)
            return end
        if isinstance(node, Condition):
            end = self._state()
            self.empty[start].append((end, node))
            return end
        if isinstance(node, Seq):
            for part in node.parts:
                start = self._build(part, start)
            return start
        end = self._state()
        if isinstance(node, Alt):
            for option in node.options:
                branch = self._state()
                self.empty[start].append((branch, None))
                self.empty[self._build(option, branch)].append((end, None))
            return end
        for _ in range(node.low):
            start = self._build(node.node, start)
        if node.high is None:
            loop = self._state()
            self.empty[start].append((loop, None))
            self.empty[self._build(node.node, loop)].append((loop, None))
            self.empty[loop].append((end, None))
        else:
            for _ in range(node.high - node.low):
                self.empty[start].append((end, None))
                start = self._build(node.node, start)
            self.empty[start].append((end, None))
        return end


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The coarsest partition of all characters that respects some sets.

    Attributes:
        starts: the first code point of each interval, ascending.
        letters: the letter of each interval.
        characters: the characters of each letter. A letter of surrogates has none.
    """

    starts: tuple[int, ...]
    letters: tuple[int, ...]
    characters: Sequence[CharSet]

    @staticmethod
    def of(sets: Iterable[CharSet]) -> Alphabet:
        """The alphabet of some sets."""
        distinct = list(dict.fromkeys(sets))
        bounds = {0}
        for one in distinct:
            for low, high in one:
                bounds.update((low, high + 1))
        starts = sorted(bound for bound in bounds if bound <= 0x10FFFF)
        member: dict[int, list[int]] = {start: [] for start in starts}
        for index, one in enumerate(distinct):
            for low, high in one:
                for position in range(bisect.bisect_left(starts, low), bisect.bisect_right(starts, high)):
                    member[starts[position]].append(index)
        numbers: dict[tuple[int, ...], int] = {}
        letters = tuple(numbers.setdefault(tuple(member[start]), len(numbers)) for start in starts)
        return Alphabet(tuple(starts), letters, classes(starts, letters))

    def within(self, characters: CharSet) -> list[int]:
        """The letters of a set."""
        lows = [low for low, _ in characters]

        def contains(code: int) -> bool:
            position = bisect.bisect_right(lows, code) - 1
            return position >= 0 and code <= characters[position][1]

        return [letter for letter, one in enumerate(self.characters) if one and contains(one[0][0])]


def classes(starts: Sequence[int], letters: Sequence[int]) -> list[CharSet]:
    """The characters of each letter, from the intervals and their letters."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for position, letter in enumerate(letters):
        last = starts[position + 1] - 1 if position + 1 < len(starts) else 0x10FFFF
        ranges.setdefault(letter, []).append((starts[position], last))
    return [charset.charset(ranges[letter]) for letter in range(len(ranges))]
