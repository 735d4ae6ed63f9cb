"""``DraftPolicy``: how many tokens each sequence drafts in the next step, within what its request allows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Protocol

from typing_extensions import override

from draftline.engine.request.sequence import Plan, Sequence
from draftline.spec.acceptance_rates import DRAWN, GREEDY
from draftline.spec.adaptive import STEPS_PER_CHOICE, DraftBudgets
from draftline.spec.drafter import DraftChunk
from draftline.spec.offers import DraftingRow, RowAcceptance

Verified = tuple[Sequence, int, int]
"""A sequence of a step that verified drafts: how many it had, and how many of the first were accepted."""

Lacking = Callable[[Sequence], int]
"""How many known tokens of a sequence a drafter has not read."""

_OUTPUT_TOKENS = 64.0
"""The length of an output, as long as none has ended."""

_OUTPUT_MEMORY = 0.95
"""Decay of the mean length of outputs."""

_CHOICE_SHARE = 0.01
"""The share of the steps' time that choices of their drafts may take. The host often has less time than a small model's
step."""

_MAX_STEPS = 64
"""The most steps for which a choice stands, however long it takes."""

_CHOICE_MEMORY = 0.8
"""Decay of the mean duration of choices."""

_LEARNED_ROWS = 16
"""About so many sequences of a step teach what drafts are right. All of many would take the host long, and tell hardly
more."""

_TAUGHT_EVERY = 3
"""Where there are more sequences than teach, only one step in so many does."""


class Running(Protocol):
    """The sequences that run, now or whenever it is asked."""

    def __len__(self) -> int:
        """Their number."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over them."""
        ...


def nothing_lacking(sequence: Sequence) -> int:
    """The tokens that a drafter without a cache lacks: none."""
    return 0


class DraftPolicy:
    """Plain decoding, and the base of every other policy: what a policy does not override, it does not care about.

    Attributes:
        exploring: whether this step's drafts only measure whether drafting would be worth it.
    """

    @property
    def exploring(self) -> bool:  # noqa: D102 - above
        return False

    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        """Prepare for a step of the ``running`` sequences and any that are admitted.

        A policy may look at these again until the next step.
        ``lacking`` tells how many known tokens the drafter must read before it can draft for a sequence.
        """

    def draft_len(self, sequence: Sequence) -> int:
        """The most drafts that a sequence may have in the step."""
        return 0

    def catch_up(self, plan: Plan) -> tuple[DraftChunk, ...]:
        """The known tokens that the drafter must see before it drafts for ``plan``."""
        return ()

    def observe(self, verified: Seq[Verified]) -> None:
        """Learn from the sequences that had drafts in a step."""

    def observe_step(self, plan: Plan, caught_up: int, seconds: float) -> None:
        """Learn from the duration of a step, before which the drafter caught up with so many tokens."""

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
    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        self._on = len(running) <= self._max_rows

    @override
    def draft_len(self, sequence: Sequence) -> int:
        if not self._on:
            return 0
        return _allowed(sequence, self._drafts)


class AdaptiveDrafting(DraftPolicy):
    """The drafts that give the most tokens/s by measured costs and acceptance. A request's own number wins."""

    def __init__(
        self,
        budgets: DraftBudgets,
        max_drafts: int,
        max_rows: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Draft nothing yet.

        Args:
            budgets: chooses.
            max_drafts: the most drafts of a sequence.
            max_rows: where more sequences run, none drafts.
            clock: gives seconds, to time choices by.
        """
        self._clock = clock
        self._choice_s = 0.0
        self._budgets = budgets
        self._max_drafts = max_drafts
        self._max_rows = max_rows
        self._acceptances: dict[Sequence, RowAcceptance] = {}
        self._running: Running = ()
        self._lacking: Lacking = nothing_lacking
        self._chosen: dict[Sequence, int] = {}
        self._output_tokens = _OUTPUT_TOKENS
        self._left = 0  # steps for which the last choice still stands
        self._turn = 0  # of the sequences to learn from
        self._on = True

    @property
    @override
    def exploring(self) -> bool:
        return self._budgets.exploring

    @override
    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        self._running, self._lacking = running, lacking
        self._on = len(running) <= self._max_rows
        if not self._left:
            self._choose()
        self._left -= 1

    @override
    def draft_len(self, sequence: Sequence) -> int:
        if not self._on:
            return 0
        if sequence.draft_tokens is not None:
            return _allowed(sequence, self._max_drafts)
        chosen = self._chosen.get(sequence)
        if chosen is None:  # it came after the last choice
            chosen = self._chosen[sequence] = self._budgets.join(self._row(sequence))
        return chosen

    @override
    def observe(self, verified: Seq[Verified]) -> None:
        every = 1 + len(verified) // _LEARNED_ROWS
        self._turn += 1
        if every > 1 and self._turn % _TAUGHT_EVERY:
            return
        some = verified[self._turn // _TAUGHT_EVERY % every :: every]
        rows = [(self._acceptance(one), drafted, right) for one, drafted, right in some]
        self._budgets.observe(rows)

    @override
    def observe_step(self, plan: Plan, caught_up: int, seconds: float) -> None:
        rows = plan.rows
        drafts = [row.drafts for row in rows if row.count == 1 and row.samples]
        if drafts and len(rows) <= self._max_rows:
            prompt_tokens = sum([row.count for row in rows]) - len(drafts)
            self._budgets.observe_step(
                len(drafts), sum(drafts), max(drafts), seconds, prompt_tokens=prompt_tokens, caught_up=caught_up
            )
        if not self._left:
            self._choose()  # now: where steps are launched ahead, the next one runs meanwhile

    @override
    def forget(self, sequence: Sequence) -> None:
        self._acceptances.pop(sequence, None)
        length = sequence.output_len
        if length:  # else it ended before its first token, and tells nothing
            self._output_tokens += (1 - _OUTPUT_MEMORY) * (length - self._output_tokens)

    def _choose(self) -> None:
        """Choose anew, for as many steps as keep choices cheap."""
        started = self._clock()
        running = self._running if self._on else ()
        sequences = [sequence for sequence in running if sequence.draft_tokens is None]
        rows = [self._row(sequence) for sequence in sequences]
        affordable = math.ceil(self._choice_s / (_CHOICE_SHARE * self._budgets.seconds(max(1, len(rows)))))
        steps = min(max(STEPS_PER_CHOICE, affordable), _MAX_STEPS)
        drafts = self._budgets.choose(rows, steps)
        self._chosen = dict(zip(sequences, drafts, strict=True))
        self._left = self._budgets.stands_for
        taken = self._clock() - started
        known = self._choice_s or taken
        self._choice_s = _CHOICE_MEMORY * known + (1 - _CHOICE_MEMORY) * taken

    def _row(self, sequence: Sequence) -> DraftingRow:
        return DraftingRow(
            self._acceptance(sequence),
            self._lacking(sequence),
            self._remaining(sequence),
            sequence.prompt_len,
            self._output_tokens,
        )

    def _acceptance(self, sequence: Sequence) -> RowAcceptance:
        known = self._acceptances.get(sequence)
        if known is None:
            kind = DRAWN if sequence.sampling.temperature else GREEDY
            known = self._acceptances[sequence] = RowAcceptance(kind=kind)
        return known

    def _remaining(self, sequence: Sequence) -> float:
        """The tokens that an output probably still gets: those of a mean output, or a few if it is longer already."""
        left = self._output_tokens - sequence.output_len
        return min(sequence.max_len - len(sequence.tokens), max(left, self._output_tokens / 4))


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
    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        self._policy.begin_step(running, lacking)

    @override
    def draft_len(self, sequence: Sequence) -> int:
        return self._policy.draft_len(sequence)

    @override
    def catch_up(self, plan: Plan) -> tuple[DraftChunk, ...]:
        return self._policy.catch_up(plan)

    @override
    def observe(self, verified: Seq[Verified]) -> None:
        self._policy.observe(verified)

    @override
    def observe_step(self, plan: Plan, caught_up: int, seconds: float) -> None:
        self._policy.observe_step(plan, caught_up, seconds)

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
    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        self._on = len(running) <= self._max_rows
        self._policy.begin_step(running, lacking)

    @override
    def draft_len(self, sequence: Sequence) -> int:
        wanted = self._policy.draft_len(sequence)
        constraint = sequence.constraint
        if constraint is None or not self._on:
            return wanted
        max_drafts = _allowed(sequence, self._max_drafts)
        return max(wanted, len(constraint.forced(max_drafts))) if max_drafts else wanted


def _allowed(sequence: Sequence, drafts: int) -> int:
    """``drafts``, or fewer where the sequence's request asks for fewer."""
    asked = sequence.draft_tokens
    return drafts if asked is None else min(asked, drafts)
