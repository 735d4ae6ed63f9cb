"""Syntax trees of texts: read from a pattern, restricted to others, and bounded in lexicographic order."""

from __future__ import annotations

from draftline.structured.regular import charset, dfa, ecma
from draftline.structured.regular.expression import to_tree
from draftline.structured.regular.syntax import ANY_TEXT, Chars, Node, alt, literal, seq

tree = ecma.parse
"""The tree of a pattern without anchors."""


def both(*trees: Node) -> Node:
    """The texts that are in every tree.

    Raises:
        TooComplexError: it exceeds the budget of automata.
    """
    return to_tree(dfa.conjunction([dfa.Part(dfa.build(one)) for one in trees]))


def without(one: Node, other: Node) -> Node:
    """The texts of the first tree that are not in the second.

    Raises:
        TooComplexError: it exceeds the budget of automata.
    """
    return to_tree(dfa.conjunction([dfa.Part(dfa.build(one)), dfa.Part(dfa.build(other), inside=False)]))


def at_least(low: str) -> Node:
    """All texts that are not before ``low`` in lexicographic order."""
    later = [
        seq(literal(low[:index]), Chars(charset.charset([(ord(character) + 1, 0x10FFFF)])), ANY_TEXT)
        for index, character in enumerate(low)
    ]
    return alt([*later, seq(literal(low), ANY_TEXT)])


def at_most(high: str) -> Node:
    """All texts that are not behind ``high`` in lexicographic order."""
    earlier = [
        seq(literal(high[:index]), Chars(charset.charset([(0, ord(character) - 1)])), ANY_TEXT)
        for index, character in enumerate(high)
    ]
    shorter = [literal(high[:index]) for index in range(len(high) + 1)]
    return alt([*earlier, *shorter])
