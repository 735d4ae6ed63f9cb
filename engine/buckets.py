"""For which steps there are CUDA graphs: row counts and draft lengths. Arithmetic only."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain

from draftline.engine.sequence import Row

MAX_DRAFTING_ROWS = 128
"""Steps of more rows do not draft: by then verifying costs as much as deciding."""

_DRAFT_LENS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Row counts to capture graphs for: close to each other where steps are short, and never far apart."""
    sizes = chain((1, 2, 3, 4, 6, 8), range(12, 32, 4), range(32, 128, 8), range(128, 513, 32))
    smaller = [size for size in sizes if size < max_rows]
    return (*smaller, min(max_rows, 512))


class Buckets:
    """The row counts and draft lengths for which there are graphs, and which of them a step runs in."""

    def __init__(self, max_rows: int, max_drafts: int) -> None:
        """For steps of up to ``max_rows`` rows (as far as `bucket_sizes` go) with up to ``max_drafts`` drafts each."""
        self._rows = bucket_sizes(max_rows)
        few = [rows for rows in self._rows if rows <= MAX_DRAFTING_ROWS]
        self.drafting_rows = tuple(few or self._rows[:1])
        self.draft_lens = tuple(k for k in _DRAFT_LENS if k < max_drafts) + ((max_drafts,) if max_drafts else (0,))

    @property
    def max_drafting_rows(self) -> int:
        """The most rows of a step with drafts that runs in a graph."""
        return self.drafting_rows[-1]

    def all(self) -> list[tuple[int, int]]:
        """Every (rows, drafts a row)."""
        return [(rows, k) for k in self.draft_lens for rows in (self.drafting_rows if k else self._rows)]

    def __call__(self, rows: tuple[Row, ...]) -> tuple[int, int] | None:
        """The smallest that holds the rows, or None."""
        drafts = max([row.drafts for row in rows])
        sizes = self.drafting_rows if drafts else self._rows
        if len(rows) > sizes[-1] or drafts > self.draft_lens[-1]:
            return None
        longest = self.draft_lens[bisect_left(self.draft_lens, drafts)]
        return sizes[bisect_left(sizes, len(rows))], longest
