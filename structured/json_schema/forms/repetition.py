"""Bounds on repetitions that a schema leaves unbounded, so that every document ends within a budget of tokens."""

from __future__ import annotations

from draftline.structured.regular.syntax import Alt, Node, Repeat, Seq, alt, repeat, seq


def bounded(tree: Node, maximum: int | None) -> Node:
    """The tree with every unbounded repetition bounded by ``maximum``; the same tree if that is None."""
    if maximum is None:
        return tree
    if isinstance(tree, Seq):
        return seq(*(bounded(part, maximum) for part in tree.parts))
    if isinstance(tree, Alt):
        return alt(bounded(option, maximum) for option in tree.options)
    if isinstance(tree, Repeat):
        high = max(tree.low, maximum) if tree.high is None else tree.high
        return repeat(bounded(tree.node, maximum), tree.low, high)
    return tree
