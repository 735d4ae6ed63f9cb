"""``UniquePaths``: where in a JSON document the strings of an array have to differ, as an automaton over its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NOWHERE: Final = -1
"""The state of values that contain no array of different strings."""


@dataclass(frozen=True, slots=True)
class PathState:
    """A set of places in a document.

    Attributes:
        unique: whether the items of an array here are strings that have to differ.
        items: the state of its items.
        members: the states of members by name.
        others: the state of other members.
    """

    unique: bool
    items: int
    members: Mapping[str, int] = field(hash=False)
    others: int


@dataclass(frozen=True, slots=True)
class UniquePaths:
    """The automaton; state 0 is the whole document.

    Attributes:
        states: its states.
        pointers: the JSON pointers of the keywords that ask for different strings.
    """

    states: tuple[PathState, ...]
    pointers: tuple[str, ...] = ()

    def items(self, state: int) -> int:
        """The state of the items of an array."""
        return NOWHERE if state == NOWHERE else self.states[state].items

    def member(self, state: int, name: str) -> int:
        """The state of a member of an object."""
        return NOWHERE if state == NOWHERE else self.states[state].members.get(name, self.states[state].others)

    def unique(self, state: int) -> bool:
        """Whether the strings of an array have to differ."""
        return state != NOWHERE and self.states[state].unique
