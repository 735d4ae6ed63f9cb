"""Deterministic automata of syntax trees: conjunctions, complements and emptiness.

The letters of an automaton are classes of characters that none of its sets tells apart. Sizes are bounded: a larger
automaton raises `TooComplexError` instead of taking long.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.nfa import MAX_NFA_STATES, Alphabet, Nfa, classes
from draftline.structured.regular.nfa import TooComplexError as TooComplexError
from draftline.structured.regular.syntax import (
    ANY_TEXT,
    EMPTY,
    NEVER,
    Condition,
    Lookahead,
    Node,
    behind_start,
    seq,
)

MAX_DFA_STATES: Final = 4_000

_KEPT: Final = -1
_BROKEN: Final = -2
"""Promises that every rest of the text keeps, and that none does."""


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
            state = self.steps[state][self.letter(ord(character))]
        return self.accepts[state]

    def letter(self, code: int) -> int:
        """The letter of a code point."""
        return self.letters[bisect.bisect_right(self.starts, code) - 1]

    def characters(self) -> list[CharSet]:
        """The characters of each letter."""
        return classes(self.starts, self.letters)


@dataclass(frozen=True, slots=True)
class Part:
    """One conjunct: the language of an automaton, or its complement if ``inside`` is False."""

    dfa: Dfa
    inside: bool = True


@functools.lru_cache(maxsize=2048)
def build(tree: Node) -> Dfa:
    """The minimal automaton of the texts of a tree. An anchor holds only at the start or the end of the text.

    A state is a set of threads: the subset construction, with what lookaheads and anchors ask of the rest of the text.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    nfa = Nfa(tree)
    conditions = dict.fromkeys(condition for moves in nfa.empty for _, condition in moves if condition is not None)
    threads = _Threads(nfa, {(one, at_start): _rest(one, at_start) for one in conditions for at_start in (False, True)})
    alphabet = threads.alphabet
    # Universal states accept every continuation: other NFA states next to one make no difference.
    universal: set[int] = set()
    everything: frozenset[int] = frozenset()
    for state, move in enumerate(nfa.moves):
        if move is not None and move[0] == charset.ALL:
            after = threads.closure([move[1]], at_start=False)
            if state in after and nfa.end in after:
                universal.add(state)
                everything = after
    first = threads.closure([nfa.start], at_start=True)
    numbers = {first: 0}
    queue = [first]
    steps: list[tuple[int, ...]] = []
    closures: dict[frozenset[int], frozenset[int]] = {}
    for states in queue:
        by_letter: list[set[int]] = [set() for _ in alphabet.characters]
        for state in states:
            for letter, target in threads.targets(state).items():
                by_letter[letter].add(target)
        row: list[int] = []
        for reached in by_letter:
            raw = frozenset(reached)
            closed = closures.get(raw)
            if closed is None:
                closed = threads.closure(raw, at_start=False)
                if not closed.isdisjoint(universal):
                    closed = everything
                closures[raw] = closed
            number = numbers.get(closed)
            if number is None:
                number = numbers[closed] = len(queue)
                if number >= MAX_DFA_STATES:
                    raise TooComplexError(f"more than {MAX_DFA_STATES} states")
                queue.append(closed)
            row.append(number)
        steps.append(tuple(row))
    accepts = tuple(any(map(threads.accepts, states)) for states in queue)
    return minimal(Dfa(alphabet.starts, alphabet.letters, tuple(steps), accepts))


def _rest(condition: Condition, at_start: bool) -> Part:
    """The rests of a text, at its start or behind it, before which a condition holds."""
    if isinstance(condition, Lookahead):
        ahead = condition.node if at_start else behind_start(condition.node)
        return Part(build(seq(ahead, ANY_TEXT)), condition.inside)
    if condition.end:
        return Part(build(EMPTY))
    return Part(build(ANY_TEXT if at_start else NEVER))


class _Threads:
    """The states of an NFA, each with its promises: automata that read the rest of the text and have to accept it.

    A thread makes a promise where it passes a condition. Threads are numbered; a state without promises has its own number.

    Attributes:
        alphabet: the letters that neither the NFA nor an automaton of a promise tells apart.
    """

    def __init__(self, nfa: Nfa, rests: Mapping[tuple[Condition, bool], Part]) -> None:
        self._nfa = nfa
        self._contents: list[tuple[int, frozenset[int]]] = [(state, frozenset()) for state in range(len(nfa.moves))]
        self._numbers: dict[tuple[int, frozenset[int]], int] = {}
        self._targets: dict[int, dict[int, int]] = {}
        sets = dict.fromkeys(move[0] for move in nfa.moves if move is not None)
        self.alphabet = Alphabet.of(chain(sets, *(part.dfa.characters() for part in rests.values())))
        self._letters = {one: self.alphabet.within(one) for one in sets}
        # A promise is a state of an automaton. All are numbered through.
        self._begins: dict[tuple[Condition, bool], int] = {}
        self._steps: list[list[int]] = []
        self._accepts: list[bool] = []
        for place, part in rests.items():
            # No text has a letter without characters, so any other letter may stand in for it.
            letters = [part.dfa.letter(one[0][0] if one else 0) for one in self.alphabet.characters]
            rows = [[row[letter] for letter in letters] for row in part.dfa.steps]
            accepts = [accepting == part.inside for accepting in part.dfa.accepts]
            numbers = [
                (_KEPT if accepts[state] else _BROKEN) if set(row) == {state} else len(self._steps) + state
                for state, row in enumerate(rows)
            ]
            self._steps.extend([numbers[target] for target in row] for row in rows)
            self._accepts.extend(accepts)
            self._begins[place] = numbers[0]

    def _number(self, state: int, promises: Iterable[int]) -> int | None:
        """The number of a thread; None if a promise is broken."""
        made = frozenset(promise for promise in promises if promise != _KEPT)
        if not made:
            return state
        if _BROKEN in made:
            return None
        number = self._numbers.setdefault((state, made), len(self._contents))
        if number == len(self._contents):
            if number >= MAX_NFA_STATES:
                raise TooComplexError(f"more than {MAX_NFA_STATES} positions with what lookaheads ask of the rest")
            self._contents.append((state, made))
        return number

    def targets(self, thread: int) -> dict[int, int]:
        """The next thread by letter."""
        known = self._targets.get(thread)
        if known is None:
            known = self._targets[thread] = {}
            state, promises = self._contents[thread]
            if (move := self._nfa.moves[state]) is not None:
                for letter in self._letters[move[0]]:
                    target = self._number(move[1], (self._steps[promise][letter] for promise in promises))
                    if target is not None:
                        known[letter] = target
        return known

    def accepts(self, thread: int) -> bool:
        """Whether the text may end here."""
        state, promises = self._contents[thread]
        return state == self._nfa.end and all(self._accepts[promise] for promise in promises)

    def closure(self, threads: Iterable[int], at_start: bool) -> frozenset[int]:
        """The threads that empty moves lead to, and that read a character or are at the end."""
        seen = set(threads)
        stack = list(seen)
        while stack:
            state, promises = self._contents[stack.pop()]
            for target, condition in self._nfa.empty[state]:
                made = promises if condition is None else promises | {self._begins[condition, at_start]}
                number = self._number(target, made) if made else target
                if number is not None and number not in seen:
                    seen.add(number)
                    stack.append(number)
        return frozenset(
            one for one in seen if (state := self._contents[one][0]) == self._nfa.end or self._nfa.moves[state]
        )


def minimal(dfa: Dfa) -> Dfa:
    """Merge equivalent states, and number them in the order of discovery."""
    block = _blocks(dfa)
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


def _blocks(dfa: Dfa) -> list[int]:
    """A number for each state: equivalent states, and no others, have the same.

    Where a block splits, its largest part keeps the number (Hopcroft). So a state changes its number at most log n times,
    and only the states before such a state are compared again. Automata of long bounded texts would need a round of all
    states for each length otherwise.
    """
    block = [int(accepting) for accepting in dfa.accepts]
    members: list[set[int]] = [set(), set()]
    before: list[set[int]] = [set() for _ in dfa.steps]
    for state, row in enumerate(dfa.steps):
        members[block[state]].add(state)
        for target in row:
            before[target].add(state)
    waiting = set(range(len(block)))
    while waiting:
        parts: dict[int, dict[tuple[int, ...], set[int]]] = {}
        for state in waiting:
            after = tuple([block[target] for target in dfa.steps[state]])
            parts.setdefault(block[state], {}).setdefault(after, set()).add(state)
        waiting = set()
        for number, by_steps in parts.items():
            # A state that does not wait steps to other blocks than those that do.
            rest = members[number].difference(*by_steps.values())
            split = sorted(filter(None, [rest, *by_steps.values()]), key=len)
            members[number] = split.pop()
            for part in split:
                for state in part:
                    block[state] = len(members)
                    waiting |= before[state]
                members.append(part)
    return block


def _product_letters(parts: Sequence[Part]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The intervals of the joint alphabet: their starts, and for each the letter of every part."""
    starts = sorted({start for part in parts for start in part.dfa.starts})
    return tuple(starts), [tuple(part.dfa.letter(start) for part in parts) for start in starts]


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
