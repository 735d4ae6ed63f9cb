"""Drafters of the tokens that a constraint forces: alone, or in front of another drafter's tokens."""

from __future__ import annotations

from typing_extensions import override

from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows, WrappedDrafter


class ForcedDrafter(Drafter):
    """Drafts the tokens that the state of a slot's automaton forces."""

    name = "forced"

    def __init__(self, max_draft_tokens: int, ops: Ops, constraints: ConstraintTable) -> None:
        """``max_draft_tokens`` is the most tokens that it proposes at once."""
        self.max_draft_tokens = max_draft_tokens
        self._ops = ops
        self._constraints = constraints

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        self._ops.draft_forced(rows.slots, rows.max_drafts, table, self._constraints)


class ForcedFirst(WrappedDrafter):
    """Replaces the first drafts of another drafter by the tokens that the state of a slot's automaton forces."""

    def __init__(self, other: Drafter, ops: Ops, constraints: ConstraintTable) -> None:
        """``other`` drafts where nothing is forced."""
        super().__init__(other)
        self._ops = ops
        self._constraints = constraints

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        super().propose(rows, table)
        self._ops.draft_forced(rows.slots, rows.max_drafts, table, self._constraints)
