"""Deterministic automata of syntax trees: conjunctions, complements and emptiness.

The letters of an automaton are classes of characters that none of its sets tells apart. Sizes are bounded: a larger
automaton raises `TooComplexError` instead of taking long.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.syntax import (
    Alt,
    Anchor,
    Chars,
    Node,
    Seq,
)

MAX_NFA_STATES = 40_000
MAX_DFA_STATES = 4_000


class TooComplexError(ValueError):
    """An automaton would need more states than the budget allows."""


@dataclass(frozen=True, slots=True)
class Dfa:
    """A complete deterministic automaton over code points. State 0 is the start.

    Attributes:
        starts: the first code point of each interval, ascending.
        letters: the letter of each interval.
        steps: for each state, the next state by letter.
        accepts: for each state, whether it is accepting.
    """

    starts: tuple[int, ...]
    letters: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    accepts: tuple[bool, ...]

    def matches(self, text: str) -> bool:
        """Whether the whole text is in the language."""
        state = 0
        for character in text:
            state = self.steps[state][self.letters[bisect.bisect_right(self.starts, ord(character)) - 1]]
        return self.accepts[state]


class _Nfa:
    """Thompson's construction, with anchors as conditions on empty moves."""

    def __init__(self, tree: Node) -> None:
        self.empty: list[list[tuple[int, Anchor | None]]] = []
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
        if isinstance(node, Anchor):
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

    def closure(self, states: Iterable[int], at_start: bool, at_end: bool) -> frozenset[int]:
        """All states reachable by empty moves."""
        seen = set(states)
        stack = list(seen)
        while stack:
            for target, anchor in self.empty[stack.pop()]:
                passable = anchor is None or (at_end if anchor.end else at_start)
                if passable and target not in seen:
                    seen.add(target)
                    stack.append(target)
        return frozenset(seen)


def _alphabet(sets: Iterable[CharSet]) -> tuple[tuple[int, ...], tuple[int, ...], list[CharSet]]:
    """The coarsest partition that respects all sets: interval starts, their letters, and the characters of each letter."""
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
    letters = [numbers.setdefault(tuple(member[start]), len(numbers)) for start in starts]
    ranges: list[list[tuple[int, int]]] = [[] for _ in numbers]
    for position, letter in enumerate(letters):
        last = starts[position + 1] - 1 if position + 1 < len(starts) else 0x10FFFF
        ranges[letter].append((starts[position], last))
    return tuple(starts), tuple(letters), [charset.charset(one) for one in ranges]


@functools.lru_cache(maxsize=2048)
def build(tree: Node) -> Dfa:
    """The minimal automaton of the texts of a tree. An anchor holds only at the start or the end of the text.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    nfa = _Nfa(tree)
    starts, letters, characters = _alphabet(move[0] for move in nfa.moves if move is not None)
    representative = [one[0][0] if one else None for one in characters]
    targets: list[dict[int, int]] = []  # for each NFA state, letter -> target
    for move in nfa.moves:
        reached: dict[int, int] = {}
        if move is not None:
            lows = [low for low, _ in move[0]]
            for letter, code in enumerate(representative):
                if code is not None:
                    position = bisect.bisect_right(lows, code) - 1
                    if position >= 0 and code <= move[0][position][1]:
                        reached[letter] = move[1]
        targets.append(reached)
    # Universal states accept every continuation: other NFA states next to one make no difference.
    universal: set[int] = set()
    everything: frozenset[int] = frozenset()
    for state, move in enumerate(nfa.moves):
        if move is not None and move[0] == charset.ALL:
            after = nfa.closure([move[1]], at_start=False, at_end=False)
            if state in after and nfa.end in after:
                universal.add(state)
                everything = after
    anchored = any(anchor is not None for moves in nfa.empty for _, anchor in moves)
    first = nfa.closure([nfa.start], at_start=True, at_end=False)
    numbers = {first: 0}
    queue = [first]
    steps: list[tuple[int, ...]] = []
    accepts: list[bool] = []
    closures: dict[frozenset[int], frozenset[int]] = {}
    for states in queue:
        at_start = len(steps) == 0
        ending = nfa.closure(states, at_start=at_start, at_end=True) if anchored else states
        accepts.append(nfa.end in ending)
        by_letter: list[set[int]] = [set() for _ in characters]
        for state in states:
            for letter, target in targets[state].items():
                by_letter[letter].add(target)
        row: list[int] = []
        for reached_states in by_letter:
            raw = frozenset(reached_states)
            closed = closures.get(raw)
            if closed is None:
                closed = nfa.closure(raw, at_start=False, at_end=False)
                if not closed.isdisjoint(universal):
                    closed = everything
                closures[raw] = closed
            number = numbers.get(closed) if not (closed == first and anchored) else None
            if number is None:
                # The start's set of NFA states may come back where "^" no longer holds: then it is a different state.
                number = numbers.get(frozenset(closed | {-1})) if closed == first and anchored else None
            if number is None:
                number = len(queue)
                if number >= MAX_DFA_STATES:
                    raise TooComplexError(f"more than {MAX_DFA_STATES} states")
                numbers[frozenset(closed | {-1}) if closed == first and anchored else closed] = number
                queue.append(closed)
            row.append(number)
        steps.append(tuple(row))
    return minimal(Dfa(starts, letters, tuple(steps), tuple(accepts)))


def minimal(dfa: Dfa) -> Dfa:
    """Merge equivalent states (Moore's refinement), and number them in the order of discovery."""
    block = [int(accepting) for accepting in dfa.accepts]
    count = len(set(block))
    while True:
        numbers: dict[tuple[int, ...], int] = {}
        refined = [
            numbers.setdefault((block[state], *(block[target] for target in row)), len(numbers))
            for state, row in enumerate(dfa.steps)
        ]
        if len(numbers) == count:
            break
        block, count = refined, len(numbers)
    of_block: dict[int, int] = {}
    order: list[int] = [0]
    of_block[block[0]] = 0
    steps: list[tuple[int, ...]] = []
    for state in order:
        row: list[int] = []
        for target in dfa.steps[state]:
            number = of_block.get(block[target])
            if number is None:
                number = of_block[block[target]] = len(order)
                order.append(target)
            row.append(number)
        steps.append(tuple(row))
    return Dfa(dfa.starts, dfa.letters, tuple(steps), tuple(dfa.accepts[state] for state in order))


@dataclass(frozen=True, slots=True)
class Part:
    """One conjunct: the language of an automaton, or its complement if ``inside`` is False."""

    dfa: Dfa
    inside: bool = True


def _product_letters(parts: Sequence[Part]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The intervals of the joint alphabet: their starts, and for each the letter of every part."""
    starts = sorted({start for part in parts for start in part.dfa.starts})
    return tuple(starts), [
        tuple(part.dfa.letters[bisect.bisect_right(part.dfa.starts, start) - 1] for part in parts) for start in starts
    ]


def is_empty(parts: Sequence[Part], min_length: int = 0, max_length: int | None = None) -> bool:
    """Whether no text of a length within the bounds (in code points) is in all parts.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    starts, joint = _product_letters(parts)
    # Surrogates are not characters: skip intervals of them.
    letters = list(
        dict.fromkeys(letter for start, letter in zip(starts, joint, strict=True) if _has_characters(start, starts))
    )

    def accepting(state: tuple[int, ...]) -> bool:
        return all(part.dfa.accepts[at] == part.inside for part, at in zip(parts, state, strict=True))

    def successors(state: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for letter in letters:
            yield tuple(part.dfa.steps[at][one] for part, at, one in zip(parts, state, letter, strict=True))

    layer = frozenset([tuple(0 for _ in parts)])
    if min_length == 0 and max_length is None:
        seen = set(layer)
        stack = list(layer)
        while stack:
            state = stack.pop()
            if accepting(state):
                return False
            for target in successors(state):
                if target not in seen:
                    if len(seen) >= MAX_DFA_STATES * 4:
                        raise TooComplexError(f"more than {MAX_DFA_STATES * 4} states")
                    seen.add(target)
                    stack.append(target)
        return True
    layers: set[frozenset[tuple[int, ...]]] = set()
    length = 0
    work = 0
    while layer and (max_length is None or length <= max_length):
        if length >= min_length:
            if any(accepting(state) for state in layer):
                return False
            if layer in layers:
                return True
            layers.add(layer)
        work += len(layer) * len(letters)
        if work > 300_000:
            raise TooComplexError("too many lengths to try")
        layer = frozenset(target for state in layer for target in successors(state))
        length += 1
    return True


def _has_characters(start: int, starts: tuple[int, ...]) -> bool:
    if not 0xD800 <= start <= 0xDFFF:
        return True
    position = bisect.bisect_right(starts, start)
    return (starts[position] if position < len(starts) else 0x110000) > 0xE000


def conjunction(parts: Sequence[Part]) -> Dfa:
    """The minimal automaton of the intersection of all parts.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    starts, joint = _product_letters(parts)
    distinct = {letter: number for number, letter in enumerate(dict.fromkeys(joint))}
    letters = tuple(distinct[letter] for letter in joint)
    first = tuple(0 for _ in parts)
    numbers = {first: 0}
    queue = [first]
    steps: list[tuple[int, ...]] = []
    for state in queue:
        row: list[int] = []
        for letter in distinct:
            target = tuple(part.dfa.steps[at][one] for part, at, one in zip(parts, state, letter, strict=True))
            if target not in numbers:
                if len(queue) >= MAX_DFA_STATES:
                    raise TooComplexError(f"more than {MAX_DFA_STATES} states")
                numbers[target] = len(queue)
                queue.append(target)
            row.append(numbers[target])
        steps.append(tuple(row))
    accepts = tuple(
        all(part.dfa.accepts[at] == part.inside for part, at in zip(parts, state, strict=True)) for state in queue
    )
    return minimal(Dfa(starts, letters, tuple(steps), accepts))


def alive_states(dfa: Dfa) -> list[int]:
    """The states from which an accepting state can be reached, ascending."""
    before: list[set[int]] = [set() for _ in dfa.steps]
    for state, row in enumerate(dfa.steps):
        for target in row:
            before[target].add(state)
    seen = {state for state, accepting in enumerate(dfa.accepts) if accepting}
    stack = list(seen)
    while stack:
        for source in before[stack.pop()]:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return sorted(seen)
