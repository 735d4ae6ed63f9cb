"""``StepShapes``: the step sizes that have CUDA graphs, by rows, drafts and tokens. Arithmetic only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from draftline.engine.request.sequence import Row
from draftline.kernels.limits import LEAST_LONG_HISTORY
from draftline.kernels.ops import AreUneven, never_uneven
from draftline.models.config import ModelConfig

MAX_DRAFTING_ROWS = 128
"""Steps of more rows do not draft: from there on, verifying a draft costs as much as decoding a token."""

_MAX_ROWS = 512

_DRAFT_LENS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

_UNEVEN_ROWS = (8, 16, 24, 32, 48, 64, 96, 128)

_MOST_UNEVEN_DRAFTS = 4
"""Shapes for uneven histories exist for each number of drafts up to this one, and for the most."""

_PROMPT_TOKENS = (
    *(64, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1280, 1408, 1536, 1792, 2048),
    *(2560, 3072, 4096, 5120, 6144, 8192),
)
"""Tokens of steps with prompts. A step with fewer tokens than its graph computes padding, which is thrown away."""

_MOST_UNEVEN_TOKENS = 2048
"""The most tokens of steps with prompts whose decodes have uneven histories. In larger ones, the decodes take a small
part of the time."""

_PROMPT_ROWS = (8, 32, 64, 128, _MAX_ROWS)

_TOKENS_A_SAMPLE = 8
"""Steps with prompts have no graph of fewer rows where the next larger number of rows has as many tokens for each that
it decides: padding takes little time beside so many."""

_LAUNCH_S_PER_LAYER = 1e-3
"""Seconds that a host takes to launch one layer's operations: 0.6 to 1.0 ms with some eight kernels a layer."""

_FLOPS_PER_S = 5e14
"""Arithmetic of a large GPU."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The size of a graph. A step of fewer rows, drafts or tokens is padded to it.

    Attributes:
        rows: the number of rows.
        drafts: drafts a row.
        tokens: query tokens of all rows together.
        max_query_len: the most query tokens of one row, which may be any of them.
        uneven: whether histories are divided into parts, since some are much longer than the others.
    """

    rows: int
    drafts: int
    tokens: int
    max_query_len: int
    uneven: bool = False

    @staticmethod
    def decode(rows: int, drafts: int, *, uneven: bool = False) -> StepShape:
        """The shape of rows that compute their newest token and their drafts."""
        return StepShape(rows, drafts, rows * (drafts + 1), drafts + 1, uneven)

    @staticmethod
    def with_prompts(rows: int, drafts: int, tokens: int, *, uneven: bool = False) -> StepShape:
        """The shape of rows of which any may compute a prompt."""
        return StepShape(rows, drafts, tokens, tokens, uneven)

    @property
    def has_prompts(self) -> bool:
        """Whether any row may compute a prompt."""
        return self.max_query_len > self.drafts + 1

    @property
    def samples(self) -> int:
        """The most tokens that the step decides."""
        return min(self.rows * (self.drafts + 1), self.tokens)

    @property
    def query_lens(self) -> tuple[int, ...]:
        """Bounds of each row's query tokens, for kernels that any row may be the long one of."""
        return (self.max_query_len, *(self.drafts + 1,) * (self.rows - 1))


def row_counts(max_rows: int) -> tuple[int, ...]:
    """Row counts to capture graphs for: dense where steps are short, since padding costs most there."""
    sizes = chain((1, 2, 3, 4, 6, 8), range(12, 32, 4), range(32, 128, 8), range(128, _MAX_ROWS + 1, 32))
    most = min(max_rows, _MAX_ROWS)
    return (*[size for size in sizes if size < most], most)


def launch_bound_tokens(config: ModelConfig) -> int:
    """The most tokens of a step that the host launches slower than the device computes it.

    Larger steps gain nothing from a graph, and would pay for its padding.
    """
    heads = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    weights = config.hidden_size * (heads + 3 * config.intermediate_size)
    return int(_LAUNCH_S_PER_LAYER * _FLOPS_PER_S / (2 * weights))


class StepShapes:
    """The shapes that have graphs, and the choice of the one that a step runs in.

    Attributes:
        drafting_rows: row counts of the shapes with drafts.
        draft_lens: drafts a row of the decode shapes, ascending; 0 among them.
    """

    def __init__(self, max_rows: int, max_drafts: int, prompt_tokens: int = 0, max_len: int = 0) -> None:
        """Shapes for up to ``max_rows`` rows (as far as `row_counts` go) with up to ``max_drafts`` drafts each.

        Steps with prompts have up to about ``prompt_tokens`` tokens; where that is 0, they have no graphs. Histories
        have up to ``max_len`` tokens; where they may be long, there are shapes for uneven ones.
        """
        self._limits = max_rows, max_drafts, prompt_tokens, max_len
        self._rows = row_counts(max_rows)
        few = [rows for rows in self._rows if rows <= MAX_DRAFTING_ROWS]
        self.drafting_rows = tuple(few or self._rows[:1])
        self.draft_lens = tuple(k for k in _DRAFT_LENS if k < max_drafts) + ((max_drafts,) if max_drafts else (0,))
        self._may_be_uneven = max_rows > 1 and max_len > LEAST_LONG_HISTORY
        fewer = [rows for rows in _PROMPT_ROWS if rows < self._rows[-1]]
        self._prompt_rows = (*fewer, self._rows[-1])
        self._prompt_tokens = [tokens for tokens in _PROMPT_TOKENS if tokens <= prompt_tokens]
        self._uneven_draft_lens = sorted({*self.draft_lens[: _MOST_UNEVEN_DRAFTS + 1], self.draft_lens[-1]})
        # Each draft length's ascending.
        self._uneven_decodes = [
            StepShape.decode(rows, k, uneven=True)
            for k in self._uneven_draft_lens
            for rows in (*[rows for rows in _UNEVEN_ROWS if rows < self._rows[-1]], self._rows[-1])
            if self._may_be_uneven and (not k or rows <= self.max_drafting_rows)
        ]
        self._uneven_prompts = {
            shape: replace(shape, uneven=True)
            for shape in self.prompts
            if self._may_be_uneven and shape.tokens <= _MOST_UNEVEN_TOKENS
        }

    @property
    def max_drafting_rows(self) -> int:
        """The most rows of a step with drafts that runs in a graph."""
        return self.drafting_rows[-1]

    @property
    def max_samples(self) -> int:
        """The most tokens that a step in a graph decides."""
        return max(shape.samples for shape in self.all)

    def within(self, max_samples: int) -> StepShapes:
        """The shapes of steps that decide at most ``max_samples`` tokens; at least those of one row."""
        shapes, (_, *others) = self, self._limits
        while shapes.max_samples > max_samples and (rows := shapes._rows[-1]) > 1:
            shapes = StepShapes(rows // 2, *others)
        return shapes

    @property
    def all(self) -> list[StepShape]:
        """Every shape."""
        return [*self.decodes, *self.uneven, *self.prompts]

    @property
    def decodes(self) -> list[StepShape]:
        """The shapes without prompts."""
        return [
            StepShape.decode(rows, k) for k in self.draft_lens for rows in (self.drafting_rows if k else self._rows)
        ]

    @property
    def uneven(self) -> list[StepShape]:
        """The shapes whose histories are uneven."""
        return [*self._uneven_decodes, *self._uneven_prompts.values()]

    @property
    def prompts(self) -> list[StepShape]:
        """The shapes with prompts: each draft length would gain little, since these steps take long in any case."""
        return [
            StepShape.with_prompts(rows, k, tokens)
            for k in sorted({0, self.draft_lens[-1]})
            for tokens in self._prompt_tokens
            for rows in self._rows_with_prompts(k, tokens)
        ]

    def _rows_with_prompts(self, drafts: int, tokens: int) -> list[int]:
        """Row counts of the shapes with prompts of so many drafts and tokens, ascending."""
        most = min(tokens, self.max_drafting_rows) if drafts else tokens
        counts = [rows for fewer, rows in pairwise((0, *self._prompt_rows)) if fewer < most]
        fewer = [rows for rows, more in pairwise(counts) if more * (drafts + 1) * _TOKENS_A_SAMPLE > tokens]
        return fewer + counts[-1:]

    def of_step(self, rows: tuple[Row, ...], are_uneven: AreUneven = never_uneven) -> StepShape | None:
        """The smallest shape that holds the rows; None if none does. ``are_uneven`` decides about decodes."""
        drafts, count = max([row.drafts for row in rows]), len(rows)
        contexts = [row.known + row.drafts for row in rows if row.count == 1 and row.samples]
        if len(contexts) == count:
            uneven = self._may_be_uneven and are_uneven(self._uneven_drafts(drafts) + 1, contexts, 0)
            return self._of_uneven_decodes(count, drafts) if uneven else self.of_decode(count, drafts)
        if any(row.known_predictions for row in rows):
            return None  # log-probabilities of a prompt want logits that no graph has room for
        tokens, longest = sum([row.count + row.drafts for row in rows]), self.draft_lens[-1] if drafts else 0
        shape = self._of_prompts(count, longest, tokens)
        if shape is None or not (self._may_be_uneven and are_uneven(longest + 1, contexts, shape.rows - len(contexts))):
            return shape
        return self._uneven_prompts.get(shape, shape)

    def of_drafts(self, rows: tuple[Row, ...], are_uneven: AreUneven = never_uneven) -> StepShape | None:
        """The smallest shape in which these rows draft; None if none holds them."""
        drafts = max([row.drafts for row in rows])
        if self._may_be_uneven and are_uneven(1, [row.known for row in rows], 0):
            return self._of_uneven_decodes(len(rows), drafts)
        return self.of_decode(len(rows), drafts)

    def _of_uneven_decodes(self, rows: int, drafts: int) -> StepShape | None:
        """The smallest uneven shape without prompts that holds so many rows and drafts; None if none does."""
        longest = self._uneven_drafts(drafts)
        held = (one for one in self._uneven_decodes if one.drafts == longest and one.rows >= rows)
        return next(held, None)

    def _uneven_drafts(self, drafts: int) -> int:
        """The drafts of the uneven shapes in which rows with so many run; the same number if there are too many."""
        return next((longest for longest in self._uneven_draft_lens if longest >= drafts), drafts)

    @property
    def drafting(self) -> list[StepShape]:
        """The shapes in which rows draft."""
        return [shape for shape in (*self.decodes, *self._uneven_decodes) if shape.drafts]

    @property
    def catch_ups(self) -> list[StepShape]:
        """The shapes in which a drafter catches up, too."""
        return [shape for shape in self.prompts if not shape.drafts]

    def of_chunks(self, counts: Seq[int]) -> StepShape | None:
        """The smallest shape in which a drafter catches up with chunks of so many tokens; None if none holds them."""
        return self._of_prompts(len(counts), 0, sum(counts))

    def _of_prompts(self, rows: int, drafts: int, tokens: int) -> StepShape | None:
        """The smallest shape with prompts that holds so many rows and tokens; None if none does."""
        larger = self._prompt_tokens[bisect_left(self._prompt_tokens, tokens) :]
        counts = self._rows_with_prompts(drafts, larger[0]) if larger else []
        more = counts[bisect_left(counts, rows) :]
        return StepShape.with_prompts(more[0], drafts, larger[0]) if more else None

    def of_decode(self, rows: int, drafts: int) -> StepShape | None:
        """The smallest shape that holds so many decoding rows with so many drafts each; None if none does."""
        counts = self.drafting_rows if drafts else self._rows
        if rows > counts[-1] or drafts > self.draft_lens[-1]:
            return None
        longest = self.draft_lens[bisect_left(self.draft_lens, drafts)]
        return StepShape.decode(counts[bisect_left(counts, rows)], longest)
