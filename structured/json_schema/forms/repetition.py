"""Bounding what a schema leaves unbounded, so that a document can be sure to end within a budget of tokens."""

from __future__ import annotations

from draftline.structured.regular.syntax import Alt, Node, Repeat, Seq, alt, repeat, seq


def bounded(tree: Node, most: int | None) -> Node:
    """The tree with every endless repetition ending after ``most`` rounds; the same tree if that is None."""
    if most is None:
        return tree
    if isinstance(tree, Seq):
        return seq(*(bounded(part, most) for part in tree.parts))
    if isinstance(tree, Alt):
        return alt(bounded(option, most) for option in tree.options)
    if isinstance(tree, Repeat):
        high = max(tree.low, most) if tree.high is None else tree.high
        return repeat(bounded(tree.node, most), tree.low, high)
    return tree
