"""``CachedDrafting``: drafting with a drafter that has a cache of its own, which must be kept up with the target's.

The draft model's keys and values are in the blocks of the target's cache, but they are not written with the target's:
whoever does not draft does not pay for it. So a sequence's draft cache may lack tokens: its prompt, what was decided
while drafting did not pay, what a prefix hit brought along without it. Before such a sequence drafts, the draft model
catches up. This is the scheduler's own rule, computed catches up with known, a second time.

What it takes to know what is there:

- Blocks that the draft model has filled are remembered with their generation, the number of times that they have been
  allocated: what fills a block is void once the block has another owner. A prefix hit finds out so how much of it the
  draft model has seen.
- A sequence whose last step had drafts lacks at most its two newest tokens, however many were accepted, and the next
  round begins with these. It is *current*. This needs no count, so it holds while steps are under way, too.
- For any other sequence there is a lower bound of what its draft cache has. Catching up begins there. It ends before the
  two newest tokens that the sequence can have; where it has fewer, what is written behind them is written again.

Nothing here can change an output: a wrong draft cache makes wrong drafts, which the target rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from draftline.engine.drafting.policy import Drafting
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.spec.drafter import DraftChunk

_EXPLORING_TOKENS = 512
"""Tokens that a step catches up with at most while drafts are only to find out whether drafting pays."""


@dataclass(slots=True)
class _Coverage:
    """What the draft cache has of a sequence.

    Attributes:
        residence: which of the sequence's stays in a slot this is about; it counts preemptions.
        tokens: leading tokens whose keys and values are there, at least.
        blocks: the sequence's blocks, as far as they were looked at.
    """

    residence: int
    tokens: int
    blocks: list[int]


class CachedDrafting:
    """Another policy's draft lengths, as far as the draft cache allows, and what it must catch up with for them."""

    def __init__(
        self,
        policy: Drafting,
        generation: Callable[[int], int],
        *,
        block_size: int,
        step_tokens: int,
        longest: int,
    ) -> None:
        """An empty draft cache.

        Args:
            policy: wants drafts where they pay.
            generation: how often a cache block has been allocated.
            block_size: tokens a cache block.
            step_tokens: the most tokens that a step catches up with, where rows' drafts can wait for later steps.
            longest: the draft model's positions.
        """
        self._policy = policy
        self._generation = generation
        self._block_size = block_size
        self._step_tokens = step_tokens
        self._longest = longest
        self._left = 0
        self._behind: dict[Sequence, int] = {}
        self._covered: dict[Sequence, _Coverage] = {}
        self._current: set[Sequence] = set()
        self._filled: dict[int, int] = {}

    @property
    def exploring(self) -> bool:
        """See `Drafting.exploring`."""
        return self._policy.exploring

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """See `Drafting.begin_step`."""
        sequences = list(running)
        self._policy.begin_step(sequences)
        self._left = min(self._step_tokens, _EXPLORING_TOKENS) if self._policy.exploring else self._step_tokens
        self._behind.clear()

    def wanted(self, sequence: Sequence) -> int:
        """See `Drafting.wanted`: none where the draft cache lacks more than this step can make up for."""
        wanted = min(self._policy.wanted(sequence), self._longest - sequence.known)
        if wanted <= 0 or len(sequence.tokens) < 2:
            return 0
        lacking = 0 if sequence in self._current else sequence.known - self._coverage(sequence).tokens
        if lacking > self._left:
            if self._left:
                self._behind[sequence] = self._left
                self._left = 0
            return 0
        self._left -= lacking
        return wanted

    def planned(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """See `Drafting.planned`."""
        if plan.new_blocks:
            self._blocks_changed({slot for slot, _, _ in plan.new_blocks}, plan.rows)
        chunks: list[DraftChunk] = []
        current: set[Sequence] = set()
        for row in plan.rows:
            sequence = row.sequence
            if row.drafts:
                if sequence not in self._current:
                    chunks += self._catch_up(row, row.known - 2)
                self._extend(sequence, len(sequence.tokens) - 1)
                current.add(sequence)
            elif sequence in self._behind:
                chunks += self._catch_up(row, self._coverage(sequence).tokens + self._behind[sequence])
        self._current = current
        return tuple(chunks)

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See `Drafting.observe`."""
        self._policy.observe(sequence, drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        """See `Drafting.forget`."""
        self._policy.forget(sequence)
        self._covered.pop(sequence, None)
        self._current.discard(sequence)

    def _coverage(self, sequence: Sequence) -> _Coverage:
        """What the draft cache has of a sequence that holds blocks."""
        coverage = self._covered.get(sequence)
        if coverage is None or coverage.residence != sequence.preemptions:
            filled = sum(1 for _ in takewhile(self._is_filled, sequence.blocks))
            coverage = _Coverage(sequence.preemptions, filled * self._block_size, list(sequence.blocks))
            self._covered[sequence] = coverage
            self._current.discard(sequence)
        return coverage

    def _is_filled(self, block: int) -> bool:
        """Whether the draft model has filled the block for its present owners."""
        return self._filled.get(block) == self._generation(block)

    def _blocks_changed(self, slots: set[int], rows: Iterable[Row]) -> None:
        """The rows in ``slots`` have other blocks: more, or the prefix tree's in the place of equal ones of their own."""
        for row in rows:
            sequence = row.sequence
            if row.slot not in slots or sequence not in self._covered:
                continue
            coverage = self._coverage(sequence)
            for index, (before, now) in enumerate(zip(coverage.blocks, sequence.blocks, strict=False)):
                if before != now and not self._is_filled(now):
                    coverage.tokens = min(coverage.tokens, index * self._block_size)
                    self._current.discard(sequence)
                    break
            coverage.blocks = list(sequence.blocks)

    def _catch_up(self, row: Row, end: int) -> list[DraftChunk]:
        start = self._coverage(row.sequence).tokens
        if end <= start:
            return []
        self._extend(row.sequence, min(end, len(row.sequence.tokens)))
        return [DraftChunk(row.slot, start, end - start)]

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        """The draft cache has the first ``tokens`` tokens of a sequence, or will have once what is planned has run."""
        coverage = self._coverage(sequence)
        size = self._block_size
        for block in sequence.blocks[coverage.tokens // size : tokens // size]:
            self._filled[block] = self._generation(block)
        coverage.tokens = max(coverage.tokens, tokens)
