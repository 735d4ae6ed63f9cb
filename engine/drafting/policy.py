"""``DraftPolicy``: how many tokens each sequence drafts in the next step, within what its request allows."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from draftline.engine.request.sequence import Plan, Sequence
from draftline.spec.adaptive import AcceptanceEstimate, DraftLengths
from draftline.spec.drafter import DraftChunk

_STEPS_PER_CHOICE = 4
"""Steps for which a choice of draft lengths stands: acceptance changes slowly, and a choice costs host time."""


class DraftPolicy:
    """Plain decoding, and the base of every other policy: what a policy does not override, it does not care about.

    Attributes:
        exploring: whether this step's drafts only measure whether drafting would be worth it.
    """

    @property
    def exploring(self) -> bool:  # noqa: D102 - above
        return False

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """Prepare for a step of the ``running`` sequences and any that are admitted."""

    def draft_len(self, sequence: Sequence) -> int:
        """The most drafts that a sequence may have in the step."""
        return 0

    def catch_up(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """The known tokens that the drafter must see before it drafts for ``plan``."""
        return ()

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Learn from a step: the first ``accepted`` of a sequence's ``drafted`` tokens were accepted."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""


class FixedDrafting(DraftPolicy):
    """The same number of drafts for every sequence, as long as not too many run."""

    def __init__(self, drafts: int, max_rows: int) -> None:
        """``drafts`` for each of up to ``max_rows`` sequences; none where more run."""
        self._drafts = drafts
        self._max_rows = max_rows
        self._on = True

    @override
    def begin_step(self, running: Iterable[Sequence]) -> None:
        self._on = sum(1 for _ in running) <= self._max_rows

    @override
    def draft_len(self, sequence: Sequence) -> int:
        if not self._on:
            return 0
        return _allowed(sequence, self._drafts)


class AdaptiveDrafting(DraftPolicy):
    """The number of drafts that gives the most tokens/s by measured costs and acceptance. A request's own number wins."""

    def __init__(self, lengths: DraftLengths, max_drafts: int, max_rows: int) -> None:
        """``lengths`` chooses, up to ``max_drafts`` a sequence; none where more than ``max_rows`` sequences run."""
        self._lengths = lengths
        self._max_drafts = max_drafts
        self._max_rows = max_rows
        self._rates: dict[Sequence, AcceptanceEstimate] = {}
        self._chosen = 0
        self._steps = 0
        self._on = True

    @property
    @override
    def exploring(self) -> bool:
        return self._lengths.exploring

    @override
    def begin_step(self, running: Iterable[Sequence]) -> None:
        self._steps += 1
        if self._steps % _STEPS_PER_CHOICE:
            return
        sequences = list(running)
        self._on = len(sequences) <= self._max_rows
        free = [self._rate(sequence) for sequence in sequences if sequence.draft_tokens is None]
        self._chosen = self._lengths.choose(free) if self._on else 0

    @override
    def draft_len(self, sequence: Sequence) -> int:
        if not self._on:
            return 0
        if sequence.draft_tokens is not None:
            return _allowed(sequence, self._max_drafts)
        return self._lengths.drafts_for(self._rate(sequence), self._chosen) if self._chosen else 0

    @override
    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if not sequence.finished:
            self._lengths.observe(self._rate(sequence), drafted, accepted)

    @override
    def forget(self, sequence: Sequence) -> None:
        self._rates.pop(sequence, None)

    def _rate(self, sequence: Sequence) -> AcceptanceEstimate:
        rate = self._rates.get(sequence)
        if rate is None:
            rate = self._rates[sequence] = self._lengths.new_estimate()
        return rate


class WrappedPolicy(DraftPolicy):
    """Another policy's choices; the base of policies that restrict or extend them."""

    def __init__(self, policy: DraftPolicy) -> None:
        """``policy`` answers what this one does not override."""
        self._policy = policy

    @property
    @override
    def exploring(self) -> bool:
        return self._policy.exploring

    @override
    def begin_step(self, running: Iterable[Sequence]) -> None:
        self._policy.begin_step(running)

    @override
    def draft_len(self, sequence: Sequence) -> int:
        return self._policy.draft_len(sequence)

    @override
    def catch_up(self, plan: Plan) -> tuple[DraftChunk, ...]:
        return self._policy.catch_up(plan)

    @override
    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self._policy.observe(sequence, drafted, accepted)

    @override
    def forget(self, sequence: Sequence) -> None:
        self._policy.forget(sequence)


class ForcedTextDrafting(WrappedPolicy):
    """Another policy's draft lengths, but at least as many as a constraint forces.

    The host may be a step behind: then it counts the tokens that were forced before the unread ones. One draft too many
    costs little, and a missing one follows in the next step.
    """

    def __init__(self, policy: DraftPolicy, max_drafts: int, max_rows: int) -> None:
        """At most ``max_drafts`` a sequence; where more than ``max_rows`` run, only what ``policy`` wants."""
        super().__init__(policy)
        self._max_drafts = max_drafts
        self._max_rows = max_rows
        self._on = True

    @override
    def begin_step(self, running: Iterable[Sequence]) -> None:
        sequences = list(running)
        self._on = len(sequences) <= self._max_rows
        self._policy.begin_step(sequences)

    @override
    def draft_len(self, sequence: Sequence) -> int:
        wanted = self._policy.draft_len(sequence)
        constraint = sequence.constraint
        max_drafts = _allowed(sequence, self._max_drafts)
        if constraint is None or not self._on or not max_drafts:
            return wanted
        return max(wanted, len(constraint.forced(max_drafts)))


def _allowed(sequence: Sequence, drafts: int) -> int:
    """``drafts``, or fewer where the sequence's request asks for fewer."""
    asked = sequence.draft_tokens
    return drafts if asked is None else min(asked, drafts)
