"""Deterministic automata of syntax trees: conjunctions and complements.

The letters of an automaton are classes of characters that none of its sets tells apart. Sizes are bounded: a larger
automaton raises `TooComplexError` instead of taking long.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.equivalence import equivalent_states
from draftline.structured.regular.nfa import MAX_NFA_STATES, Alphabet, Nfa, classes
from draftline.structured.regular.nfa import TooComplexError as TooComplexError
from draftline.structured.regular.syntax import (
    ANY_TEXT,
    EMPTY,
    NEVER,
    Anchor,
    Condition,
    Lookahead,
    Lookbehind,
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


@functools.lru_cache(maxsize=4096)
def build(tree: Node) -> Dfa:
    """The minimal automaton of the texts of a tree. An anchor holds only at the start or the end of the text.

    A state is a set of threads: the subset construction, with what lookaheads and anchors ask of the rest of the text. Beside
    it are the states of the automata of the lookbehinds, which read the text so far.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    nfa = Nfa(tree)
    conditions = dict.fromkeys(condition for moves in nfa.empty for _, condition in moves if condition is not None)
    behind = [one for one in conditions if isinstance(one, Lookbehind)]
    pasts = [build(seq(ANY_TEXT, one.node)) for one in behind]
    ahead = [one for one in conditions if not isinstance(one, Lookbehind)]
    rests: dict[tuple[Condition, bool], Part] = {
        (one, at_start): _rest(one, at_start) for one in ahead for at_start in (False, True)
    }
    threads = _Threads(nfa, rests, pasts)
    alphabet = threads.alphabet
    letters = [[past.letter(one[0][0] if one else 0) for past in pasts] for one in alphabet.characters]

    @functools.cache
    def holding(past: tuple[int, ...]) -> frozenset[Condition]:
        """The lookbehinds that hold behind a text."""
        states = zip(behind, pasts, past, strict=True)
        return frozenset(one for one, automaton, state in states if automaton.accepts[state] == one.inside)

    # Beside a universal state, other NFA states make no difference, nor does what was before.
    universal, everything = threads.universal()
    nothing = (0,) * len(pasts)
    first = (threads.closure([nfa.start], True, holding(nothing)), nothing)
    numbers = {first: 0}
    queue = [first]
    steps: list[tuple[int, ...]] = []
    closures: dict[tuple[frozenset[int], frozenset[Condition]], frozenset[int]] = {}
    for states, past in queue:
        by_letter: list[set[int]] = [set() for _ in alphabet.characters]
        for state in states:
            for letter, target in threads.targets(state).items():
                by_letter[letter].add(target)
        row: list[int] = []
        for letter, reached in enumerate(by_letter):
            now = tuple(one.steps[at][to] for one, at, to in zip(pasts, past, letters[letter], strict=True))
            raw = (frozenset(reached), holding(now))
            closed = closures.get(raw)
            if closed is None:
                closed = threads.closure(raw[0], False, raw[1])
                if not closed.isdisjoint(universal):
                    closed = everything
                closures[raw] = closed
            key = (closed, nothing if closed == everything or not closed else now)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(queue)
                if number >= MAX_DFA_STATES:
                    raise TooComplexError(f"more than {MAX_DFA_STATES} states")
                queue.append(key)
            row.append(number)
        steps.append(tuple(row))
    accepts = tuple(any(map(threads.accepts, states)) for states, _ in queue)
    return minimal(Dfa(alphabet.starts, alphabet.letters, tuple(steps), accepts))


def _rest(condition: Anchor | Lookahead, at_start: bool) -> Part:
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
        alphabet: the letters that neither the NFA nor an automaton of a promise or of the text so far tells apart.
    """

    def __init__(self, nfa: Nfa, rests: Mapping[tuple[Condition, bool], Part], pasts: Iterable[Dfa]) -> None:
        self._nfa = nfa
        self._contents: list[tuple[int, frozenset[int]]] = [(state, frozenset()) for state in range(len(nfa.moves))]
        self._numbers: dict[tuple[int, frozenset[int]], int] = {}
        self._targets: dict[int, dict[int, int]] = {}
        sets = dict.fromkeys(move[0] for move in nfa.moves if move is not None)
        automata = chain((part.dfa for part in rests.values()), pasts)
        self.alphabet = Alphabet.of(chain(sets, *(one.characters() for one in automata)))
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

    def closure(self, threads: Iterable[int], at_start: bool, behind: frozenset[Condition]) -> frozenset[int]:
        """The threads that empty moves lead to, and that read a character or are at the end.

        Args:
            threads: where to begin.
            at_start: whether this is the start of the text.
            behind: the lookbehinds that hold here.
        """
        seen = set(threads)
        stack = list(seen)
        while stack:
            state, promises = self._contents[stack.pop()]
            for target, condition in self._nfa.empty[state]:
                if isinstance(condition, Lookbehind):
                    if condition not in behind:
                        continue
                    condition = None
                made = promises if condition is None else promises | {self._begins[condition, at_start]}
                number = self._number(target, made) if made else target
                if number is not None and number not in seen:
                    seen.add(number)
                    stack.append(number)
        return frozenset(
            one for one in seen if (state := self._contents[one][0]) == self._nfa.end or self._nfa.moves[state]
        )

    def universal(self) -> tuple[set[int], frozenset[int]]:
        """The states that accept every rest of the text, and the closure of such states."""
        found: set[int] = set()
        everything: frozenset[int] = frozenset()
        for state, move in enumerate(self._nfa.moves):
            if move is not None and move[0] == charset.ALL:
                after = self.closure([move[1]], False, frozenset())
                if state in after and self._nfa.end in after:
                    found.add(state)
                    everything = after
        return found, everything


def minimal(dfa: Dfa) -> Dfa:
    """Merge equivalent states, and number them in the order of discovery."""
    block = equivalent_states(dfa.steps, dfa.accepts)
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


def product_letters(parts: Sequence[Part]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The intervals of the joint alphabet: their starts, and for each the letter of every part."""
    starts = sorted({start for part in parts for start in part.dfa.starts})
    return tuple(starts), [tuple(part.dfa.letter(start) for part in parts) for start in starts]


def conjunction(parts: Sequence[Part]) -> Dfa:
    """The minimal automaton of the intersection of all parts.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    starts, joint = product_letters(parts)
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
