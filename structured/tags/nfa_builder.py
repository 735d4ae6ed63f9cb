"""From a form to its automaton, by Thompson's construction.

Each form begins at a position and gets the positions and moves up to the one at which it is complete. Leaves and free text
are deterministic automata, which are put in as they are. Reading texts with the result is the work of `nfa`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.byte_moves import byte_moves
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.language import (
    Choice,
    Concatenation,
    Form,
    Free,
    Leaf,
    Literal,
    Repetition,
    Separated,
    Tag,
    Triggered,
)
from draftline.structured.tags.form import REASONING
from draftline.structured.tags.free_text import FreeText, free_text
from draftline.structured.tags.nfa import Row, TagEnd, TagNfa
from draftline.structured.tags.special import NO_NAMES, SpecialNames, special_bytes


@functools.lru_cache(maxsize=256)
def _leaf_automaton(regex: str, max_states: int) -> ByteAutomaton:
    """Equivalent states are not merged: that is done once, when everything is built."""
    return ByteAutomaton.of(byte_moves(regex, max_states))


class NfaBuilder:
    """Builds the automaton of one form. A subclass may put something else in the place of a leaf."""

    def __init__(self, max_states: int, names: SpecialNames = NO_NAMES) -> None:
        """Nothing is built yet.

        Args:
            max_states: the most states of one leaf's automaton, before minimisation.
            names: of the special tokens that may write their names in marks.
        """
        self._max_states = max_states
        self._names = names
        self._tags: list[Tag] = []
        self._numbers: dict[int, int] = {}
        self._rows: list[Row | None] = []
        self._inside: list[tuple[int, ...]] = []
        self._empty: defaultdict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, TagEnd] = {}
        self._columns: list[npt.NDArray[np.integer]] = []  # some are rows themselves, and so change with them
        self._boundary: int | None = None
        self._around: tuple[int, ...] = ()

    def build(self, form: Form) -> TagNfa:
        """The automaton of a form, whose leaves all have a regular expression.

        Raises:
            AutomatonTooLargeError: a leaf has too many states, or all of them together.
            InvalidConstraintError: a leaf's regular expression is malformed, or matches nothing.
        """
        first = self._position()
        final = self._add(form, first)
        return TagNfa(
            tags=self._tags,
            rows=self._rows,
            inside=self._inside,
            empty=self._empty,
            ends=self._ends,
            columns=self._columns,
            first=first,
            final=final,
            boundary=self._boundary,
        )

    def _add(self, form: Form, start: int) -> int:
        """Add a form that begins at a position; the position at which it is complete."""
        match form:
            case Literal(text):
                return self._literal(text, start)
            case Leaf():
                return self._leaf(form, start)
            case Free(excluded, not_first):
                return self._free(free_text((), excluded), start, {}, not_first)
            case Concatenation(parts):
                for part in parts:
                    start = self._add(part, start)
                return start
            case Choice(options):
                ends = [self._add(option, self._after(start)) for option in options]
                return self._join(ends)
            case Repetition():
                return self._repeat(form, start)
            case Separated(body, separator):
                loop = self._after(start)
                end = self._add(body, loop)
                self._empty[self._literal(separator, end)].append(loop)
                return self._after(end)
            case Tag():
                return self._tag(form, self._literal(form.begin, start), self._number(form))
            case Triggered():
                return self._triggered(form, start)

    def _position(self) -> int:
        return self._positions(1)

    def _positions(self, count: int) -> int:
        """Add positions in a row; the first one."""
        first = len(self._rows)
        if first + count > 4 * self._max_states:
            raise AutomatonTooLargeError(f"it has more than {4 * self._max_states} positions")
        self._rows += [None] * count
        self._inside += [self._around] * count
        return first

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
        self._columns.append(automaton.byte_class)
        moves = automaton.next[:-1][:, automaton.byte_class]
        self._rows[base:] = np.where(moves == automaton.states, -1, moves + base).astype(np.int32)
        self._empty[start].append(base)
        return self._join((base + np.flatnonzero(automaton.accepting)).tolist())

    def _free(self, text: FreeText, start: int, hits: Mapping[int, int], not_first: str = "") -> int:
        """Add free text; ``hits`` are the positions behind each trigger, ``not_first`` as in `Free`."""
        base = self._positions(len(text.rows))
        rows: list[npt.NDArray[np.int32]] = []
        for row in text.rows:
            moves = np.array(row, np.int32)
            targets = np.where(moves >= 0, moves + base, -1).astype(np.int32)
            for hit, position in hits.items():
                targets[moves == -2 - hit] = position
            rows.append(targets)
        self._rows[base:] = rows
        self._columns += rows
        ends = [base + index for index, between in enumerate(text.between) if between]
        if not not_first:
            self._empty[start].append(base)
            return self._join(ends)
        beginning = self._after(start)
        first = rows[0].copy()
        first[list(not_first.encode())] = -1
        self._rows[beginning] = first
        self._columns.append(first)
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

    def _repeat(self, form: Repetition, start: int) -> int:
        for _ in range(form.low):
            start = self._add(form.body, start)
        if form.high is None:
            loop = self._after(start)
            self._empty[self._add(form.body, self._after(loop))].append(loop)
            return self._after(loop)
        ends = [start]
        for _ in range(form.high - form.low):
            start = self._add(form.body, start)
            ends.append(start)
        return self._join(ends)

    def _number(self, tag: Tag) -> int:
        """The tag's index. A repeated tag is one tag."""
        number = self._numbers.setdefault(id(tag), len(self._tags))
        if number == len(self._tags):
            self._tags.append(tag)  # which keeps it alive, so that no identity is used twice
        return number

    def _tag(self, tag: Tag, begun: int, number: int) -> int:
        """Add a tag behind its begin mark."""
        outside = self._around
        self._around = (*outside, number)
        content = self._add(tag.content, self._after(begun))
        ends: list[int] = []
        for mark in tag.ends:
            last = self._path(mark, content)
            end = self._after(last)
            self._inside[end] = outside
            if mark:
                self._inside[last] = outside
                self._ends[last] = TagEnd(number, len(mark))
            ends.append(end)
        self._around = outside
        end = self._join(ends)
        if tag.name == REASONING:
            self._boundary = end
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
