"""``TokenTrie``: the tokens of a vocabulary as a tree of their bytes, to walk all of them through an automaton at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.rows import Indices, spans

_LAST_BYTE = 0xF4
"""The greatest byte of UTF-8."""


@dataclass(frozen=True, slots=True)
class TokenTrie:
    """A node for each beginning of a token. The root, node 0, stands for no text; children come after their parents.

    Attributes:
        first: [nodes + 1]: the children of node n are ``first[n]`` to ``first[n + 1] - 1``.
        byte: [nodes] uint8, the last byte of each node's text.
        node: [vocab] each token's node; the root for tokens without text.
    """

    first: Indices
    byte: npt.NDArray[np.uint8]
    node: Indices

    @staticmethod
    def of(tokens: Sequence[bytes]) -> TokenTrie:
        """The tree of these tokens."""
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        starts = np.cumsum(lengths) - lengths
        text = np.frombuffer(b"".join(tokens), np.uint8).astype(np.int64)
        node = np.zeros(len(tokens), np.int64)
        parents, last_bytes = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
        nodes = 1
        for length in range(int(lengths.max(initial=0))):
            longer = np.flatnonzero(lengths > length)
            steps, step_of = np.unique(node[longer] * 256 + text[starts[longer] + length], return_inverse=True)
            parents.append(steps // 256)
            last_bytes.append(steps % 256)
            node[longer] = nodes + step_of.reshape(-1)
            nodes += len(steps)
        # Ascending, so that the children of a node are neighbours. The root is its own parent, but not its own child.
        parent = np.concatenate(parents)
        first = np.searchsorted(parent[1:], np.arange(nodes + 1)) + 1
        return TokenTrie(first, np.concatenate(last_bytes).astype(np.uint8), node)

    def allowed(self, automaton: ByteAutomaton, state: int) -> npt.NDArray[np.bool_]:
        """Which tokens lead from a state to one that is not dead: [vocab] bool."""
        alive = np.zeros(len(self.byte), np.bool_)
        nodes, states = np.zeros(1, np.int64), np.array([state])
        while len(nodes):
            counts = self.first[nodes + 1] - self.first[nodes]
            children = spans(self.first[nodes], counts)
            targets = automaton.next[np.repeat(states, counts), automaton.byte_class[self.byte[children]]]
            on = targets != automaton.states
            nodes, states = children[on], targets[on]
            alive[nodes] = True
        return alive[self.node]

    @property
    def bytes_used(self) -> npt.NDArray[np.bool_]:
        """Which bytes are in any token: [256] bool."""
        used = np.zeros(256, np.bool_)
        used[self.byte[1:]] = True
        return used

    @property
    def is_complete(self) -> bool:
        """Whether every byte of UTF-8 that is in a token is a token itself. Then tokens write every text of such bytes."""
        ends = np.zeros(len(self.byte), np.bool_)
        ends[self.node] = True
        single = np.arange(self.first[0], self.first[1])
        single = single[self.byte[single] <= _LAST_BYTE]
        return int(ends[single].sum()) == int(self.bytes_used[: _LAST_BYTE + 1].sum())
