r"""Conditions on one character beside them, resolved into the tree around them: ``^``, ``$``, ``\b``, ``(?!-)`` and ``(?<=,)``.

Such a condition narrows the character that it looks at, where that stands in the tree: ``(?!-)[a-z-]{1,63}`` is
``[a-z][a-z-]{0,62}``. So the tree keeps its counts, which an automaton would write out and multiply with one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby, product
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.syntax import (
    EMPTY,
    NEVER,
    Alt,
    Anchor,
    Chars,
    Condition,
    Lookahead,
    Node,
    Repeat,
    Seq,
    alt,
    has_condition,
    lengths,
    repeat,
    seq,
)

_MAX_PIECES: Final = 16
_MAX_COPIED: Final = 5_000
"""The most nodes that the pieces of a tree may have beyond its own: large trees without copies are no fault."""


class _UnresolvedError(Exception):
    """A condition is about more than one character, is repeated with what it looks at, or the tree would become too large."""


@dataclass(frozen=True, slots=True)
class _Side:
    """What may be beside a text: a character of a set, and the edge of the whole text."""

    characters: CharSet
    edge: bool

    def within(self, other: _Side) -> _Side:
        return _Side(charset.intersection(self.characters, other.characters), self.edge and other.edge)


_ANY: Final = _Side(charset.ALL, edge=True)
_EDGE: Final = _Side(charset.NONE, edge=True)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The texts of a tree without conditions, between certain sides."""

    before: _Side
    tree: Node
    after: _Side


def resolved(tree: Node) -> Node | None:
    """The tree of the whole texts of a tree, without conditions; None if they cannot be resolved."""
    try:
        return alt(piece.tree for piece in _pieces(tree) if piece.before.edge and piece.after.edge)
    except _UnresolvedError:
        return None


def _pieces(tree: Node) -> list[_Piece]:
    """Pieces that have the texts of a tree together."""
    if not has_condition(tree):
        return [_Piece(_ANY, tree, _ANY)]
    if isinstance(tree, Seq):
        return _in_sequence(tree)
    if isinstance(tree, Alt):
        return _merged((piece for option in tree.options for piece in _pieces(option)), tree.size)
    if isinstance(tree, Repeat):
        return _repeated(tree)
    assert isinstance(tree, Condition)
    if isinstance(tree, Anchor):
        return [_Piece(_ANY, EMPTY, _EDGE) if tree.end else _Piece(_EDGE, EMPTY, _ANY)]
    side = _side(tree.node, at_end=isinstance(tree, Lookahead))
    if not tree.inside:
        side = _Side(charset.complement(side.characters), not side.edge)
    return [_Piece(_ANY, EMPTY, side) if isinstance(tree, Lookahead) else _Piece(side, EMPTY, _ANY)]


def _side(tree: Node, *, at_end: bool) -> _Side:
    """What a lookahead or a lookbehind looks at."""
    if isinstance(tree, Chars):
        return _Side(tree.set, edge=False)
    if tree == Anchor(end=at_end):
        return _EDGE
    if not isinstance(tree, Alt):
        raise _UnresolvedError
    sides = [_side(option, at_end=at_end) for option in tree.options]
    return _Side(charset.union(*(side.characters for side in sides)), any(side.edge for side in sides))


def _repeated(tree: Repeat) -> list[_Piece]:
    inner = _pieces(tree.node)
    if all(piece.before == piece.after == _ANY for piece in inner):
        return [_Piece(_ANY, repeat(alt(piece.tree for piece in inner), tree.low, tree.high), _ANY)]
    if (tree.low, tree.high) == (0, 1):
        return _merged([*inner, _Piece(_ANY, EMPTY, _ANY)], tree.size)
    raise _UnresolvedError


def _in_sequence(tree: Seq) -> list[_Piece]:
    # Parts without conditions become one before: each step copies the sequence so far.
    runs = [(conditional, list(run)) for conditional, run in groupby(tree.parts, has_condition)]
    parts = [part for conditional, run in runs for part in (run if conditional else [seq(*run)])]
    pieces = _pieces(parts[0])
    for part in parts[1:]:
        pairs = product(pieces, _pieces(part))
        pieces = _merged((piece for pair in pairs for piece in _pair(*pair)), tree.size)
    return pieces


def _pair(left: _Piece, right: _Piece) -> Iterable[_Piece]:
    """One piece behind another. Each narrows the character of the other that is next to it."""
    # A piece that asks nothing need not be told apart by whether the other one has characters.
    if left.after == right.before == _ANY:
        yield _Piece(left.before, seq(left.tree, right.tree), right.after)
        return
    ending = left.tree if right.before == _ANY else _with_edge(left.tree, right.before.characters, at_end=True)
    beginning = right.tree if left.after == _ANY else _with_edge(right.tree, left.after.characters, at_end=False)
    yield _Piece(left.before, seq(ending, beginning), right.after)
    if right.before != _ANY and _may_be_empty(left.tree):
        yield _Piece(left.before.within(right.before), beginning, right.after)
    if left.after != _ANY and _may_be_empty(right.tree):
        yield _Piece(left.before, ending, left.after.within(right.after))
    if left.after != _ANY and right.before != _ANY and _may_be_empty(seq(left.tree, right.tree)):
        yield _Piece(left.before.within(right.before), EMPTY, left.after.within(right.after))


def _merged(pieces: Iterable[_Piece], size: int) -> list[_Piece]:
    """Pieces with the same sides as one. ``size`` is that of the tree that they have the texts of."""
    trees: dict[tuple[_Side, _Side], list[Node]] = {}
    for piece in pieces:
        if piece.tree != NEVER:
            trees.setdefault((piece.before, piece.after), []).append(piece.tree)
    merged = [_Piece(before, alt(same), after) for (before, after), same in trees.items()]
    if len(merged) > _MAX_PIECES:
        raise _UnresolvedError
    _bound([piece.tree for piece in merged], size)
    return merged


def _bound(trees: Collection[Node], size: int) -> None:
    """Give up where trees copy too much of the tree of ``size`` nodes that they stand for."""
    if sum(tree.size for tree in trees) > size + _MAX_COPIED:
        raise _UnresolvedError


def _may_be_empty(tree: Node) -> bool:
    return lengths(tree)[0] == 0


def _with_edge(tree: Node, edge: CharSet, *, at_end: bool) -> Node:
    """The texts of a tree that begin with a character of a set, or end with one."""
    if isinstance(tree, Chars):
        return Chars(charset.intersection(tree.set, edge))
    if isinstance(tree, Alt):
        return alt(_with_edge(option, edge, at_end=at_end) for option in tree.options)
    if isinstance(tree, Repeat):
        return _outward([_with_edge(tree.node, edge, at_end=at_end), _once_less(tree)], at_end)
    assert isinstance(tree, Seq)
    inward = tree.parts[::-1] if at_end else tree.parts
    options: list[Node] = []
    for index, part in enumerate(inward):
        options.append(_outward([_with_edge(part, edge, at_end=at_end), *inward[index + 1 :]], at_end))
        _bound(options, tree.size)
        if not _may_be_empty(part):
            break
    return alt(options)


def _outward(parts: list[Node], at_end: bool) -> Node:
    """The sequence of parts that are listed from one of its edges on: from its end, or from its beginning."""
    return seq(*(reversed(parts) if at_end else parts))


def _once_less(tree: Repeat) -> Node:
    """The other times of a repetition, one of which has characters."""
    return repeat(tree.node, max(tree.low - 1, 0), None if tree.high is None else tree.high - 1)
