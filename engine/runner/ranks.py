"""``OtherRanks``: what a runner tells the other ranks of a tensor-parallel engine. Without any, nothing.

The other ranks compute each step's forward pass on their part of the model, and those of a draft model that they share.
Rank 0 alone chooses drafts, masks and samples, and spreads the resulting tokens. So sampling parameters and constraints
exist once, and ranks cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from draftline.engine.request.sequence import Plan, Row
from draftline.engine.runner.transfer import upload
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk


class OtherRanks:
    """The other ranks, as rank 0 sees them. This one: there are none.

    Attributes:
        exchange: whether ranks exchange anything between the parts of a step.
    """

    exchange = False

    def begin(self, plan: Plan, catch_up: Sequence[DraftChunk] = ()) -> None:
        """Let them begin the step of a plan, and what the drafter catches up with.

        From here on it must be carried out to its end.
        """

    def spread_drafts(self, rows: tuple[Row, ...], table: SlotTable) -> None:
        """Give them the drafts of the rows, which the table has now."""

    def spread_tokens(self, tokens: Tensor) -> None:
        """Give them the step's samples, [S] int64."""

    def check(self) -> None:
        """Check that they can go on after a step has failed here.

        Raises:
            DeviceLostError: they cannot: they wait for the rest of the step.
        """

    def check_alive(self) -> None:
        """Raise `DeviceLostError` if one of them is lost."""

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call ``call`` once one of them is lost, from another thread; at once if one is."""

    def close(self) -> None:
        """End them. Idempotent."""


ALONE = OtherRanks()


def draft_positions(rows: tuple[Row, ...], table: SlotTable) -> tuple[Tensor, Tensor]:
    """The slots and positions of the rows' drafts, K for each row, the most of any: [R, 1], [R, K]."""
    device = table.tokens.device
    slots = upload(np.array([row.slot for row in rows], np.int64), device).unsqueeze(1)
    ahead = torch.arange(max([row.drafts for row in rows]), device=device)
    return slots, table.lengths[slots].long() + ahead
