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

    unique: frozenset[str] = frozenset()
    items: int = NOWHERE
    members: Mapping[str, int] = field(default_factory=dict, hash=False)
    others: int = NOWHERE
    varied: bool = False
    varied_members: frozenset[str] = frozenset()
    text: bool = False
    distinct: bool = False
    unnamed: bool = False
    limited: bool = False
    open: bool = False
    kinds: tuple[Dfa, ...] = ()
    by_kind: Mapping[tuple[bool, ...], int] = field(default_factory=dict, hash=False)

    def member(self, name: str) -> int:
        """The state of a member of an object here."""
        if name in self.members or not self.kinds:
            return self.members.get(name, self.others)
        return self.by_kind.get(tuple(kind.matches(name) for kind in self.kinds), NOWHERE)


_WITHOUT_PARTS: Final = {
    NOWHERE: PathState(),
    TEXT: PathState(varied=True, text=True),
    VARIED: PathState(varied=True),
}


@dataclass(frozen=True, slots=True)
class UniquePaths:
    """The automaton; state 0 is the whole document.

    Attributes:
        states: its states.
        pointers: the JSON pointers of the keywords that ask for different items.
    """

    states: tuple[PathState, ...]
    pointers: tuple[str, ...] = ()

    def at(self, state: int) -> PathState:
        """A state by its number."""
        return self.states[state] if state >= 0 else _WITHOUT_PARTS[state]
