"""For which steps there are CUDA graphs: row counts, draft lengths and tokens. Arithmetic only."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import chain, pairwise

from draftline.engine.request.sequence import Row
from draftline.models.config import ModelConfig

MAX_DRAFTING_ROWS = 128
"""Steps of more rows do not draft: by then verifying costs as much as deciding."""

_MOST_ROWS = 512

_DRAFT_LENS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

_PROMPT_TOKENS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Tokens of steps with prompts. What a step has less than its graph is computed all the same, and thrown away."""

_PROMPT_ROWS = (8, 32, 128, _MOST_ROWS)

_LAUNCH_S_A_LAYER = 1.2e-4
"""Seconds in which a host launches a layer's operations one by one."""

_FLOPS_A_SECOND = 5e14
"""What a large GPU multiplies."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a graph has room for.

    Attributes:
        rows: how many.
        drafts: drafts of each.
        tokens: query tokens of all rows. In a decode each row has its newest token and its drafts; with more, some rows
            compute prompts.
    """

    rows: int
    drafts: int
    tokens: int

    @staticmethod
    def decode(rows: int, drafts: int) -> StepShape:
        """Of rows that compute their newest token and drafts."""
        return StepShape(rows, drafts, rows * (drafts + 1))

    @property
    def samples(self) -> int:
        """The most tokens that the step decides."""
        return min(self.rows * (self.drafts + 1), self.tokens)

    @property
    def query_lens(self) -> tuple[int, ...]:
        """Bounds of each row's query tokens: any row may be the long one."""
        short = (self.drafts + 1,) * self.rows
        return short if self.tokens == sum(short) else (self.tokens, *short[1:])


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Row counts to capture graphs for: close to each other where steps are short, and never far apart."""
    sizes = chain((1, 2, 3, 4, 6, 8), range(12, 32, 4), range(32, 128, 8), range(128, _MOST_ROWS + 1, 32))
    smaller = [size for size in sizes if size < max_rows]
    return (*smaller, min(max_rows, _MOST_ROWS))


def launch_bound_tokens(config: ModelConfig) -> int:
    """Up to how many tokens a step of this model takes the device no longer than launching it takes the host.

    Beyond, a graph gains nothing, and what it computes for its padding costs.
    """
    heads = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    weights = config.hidden_size * (heads + 3 * config.intermediate_size)
    return int(_LAUNCH_S_A_LAYER * _FLOPS_A_SECOND / (2 * weights))


class Buckets:
    """The shapes for which there are graphs, and which of them a step runs in."""

    def __init__(self, max_rows: int, max_drafts: int, prompt_tokens: int = 0) -> None:
        """For steps of up to ``max_rows`` rows (as far as `bucket_sizes` go) with up to ``max_drafts`` drafts each.

        With prompts they have up to about ``prompt_tokens`` tokens; where that is 0, there are none.
        """
        self._rows = bucket_sizes(max_rows)
        few = [rows for rows in self._rows if rows <= MAX_DRAFTING_ROWS]
        self.drafting_rows = tuple(few or self._rows[:1])
        self.draft_lens = tuple(k for k in _DRAFT_LENS if k < max_drafts) + ((max_drafts,) if max_drafts else (0,))
        fewer = [rows for rows in _PROMPT_ROWS if rows < self._rows[-1]]
        self._prompt_rows = (*fewer, self._rows[-1])
        self._prompt_tokens = [tokens for tokens in _PROMPT_TOKENS if tokens <= prompt_tokens]

    @property
    def max_drafting_rows(self) -> int:
        """The most rows of a step with drafts that runs in a graph."""
        return self.drafting_rows[-1]

    @property
    def decodes(self) -> list[StepShape]:
        """Those without prompts."""
        return [
            StepShape.decode(rows, k) for k in self.draft_lens for rows in (self.drafting_rows if k else self._rows)
        ]

    @property
    def prompts(self) -> list[StepShape]:
        """Those with prompts: of any draft length up to the longest, since these steps take long in any case."""
        shapes = []
        for fewer, rows in pairwise((0, *self._prompt_rows)):
            for k in sorted({0, self.draft_lens[-1]}):
                if k == 0 or fewer < self.max_drafting_rows:
                    shapes += [StepShape(rows, k, tokens) for tokens in self._prompt_tokens if tokens > fewer]
        return shapes

    def __call__(self, rows: tuple[Row, ...]) -> StepShape | None:
        """The smallest that holds the rows, or None."""
        drafts = max([row.drafts for row in rows])
        if all(row.count == 1 and row.samples for row in rows):
            return self.of_decode(len(rows), drafts)
        tokens = sum([row.count + row.drafts for row in rows])
        known = any(row.known_predictions for row in rows)  # whose logits are wanted, too
        if known or not self._prompt_tokens or tokens > self._prompt_tokens[-1] or len(rows) > self._prompt_rows[-1]:
            return None
        if drafts and len(rows) > self.max_drafting_rows:
            return None
        return StepShape(
            self._prompt_rows[bisect_left(self._prompt_rows, len(rows))],
            self.draft_lens[-1] if drafts else 0,
            self._prompt_tokens[bisect_left(self._prompt_tokens, tokens)],
        )

    def of_decode(self, rows: int, drafts: int) -> StepShape | None:
        """The smallest that holds so many rows with so many drafts, or None."""
        sizes = self.drafting_rows if drafts else self._rows
        if rows > sizes[-1] or drafts > self.draft_lens[-1]:
            return None
        longest = self.draft_lens[bisect_left(self.draft_lens, drafts)]
        return StepShape.decode(sizes[bisect_left(sizes, rows)], longest)
