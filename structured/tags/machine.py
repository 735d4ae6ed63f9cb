"""``Machine``: a form as a nondeterministic automaton over bytes, whose parts are deterministic ones.

Its states are sets of positions. `Machine.automaton` explores all of them, `walk` only those that an output reaches.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.byte_moves import byte_moves
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.rows import Indices, equal_rows
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.tags.form import (
    REASONING,
    Choice,
    Form,
    Free,
    Leaf,
    Literal,
    Repeat,
    Separated,
    Sequence,
    Tag,
    Triggered,
)
from draftline.structured.tags.free_text import FreeText, free_text
from draftline.structured.tags.special import NO_NAMES, SpecialNames, special_bytes

Positions = tuple[int, ...]
"""A state: the positions that the text so far can be at, ascending. No position is a dead end."""

Row = npt.NDArray[np.int32] | dict[int, int]


@dataclass(frozen=True, slots=True)
class Close:
    """The end of a tag.

    Attributes:
        tag: the tag, as an index into `Machine.tags`.
        length: the characters of its end mark.
    """

    tag: int
    length: int


@functools.lru_cache(maxsize=256)
def _leaf_automaton(regex: str, max_states: int) -> ByteAutomaton:
    """Equivalent states are not merged: that is done once, when everything is built."""
    return ByteAutomaton.of(byte_moves(regex, max_states))


class Machine:
    """The automaton of a form.

    Attributes:
        tags: its tags.
        inside: for each position, the tags around it, outermost first.
        start: the state of the empty text.
        final: the position at which a text is complete.
        boundary: the position behind the reasoning; None without reasoning.
    """

    def __init__(self, form: Form, max_states: int, names: SpecialNames = NO_NAMES) -> None:
        """Build it.

        Args:
            form: every leaf has a regular expression.
            max_states: the most states of one leaf's automaton, before minimisation.
            names: of the special tokens that may write their names in marks.

        Raises:
            AutomatonTooLargeError: a leaf has too many states, or all of them together.
            InvalidConstraintError: a leaf's regular expression is malformed, or matches nothing.
        """
        self.tags: list[Tag] = []
        self.inside: list[tuple[int, ...]] = []
        self.boundary: int | None = None
        self._max_states = max_states
        self._names = names
        self._numbers: dict[int, int] = {}
        self._rows: list[Row | None] = []
        self._classes: list[npt.NDArray[np.integer]] = []  # which bytes are the same to each leaf
        self._texts: list[int] = []  # the positions of free text
        self._empty: defaultdict[int, list[int]] = defaultdict(list)
        self._closes: dict[int, Close] = {}
        self._closures: dict[int, frozenset[int]] = {}
        self._around: tuple[int, ...] = ()
        first = self._position()
        self.final = self._build(form, first)
        self.start: Positions = tuple(sorted(self._closure(first)))

    def is_complete(self, state: Positions) -> bool:
        """Whether the text so far is complete."""
        return self.final in state

    def is_early(self, state: Positions) -> bool:
        """Whether the text may be in its reasoning."""
        return self.boundary is not None and state[0] < self.boundary

    def step(self, state: Positions, byte: int) -> tuple[Positions, tuple[Close, ...]]:
        """The state after a byte, which is empty if the byte cannot follow, and the tags that end with it."""
        reached = self.reached(state, byte)
        return self.arrive(reached), self.closes(reached)

    def reached(self, positions: Iterable[int], byte: int) -> list[int]:
        """The positions right behind a byte."""
        reached: list[int] = []
        for position in positions:
            row = self._rows[position]
            if row is not None:
                target = row.get(byte, -1) if isinstance(row, dict) else int(row[byte])
                if target >= 0:
                    reached.append(target)
        return reached

    def closes(self, reached: Iterable[int]) -> tuple[Close, ...]:
        """The tags that end at these positions."""
        return tuple(dict.fromkeys(self._closes[position] for position in reached if position in self._closes))

    def arrive(self, reached: Iterable[int]) -> Positions:
        """The state of a text that is right behind a byte at these positions."""
        closed = {close.tag for close in self.closes(reached)}
        after: set[int] = set()
        for position in reached:
            # A tag that ends is over: content that would go on is no reading of this text.
            if closed.isdisjoint(self.inside[position]):
                after |= self._closure(position)
        return tuple(sorted(after))

    def automaton(self) -> ByteAutomaton:
        """The deterministic automaton. Equivalent states are not merged.

        Raises:
            AutomatonTooLargeError: it has too many states before minimisation.
            InvalidConstraintError: no text is complete.
        """
        numbers: dict[Positions, int] = {self.start: 0}
        states = [self.start]
        # Where a move to a position leads if nothing else moves; -1 is not known yet. The last position is none at all.
        lone = np.full(len(self._rows) + 1, -1, np.int32)
        plain = np.append(self._plain(), np.False_)
        table: list[npt.NDArray[np.int32]] = []

        def number(state: Positions) -> int:
            if not state:
                return -1
            if len(state) == 1 and plain[state[0]]:
                add(np.array(state))
                return int(lone[state[0]])
            known = numbers.setdefault(state, len(states))
            if known == len(states):
                states.append(state)
            return known

        def add(positions: npt.NDArray[np.integer]) -> None:
            """Number the states of some plain positions, those that are new."""
            new = positions[lone[positions] < 0]
            lone[new] = np.arange(len(states), len(states) + len(new))
            states.extend((position,) for position in new.tolist())

        if len(self._rows) <= self._max_states:
            # All at once, in place of layer by layer. States that no text reaches are left out in the end.
            add(np.flatnonzero(plain))
        # Most bytes are the same to every position. Each set of them is one column.
        symbols, byte_class = self._symbols()
        done = 0
        while done < len(states):
            if len(states) > self._max_states:
                raise AutomatonTooLargeError(f"it has more than {self._max_states} states")
            layer = states[done:]
            done = len(states)
            found = np.full((len(layer), len(symbols)), -1, np.int32)
            alone: list[int] = []
            rows: list[npt.NDArray[np.int32]] = []
            for index, state in enumerate(layer):
                moving = [self._dense(position) for position in state if self._rows[position] is not None]
                if len(moving) == 1:
                    alone.append(index)
                    rows += moving
                elif moving:
                    columns, kind = np.unique(np.stack(moving, axis=1)[symbols], axis=0, return_inverse=True)
                    targets = [number(self.arrive([one for one in column if one >= 0])) for column in columns.tolist()]
                    found[index] = np.array(targets, np.int32)[kind.reshape(-1)]
            if rows:
                # One position moves, as almost everywhere inside a leaf: all such states of a layer at once.
                moves = np.stack(rows)[:, symbols]
                reached = np.unique(moves[(lone[moves] < 0) & (moves >= 0)])
                add(reached[plain[reached]])
                for target in reached[~plain[reached]].tolist():
                    lone[target] = number(self.arrive([target]))
                found[alone] = lone[moves]
            table.append(found)
        accepting = np.array([*map(self.is_complete, states)])
        early = np.array([*map(self.is_early, states)])
        boundary = None
        if self.boundary is not None:
            after = tuple(sorted(self._closure(self.boundary)))
            boundary = states.index(after) if after in states else None
        return ByteAutomaton.of_table(np.concatenate(table), accepting, early, boundary, byte_class)

    def _symbols(self) -> tuple[Indices, Indices]:
        """One byte of each set of bytes that lead to the same position everywhere, and the set of each byte."""
        single = np.zeros(256, np.int64)
        for row in self._rows:
            if isinstance(row, dict):
                for byte in row:
                    single[byte] = byte + 1
        texts = [self._dense(position) for position in self._texts]
        return equal_rows(np.stack([single, *self._classes, *texts], axis=1))

    def _plain(self) -> npt.NDArray[np.bool_]:
        """Which positions are all of the state that a move to them leads to."""
        plain = np.array([row is not None for row in self._rows])
        plain[[*self._empty, *self._closes, self.final]] = False
        return plain

    def _dense(self, position: int) -> npt.NDArray[np.int32]:
        row = self._rows[position]
        if isinstance(row, dict):
            dense = np.full(256, -1, np.int32)
            for byte, target in row.items():
                dense[byte] = target
            return dense
        assert row is not None
        return row

    def _position(self) -> int:
        return self._positions(1)

    def _positions(self, count: int) -> int:
        """Add positions in a row; the first one."""
        first = len(self._rows)
        if first + count > 4 * self._max_states:
            raise AutomatonTooLargeError(f"it has more than {4 * self._max_states} positions")
        self._rows += [None] * count
        self.inside += [self._around] * count
        return first

    def _closure(self, position: int) -> frozenset[int]:
        """The positions that are reached without a byte, as far as they move on or are final."""
        known = self._closures.get(position)
        if known is None:
            seen = {position}
            stack = [position]
            while stack:
                for target in self._empty.get(stack.pop(), ()):
                    if target not in seen:
                        seen.add(target)
                        stack.append(target)
            known = frozenset(one for one in seen if self._rows[one] is not None or one == self.final)
            self._closures[position] = known
        return known

    def _build(self, form: Form, start: int) -> int:
        """Add a form that begins at a position; the position at which it is complete."""
        match form:
            case Literal(text):
                return self._literal(text, start)
            case Leaf():
                return self._leaf(form, start)
            case Free(excluded, not_first):
                return self._free(free_text((), excluded), start, {}, not_first)
            case Sequence(parts):
                for part in parts:
                    start = self._build(part, start)
                return start
            case Choice(options):
                ends = [self._build(option, self._after(start)) for option in options]
                return self._join(ends)
            case Repeat():
                return self._repeat(form, start)
            case Separated(body, separator):
                loop = self._after(start)
                end = self._build(body, loop)
                self._empty[self._literal(separator, end)].append(loop)
                return self._after(end)
            case Tag():
                return self._tag(form, self._literal(form.begin, start), self._number(form))
            case Triggered():
                return self._triggered(form, start)

    def _after(self, position: int) -> int:
        """A new position that is reached from another without a byte."""
        new = self._position()
        self._empty[position].append(new)
        return new

    def _join(self, positions: Iterable[int]) -> int:
        end = self._position()
        for position in positions:
            self._empty[position].append(end)
        return end

    def _literal(self, text: str, start: int) -> int:
        return self._after(self._path(text, start))

    def _path(self, text: str, start: int) -> int:
        """Add a text; the position right behind its last byte."""
        path = [self._after(start)]
        for byte in text.encode():
            path.append(self._position())
            self._rows[path[-2]] = {byte: path[-1]}
        for begin, end, name in self._names.spans(text):
            self._special(name, self._row(path[begin]), path[end])
        return path[-1]

    def _row(self, position: int) -> dict[int, int]:
        """The moves of a position that is not inside a leaf or free text."""
        row = self._rows[position]
        if row is None:
            row = self._rows[position] = {}
        assert isinstance(row, dict)
        return row

    def _special(self, name: str, row: Row, end: int) -> None:
        """Add the special token of a name, from the position with these moves to the end of the name."""
        first, *middle, last = special_bytes(name)
        at = row.get(first, -1) if isinstance(row, dict) else int(row[first])
        if at < 0:
            at = row[first] = self._position()
        for byte in middle:
            moves = self._row(at)
            at = moves[byte] if byte in moves else moves.setdefault(byte, self._position())
        self._row(at).setdefault(last, end)

    def _leaf(self, leaf: Leaf, start: int) -> int:
        regex = leaf.language.regex
        assert regex is not None, "the form is not regular"
        try:
            automaton = _leaf_automaton(regex, self._max_states)
        except InvalidConstraintError as error:
            raise InvalidConstraintError(f"{leaf.pointer}: {error}" if leaf.pointer else str(error)) from None
        base = self._positions(automaton.states)
        self._classes.append(automaton.byte_class)
        moves = automaton.next[:-1][:, automaton.byte_class]
        self._rows[base:] = np.where(moves == automaton.states, -1, moves + base).astype(np.int32)
        self._empty[start].append(base)
        return self._join((base + np.flatnonzero(automaton.accepting)).tolist())

    def _free(self, text: FreeText, start: int, hits: Mapping[int, int], not_first: str = "") -> int:
        """Add free text; ``hits`` are the positions behind each trigger, ``not_first`` as in `Free`."""
        base = self._positions(len(text.rows))
        for index, row in enumerate(text.rows):
            moves = np.array(row, np.int32)
            targets = np.where(moves >= 0, moves + base, -1).astype(np.int32)
            for hit, position in hits.items():
                targets[moves == -2 - hit] = position
            self._rows[base + index] = targets
        self._texts += range(base, base + len(text.rows))
        ends = [base + index for index, between in enumerate(text.between) if between]
        if not not_first:
            self._empty[start].append(base)
            return self._join(ends)
        beginning = self._after(start)
        first = self._dense(base).copy()
        first[list(not_first.encode())] = -1
        self._rows[beginning] = first
        self._texts.append(beginning)
        return self._join([beginning, *ends])

    def _special_in_free(self, name: str, text: FreeText, base: int, begun: int, hits: Mapping[int, int]) -> None:
        """Let the special token of a name begin a trigger, or be one, wherever the name may.

        Args:
            name: the token's name.
            text: the free text.
            base: the position of its first state.
            begun: the position behind the name, in the trigger that it begins.
            hits: the positions behind each trigger.
        """
        for state, between in enumerate(text.between):
            *before, last = name.encode()
            at = state
            for byte in before:
                at = text.rows[at][byte] if at >= 0 else at
            found = text.rows[at][last] if at >= 0 else -1
            row = self._rows[base + state]
            if between and at >= 0 and found != -1 and row is not None:
                self._special(name, row, begun if found >= 0 else hits[-2 - found])

    def _repeat(self, form: Repeat, start: int) -> int:
        for _ in range(form.low):
            start = self._build(form.body, start)
        if form.high is None:
            loop = self._after(start)
            self._empty[self._build(form.body, self._after(loop))].append(loop)
            return self._after(loop)
        ends = [start]
        for _ in range(form.high - form.low):
            start = self._build(form.body, start)
            ends.append(start)
        return self._join(ends)

    def _number(self, tag: Tag) -> int:
        """The tag's index. A repeated tag is one tag."""
        number = self._numbers.setdefault(id(tag), len(self.tags))
        if number == len(self.tags):
            self.tags.append(tag)  # which keeps it alive, so that no identity is used twice
        return number

    def _tag(self, tag: Tag, begun: int, number: int) -> int:
        """Add a tag behind its begin mark."""
        outside = self._around
        self._around = (*outside, number)
        content = self._build(tag.content, self._after(begun))
        ends: list[int] = []
        for mark in tag.ends:
            last = self._path(mark, content)
            end = self._after(last)
            self.inside[end] = outside
            if mark:
                self.inside[last] = outside
                self._closes[last] = Close(number, len(mark))
            ends.append(end)
        self._around = outside
        end = self._join(ends)
        if tag.name == REASONING:
            self.boundary = end
        return end

    def _triggered(self, form: Triggered, start: int) -> int:
        root = self._position()
        nodes: dict[bytes, int] = {b"": root}
        ends: list[int] = []
        for tag in form.tags:
            begin = tag.begin.encode()
            for length in range(1, len(begin) + 1):
                if begin[:length] not in nodes:
                    node = nodes[begin[:length]] = self._position()
                    self._row(nodes[begin[: length - 1]])[begin[length - 1]] = node
            for first, last, name in self._names.spans(tag.begin):
                self._special(name, self._row(nodes[begin[:first]]), nodes[begin[:last]])
            ends.append(self._tag(tag, nodes[begin], self._number(tag)))
        text = free_text(form.triggers, form.excluded)
        hits = {index: nodes[trigger.encode()] for index, trigger in enumerate(form.triggers)}
        loop = self._position()
        base = len(self._rows)
        outside = self._free(text, loop, hits)
        for trigger in form.triggers:
            for first, last, name in self._names.spans(trigger):
                if first == 0:
                    self._special_in_free(name, text, base, nodes[trigger.encode()[:last]], hits)
        over = self._join(ends)
        self._empty[start].append(root if form.at_least_one else loop)
        if not form.stop_after_first:
            self._empty[over].append(loop)
            over = self._position()
        elif not form.at_least_one:
            over = self._join([over])
        if not (form.at_least_one and form.stop_after_first):
            self._empty[outside].append(over)
        return over
