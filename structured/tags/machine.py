"""``Machine``: a form as a nondeterministic automaton over bytes, whose parts are deterministic ones.

Its states are sets of positions. `Machine.automaton` explores all of them, `walk` only those that an output reaches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import ByteAutomaton, compile_bytes
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.tags.form import (
    REASONING,
    Choice,
    Form,
    Free,
    Leaf,
    Literal,
    Repeat,
    Sequence,
    Tag,
    Triggered,
)
from draftline.structured.tags.free_text import FreeText, free_text

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


@functools.lru_cache(maxsize=64)
def _leaf_automaton(regex: str, max_states: int) -> ByteAutomaton:
    return compile_bytes(regex, max_states)


class Machine:
    """The automaton of a form.

    Attributes:
        tags: its tags.
        inside: for each position, the tags around it, outermost first.
        start: the state of the empty text.
        final: the position at which a text is complete.
        boundary: the position behind the reasoning; None without reasoning.
    """

    def __init__(self, form: Form, max_states: int) -> None:
        """Build it.

        Args:
            form: every leaf has a regular expression.
            max_states: the most states of one leaf's automaton, before minimisation.

        Raises:
            AutomatonTooLargeError: a leaf has too many states, or all of them together.
            InvalidConstraintError: a leaf's regular expression is malformed, or matches nothing.
        """
        self.tags: list[Tag] = []
        self.inside: list[tuple[int, ...]] = []
        self.boundary: int | None = None
        self._max_states = max_states
        self._numbers: dict[int, int] = {}
        self._rows: list[Row | None] = []
        self._empty: list[list[int]] = []
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
        """Whether the reasoning has not ended."""
        return self.boundary is not None and state[-1] < self.boundary

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
        queue = [self.start]
        table: list[npt.NDArray[np.int32]] = []
        single = np.full(len(self._rows) + 1, -1, np.int32)  # the state that a lone move to a position leads to

        def number(state: Positions) -> int:
            if not state:
                return -1
            known = numbers.setdefault(state, len(queue))
            if known == len(queue):
                if known >= self._max_states:
                    raise AutomatonTooLargeError(f"it has more than {self._max_states} states")
                queue.append(state)
            return known

        known_single = np.zeros(len(self._rows) + 1, np.bool_)
        known_single[-1] = True
        for state in queue:
            rows = [self._dense(position) for position in state if self._rows[position] is not None]
            if not rows:
                table.append(np.full(256, -1, np.int32))
            elif len(rows) == 1:
                # One position moves, as almost everywhere inside a leaf: look all bytes up at once.
                row = rows[0]
                for target in dict.fromkeys(row[~known_single[row]].tolist()):
                    single[target] = number(self.arrive([target]))
                    known_single[target] = True
                table.append(single[row])
            else:
                columns, kind = np.unique(np.stack(rows, axis=1), axis=0, return_inverse=True)
                targets = [number(self.arrive([one for one in column if one >= 0])) for column in columns.tolist()]
                table.append(np.array(targets, np.int32)[kind.reshape(-1)])
        accepting = np.array([*map(self.is_complete, queue)])
        early = np.array([*map(self.is_early, queue)])
        boundary = None
        if self.boundary is not None:
            boundary = numbers.get(tuple(sorted(self._closure(self.boundary))))
        return ByteAutomaton.of_table(np.stack(table), accepting, early, boundary)

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
        if len(self._rows) > 4 * self._max_states:
            raise AutomatonTooLargeError(f"it has more than {4 * self._max_states} positions")
        self._rows.append(None)
        self._empty.append([])
        self.inside.append(self._around)
        return len(self._rows) - 1

    def _closure(self, position: int) -> frozenset[int]:
        """The positions that are reached without a byte, as far as they move on or are final."""
        known = self._closures.get(position)
        if known is None:
            seen = {position}
            stack = [position]
            while stack:
                for target in self._empty[stack.pop()]:
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
            case Free(excluded):
                return self._free(free_text((), excluded), start, {})
            case Sequence(parts):
                for part in parts:
                    start = self._build(part, start)
                return start
            case Choice(options):
                ends = [self._build(option, self._after(start)) for option in options]
                return self._join(ends)
            case Repeat():
                return self._repeat(form, start)
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
        at = self._after(start)
        for byte in text.encode():
            after = self._position()
            self._rows[at] = {byte: after}
            at = after
        return self._after(at)

    def _leaf(self, leaf: Leaf, start: int) -> int:
        regex = leaf.language.regex
        assert regex is not None, "the form is not regular"
        try:
            automaton = _leaf_automaton(regex, self._max_states)
        except InvalidConstraintError as error:
            raise InvalidConstraintError(f"{leaf.pointer}: {error}" if leaf.pointer else str(error)) from None
        base = len(self._rows)
        for _ in range(automaton.states):
            self._position()
        moves = automaton.next[:-1][:, automaton.byte_class]
        rows = np.where(moves == automaton.states, -1, moves + base).astype(np.int32)
        for index in range(automaton.states):
            self._rows[base + index] = rows[index]
        self._empty[start].append(base)
        return self._join((base + np.flatnonzero(automaton.accepting)).tolist())

    def _free(self, text: FreeText, start: int, hits: Mapping[int, int]) -> int:
        """Add free text; ``hits`` are the positions behind each trigger."""
        base = len(self._rows)
        for _ in text.rows:
            self._position()
        for index, row in enumerate(text.rows):
            moves = np.array(row, np.int32)
            targets = np.where(moves >= 0, moves + base, -1).astype(np.int32)
            for hit, position in hits.items():
                targets[moves == -2 - hit] = position
            self._rows[base + index] = targets
        self._empty[start].append(base)
        return self._join(base + index for index, between in enumerate(text.between) if between)

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
            end = self._literal(mark, content)
            self.inside[end] = outside
            if mark:
                # The literal's last byte leads to the position before ``end``.
                last = end - 1
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
                    row = self._rows[nodes[begin[: length - 1]]]
                    if row is None:
                        row = self._rows[nodes[begin[: length - 1]]] = {}
                    assert isinstance(row, dict)
                    row[begin[length - 1]] = node
            ends.append(self._tag(tag, nodes[begin], self._number(tag)))
        text = free_text(form.triggers, form.excluded)
        hits = {index: nodes[trigger.encode()] for index, trigger in enumerate(form.triggers)}
        loop = self._position()
        outside = self._free(text, loop, hits)
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
