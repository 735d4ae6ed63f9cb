"""Equivalent states of an automaton: partition refinement (Moore 1956) that looks only at states whose moves have changed."""

from __future__ import annotations

import numpy as np

from draftline.structured.automaton.graph import StateGraph
from draftline.structured.automaton.rows import Indices, Ints, equal_rows

_ROUNDS = 2000
"""The most rounds. A bounded repetition of n characters takes about n."""


def equal_states(table: Ints, graph: StateGraph, kind: Indices) -> Indices:
    """Each state's block of equivalent states, numbered from 0.

    If that takes too many rounds, every state stays alone.

    Args:
        table: [states + 1, symbols] int32, the target of each move; the last state is dead, and no other is.
        graph: its moves between states that are not dead.
        kind: [states] a first partition: states of different kinds are not equivalent.
    """
    states = len(kind)
    block = np.unique(kind, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(block)
    block = np.append(block, -1)  # of the dead state
    # States whose moves may lead to other blocks than those of their block's other states.
    changed = np.arange(states)
    for _ in range(_ROUNDS):
        if not len(changed):
            return block[:-1]
        first, part = equal_rows(np.column_stack((block[changed], block[table[changed]])))
        owner, members = block[changed[first]], np.bincount(part)
        # One part of each block keeps its number: the states that have not changed, or else the largest part.
        left = sizes - np.bincount(block[changed], minlength=len(sizes))
        largest = np.lexsort((-members, owner))
        leads = np.ones(len(owner), np.bool_)
        leads[1:] = owner[largest][1:] != owner[largest][:-1]
        keeps = np.zeros(len(owner), np.bool_)
        keeps[largest[leads]] = True
        keeps &= left[owner] == 0
        number = np.where(keeps, owner, len(sizes) - 1 + np.cumsum(~keeps))
        moved = changed[~keeps[part]]
        block[changed] = number[part]
        sizes = np.bincount(block[:-1])
        changed = graph.leading_to(moved)
    return np.arange(states)
