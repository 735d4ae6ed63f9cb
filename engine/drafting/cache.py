"""``CachedDrafting``: drafting with a drafter that has a KV cache of its own, which has to follow the target's.

The drafter's keys and values use the block ids of the target's cache, but the target's forward pass does not write
them: sequences that do not draft cost the drafter nothing. So a sequence's draft cache may lack tokens: its prompt,
tokens decided while drafting was off, a prefix hit. Before such a sequence drafts, the drafter catches up. This is the
scheduler's rule again: computed tokens catch up with known ones.

Three facts say which tokens the draft cache has:

- Blocks that the drafter has filled are remembered with their generation, the number of times that they have been
  allocated. A block's contents are void once it has another owner. So a prefix hit tells how much of it the drafter has
  seen.
- A sequence whose last step had drafts lacks at most a few of its newest tokens, however many were accepted, and the
  next round begins with these. It is *current*. This needs no count, so it holds while steps are in flight, too.
- For any other sequence there is a lower bound of its draft cache. Catching up begins there and ends before the newest
  tokens that the sequence can have. Where the sequence has fewer, positions behind them are written again later.

How many tokens a round begins with, and which tokens the drafter can read at all, is the drafter's own: a draft model
reads every known token, a head only those whose hidden states the target has computed.

A wrong draft cache cannot change an output: it makes wrong drafts, which the target rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from typing_extensions import override

from draftline.engine.drafting.policy import DraftPolicy, Lacking, Running, WrappedPolicy, nothing_lacking
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.spec.drafter import DraftChunk


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """The conditions under which a drafter's cache is current.

    Attributes:
        max_positions: the most tokens of a sequence.
        round_begins_with: the newest tokens that the first pass of each round reads.
        readable: how many of a sequence's tokens the drafter can read before the step.
    """

    max_positions: int
    round_begins_with: int
    readable: Callable[[Sequence], int]


def known_tokens(sequence: Sequence) -> int:
    """The tokens that a draft model can read: all that are known, since it needs nothing else."""
    return sequence.known


def tokens_with_states(sequence: Sequence) -> int:
    """The tokens that a head can read: the computed ones, and one more. It reads the hidden state before each."""
    return sequence.computed + 1


_EXPLORING_TOKENS = 512
"""The most tokens that a step catches up with while drafts only measure whether drafting is worth it."""


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


class CachedDrafting(WrappedPolicy):
    """Another policy's draft lengths, as far as the draft cache allows, and the tokens to catch up with first."""

    def __init__(
        self,
        policy: DraftPolicy,
        generation: Callable[[int], int],
        *,
        block_size: int,
        step_tokens: int,
        needs: CacheNeeds,
    ) -> None:
        """An empty draft cache.

        Args:
            policy: chooses draft lengths.
            generation: how often a cache block has been allocated.
            block_size: tokens a cache block.
            step_tokens: the most tokens that one step catches up with; further rows draft in later steps.
            needs: the drafter's.
        """
        super().__init__(policy)
        self._generation = generation
        self._block_size = block_size
        self._step_tokens = step_tokens
        self._needs = needs
        self._left = 0
        self._behind: dict[Sequence, int] = {}
        self._covered: dict[Sequence, _Coverage] = {}
        self._current: set[Sequence] = set()
        self._filled: dict[int, int] = {}

    @override
    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        self._policy.begin_step(running, self._lacking)
        self._left = min(self._step_tokens, _EXPLORING_TOKENS) if self._policy.exploring else self._step_tokens
        self._behind.clear()

    @override
    def draft_len(self, sequence: Sequence) -> int:
        needs, known = self._needs, sequence.known
        wanted = min(self._policy.draft_len(sequence), needs.max_positions - known)
        if sequence in self._current:  # it lacks nothing, and the drafter can read all of it
            return max(wanted, 0)
        if wanted <= 0 or len(sequence.tokens) < needs.round_begins_with or needs.readable(sequence) < known:
            return 0
        # Not in this step if the draft cache lacks more tokens than the step may catch up with: as many as fit, and go
        # on.
        lacking = self._lacking(sequence)
        if lacking > self._left:
            if self._left:
                self._behind[sequence] = self._left
                self._left = 0
            return 0
        self._left -= lacking
        return wanted

    @override
    def catch_up(self, plan: Plan) -> tuple[DraftChunk, ...]:
        if plan.new_blocks:
            self._blocks_changed({slot for slot, _, _ in plan.new_blocks}, plan.rows)
        chunks: list[DraftChunk] = []
        current: set[Sequence] = set()
        for row in plan.rows:
            sequence = row.sequence
            if row.drafts:
                if sequence not in self._current:
                    chunks += self._chunks(row, row.known - self._needs.round_begins_with)
                self._extend(sequence, len(sequence.tokens) - 1)
                current.add(sequence)
            elif sequence in self._behind:
                chunks += self._chunks(row, self._coverage(sequence).tokens + self._behind[sequence])
        self._current = current
        return tuple(chunks)

    @override
    def forget(self, sequence: Sequence) -> None:
        self._policy.forget(sequence)
        self._covered.pop(sequence, None)
        self._current.discard(sequence)

    def _lacking(self, sequence: Sequence) -> int:
        """How many tokens the draft cache lacks before a round of a sequence."""
        if sequence in self._current:
            return 0
        return max(0, sequence.known - self._needs.round_begins_with - self._coverage(sequence).tokens)

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
        """Whether the drafter has filled the block for its present owners."""
        return self._filled.get(block) == self._generation(block)

    def _blocks_changed(self, slots: set[int], rows: Iterable[Row]) -> None:
        """The rows in ``slots`` have other blocks: more, or the prefix tree's in place of their own equal ones."""
        for row in rows:
            sequence = row.sequence
            if row.slot not in slots or sequence not in self._covered:
                continue
            coverage = self._coverage(sequence)
            known = len(coverage.blocks)
            if sequence.blocks[:known] == coverage.blocks:  # most have only got more
                coverage.blocks += sequence.blocks[known:]
                continue
            for index, (before, now) in enumerate(zip(coverage.blocks, sequence.blocks, strict=False)):
                if before != now and not self._is_filled(now):
                    coverage.tokens = min(coverage.tokens, index * self._block_size)
                    self._current.discard(sequence)
                    break
            coverage.blocks = list(sequence.blocks)

    def _chunks(self, row: Row, end: int) -> list[DraftChunk]:
        start = self._coverage(row.sequence).tokens
        if end <= start:
            return []
        # Only as far as the drafter has read tokens that the host knows, and the token behind each.
        self._extend(row.sequence, min(end, len(row.sequence.tokens) - 1))
        return [DraftChunk(row.slot, start, end - start)]

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        """The draft cache has the first ``tokens`` tokens of a sequence, or will have once what is planned has run."""
        coverage = self._coverage(sequence)
        size = self._block_size
        begin, end = coverage.tokens // size, tokens // size
        if begin < end:  # most steps fill no block
            for block in sequence.blocks[begin:end]:
                self._filled[block] = self._generation(block)
        coverage.tokens = max(coverage.tokens, tokens)
