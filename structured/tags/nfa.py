"""``TagNfa``: a form as a nondeterministic automaton over bytes, whose parts are deterministic ones.

A text can be at several positions at once; its state is the set of them. This module moves states by bytes. It knows
nothing of forms (`nfa_builder` makes the automaton of one) and keeps no states: `determinize` explores all of them,
`walk` only those that an output reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draftline.structured.language import Tag

Positions = tuple[int, ...]
"""A state: the positions that the text so far can be at, ascending. No position is a dead end."""

Row = npt.NDArray[np.int32] | dict[int, int]
"""A position's moves by byte: an array of 256 positions, -1 for none, or a small row, which has only the bytes that move."""


def dense(row: Row) -> npt.NDArray[np.int32]:
    """A row as an array of 256 positions."""
    if isinstance(row, dict):
        moves = np.full(256, -1, np.int32)
        for byte, target in row.items():
            moves[byte] = target
        return moves
    return row


@dataclass(frozen=True, slots=True)
class TagEnd:
    """The end of a tag.

    Attributes:
        tag: the tag, as an index into `TagNfa.tags`.
        length: the characters of its end mark.
    """

    tag: int
    length: int


@dataclass(eq=False, slots=True, kw_only=True)
class TagNfa:
    """The automaton of a form.

    Attributes:
        tags: its tags.
        rows: for each position, its moves; None if it moves on no byte.
        inside: for each position, the tags around it, outermost first.
        empty: the positions that are reached from a position without a byte.
        ends: the positions right behind the end mark of a tag, each with that end.
        columns: arrays over the bytes. Bytes that are alike in all of them and in no small row lead to the same positions.
        first: the position before all texts.
        final: the position at which a text is complete.
        boundary: the position behind the reasoning; None without reasoning.
        start: the state of the empty text.
    """

    tags: Sequence[Tag]
    rows: Sequence[Row | None]
    inside: Sequence[tuple[int, ...]]
    empty: Mapping[int, Sequence[int]]
    ends: Mapping[int, TagEnd]
    columns: Sequence[npt.NDArray[np.integer]]
    first: int
    final: int
    boundary: int | None
    start: Positions = field(init=False)
    _closures: dict[int, frozenset[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Find the state of the empty text."""
        self.start = self.state_at(self.first)

    def is_complete(self, state: Positions) -> bool:
        """Whether the text so far is complete."""
        return self.final in state

    def is_early(self, state: Positions) -> bool:
        """Whether the text may be in its reasoning."""
        return self.boundary is not None and state[0] < self.boundary

    def reached(self, positions: Iterable[int], byte: int) -> list[int]:
        """The positions right behind a byte."""
        reached: list[int] = []
        for position in positions:
            row = self.rows[position]
            if row is not None:
                target = row.get(byte, -1) if isinstance(row, dict) else int(row[byte])
                if target >= 0:
                    reached.append(target)
        return reached

    def closes(self, reached: Iterable[int]) -> tuple[TagEnd, ...]:
        """The tags that end at these positions."""
        return tuple(dict.fromkeys(self.ends[position] for position in reached if position in self.ends))

    def arrive(self, reached: Iterable[int]) -> Positions:
        """The state of a text that is right behind a byte at these positions."""
        closed = {close.tag for close in self.closes(reached)}
        after: set[int] = set()
        for position in reached:
            # A tag that ends is over: content that would go on is no reading of this text.
            if closed.isdisjoint(self.inside[position]):
                after |= self._closure(position)
        return tuple(sorted(after))

    def state_at(self, position: int) -> Positions:
        """The state of a text that is at this position, without a tag's end right before it."""
        return tuple(sorted(self._closure(position)))

    def _closure(self, position: int) -> frozenset[int]:
        """The positions that are reached without a byte, as far as they move on or are final."""
        known = self._closures.get(position)
        if known is None:
            seen = {position}
            stack = [position]
            while stack:
                for target in self.empty.get(stack.pop(), ()):
                    if target not in seen:
                        seen.add(target)
                        stack.append(target)
            known = frozenset(one for one in seen if self.rows[one] is not None or one == self.final)
            self._closures[position] = known
        return known
