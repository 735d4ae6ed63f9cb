"""SentencePiece's BPE as a list of merges.

SentencePiece merges, again and again, the neighbours whose union is the piece with the highest score. A BPE with a list
of merges does the same if the list has every way to make each piece from two others, by falling score.
"""

from __future__ import annotations

from collections.abc import Mapping


def merges_of_scores(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces whose union is a piece, in the order in which they are merged.

    Args:
        scores: the score of each piece that text can be made of.
        ids: the id of each piece; orders pairs that make one piece, and pieces of one score.
    """
    merges = [
        (-score, ids[piece], ids[left], ids[right], left, right)
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in scores and (right := piece[cut:]) in scores
    ]
    merges.sort()
    return [(left, right) for *_, left, right in merges]
