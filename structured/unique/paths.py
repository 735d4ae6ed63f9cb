"""``UniquePaths``: where in a JSON document items or names have to differ, as an automaton over its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from draftline.structured.regular.dfa import Dfa

NOWHERE: Final = -1
"""The state of values without items and members."""

TEXT: Final = -2
"""The state of such values if every string may be one of them."""

VARIED: Final = -3
"""The state of other such values that never run out."""


@dataclass(frozen=True, slots=True)
class PathState:
    """A set of places in a document.

    Attributes:
        unique: the types of the items of an array here that have to differ: `values.type_of`.
        items: the state of its items.
        members: the states of members by name.
        others: the state of other members.
        varied: whether the values that may be here never run out.
        varied_members: members that an object here must have, with values that never run out.
        text: whether every string may be here.
        distinct: whether the members of an object here are counted, so that their names have to differ.
        unnamed: whether an object here may have members that the schema does not name: the grammar does not compare their names.
        limited: whether the names of such members may run out.
        open: whether another member may come to an object here, whatever it has.
        kinds: sets of names of other members, whose values differ.
        by_kind: the states of such members by which of these sets have their name; without sets, ``others`` is the state of all.
    """

    unique: frozenset[str]
    items: int
    members: Mapping[str, int] = field(hash=False)
    others: int
    varied: bool = False
    varied_members: frozenset[str] = frozenset()
    text: bool = False
    distinct: bool = False
    unnamed: bool = False
    limited: bool = False
    open: bool = False
    kinds: tuple[Dfa, ...] = ()
    by_kind: Mapping[tuple[bool, ...], int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class UniquePaths:
    """The automaton; state 0 is the whole document.

    Attributes:
        states: its states.
        pointers: the JSON pointers of the keywords that ask for different items.
    """

    states: tuple[PathState, ...]
    pointers: tuple[str, ...] = ()

    def items(self, state: int) -> int:
        """The state of the items of an array."""
        return NOWHERE if state < 0 else self.states[state].items

    def member(self, state: int, name: str) -> int:
        """The state of a member of an object."""
        if state < 0:
            return NOWHERE
        here = self.states[state]
        if name in here.members or not here.kinds:
            return here.members.get(name, here.others)
        return here.by_kind.get(tuple(kind.matches(name) for kind in here.kinds), NOWHERE)

    def unique(self, state: int) -> frozenset[str]:
        """The types of the items of an array that have to differ."""
        return self.states[state].unique if state >= 0 else frozenset()

    def distinct(self, state: int) -> bool:
        """Whether the names of an object's members have to differ."""
        return state >= 0 and self.states[state].distinct

    def unnamed(self, state: int) -> bool:
        """Whether an object may have members that the schema does not name."""
        return state >= 0 and self.states[state].unnamed

    def limited(self, state: int) -> bool:
        """Whether the names of such members may run out."""
        return state >= 0 and self.states[state].limited

    def open(self, state: int) -> bool:
        """Whether another member may come to an object, whatever it has."""
        return state >= 0 and self.states[state].open

    def varied(self, state: int) -> bool:
        """Whether the values that may be in a place never run out."""
        return self.states[state].varied if state >= 0 else state in (TEXT, VARIED)

    def varied_members(self, state: int) -> frozenset[str]:
        """Members that an object must have, with values that never run out."""
        return frozenset() if state < 0 else self.states[state].varied_members

    def text(self, state: int) -> bool:
        """Whether every string may be in a place."""
        return state == TEXT or (state >= 0 and self.states[state].text)
