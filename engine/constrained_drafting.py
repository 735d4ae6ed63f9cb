"""``ConstrainedDrafting``: drafting where constraints force the text, whatever else pays."""

from __future__ import annotations

from collections.abc import Iterable

from draftline.engine.drafting import Drafting
from draftline.engine.sequence import Plan, Sequence
from draftline.spec.drafter import DraftChunk


class ConstrainedDrafting:
    """Another policy's draft lengths, but at least as many as are forced.

    Of a sequence that has unread tokens the host knows no more than what was forced before them. That is good enough: a
    draft too many costs little, and one too few is made up for in the next step.
    """

    def __init__(self, policy: Drafting, most_drafts: int, most_rows: int) -> None:
        """``most_drafts`` for any sequence; none beyond what ``policy`` wants where more than ``most_rows`` run."""
        self._policy = policy
        self._most_drafts = most_drafts
        self._most_rows = most_rows
        self._on = True

    @property
    def exploring(self) -> bool:
        """See `Drafting.exploring`."""
        return self._policy.exploring

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """See `Drafting.begin_step`."""
        sequences = list(running)
        self._on = len(sequences) <= self._most_rows
        self._policy.begin_step(sequences)

    def wanted(self, sequence: Sequence) -> int:
        """See `Drafting.wanted`."""
        wanted = self._policy.wanted(sequence)
        constraint = sequence.constraint
        if constraint is None:
            return wanted
        asked = sequence.draft_tokens
        most = self._most_drafts if asked is None else min(asked, self._most_drafts)
        return max(wanted, len(constraint.progress.forced(most))) if self._on and most else wanted

    def planned(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """See `Drafting.planned`."""
        return self._policy.planned(plan)

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See `Drafting.observe`."""
        self._policy.observe(sequence, drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        """See `Drafting.forget`."""
        self._policy.forget(sequence)
