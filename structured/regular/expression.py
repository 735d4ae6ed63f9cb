"""From automata back to syntax trees, and the trees of unanchored searches."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.dfa import Dfa, TooComplexError, alive_states, build
from draftline.structured.regular.sides import resolved
from draftline.structured.regular.syntax import (
    ANY_TEXT,
    EMPTY,
    NEVER,
    Anchor,
    Chars,
    Lookahead,
    Node,
    Seq,
    alt,
    repeat,
    seq,
)

MAX_TREE_STATES = 500
MAX_TREE_NODES = 20_000
_MAX_WAYS_NODES: Final = 10 * MAX_TREE_NODES
"""The nodes on all ways between states. Nearly each becomes a part of the tree, so beyond this it will be too large."""


def to_tree(dfa: Dfa) -> Node:
    """A syntax tree of the language of an automaton, by eliminating its states, those first that make it grow the least.

    Raises:
        TooComplexError: the automaton has too many states, or the tree would have too many nodes.
    """
    if len(dfa.steps) > MAX_TREE_STATES:
        raise TooComplexError(f"more than {MAX_TREE_STATES} states to write as a regular expression")
    sets = dfa.characters()
    alive = alive_states(dfa)
    if 0 not in alive:
        return NEVER
    begin, end = -1, -2
    out: dict[int, dict[int, Node]] = {state: {} for state in alive}
    out[begin] = {0: EMPTY}
    into: dict[int, set[int]] = {state: set() for state in (*alive, end)}
    into[0].add(begin)
    for state in alive:
        merged: dict[int, list[CharSet]] = {}
        for letter, target in enumerate(dfa.steps[state]):
            if target in alive and sets[letter]:
                merged.setdefault(target, []).append(sets[letter])
        for target, parts in merged.items():
            out[state][target] = Chars(charset.union(*parts))
            into[target].add(state)
        if dfa.accepts[state]:
            out[state][end] = EMPTY
            into[end].add(state)
    growth = {state: _growth(state, into, out) for state in alive}
    nodes = sum(tree.size for row in out.values() for tree in row.values())
    while growth:
        if nodes > _MAX_WAYS_NODES:
            raise TooComplexError(f"its regular expression has more than {MAX_TREE_NODES} parts")
        state = min(growth, key=lambda one: (growth[one], one))
        del growth[state]
        nodes -= sum(tree.size for tree in out[state].values())
        loop = out[state].pop(state, None)
        around = repeat(loop, 0, None) if loop is not None else EMPTY
        into[state].discard(state)
        for source in into[state]:
            entering = out[source].pop(state)
            nodes -= entering.size
            for target, leaving in out[state].items():
                path = seq(entering, around, leaving)
                known = out[source].get(target)
                joined = path if known is None else alt([known, path])
                if joined.size > MAX_TREE_NODES:
                    raise TooComplexError(f"its regular expression has more than {MAX_TREE_NODES} parts")
                nodes += joined.size - (0 if known is None else known.size)
                out[source][target] = joined
                into[target].add(source)
        for target in out[state]:
            into[target].discard(state)
        for near in growth.keys() & (into[state] | out[state].keys()):
            growth[near] = _growth(near, into, out)
    return out[begin].get(end, NEVER)


def _growth(state: int, into: dict[int, set[int]], out: dict[int, dict[int, Node]]) -> int:
    """How much larger all trees become without a state: each path through it holds copies of its parts.

    The measure is from M. Delgado and J. Morais, "Approximation to the smallest regular expression for a given regular
    language", 2004.
    """
    entering = [out[source][state].size for source in into[state] if source != state]
    leaving = [tree.size for target, tree in out[state].items() if target != state]
    loop = out[state][state].size if state in out[state] else 0
    ways_in, ways_out = len(entering), len(leaving)
    return sum(entering) * (ways_out - 1) + sum(leaving) * (ways_in - 1) + loop * (ways_in * ways_out - 1)


def without_anchors(tree: Node) -> Node:
    """The tree of all texts in which an unanchored search for ``tree`` finds a match.

    Raises:
        TooComplexError: it exceeds the budget.
    """
    whole = searching(tree)
    found = resolved(whole)
    return to_tree(build(whole)) if found is None else found


def conjuncts(tree: Node) -> list[tuple[Node, bool]]:
    """Trees that searches must find a match of, or no match if the flag is False, for a search for ``tree`` to find one.

    Lookaheads at the start of the text become trees of their own: automata apart stay small where their product is not.
    """
    parts = tree.parts if isinstance(tree, Seq) else (tree,)
    leading = list(takewhile(lambda part: isinstance(part, Anchor | Lookahead), parts))
    if not any(map(_at_start, leading)):
        return [(tree, True)]
    ahead = [part for part in leading if isinstance(part, Lookahead)]
    anchors = [part for part in leading if isinstance(part, Anchor)]
    rest = seq(Anchor(end=False), *anchors, *parts[len(leading) :])
    return [(rest, True), *((seq(Anchor(end=False), one.node), one.inside) for one in ahead)]


def _at_start(condition: Node) -> bool:
    """Whether a condition is met at the start of the text only, as ``^`` and ``(?=^…)`` are."""
    if isinstance(condition, Lookahead):
        parts = condition.node.parts if isinstance(condition.node, Seq) else (condition.node,)
        return condition.inside and any(map(_at_start, parts[:1]))
    return condition == Anchor(end=False)


def searching(tree: Node) -> Node:
    """The tree with any text before and after it; anchors stay."""
    return seq(ANY_TEXT, tree, ANY_TEXT)
