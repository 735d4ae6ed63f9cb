"""Who drafts how far in the next step: the server's policy, within what each request allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from draftline.engine.request.sequence import Plan, Sequence
from draftline.spec.adaptive import Acceptance, DraftLengths
from draftline.spec.drafter import DraftChunk

_STEPS_A_CHOICE = 4
"""Steps for which a choice stands: acceptance changes slowly, and choosing takes the host a while."""


class Drafting(Protocol):
    """Decides draft lengths, and learns from what became of the drafts."""

    @property
    def exploring(self) -> bool:
        """Whether the step's drafts are only to find out whether drafting would pay."""
        ...

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """A step is about to be planned for these sequences and maybe newcomers."""
        ...

    def wanted(self, sequence: Sequence) -> int:
        """How many drafts a sequence should have in the step."""
        ...

    def planned(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """The step is planned as ``plan`` says: what the drafter must catch up with before it."""
        ...

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Of a sequence's ``drafted`` tokens the first ``accepted`` were right."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class NoDrafting:
    """Plain decoding."""

    exploring = False

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """Nothing to decide."""

    def wanted(self, sequence: Sequence) -> int:
        """None."""
        return 0

    def planned(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """Nothing is drafted."""
        return ()

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Nothing is ever drafted."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing is remembered."""


class FixedDrafting:
    """Always as many drafts, as long as not too many sequences run."""

    exploring = False

    def __init__(self, drafts: int, most_rows: int) -> None:
        """``drafts`` for each of up to ``most_rows`` sequences; none where more run."""
        self._drafts = drafts
        self._most_rows = most_rows
        self._on = True

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """See `Drafting.begin_step`."""
        self._on = sum(1 for _ in running) <= self._most_rows

    def wanted(self, sequence: Sequence) -> int:
        """See `Drafting.wanted`."""
        cap = sequence.draft_tokens
        return (self._drafts if cap is None else min(cap, self._drafts)) if self._on else 0

    def planned(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """See `CachedDrafting` for drafters that have something to catch up with."""
        return ()

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing is remembered."""


class AdaptiveDrafting:
    """As many drafts as pay; a request that says how many gets these."""

    def __init__(self, lengths: DraftLengths, most_drafts: int, most_rows: int) -> None:
        """``lengths`` chooses; no sequence gets more than ``most_drafts``, and none where more than ``most_rows`` run."""
        self._lengths = lengths
        self._most_drafts = most_drafts
        self._most_rows = most_rows
        self._rates: dict[Sequence, Acceptance] = {}
        self._chosen = 0
        self._steps = 0
        self._on = True

    @property
    def exploring(self) -> bool:
        """See `Drafting.exploring`."""
        return self._lengths.exploring

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """See `Drafting.begin_step`."""
        self._steps += 1
        if self._steps % _STEPS_A_CHOICE:
            return
        sequences = list(running)
        self._on = len(sequences) <= self._most_rows
        free = [self._rate(sequence) for sequence in sequences if sequence.draft_tokens is None]
        self._chosen = self._lengths.choose(free) if self._on else 0

    def wanted(self, sequence: Sequence) -> int:
        """See `Drafting.wanted`."""
        if not self._on:
            return 0
        if sequence.draft_tokens is not None:
            return min(sequence.draft_tokens, self._most_drafts)
        return self._lengths.wants(self._rate(sequence), self._chosen) if self._chosen else 0

    def planned(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """See `CachedDrafting` for drafters that have something to catch up with."""
        return ()

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See `Drafting.observe`."""
        if not sequence.finished:
            self._lengths.observe(self._rate(sequence), drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        """See `Drafting.forget`."""
        self._rates.pop(sequence, None)

    def _rate(self, sequence: Sequence) -> Acceptance:
        rate = self._rates.get(sequence)
        if rate is None:
            rate = self._rates[sequence] = self._lengths.newcomer()
        return rate


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
