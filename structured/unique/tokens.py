"""``ItemTokens``: the tokens of a vocabulary as a tree of their bytes, and those that may hold the ends of items."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class ItemTokens:
    """The tokens of a vocabulary.

    Attributes:
        texts: the bytes of all tokens.
        first: the children of node n of the tree are ``first[n]`` to ``first[n + 1] - 1``.
        byte: the last byte of each node's text.
        parent: the node above each node; the root is its own.
        node: each token's node.
        at: the tokens of each node that has any.
        opening: tokens that may begin an array or an object and end its first item or member.
        commas: tokens that may end an item outside of strings and begin the next one.
        quoted: tokens that may do so behind the end of a string.
        order: all tokens with a text, short ones first.
        rank: the index of each token in ``order``; -1 for tokens without a text.
        complete: whether tokens can write every text whose bytes are in any token.
        ends: the tokens that end an output.
    """

    texts: tuple[bytes, ...]
    first: list[int]
    byte: list[int]
    parent: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    at: dict[int, list[int]]
    opening: npt.NDArray[np.int64]
    commas: npt.NDArray[np.int64]
    quoted: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    complete: bool
    ends: frozenset[int]

    @staticmethod
    def of(vocabulary: ByteVocabulary) -> ItemTokens:
        """Those of a vocabulary; it takes some tenths of a second."""
        texts = vocabulary.tokens
        trie = TokenTrie.of(texts)
        at: dict[int, list[int]] = {}
        for token, node in enumerate(trie.node.tolist()):
            if texts[token]:
                at.setdefault(node, []).append(token)

        def matching(pattern: bytes) -> npt.NDArray[np.int64]:
            found = re.compile(pattern, re.DOTALL)
            return np.array([token for token, text in enumerate(texts) if found.search(text)], np.int64)

        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        order = np.argsort(lengths, kind="stable")[np.count_nonzero(lengths == 0) :]
        rank = np.full(-(-len(texts) // 32) * 32, -1)
        rank[order] = np.arange(len(order))
        return ItemTokens(
            texts=texts,
            first=trie.first.tolist(),
            byte=trie.byte.tolist(),
            parent=np.append(0, np.repeat(np.arange(len(trie.byte)), np.diff(trie.first))),
            node=trie.node,
            at=at,
            opening=matching(rb"[\[{].*,"),
            commas=matching(rb","),
            quoted=matching(rb'".*,'),
            order=order,
            rank=rank,
            complete=trie.is_complete,
            ends=frozenset(vocabulary.eos_ids),
        )
