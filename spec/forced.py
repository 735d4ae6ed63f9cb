"""The drafters that know what a constraint forces: one that drafts nothing else, and one that leaves the rest to another."""

from __future__ import annotations

from collections.abc import Sequence

from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, Drafter, DraftRows


class OnlyForced:
    """Drafts the tokens that a slot's state forces."""

    name = "forced"

    def __init__(self, max_draft_tokens: int, ops: Ops, constraints: ConstraintTable) -> None:
        """``max_draft_tokens`` is the most that is ever drafted at once."""
        self.max_draft_tokens = max_draft_tokens
        self._ops = ops
        self._constraints = constraints

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """See `Drafter.propose`."""
        self._ops.draft_forced(rows.slots, rows.most, table, self._constraints)

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """Nothing to catch up with: it keeps no cache."""


class Forced:
    """Puts the tokens that a slot's state forces in the place of another drafter's first drafts."""

    def __init__(self, other: Drafter, ops: Ops, constraints: ConstraintTable) -> None:
        """``other`` must not remember what it has drafted."""
        self.name = other.name
        self.max_draft_tokens = other.max_draft_tokens
        self._other = other
        self._ops = ops
        self._constraints = constraints

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """See `Drafter.propose`."""
        self._other.propose(rows, table)
        self._ops.draft_forced(rows.slots, rows.most, table, self._constraints)

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """See `Drafter.catch_up`."""
        self._other.catch_up(chunks, table)
