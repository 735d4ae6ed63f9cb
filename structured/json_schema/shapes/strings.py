"""Sets of strings: bounds on the length, patterns and formats that match or do not match, and listed strings.

A StringSet is a conjunction in the terms of the schema. Automata decide membership, emptiness and disjointness. Its
syntax tree stays small if there is only one pattern or one length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.shapes.limits import least
from draftline.structured.regular import dfa
from draftline.structured.regular.dfa import Part
from draftline.structured.regular.emptiness import is_empty
from draftline.structured.regular.expression import MAX_TREE_STATES, to_tree
from draftline.structured.regular.syntax import (
    ANY_CHAR,
    ANY_TEXT,
    NEVER,
    Alt,
    Node,
    Repeat,
    Seq,
    alt,
    has_condition,
    lengths,
    literal,
    repeat,
    seq,
)


@dataclass(frozen=True, slots=True)
class StringSet:
    """The strings that meet all conditions.

    Attributes:
        min_length: in code points.
        max_length: in code points; None is no bound.
        patterns: anchor-free trees that match the whole string.
        not_patterns: anchor-free trees that do not match the whole string.
        only: all strings of the set, if not None; then all other conditions have been applied.
        without: excluded strings.
    """

    min_length: int = 0
    max_length: int | None = None
    patterns: frozenset[Node] = frozenset()
    not_patterns: frozenset[Node] = frozenset()
    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def contains(self, value: str) -> bool:
        """Whether the string is in the set.

        Raises:
            TooComplexError: a pattern exceeds the budget of automata.
        """
        if self.only is not None:
            return value in self.only
        if len(value) < self.min_length or (self.max_length is not None and len(value) > self.max_length):
            return False
        if value in self.without:
            return False
        if not self.patterns and not self.not_patterns:
            return True
        return all(dfa.build(one).matches(value) for one in self.patterns) and not any(
            dfa.build(one).matches(value) for one in self.not_patterns
        )

    def is_empty(self) -> bool:
        """Whether no string is in the set.

        Raises:
            TooComplexError: the decision exceeds the budget of automata.
        """
        if self.only is not None:
            return not self.only
        if self.max_length is not None and self.max_length < self.min_length:
            return True
        if not self.patterns and not self.not_patterns:
            if self.max_length is None or not self.without:
                return False
            return self.max_length == 0 and "" in self.without
        if len(self.patterns) == 1 and self == StringSet(patterns=self.patterns, max_length=self.max_length):
            (pattern,) = self.patterns
            if pattern == NEVER or self.max_length is None:
                return pattern == NEVER
            if not has_condition(pattern):
                return lengths(pattern)[0] > self.max_length
        return _is_empty(self)


ALL_STRINGS: Final = StringSet()


@functools.lru_cache(maxsize=4096)
def _is_empty(strings: StringSet) -> bool:
    return is_empty(list(parts_of(strings)), strings.min_length, strings.max_length)


def meet(one: StringSet, other: StringSet) -> StringSet:
    """The intersection of two sets.

    Raises:
        TooComplexError: a pattern exceeds the budget of automata.
    """
    if one.only is not None:
        return StringSet(only=frozenset(value for value in one.only if other.contains(value)))
    if other.only is not None:
        return meet(other, one)
    shortest = max(one.min_length, other.min_length)
    longest = least(one.max_length, other.max_length)
    patterns = one.patterns | other.patterns
    # Bounds that a pattern implies are left out: their automaton could be too large.
    implied = [lengths(pattern) for pattern in patterns] if shortest or longest is not None else []
    if any(low >= shortest for low, _ in implied):
        shortest = 0
    if longest is not None and any(high is not None and high <= longest for _, high in implied):
        longest = None
    return StringSet(
        shortest,
        longest,
        patterns,
        one.not_patterns | other.not_patterns,
        None,
        one.without | other.without,
    )


def outside(one: StringSet) -> Iterator[StringSet]:
    """Sets whose union is the complement of ``one``."""
    if one.only is not None:
        yield StringSet(without=one.only)
        return
    if one.min_length > 0:
        yield StringSet(max_length=one.min_length - 1)
    if one.max_length is not None:
        yield StringSet(min_length=one.max_length + 1)
    for pattern in one.patterns:
        yield StringSet(not_patterns=frozenset([pattern]))
    for pattern in one.not_patterns:
        yield StringSet(patterns=frozenset([pattern]))
    if one.without:
        yield StringSet(only=one.without)


def subtract(one: StringSet, other: StringSet) -> list[StringSet]:
    """Disjoint, non-empty sets whose union is the difference of ``one`` and ``other``.

    Raises:
        TooComplexError: it exceeds the budget of automata.
    """
    remaining = one
    pieces: list[StringSet] = []
    for piece in outside(other):
        part = meet(remaining, piece)
        if not part.is_empty():
            pieces.append(part)
        # Later pieces must be disjoint from this one: continue with its complement.
        opposite = list(outside(piece))
        if len(opposite) != 1:
            raise AssertionError("a piece of a complement has one condition")
        remaining = meet(remaining, opposite[0])
    return pieces


def parts_of(strings: StringSet) -> Iterator[Part]:
    """What the patterns and excluded strings of a set without listed strings ask. The length is apart."""
    for pattern in strings.patterns:
        yield Part(dfa.build(pattern))
    for pattern in strings.not_patterns:
        yield Part(dfa.build(pattern), inside=False)
    if strings.without:
        yield Part(dfa.build(alt(literal(value) for value in sorted(strings.without))), inside=False)


@functools.lru_cache(maxsize=4096)
def string_tree(strings: StringSet) -> Node:
    """The syntax tree of the strings, over their own characters (unescaped).

    Raises:
        TooComplexError: it exceeds the budget of automata.
    """
    if strings.only is not None:
        return alt(literal(value) for value in sorted(strings.only))
    length = repeat(ANY_CHAR, strings.min_length, strings.max_length)
    if not strings.not_patterns and not strings.without:
        if not strings.patterns:
            return length
        if len(strings.patterns) == 1:
            (pattern,) = strings.patterns
            if strings.min_length == 0 and strings.max_length is None:
                return pattern
            bounded = _with_length(pattern, strings.min_length, strings.max_length)
            if bounded is not None:
                return bounded
    parts = list(parts_of(strings))
    if max(strings.min_length, strings.max_length or 0) > MAX_TREE_STATES:
        raise dfa.TooComplexError("the length bounds are too large to combine with a pattern")
    if length != ANY_TEXT:
        parts.append(Part(dfa.build(length)))
    return to_tree(dfa.conjunction(parts))


def _with_length(pattern: Node, low: int, high: int | None) -> Node | None:
    """The texts of a pattern with a bounded length, by its counts; None if the lengths of several parts make up a text's."""
    shortest, longest = lengths(pattern)
    if (longest is not None and longest < low) or (high is not None and shortest > high):
        return NEVER
    if shortest >= low and (high is None or (longest is not None and longest <= high)):
        return pattern
    if isinstance(pattern, Alt):
        options = [_with_length(option, low, high) for option in pattern.options]
        return None if None in options else alt(option for option in options if option is not None)
    if isinstance(pattern, Seq):
        return _with_length_of_one(pattern, low, high)
    if not isinstance(pattern, Repeat):
        return None
    shortest, longest = lengths(pattern.node)
    if shortest != longest or not shortest:
        return None
    low = max(-(-low // shortest), pattern.low)
    high = least(pattern.high, None if high is None else high // shortest)
    return NEVER if high is not None and low > high else repeat(pattern.node, low, high)


def _with_length_of_one(pattern: Seq, low: int, high: int | None) -> Node | None:
    """`_with_length` where one part has any length, and the others have one each."""
    inside = [lengths(part) for part in pattern.parts]
    varying = [index for index, (shortest, longest) in enumerate(inside) if shortest != longest]
    if len(varying) != 1:
        return None
    (index,) = varying
    others = sum(shortest for shortest, _ in inside) - inside[index][0]
    bounded = _with_length(pattern.parts[index], max(low - others, 0), None if high is None else high - others)
    return None if bounded is None else seq(*pattern.parts[:index], bounded, *pattern.parts[index + 1 :])
