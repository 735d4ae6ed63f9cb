"""Exact verification: a draft is accepted while it equals what the target sampled at its position.

The target samples every position as plain decoding would (a pure function of history, parameters and seed), so the
accepted tokens are plain decoding's own. No draft probabilities and no rejection sampling are needed.
"""

from __future__ import annotations

from collections.abc import Sequence


def accepted_tokens(sampled: Sequence[int], drafted: Sequence[int]) -> list[int]:
    """The tokens that one verify decides: the longest agreeing prefix of the drafts, plus one.

    Args:
        sampled: the target's token at each of the K + 1 positions.
        drafted: the K drafts; draft i was the history of position i + 1.

    Returns:
        Between 1 and K + 1 of ``sampled``.
    """
    for i, draft in enumerate(drafted):
        if sampled[i] != draft:
            return list(sampled[: i + 1])
    return list(sampled)
