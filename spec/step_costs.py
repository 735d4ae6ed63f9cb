"""``StepCosts``: the measured duration of a step, by rows and drafts, and of a drafter's catching up. Arithmetic only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override


class CostTable:
    """Steps that are padded to the row with the most drafts, as CUDA graphs are: fewer drafts of another row save nothing.

    Row counts are rounded up to the next measured one.
    """

    def __init__(self, seconds: Mapping[tuple[int, int], float]) -> None:
        """``seconds`` of a step by (rows, drafts a row). Every number of rows has the same drafts, with 0 among them.

        Raises:
            ValueError: a combination is missing.
        """
        self._rows = sorted({rows for rows, _ in seconds})
        self.draft_lens = tuple(sorted({drafts for _, drafts in seconds}))
        missing = [(r, k) for r in self._rows for k in self.draft_lens if (r, k) not in seconds]
        if missing or 0 not in self.draft_lens:
            raise ValueError(f"costs are missing for (rows, drafts) {missing[0] if missing else (self._rows[0], 0)}")
        self._seconds = dict(seconds)

    def seconds(self, rows: int, drafts: int) -> float:
        """Seconds of a step with this many rows, each with this many drafts."""
        index = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        return self._seconds[self._rows[index], drafts]

    def of_drafts(self, rows: int, drafts: int, longest: int) -> float:
        """Seconds of a step of this many rows with ``drafts`` drafts together, and ``longest`` for the row with the most."""
        return self.seconds(rows, self.draft_lens[bisect_left(self.draft_lens, longest)])

    def of_another(self, rows: int, longest: int) -> float:
        """Seconds of one draft more, in a step in which rows have up to ``longest`` drafts."""
        return 0.0


class RaggedCostTable(CostTable):
    """Steps that compute the tokens that they have, and no padding."""

    @override
    def of_drafts(self, rows: int, drafts: int, longest: int) -> float:
        # Verification depends on the drafts of all rows, and a drafter's passes on the row with the most.
        mean = (drafts / rows + longest) / 2
        right = min(max(1, bisect_left(self.draft_lens, mean)), len(self.draft_lens) - 1)
        low, high = self.draft_lens[right - 1], self.draft_lens[right]
        share = (mean - low) / (high - low)
        return (1 - share) * self.seconds(rows, low) + share * self.seconds(rows, high)

    @override
    def of_another(self, rows: int, longest: int) -> float:
        shorter = max(length for length in self.draft_lens if length < longest)
        return max(0.0, self.seconds(rows, longest) - self.seconds(rows, shorter)) / (rows * (longest - shorter))


@dataclass(frozen=True, slots=True)
class CatchUpCost:
    """Seconds in which a drafter catches up with known tokens: ``base + a_token * tokens``, and nothing for no token."""

    base: float = 0.0
    a_token: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Seconds for this many tokens."""
        return self.base + self.a_token * tokens if tokens else 0.0

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> CatchUpCost:
        """The cost from two measurements of tokens and seconds; the second has more tokens."""
        (tokens, seconds), (more_tokens, more_seconds) = few, many
        a_token = max(0.0, more_seconds - seconds) / max(1, more_tokens - tokens)
        return cls(max(0.0, seconds - a_token * tokens), a_token)


NO_CATCH_UP = CatchUpCost()
